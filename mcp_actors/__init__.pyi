"""The types of the public names, of which some are loaded late: see ``__init__.py``."""

from msgspec import Meta

from mcp_actors import abc, errors, types
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import Progress
from mcp_actors.abc.discovery import register_transport
from mcp_actors.client import Client, ClientPool
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
from mcp_actors.gateway.client_group import ClientGroup
from mcp_actors.server import Argument, Context, Depends, Reshape, Server, SyncContext, current_context
from mcp_actors.types import Audio, File, Image

__all__ = [
    "Argument",
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
    "Depends",
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
    "Reshape",
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
    "current_context",
    "errors",
    "register_transport",
    "types",
]
