"""``mcp-actors demo``: a tour of each capability, then a load; `servers` are what both talk to."""
