"""The client side: one channel for every kind of MCP over HTTP."""
