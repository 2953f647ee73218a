"""mcp-actors: a Model Context Protocol engine on Trio, client and server, in which everything alive is an actor."""

# General layout:
#
# server.py and client.py are the two faces; context.py is what a server's functions are handed. Everything named here
# or in a module without an underscore in its path is public. The floors below, from the bottom: _wire (bytes and
# envelopes), types (the neutral vocabulary), _eras (what envelopes mean in which revision), abc and framing (the
# contracts of transports), _actors (link, session, call), _capabilities (tools, resources, prompts and the rest).
# A floor imports only what is below it; tests/test_architecture.py sees to that.

from msgspec import Meta

from mcp_actors import abc, errors, types
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import Progress
from mcp_actors.client import Client
from mcp_actors.context import Context
from mcp_actors.discovery import register_transport
from mcp_actors.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    HeaderMismatch,
    InputRequired,
    LocalProtocolError,
    MalformedMessage,
    McpError,
    MethodNotFound,
    MissingCapability,
    Overloaded,
    ProtocolError,
    RemoteProtocolError,
    ResourceNotFound,
    RpcError,
    SessionExpired,
    SubscriptionLost,
    ToolError,
    TransportNotFound,
    UnsupportedVersion,
)
from mcp_actors.server import Server

__all__ = [
    "CallTimeout",
    "Client",
    "ConnectFailed",
    "ConnectionLost",
    "Context",
    "HeaderMismatch",
    "InputRequired",
    "Limits",
    "LocalProtocolError",
    "MalformedMessage",
    "McpError",
    "Meta",
    "MethodNotFound",
    "MissingCapability",
    "Overloaded",
    "Progress",
    "ProtocolError",
    "RemoteProtocolError",
    "ResourceNotFound",
    "RpcError",
    "Server",
    "SessionExpired",
    "SubscriptionLost",
    "ToolError",
    "TransportNotFound",
    "UnsupportedVersion",
    "abc",
    "errors",
    "register_transport",
    "types",
]
