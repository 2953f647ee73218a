"""The options of a client as one value, with the types of the functions and targets among them.

`ClientOptions` checks what a program gave, once, when the `Client` is made. What a client declares to servers follows
from its handlers (`declared_capabilities`), unless the program declares it more exactly.

A target is turned into a `Server`, a URL or a transport at that time, too (`connectable`), so that a mistake is
raised at the line that made it. `transport_to` makes the transport later, for each opening of a client; a `Server`
object is served in memory by the client itself.

Middleware runs round requests and notifications, the first one outermost (`sent_through`).

The functions of a program run inside a `Guard`, so that one which fails costs the call it was made for. Such a
function may raise anything, raise a `trio.Cancelled` that it kept, or leave a cancel scope or a nursery open. Only an
`Exception` leaves `guarded`; the log names the function. `KeyboardInterrupt` passes, and so does a cancellation of
the task that the function runs in.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, get_args, runtime_checkable
from urllib.parse import urlsplit

import attrs
import trio

from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.task_pool import abandon_nurseries
from mcp_actors._client.client_extension import ClientExtension
from mcp_actors._client.tool_arguments import ArgumentMode
from mcp_actors._eras.era import DEADLINES
from mcp_actors.abc import ClientTransport, ServerHandler, ServerTransport, SharedState, Telemetry
from mcp_actors.abc.discovery import client_transport
from mcp_actors.errors import ConnectionLost, McpError, SessionExpired
from mcp_actors.supervision.arguments import callback, instance_of, positive_number, require
from mcp_actors.supervision.containment import INNERMOST_SCOPE, crash_in, sole_cause, start_and_wait
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.platform import join_words, split_line
from mcp_actors.supervision.task_kinds import IN_PROCESS_SERVER, TRANSPORT
from mcp_actors.types import (
    LOGGING_LEVELS,
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    DiscoverResult,
    ElicitationCapability,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    Implementation,
    InputResponse,
    LoggingLevel,
    Root,
    RootsCapability,
    SamplingCapability,
)
from mcp_actors.types.apps import APP_MIME, APPS

__all__ = [
    "CLOSE_TIMEOUT",
    "Access",
    "ChangeHandler",
    "ClientCall",
    "ClientMiddleware",
    "ClientNotification",
    "ClientNotificationMiddleware",
    "ClientOptions",
    "Connectable",
    "ElicitationHandler",
    "Ending",
    "Guard",
    "HandleNext",
    "InProcessServer",
    "LogHandler",
    "LossHandler",
    "NotificationCallback",
    "Roots",
    "SamplingHandler",
    "SendNext",
    "Target",
    "Telemetry",
    "as_roots",
    "connectable",
    "declared_capabilities",
    "declared_in_requests",
    "guarded",
    "notified_through",
    "require_for_clients",
    "sent_through",
    "shown",
    "transport_to",
]

# How long closing may take, seconds: a child process gets its signals and grace periods in this time.
CLOSE_TIMEOUT = 10.0

SamplingHandler = Callable[[CreateMessageParams], Awaitable[CreateMessageResult] | CreateMessageResult]
"""Answers a server's request to sample a model."""

ElicitationHandler = Callable[[ElicitFormParams | ElicitUrlParams], Awaitable[ElicitResult] | ElicitResult]
"""Answers a server's request to ask the person in front of the client."""

Roots = Sequence[Root | str] | Callable[[], Awaitable[Sequence[Root | str]] | Sequence[Root | str]]
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


Connectable = InProcessServer | str | ClientTransport
"""A `Server` in this process, a URL, or a transport."""

Target = Connectable | Sequence[str] | Path
"""What a client connects to: one of these, or the command or the file of a server that is started as a child."""

