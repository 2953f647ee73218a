"""MCP over HTTP: Streamable HTTP in both eras, and the older HTTP+SSE, server and client."""
