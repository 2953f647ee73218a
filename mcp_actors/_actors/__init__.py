"""The actors: connections, sessions and calls in both directions. They know JSON-RPC and time, and nothing of tools."""