# What CreateProcess starts, and the batch files that the stdio transport has their interpreter run.
_WINDOWS_PROGRAMS = frozenset((".bat", ".cmd", ".com", ".exe"))
_OF_ROOTS = "a list of roots or a function that returns one"
_CHECKS = {
    "sampling": callback("a function sampling(params) that takes CreateMessageParams", 1),
    "elicitation": callback("a function elicitation(params) that takes the question", 1),
    "on_log": callback("a function on_log(level, data, logger)", 3),
    "on_change": callback("a function on_change(kind, uri)", 2),
    "on_notification": callback("a function on_notification(method, params)", 2),
    "on_lost": callback("a function on_lost(why)", 1),
    "roots": (
        lambda roots: isinstance(roots, list | tuple) or callback(_OF_ROOTS, 0)[0](roots),
        _OF_ROOTS,
    ),
    "timeout": positive_number("a number of seconds above 0 (math.inf switches it off)"),
    "cap": positive_number("a number of seconds above 0 (math.inf switches it off)"),
    "probe_timeout": positive_number("a number of seconds above 0"),
    "max_rounds": instance_of(int, "a whole number"),
    "info": instance_of(Implementation, "an Implementation(name, version)"),
    "limits": instance_of(Limits, "a Limits object"),
    "telemetry": instance_of((Telemetry, type(None)), "an object of mcp_actors.telemetry"),
    "extensions": instance_of(
        (list, tuple, Mapping),
        "a list of ClientExtension objects, or a mapping of ids to settings that are only declared",
    ),
    "middleware": (
        lambda middleware: isinstance(middleware, list | tuple) and all(map(callable, middleware)),
        "a list of functions async def f(call, call_next), or of objects of mcp_actors.middleware",
    ),
    "arguments": (
        lambda mode: mode in get_args(ArgumentMode),
        "'as-is', 'check' or 'repair'",
    ),
    "cache": instance_of((SharedState, type(None)), "an object of mcp_actors.shared"),
    "deadlines": instance_of(bool, "True or False"),
    "apps": instance_of(bool, "True or False"),
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
    arguments: ArgumentMode = "as-is"
    prior_discover: DiscoverResult | None = None
    limits: Limits
    auth: Access | None = None
    telemetry: Telemetry | None = None
    extensions: Mapping[str, Any] | Sequence[ClientExtension] = ()
    middleware: Sequence[ClientMiddleware] = ()
    cache: SharedState | None = None
    apps: bool = False
    tasks: ClientExtension | None = None
    """Tasks, which each stateless request declares as an extension and sessions declare by their core alone."""

    @property
    def in_use(self) -> Sequence[ClientExtension]:
        """The extensions that do something, and are not only declared."""
        extensions = () if isinstance(self.extensions, Mapping) else self.extensions
        if self.tasks is None or any(each.id == self.tasks.id for each in extensions):
            # A program may bring tasks of its own.
            return extensions
        return (*extensions, self.tasks)

    @property
    def handlers(self) -> list[str]:
        """The names of the functions that a server learns of, because they answer it."""
        return [name for name in ("sampling", "elicitation", "roots") if getattr(self, name) is not None]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are declared of all extensions, by their ids; those of access included."""
        settings = {} if self.auth is None else dict(self.auth.extensions)
        if self.call.sends_deadline:
            settings[DEADLINES] = {}
        if self.apps:
            # SEP-1865, Client (Host) Capabilities.
            settings[APPS] = {"mimeTypes": [APP_MIME]}
        if isinstance(self.extensions, Mapping):
            return {**settings, **self.extensions}
        return {**settings, **{each.id: dict(each.settings) for each in self.extensions}}

    def __attrs_post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _CHECKS if hasattr(self, name)}
        require(
            _CHECKS,
            {**given, "timeout": self.call.idle, "cap": self.call.cap, "deadlines": self.call.sends_deadline},
        )
        require_for_clients(self.middleware)
        if self.cache is not None and not isinstance(self.target, str):
            raise ValueError("cache= is for a server with a URL: other processes find its answers by that")
        for each in self.in_use:
            if not isinstance(each, ClientExtension):
                raise TypeError(
                    f"a client has objects of mcp_actors.extensions.ClientExtension, not {each!r:.80}"
                )
        names = [(each.id, *each.results, *each.notifications, *each.methods) for each in self.in_use]
        taken = [name for name, times in Counter(chain(*names)).items() if times > 1]
        if taken:
            raise ValueError(f"two extensions of this client have the name {taken[0]!r}")


# -- what a client declares ------------------------------------------------------------------------------------------


def declared_capabilities(options: ClientOptions) -> ClientCapabilities:
    """Returns what is declared to servers: what follows from the handlers, replaced by what ``capabilities`` has.

    Raises:
        ValueError: ``capabilities`` declares something without a handler.
    """
    given = options.capabilities or ClientCapabilities()
    implied = ClientCapabilities(
        sampling=SamplingCapability(tools={} if options.sampling_tools else None)
        if options.sampling
        else None,
        elicitation=ElicitationCapability(form={}, url={}) if options.elicitation else None,
        roots=RootsCapability(list_changed=True) if options.roots is not None else None,
    )
    for name in ("sampling", "elicitation", "roots"):
        if getattr(given, name) is not None and getattr(implied, name) is None:
            raise ValueError(
                f"capabilities declares {name}, but there is nothing to answer with: give {name}= too"
            )
    for each in options.in_use:
        implied = attrs.evolve(implied, **each.core)
    if settings := options.settings:
        # SEP-2133; SEP-1046, SEP-990: also which ways of access beyond those of the specification a client uses.
        implied.extensions = settings
        if given.extensions is not None:
            given = attrs.evolve(given, extensions={**implied.extensions, **given.extensions})
    members = {field.name: getattr(given, field.name) for field in attrs.fields(ClientCapabilities)}
    declared = attrs.evolve(implied, **{name: value for name, value in members.items() if value is not None})
    if options.sampling_tools and declared.sampling is not None and declared.sampling.tools is None:
        declared.sampling = attrs.evolve(declared.sampling, tools={})
    return declared


def declared_in_requests(capabilities: ClientCapabilities, options: ClientOptions) -> ClientCapabilities:
    """Returns what each stateless request declares: tasks by their extension, and never by the core of sessions."""
    declared = dict(capabilities.extensions or {})
    if options.tasks is not None and options.tasks.results:
        declared.setdefault(options.tasks.id, {})
    return attrs.evolve(capabilities, tasks=None, extensions=declared or None)


def as_roots(roots: Iterable[Root | str]) -> list[Root]:
    """Returns the roots with URIs in the form of the protocol. MCP 2026-07-28, Roots, Root.

    Raises:
        ValueError: One is not a ``file://`` URI.
    """
    listed = [each if isinstance(each, Root) else Root(each) for each in roots]
    for root in listed:
        # The scheme of a URI is the same in capitals (RFC 3986 section 3.1).
        if root.uri[:7].lower() != "file://":
            raise ValueError(
                f"a root must be a file:// URI, and {root.uri!r} is none: pathlib.Path(…).as_uri() makes one"
            )
    return listed


# -- what a client connects to ---------------------------------------------------------------------------------------


def connectable(target: Target, auth: Access | None = None) -> Connectable:
    """Returns the target as a `Server`, a URL or a transport: commands and paths become ``stdio:`` URLs.

    Raises:
        TypeError: The target cannot be connected to, or ``auth`` is not an authorization.
        ValueError: There is ``auth``, and the target is not a URL of a binding that takes it; a command is empty, a
            path does not lead to a server, or a URL is malformed.
        TransportNotFound: There is no binding for the URL.
    """
    if auth is not None:
        return _authorizable(target, auth)
    if isinstance(target, type):
        raise TypeError(f"{target.__name__} is a class: make an object of it for the Client")
    if isinstance(target, list | tuple):
        return _url_of_command(target)
    if isinstance(target, Path):
        return _url_of_path(target)
    if isinstance(target, str):
        client_transport(target)  # raises for a URL that cannot be used, at the line that has it
        return target
    if isinstance(target, InProcessServer | ClientTransport):
        return target
    raise TypeError(_why_not(target))


def _authorizable(target: Target, auth: Access) -> str:
    """Returns the URL of a server that ``auth`` can give access to."""
    if isinstance(auth, type) or not isinstance(auth, Access):
        given = f"the class {auth.__name__}" if isinstance(auth, type) else type(auth).__name__
        raise TypeError(f"auth is OAuth(...) or BearerToken(...), not {given}")
    if not isinstance(target, str):
        raise ValueError(
            "auth= needs the URL of a server, http://…, https://…, ws://… or wss://…: a process takes credentials from "
            "its environment, a server in memory needs none, and a transport takes auth= itself, if it can"
        )
    if "@" in urlsplit(target).netloc:
        raise ValueError("auth= and a user in the URL would be two sets of credentials: give one of them")
    try:
        client_transport(target, auth=auth)
    except TypeError as error:
        raise ValueError(
            f"the binding for {target.partition(':')[0]!r} takes no auth=: http:, https:, ws: and wss: do, and a "
            "process takes credentials from its environment"
        ) from error
    return target


def _url_of_command(command: list[str] | tuple[str, ...]) -> str:
    if not command or not all(isinstance(word, str) for word in command):
        raise ValueError("a command is a list of strings, the program first: ['python', 'server.py']")
    return f"stdio:{join_words(command)}"


def _url_of_path(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} to start as a server")
    if path.suffix == ".py":
        return _url_of_command([sys.executable, str(path)])
    if not _can_be_started(path):
        raise ValueError(f"{str(path)!r} is neither a .py file nor executable: write the command as a list")
    return _url_of_command([str(path.absolute())])


def _can_be_started(path: Path) -> bool:
    if sys.platform == "win32":  # where every file may be executed, and its extension says what it is
        return path.suffix.lower() in _WINDOWS_PROGRAMS
    return os.access(path, os.X_OK)


def _why_not(target: object) -> str:
    if isinstance(target, Mapping):
        servers = target.get("mcpServers", target)
        names = ", ".join(map(repr, servers)) if isinstance(servers, Mapping) else ""
        return (
            f"a Client has one server, not a configuration of {names[:200] or 'servers'}: write "
            "Client([command, *args]), or Client(StdioClientTransport([command, *args], env=env))"
        )
    if hasattr(target, "serve"):
        return f"{type(target).__name__} can be served, not connected to"
    return (
        "a Client takes a Server object, a URL, a command as a list of strings, the pathlib.Path of a server file, "
        f"or a transport, not {type(target).__name__}"
    )


def shown(target: Connectable) -> str:
    """Returns the name of a target without what may hold secrets: arguments, and the credentials and query of a URL."""
    if not isinstance(target, str):
        return type(target).__name__
    scheme, _, command = target.partition(":")
    if scheme == "stdio":
        return f"stdio:{os.path.basename(split_line(command)[0])}"
    return re.sub("//[^/]*@", "//", re.split("[?#]", target, maxsplit=1)[0])


@asynccontextmanager
async def transport_to(
    target: Connectable, nursery: trio.Nursery, auth: Access | None = None
) -> AsyncIterator[ClientTransport]:
    """Yields the transport to ``target``, which is a URL if there is ``auth``.

    A `Server` is served in ``nursery`` for the length of the block.

    The server then ends by itself and is not cancelled, so its lifespan ends in order; it has `CLOSE_TIMEOUT` seconds.
    Whatever its lifespan raises is raised here at the end, because it is code of the program that leaves the block.
    """
    if isinstance(target, str):
        yield client_transport(target) if auth is None else client_transport(target, auth=auth)
        return
    if not isinstance(target, InProcessServer):
        yield target
        return
    memory: Any = client_transport("memory:")
    over, served = trio.Event(), trio.Event()

    async def serve(*, task_status: trio.TaskStatus[Any]) -> None:
        try:
            await target.serve(_Until(memory, over), task_status=task_status)
        finally:
            served.set()

    crashes: list[BaseException] = []
    await start_and_wait(nursery, IN_PROCESS_SERVER, serve, on_crash=crashes.append)
    try:
        yield memory
    finally:
        over.set()
        with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await served.wait()
    if crashes:
        raise sole_cause(crashes[0])


class _Until:
    """A server transport that ends when ``over`` is set, as one does that has no more connections to come."""

    def __init__(self, inner: ServerTransport, over: trio.Event) -> None:
        self._inner = inner
        self._over = over

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            started = await start_and_wait(
                nursery, TRANSPORT, self._inner.serve, handler, on_crash=lambda crash: self._over.set()
            )
            task_status.started(started)
            await self._over.wait()
            nursery.cancel_scope.cancel(reason="the client is closed")


# -- middleware ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ClientCall:
    """A request of the program, as middleware sees it; `attrs.evolve` makes another one of it."""

    method: str
    """The method, such as ``tools/call``."""
    params: Mapping[str, Any]
    """Its parameters, without ``_meta``."""
    options: CallOptions
    """The clocks of the call, its progress callback and its further metadata."""
    refresh: bool = False
    """Whether the server is asked although there is an answer that is good still."""
    answers: Mapping[str, InputResponse] | None = None
    """The answers to an `InputRequired`, by its keys."""
    state: str | None = None
    """The state of an `InputRequired`."""
    raw: Collection[str] = ()
    """Kinds of results that the caller takes as they are sent."""
    retried: bool = False
    """Whether middleware outside of this one makes the call again where it fails for the connection."""
    client: object = attrs.field(default=None, repr=False, eq=False)
    """Tells the calls of one client from those of another, where middleware is shared; it is for nothing else."""


@attrs.frozen
class ClientNotification:
    """A notification of the server for which the program has a function, as middleware sees it."""

    method: str
    """The method, such as ``notifications/message``."""
    params: Mapping[str, Any]
    callback: str
    """The option of the client that takes it, such as ``on_log``; the method for a function of an extension."""


class SendNext(Protocol):
    """Runs the next middleware, or makes the request, and returns its result."""

    def __call__(self, call: ClientCall | None = None, /) -> Awaitable[Any]:
        """Goes on with ``call``: by default with the one that this middleware was given."""


HandleNext = Callable[[], Awaitable[None]]
"""Runs the next middleware round a notification, or the program's function."""

ClientMiddleware = Callable[[ClientCall, SendNext], Awaitable[Any]]
"""``async def f(call, call_next)``, which runs round a request of a client; see `Client`."""

Ending = Callable[[ClientCall], Awaitable[Any]]
"""Makes the request, inside of all middleware."""


@runtime_checkable
class ClientNotificationMiddleware(Protocol):
    """Middleware of a client that runs round notifications of the server, too; see `Client`."""

    def __call__(self, call: ClientCall, call_next: SendNext, /) -> Awaitable[Any]:
        """Runs round a request."""

    def notification(self, note: ClientNotification, call_next: HandleNext, /) -> Awaitable[Any]:
        """Runs round the program's function; what it returns is dropped."""


def require_for_clients(middleware: Sequence[ClientMiddleware]) -> None:
    """Checks the middleware of a client.

    Raises:
        TypeError: One of them is a class, or is for servers.
    """
    for each in middleware:
        name = each.__name__ if isinstance(each, type) else type(each).__name__
        if getattr(each, "for_side", None) == "server":
            raise TypeError(f"{name} is for servers: write server.middleware({name}(…))")
        if isinstance(each, type):
            raise TypeError(f"{name} is a class: give an object of it, {name}(…)")


async def sent_through(
    middleware: Sequence[ClientMiddleware], call: ClientCall, ending: Ending, passed: int = 0
) -> Any:
    """Calls the first middleware, the outermost, round the others, and ``ending`` innermost.

    Args:
        middleware: All of it.
        call: The request.
        ending: Makes the request.
        passed: How many of ``middleware`` the request is inside of.

    Raises:
        TypeError: Middleware has returned nothing.
    """
    if passed == len(middleware):
        return await ending(call)

    def call_next(other: ClientCall | None = None, /) -> Awaitable[Any]:
        return sent_through(middleware, other or call, ending, passed + 1)

    result = await middleware[passed](call, call_next)
    if result is None:
        raise TypeError(
            "middleware of the client returned None: write return await call_next(), or return a result"
        )
    return result


async def notified_through(
    middleware: Sequence[Callable[[ClientNotification, HandleNext], Awaitable[Any]]],
    note: ClientNotification,
    ending: HandleNext,
    passed: int = 0,
) -> None:
    """As `sent_through`, for a notification."""
    if passed == len(middleware):
        await ending()
        return

    async def call_next() -> None:
        await notified_through(middleware, note, ending, passed + 1)

    await middleware[passed](note, call_next)


# -- the functions of the program ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Guard:
    """A context manager round the code of a user; ``callback`` is its name for the log and for errors.

    With ``contains`` nothing leaves it that is to be contained; without, an exception leaves it as it is and anything
    else as a `RuntimeError`.
    """

    callback: str
    contains: bool = False
    _status: Any = attrs.field(default=None, init=False)
    _nurseries: int = attrs.field(default=0, init=False)

    def __enter__(self) -> None:
        task = trio.lowlevel.current_task()
        self._status = getattr(task, INNERMOST_SCOPE, None)
        self._nurseries = len(task.child_nurseries)

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        left_open = self._close_scopes_left_open()
        if error is None:
            if not left_open:
                return False
            failure: BaseException = RuntimeError(f"{self.callback} left a cancel scope or a nursery open")
        else:
            crash = crash_in(error)
            if crash is None:
                return False
            failure = crash
        if not isinstance(failure, McpError):
            log.error("a callback failed", callback=self.callback, exc_info=failure)
        if self.contains:
            return True
        if failure is error and isinstance(error, Exception):
            return False
        raise failure if error is None else RuntimeError(f"{self.callback} raised {error!r}") from error

    def _close_scopes_left_open(self) -> bool:
        """Whether there were any. Trio offers no public way to see the innermost scope of a task."""
        task = trio.lowlevel.current_task()
        if getattr(task, INNERMOST_SCOPE, None) is self._status:
            return False
        abandon_nurseries(task, self._nurseries)
        while task._cancel_status is not None and task._cancel_status is not self._status:
            task._cancel_status._scope.__exit__(None, None, None)
        return True


def guarded(name: str, callback: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``callback``, sync or async, inside a `Guard` each time it is called."""

    def call(*args: Any) -> Any:
        with Guard(name):
            outcome = callback(*args)
        return _awaited(name, outcome) if inspect.isawaitable(outcome) else outcome

    return call


async def _awaited(name: str, outcome: Any) -> Any:
    with Guard(name):
        return await outcome
