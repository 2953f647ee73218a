"""An HTTP/1.1 server on Trio that knows nothing of MCP."""
