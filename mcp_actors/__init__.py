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
# Every name is loaded when it is first asked for: `__getattr__` does it, and `__init__.pyi` tells type checkers what
# there is.
# A module imports only from packages below its own; tests/test_architecture.py has the rules.

import gc
import importlib


class _WithoutCollecting:
    """Keeps the garbage collector from passing over what is imported: nearly all of it stays, and passes take long.

    Afterwards it is as it was. What there is by then is moved to the old generation, as passes would have done.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


__all__ = [
    "App",
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
    "Provided",
    "ProvidedPage",
    "Provider",
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
    "Turn",
    "Unavailable",
    "UnexpectedResult",
    "UnsupportedVersion",
    "abc",
    "current_context",
    "errors",
    "prompt",
    "register_transport",
    "resource",
    "tool",
    "types",
]

# Nothing is loaded with the package itself. A server has no use for the client, nor a client for the server, and each
# takes a third of the time of a start. And what a program does first, such as the command line, which catches signals,
# does not wait for any of it.
_LATE = {
    "App": "mcp_actors.server",
    "Argument": "mcp_actors.server",
    "Audio": "mcp_actors.types",
    "Client": "mcp_actors.client",
    "ClientGroup": "mcp_actors.gateway.client_group",
    "ClientPool": "mcp_actors.client",
    "Context": "mcp_actors._server.context",
    "Depends": "mcp_actors.server",
    "Turn": "mcp_actors.server",
    "File": "mcp_actors.types",
    "Image": "mcp_actors.types",
    "Limits": "mcp_actors._actors.limits",
    "Meta": "msgspec",
    "Progress": "mcp_actors._actors.outbound_call",
    "Provided": "mcp_actors.server",
    "ProvidedPage": "mcp_actors.server",
    "Provider": "mcp_actors.server",
    "Reshape": "mcp_actors.server",
    "Server": "mcp_actors.server",
    "SyncContext": "mcp_actors._server.context",
    "current_context": "mcp_actors._server.context",
    "prompt": "mcp_actors._server.modules",
    "register_transport": "mcp_actors.abc.discovery",
    "resource": "mcp_actors._server.modules",
    "tool": "mcp_actors._server.modules",
}

# Programs that import the package alone find these in it, as they would if it had imported them.
_LATE_MODULES = frozenset({"abc", "client", "errors", "gateway", "server", "types"})


def __getattr__(name: str) -> object:
    """Loads a public name when it is first asked for: from the module in the table above, or else an exception.

    Raises:
        AttributeError: There is no such name.
    """
    if name in _LATE_MODULES:
        # Importing it makes it an attribute.
        with _WithoutCollecting():
            return importlib.import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _WithoutCollecting():
        module = importlib.import_module(_LATE.get(name, "mcp_actors.errors"))
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
