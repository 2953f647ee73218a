"""The options of a client as one value, and the types of the callbacks among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import attrs
import trio

from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._argument_checks import callable_or_none, instance_of, positive_number, require
from mcp_actors._client.middleware import ClientMiddleware, require_for_clients
from mcp_actors.abc import ClientTransport, ServerTransport, Telemetry
from mcp_actors.errors import ConnectionLost, SessionExpired
from mcp_actors.types import (
    LOGGING_LEVELS,
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    DiscoverResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    Implementation,
    LoggingLevel,
    Root,
)

__all__ = [
    "Access",
    "ChangeHandler",
    "ClientOptions",
    "Connectable",
    "DeclaredExtension",
    "ElicitationHandler",
    "InProcessServer",
    "LogHandler",
    "LossHandler",
    "NotificationCallback",
    "Roots",
    "SamplingHandler",
    "Target",
]

SamplingHandler = Callable[[CreateMessageParams], Awaitable[CreateMessageResult]]
"""Answers a server's request to sample a model."""
ElicitationHandler = Callable[[ElicitFormParams | ElicitUrlParams], Awaitable[ElicitResult]]
"""Answers a server's request to ask the person in front of the client."""
Roots = Sequence[Root | str] | Callable[[], Awaitable[Sequence[Root | str]]]
"""The roots that servers may work in, or a function that returns them."""
LogHandler = Callable[[Any, Any, str | None], Awaitable[None] | None]
"""Is called with the level, the data and the logger of each log message of the server."""
ChangeHandler = Callable[[str, str | None], Awaitable[None] | None]
"""Is called with the kind of each change on the server (`Event.kind`) and the resource's URI, if it is about one."""
NotificationCallback = Callable[[str, dict[str, Any]], Awaitable[None] | None]
"""Is called with the method and the params of each notification that the client does not act on itself."""
LossHandler = Callable[[ConnectionLost | SessionExpired], Awaitable[None] | None]
"""Is called once with why a connection was lost."""


@runtime_checkable
class InProcessServer(Protocol):
    """A `Server` that a client serves itself, in memory. ``tools`` distinguishes it from a transport."""

    @property
    def tools(self) -> Any: ...

    async def serve(
        self, *targets: str | ServerTransport, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None: ...


@runtime_checkable
class Access(Protocol):
    """The authorization that a client may be given; a program that has none need not import `mcp_actors.auth`."""

    @property
    def extensions(self) -> Mapping[str, Any]:
        """The extensions of the protocol that it belongs to, which the client declares."""


@runtime_checkable
class DeclaredExtension(Protocol):
    """An extension of a client (`mcp_actors.extensions.ClientExtension`), as far as the options know it."""

    id: str
    settings: Mapping[str, Any]
    core: Mapping[str, Any]
    targets: Mapping[str, str]
    results: dict[str, Callable[[Any, dict[str, Any]], Awaitable[dict[str, Any]]]]
    notifications: dict[str, Callable[..., Any]]
    methods: dict[str, Callable[[Any], Awaitable[Any]]]
    arounds: dict[str, list[Any]]
    lifespans: list[Callable[[Any], AbstractAsyncContextManager[object]]]


Connectable = InProcessServer | str | ClientTransport
"""A `Server` in this process, a URL, or a transport."""
Target = Connectable | Sequence[str] | Path
"""What a client connects to: one of these, or the command or the file of a server that is started as a child."""

_CHECKS = {
    "timeout": positive_number("a number of seconds above 0 (math.inf switches it off)"),
    "cap": positive_number("a number of seconds above 0 (math.inf switches it off)"),
    "probe_timeout": positive_number("a number of seconds above 0"),
    "max_rounds": instance_of(int, "a whole number"),
    "info": instance_of(Implementation, "an Implementation(name, version)"),
    "limits": instance_of(Limits, "a Limits object"),
    "sampling": callable_or_none("an async function that takes CreateMessageParams"),
    "elicitation": callable_or_none("an async function that takes the question"),
    "telemetry": instance_of((Telemetry, type(None)), "an object of mcp_actors.telemetry"),
    "on_log": callable_or_none("a function on_log(level, data, logger)"),
    "on_change": callable_or_none("a function on_change(kind, uri)"),
    "roots": (
        lambda roots: roots is None or callable(roots) or isinstance(roots, list | tuple),
        "a list of roots or an async function that returns one",
    ),
    "extensions": instance_of(
        (list, tuple, Mapping),
        "a list of ClientExtension objects, or a mapping of ids to settings that are only declared",
    ),
    "middleware": (
        lambda middleware: isinstance(middleware, list | tuple) and all(map(callable, middleware)),
        "a list of functions async def f(call, call_next), or of objects of mcp_actors.middleware",
    ),
    "log_level": (
        lambda level: level is None or level in LOGGING_LEVELS,
        f"one of {', '.join(LOGGING_LEVELS)}",
    ),
}


@attrs.frozen(kw_only=True)
class ClientOptions:
    """The arguments of `Client`, which documents them; ``call`` holds its ``timeout`` and ``cap``.

    It has more than twelve attributes because it is the list of a client's options, and nothing else.
    """

    target: Connectable
    versions: tuple[str, ...]
    """The protocol versions that may be spoken, oldest first."""
    info: Implementation
    sampling: SamplingHandler | None = None
    sampling_tools: bool = False
    capabilities: ClientCapabilities | None = None
    elicitation: ElicitationHandler | None = None
    roots: Roots | None = None
    on_log: LogHandler | None = None
    on_change: ChangeHandler | None = None
    on_notification: NotificationCallback | None = None
    on_lost: LossHandler | None = None
    log_level: LoggingLevel | None = None
    call: CallOptions
    answer_input: bool = True
    max_rounds: int
    probe_timeout: float
    ping_interval: float | None = None
    restart: bool = False
    prior_discover: DiscoverResult | None = None
    limits: Limits
    auth: Access | None = None
    telemetry: Telemetry | None = None
    extensions: Mapping[str, Any] | Sequence[DeclaredExtension] = ()
    middleware: Sequence[ClientMiddleware] = ()
    tasks: DeclaredExtension | None = None
    """Tasks, which stateless servers are told of in each request and sessions by their core alone."""

    @property
    def in_use(self) -> Sequence[DeclaredExtension]:
        """The extensions that do something, and are not only declared."""
        extensions = () if isinstance(self.extensions, Mapping) else self.extensions
        if self.tasks is None or any(each.id == self.tasks.id for each in extensions):
            # A program may bring tasks of its own.
            return extensions
        return (*extensions, self.tasks)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are declared of all extensions, by their ids; those of access included."""
        settings = {} if self.auth is None else dict(self.auth.extensions)
        if isinstance(self.extensions, Mapping):
            return {**settings, **self.extensions}
        return {**settings, **{each.id: dict(each.settings) for each in self.extensions}}

    def __attrs_post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _CHECKS if hasattr(self, name)}
        require(_CHECKS, {**given, "timeout": self.call.idle, "cap": self.call.cap})
        require_for_clients(self.middleware)
        for each in self.in_use:
            if not isinstance(each, DeclaredExtension):
                raise TypeError(
                    f"a client has objects of mcp_actors.extensions.ClientExtension, not {each!r:.80}"
                )
        names = [(each.id, *each.results, *each.notifications, *each.methods) for each in self.in_use]
        taken = [name for name, times in Counter(chain(*names)).items() if times > 1]
        if taken:
            raise ValueError(f"two extensions of this client have the name {taken[0]!r}")
