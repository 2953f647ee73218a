"""The actors: link, session, call and pending call. They know JSON-RPC and time, and nothing of tools or eras."""
