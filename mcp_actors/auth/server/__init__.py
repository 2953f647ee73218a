"""The resource server's side of authorization: access tokens, proofs and the answers to bad ones."""
