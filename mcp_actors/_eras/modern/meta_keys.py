"""The ``_meta`` keys by which requests, results and notifications of the modern era explain themselves."""

from __future__ import annotations

__all__ = ["CAPABILITIES", "CLIENT_INFO", "LOG_LEVEL", "SERVER_INFO", "SUBSCRIPTION_ID", "VERSION"]

# In requests.
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

# In results.
SERVER_INFO = "io.modelcontextprotocol/serverInfo"

# In everything that belongs to a subscription.
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
