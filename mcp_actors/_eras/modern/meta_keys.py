"""The ``_meta`` keys of requests, results and notifications without sessions (MCP 2026-07-28)."""

from __future__ import annotations

__all__ = [
    "CAPABILITIES",
    "CLIENT_INFO",
    "ENVELOPE",
    "LOG_LEVEL",
    "SERVER_INFO",
    "SUBSCRIPTION_ID",
    "VERSION",
]

# In requests.
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

# The engine's own members of a request, never what a caller adds to one: by them a server tells who sends it in which
# revision, and by the token the engine tells whose reports of progress arrive.
ENVELOPE = frozenset({VERSION, CAPABILITIES, CLIENT_INFO, "progressToken"})

# In results.
SERVER_INFO = "io.modelcontextprotocol/serverInfo"

# In all messages of a subscription.
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
