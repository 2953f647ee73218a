"""The client's side of authorization: a state machine that yields requests and takes responses."""
