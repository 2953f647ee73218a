"""mcp-actors: a Model Context Protocol engine, client and server, for Trio; see also ``asyncio`` and ``sync``.

Every connection, session and call is an actor: a task with an owner. ``supervision.py`` lists them all.
"""

# General layout:
#
# server.py and client.py are the entry points of programs, and context.py is what the functions of a server receive.
# Everything named here, or in a module without an underscore in its path, is public. The packages below them, from the
# bottom: _wire (JSON-RPC messages as bytes), _uri (URI templates), types (the objects of the protocol), _eras (the
# differences between revisions), abc and framing (the contracts of transports), _schema (JSON Schema from type hints),
# _actors (connections, sessions, calls), then _client and _server, which do not import each other.
# A module imports only from packages below its own; tests/test_architecture.py has the rules.

from msgspec import Meta

from mcp_actors import abc, errors, types
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import Progress
from mcp_actors.client import Client
from mcp_actors.client_group import ClientGroup
from mcp_actors.client_pool import ClientPool
from mcp_actors.context import Context, SyncContext
from mcp_actors.discovery import register_transport
from mcp_actors.errors import (
    CallCancelled,
    CallTimeout,
    ClosedElsewhere,
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
    ToolFailed,
    TransportNotFound,
    Unavailable,
    UnexpectedResult,
    UnsupportedVersion,
)
from mcp_actors.server import Server
from mcp_actors.types import Audio, File, Image

__all__ = [
    "Audio",
    "CallCancelled",
    "CallTimeout",
    "Client",
    "ClientGroup",
    "ClientPool",
    "ClosedElsewhere",
    "ConnectFailed",
    "ConnectionLost",
    "Context",
    "File",
    "HeaderMismatch",
    "Image",
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
    "SyncContext",
    "ToolError",
    "ToolFailed",
    "TransportNotFound",
    "Unavailable",
    "UnexpectedResult",
    "UnsupportedVersion",
    "abc",
    "errors",
    "register_transport",
    "types",
]
