"""Bytes to envelopes and back. No Trio, no meaning of MCP: only JSON-RPC 2.0 as every revision restricts it."""
