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
# What only some programs use is loaded when it is first asked for: `__getattr__` does it, and `__init__.pyi` tells type
# checkers what there is.
# A module imports only from packages below its own; tests/test_architecture.py has the rules.

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Keeps the garbage collector from passing over what is imported: nearly all of it stays, and passes take long.

    Afterwards it is as it was. What there is by then is moved to the old generation, as passes would have done.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()


with _without_collecting():
    from msgspec import Meta

    from mcp_actors import abc, errors, types
    from mcp_actors._actors.limits import Limits
    from mcp_actors._actors.outbound_call import Progress
    from mcp_actors.abc.discovery import register_transport
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
    "current_context",
    "errors",
    "register_transport",
    "types",
]

# A server has no use for the client, nor a client for the server, and each takes a third of the time of a start.
_LATE = {
    "Audio": "mcp_actors.types",
    "Client": "mcp_actors.client",
    "ClientGroup": "mcp_actors.gateway.client_group",
    "ClientPool": "mcp_actors.client",
    "Context": "mcp_actors.server",
    "File": "mcp_actors.types",
    "Image": "mcp_actors.types",
    "Server": "mcp_actors.server",
    "SyncContext": "mcp_actors.server",
    "current_context": "mcp_actors.server",
}

# Programs that import the package alone find these in it, as they would if it had imported them.
_LATE_MODULES = frozenset(module.split(".")[1] for module in _LATE.values())


def __getattr__(name: str) -> object:
    """Loads a name of the table above when it is first asked for.

    Raises:
        AttributeError: There is no such name.
    """
    if name in _LATE_MODULES:
        # Importing it makes it an attribute.
        with _without_collecting():
            return importlib.import_module(f"{__name__}.{name}")
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _without_collecting():
        found = globals()[name] = getattr(importlib.import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
