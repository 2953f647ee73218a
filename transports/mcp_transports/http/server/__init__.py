"""The server side: an HTTP/1.1 listener of our own, and the MCP endpoint on it."""
