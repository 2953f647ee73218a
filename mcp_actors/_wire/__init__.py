"""JSON-RPC 2.0 messages from bytes and back, as MCP restricts them. Nothing here uses Trio or knows MCP's methods."""
