"""The engine for programs on asyncio, notebooks included: clients, and servers beside the program's own loop.

The classes of clients are made from those of the engine, so that the two cannot drift apart; see
`mcp_actors.bridges.faces`.
"""

# Written by tests/test_faces.py.

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import UnionType
from typing import Any, Self, TypeAlias, overload

from mcp_actors._actors.dispatcher import SessionStatistics
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import ProgressCallback
from mcp_actors._client.client_extension import ClientExtension
from mcp_actors._client.lock import Drift, ServerLock
from mcp_actors._client.options import (
    Access,
    ChangeHandler,
    ElicitationHandler,
    LogHandler,
    LossHandler,
    NotificationCallback,
    Roots,
    SamplingHandler,
    Target,
    Telemetry,
)
from mcp_actors._client.tool_arguments import ArgumentMode
from mcp_actors._client.watching import ListChange
from mcp_actors._eras.era import EraName
from mcp_actors.abc import SharedState
from mcp_actors.asyncio.serving import lifespan, serve
from mcp_actors.client import ClientCall, Event, T
from mcp_actors.errors import McpError
from mcp_actors.gateway.client_group import GroupServers, OptionsFor
from mcp_actors.types import (
    AppPage,
    CallToolResult,
    ClientCapabilities,
    Completion,
    CompletionReference,
    DiscoverResult,
    GetPromptResult,
    Implementation,
    InputResponse,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    LoggingLevel,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    ServerCapabilities,
    Skill,
    SubscriptionFilter,
    Tool,
)
from mcp_actors.types.tasks import TaskStatus

__all__ = ["Client", "ClientGroup", "ClientPool", "Listener", "TaskHandle", "ToolStream", "lifespan", "serve"]

_ClientMiddleware: TypeAlias = Callable[[ClientCall, Callable[..., Any]], Any]

class Client:
    """A client of one server for programs on asyncio, used as ``async with Client(target) as client``.

    It is `mcp_actors.Client` in the engine's own thread, which is started at first use and ends with the program. Where
    there is no block, as in a notebook, ``client = await Client(target).open()`` opens it, and ``await
    client.aclose()`` closes it. It may be used from any loop, and is closed when the loop that opened it is closed.
    Cancelling a call cancels it at the server. Callbacks are plain or async functions: they run in the loop that opened
    the client, and ``on_progress`` in the loop of its call. Exceptions are those of the original.

    Args:
        target: A `Server` (in memory), a URL (``"stdio:COMMAND ARG…"``, ``"http://…"``), a command as a list
            (``["python", "server.py"]``), the `~pathlib.Path` of a server, which is started with this Python if it ends
            in ``.py``, or a `~mcp_actors.abc.ClientTransport`.
        era: ``"auto"`` finds out what the server speaks; ``"legacy"``, ``"modern"`` or one protocol version is spoken
            without asking.
        info: The client's name and version, which servers may display; by default those of this engine.
        sampling: Answers servers that want to sample a model, sync or async. Without it sampling is not declared.
        sampling_tools: Whether ``sampling`` may use tools.
        capabilities: What is declared to servers beyond what follows from the handlers, or more exactly: each member
            that it has replaces what follows. ``ClientCapabilities(elicitation=ElicitationCapability(url={}))`` is for
            a handler that opens URLs and shows no forms. By default forms and URLs are declared, and no context for
            sampling.
        elicitation: Answers servers that want to ask the person, sync or async. Without it elicitation is not declared.
        roots: The roots that servers may work in, or a function that returns them, sync or async. Without it none are
            declared.
        on_log: ``on_log(level, data, logger)``, sync or async, is called with each log message in the order of arrival.
        on_change: ``on_change(kind, uri)``, sync or async, is called with each change on the server in that order.
        on_notification: ``on_notification(method, params)``, sync or async, is called with each notification that is
            none of the above, such as those of extensions, in that order.
        on_lost: ``on_lost(error)``, sync or async, is called once with the `ConnectionLost` or `SessionExpired` of each
            connection that ends without being closed by the program; with ``restart`` another one follows.
        log_level: The least severe log message that is wanted. By default a stateless server is asked for ``"info"``
            if there is an ``on_log``, and a session is left as its server likes it.
        timeout: Seconds a call may take without an answer or a progress report; `math.inf` switches this off. Servers
            of this engine report progress for a tool that is silent (`Limits.beat`).
        cap: Seconds a call may take in all; `math.inf` switches this off.
        answer_input: Whether a server's request for input is answered by the handlers; if not, the call raises
            `InputRequired`.
        max_rounds: How often one call may ask for input, so that no server asks without an end.
        probe_timeout: Seconds without an answer to ``server/discover`` after which ``initialize`` is sent as well; the
            late answer still counts. Both together have ``timeout`` seconds more.
        ping_interval: Seconds of silence on an idle connection after which the server is asked whether it is alive,
            and seconds for its answer, without which the connection counts as lost; 0 switches this off. By default
            sockets are asked after 30 s, and nothing else: pipes tell when a process has ended, a WebSocket has pings
            of its own, and over HTTP there is no connection.
        restart: Whether a connection that is lost is made again. Calls in flight fail all the same, because it
            is unknown whether they were run, but for those with a key. A session that an HTTP server has forgotten is
            begun anew without it too.
        prior_discover: An earlier answer of the same server, `discovered` of a client of it: the first connection is
            made without asking. Once it is outdated, the first call raises what the server says to that.
        limits: The bounds on calls in flight and messages; see `Limits`.
        auth: Access to a server that demands authorization, at an HTTP or WebSocket URL: `~mcp_actors.auth.OAuth`, or
            `~mcp_actors.auth.BearerToken` for a key of the server's own. While a person is asked to log in, neither
            ``timeout`` nor ``cap`` nor ``probe_timeout`` runs, for any call of the connection: the login has a time of
            its own. A failure raises an `AuthorizationError`, and the connection is not tried again.
        tasks: Whether stateless servers may answer a call with a task (SEP-2663), which `call_tool` then waits for,
            and servers of sessions may have ``sampling`` and ``elicitation`` answered later (MCP 2025-11-25, Tasks).
        telemetry: Is notified of each call in both directions and of sessions: an
            `~mcp_actors.telemetry.otel.OpenTelemetry`, `~mcp_actors.telemetry.Metrics` or ``Together(…)`` of both. By
            default nothing is notified, which costs nothing.
        extensions: A list of `~mcp_actors.extensions.ClientExtension`, or a mapping of ids to settings that are only
            declared. None by default.
        middleware: Functions ``async def f(call, call_next)`` that run round every request of the program but the
            handshake and `ping`, the first one outermost. Each returns ``await call_next()``, or something else, or
            raises. An object with ``async def notification(self, note, call_next)`` has that run round ``on_log``,
            ``on_change``, ``on_notification`` and the functions of extensions, too, which are then called in a task of
            their own. `mcp_actors.middleware` has objects that are ready.
        arguments: What is done with the arguments of calls by the schema of a tool that was listed: ``"as-is"``, the
            default, nothing; with ``"check"`` those that do not fit are a `WrongArguments`, and nothing is sent; with
            ``"repair"`` they are repaired first, where they can be meant in one way only, as servers do
            (``Server(arguments="repair")``). For programs whose arguments come from a model.
        deadlines: Whether each request says how much of its time is left: of ``cap``, of ``timeout`` where no report of
            progress can move it, of the cancel scopes around it, and of the call that it is made for. Servers of this
            engine stop at it (`DeadlineExceeded`) and pass it on; others ignore it. Off by default, as it is an
            extension of this engine.
        cache: A `~mcp_actors.abc.SharedState`, such as ``shared_state("sqlite:/var/cache/mcp.db")``, in which answers
            of a stateless server are kept for other processes that have the same URL, for as long as the server says
            (``ttlMs``). Those that are not for every caller are found by clients with the same `BearerToken`, or
            without ``auth``, alone. Lists and reads only, none above 1 MiB; while the state is away the server is
            asked. None by default: answers are kept in this process.
        apps: Whether it is declared that the program shows the pages of tools (SEP-1865), which `app` reads. Off by
            default.
        lock: What was approved of the server: the path of a file that ``mcp-actors lock`` has written, which has one
            server, or a `ServerLock` of it. Tools, prompts, resource templates, skills and instructions that are
            different now, or were not approved, are left out of lists; calling such a tool raises `DefinitionChanged`,
            and the log has the difference. The tools are listed before the first call, after every change that the
            server reports, and after a minute. Resources are not compared, as they are data. By default everything is
            taken as it comes.

    Raises:
        TypeError: The target or an option is of another kind; the message says what to write.
        ValueError: ``era`` is not one of those above, the URL is malformed, the command or file does not exist,
            ``prior_discover`` names no version that may be spoken, a root is not a ``file://`` URI, ``capabilities``
            declares something without a handler, ``auth`` is given for a target that is not such a URL, or two
            extensions have the same id, or something else of the same name.
        TransportNotFound: There is no binding for the URL.

    Entering the block performs the handshake (MCP 2026-07-28, Versioning and Discovery; MCP 2025-11-25, Lifecycle). It
    raises `ConnectFailed`, which an `AuthorizationError` is too, `TransportNotFound`, `ConnectionLost`, `CallTimeout`,
    `Unavailable` when a server does not recover from an outage, `UnsupportedVersion` when no version is common,
    `RpcError` and `RemoteProtocolError` when it refuses or cannot be understood, and `LocalProtocolError` if the client
    was entered before. Outside of Trio it raises `RuntimeError`.
    """

    def __init__(
        self,
        target: Target,
        *,
        era: str = "auto",
        info: Implementation | None = None,
        sampling: SamplingHandler | None = None,
        sampling_tools: bool = False,
        capabilities: ClientCapabilities | None = None,
        elicitation: ElicitationHandler | None = None,
        roots: Roots | None = None,
        on_log: LogHandler | None = None,
        on_change: ChangeHandler | None = None,
        on_notification: NotificationCallback | None = None,
        on_lost: LossHandler | None = None,
        log_level: LoggingLevel | None = None,
        timeout: float = 30.0,
        cap: float = 300.0,
        answer_input: bool = True,
        max_rounds: int = 10,
        probe_timeout: float = 5.0,
        ping_interval: float | None = None,
        restart: bool = False,
        prior_discover: DiscoverResult | None = None,
        limits: Limits | None = None,
        auth: Access | None = None,
        tasks: bool = True,
        telemetry: Telemetry | None = None,
        extensions: Mapping[str, Any] | Sequence[ClientExtension] = (),
        middleware: Sequence[_ClientMiddleware] = (),
        arguments: ArgumentMode = "as-is",
        deadlines: bool = False,
        cache: SharedState | None = None,
        apps: bool = False,
        lock: str | os.PathLike[str] | ServerLock | None = None,
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc_info: object) -> None: ...
    async def open(self) -> Self:
        """Connects, for programs that have no block to do it in: a notebook, for example. `aclose` is for its end.

        A client without any reference left is closed with a `ResourceWarning`.

        Raises:
            McpError: What entering the block raises.
        """

    async def aclose(self) -> None:
        """Closes the connection and waits for its end; calls in flight raise `ConnectionLost`.

        Idempotent, and legal from any task and any loop, a callback's included. A client that is closed before
        it is opened cannot be opened any more. Cancelled, the connection is closed all the same.

        Raises:
            Exception: What the lifespan of a server in this process raised at its end.
        """

    @property
    def era(self) -> EraName:
        """Whether sessions are spoken with the server; raises `LocalProtocolError` before the client is entered."""

    @property
    def version(self) -> str:
        """The protocol version that was agreed; raises as `era` does."""

    @property
    def server_info(self) -> Implementation:
        """The server's name and version, for display only; raises as `era` does.

        A stateless server need not tell them (MCP 2026-07-28, Base Protocol, ``_meta``): then both are empty.
        """

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declared; raises as `era` does."""

    @property
    def instructions(self) -> str | None:
        """The server's text for the model, if it has one, with ``lock`` an approved one; raises as `era` does."""

    @property
    def discovered(self) -> DiscoverResult | None:
        """The answer to ``server/discover``, for ``prior_discover``; ``None`` in a session. Raises as `era` does."""

    @property
    def extensions(self) -> Mapping[str, Any]:
        """The extensions that both sides have declared (SEP-2133): the server's settings, by their ids.

        Raises:
            LocalProtocolError: The client has not been entered.
        """

    async def ping(self, *, timeout: float | None = None) -> None:
        """Asks the server whether it is alive: by ``ping`` in a session, else by ``server/discover``.

        MCP 2025-11-25, Ping; MCP 2026-07-28, Versioning and Discovery.

        Args:
            timeout: Seconds to wait for the answer; by default the client's.

        Raises:
            McpError: What `request` raises.
        """

    async def approve(self) -> ServerLock:
        """Has the server list everything that a lock compares, and returns it as what is approved from now on.

        A person has to look at it: what a model reads of a server is in it. ``LockFile({name: lock}).write(path)``
        writes it, and ``mcp-actors lock`` does both.

        Raises:
            LocalProtocolError: The client is not connected, or has a ``lock``, which would hide what is new.
            McpError: What a list raises.
        """

    async def check_lock(self) -> list[Drift]:
        """Has the server list everything that a lock compares, and returns how it differs from what was approved.

        Returns:
            What has changed, what was not approved, and what was approved and is gone; empty if all is as it was.

        Raises:
            LocalProtocolError: The client was given no ``lock``, or is not connected.
            McpError: What a list raises.
        """

    async def set_log_level(self, level: LoggingLevel) -> None:
        """Sets the least severe log message that is wanted, from now on, in later connections too.

        MCP 2025-11-25, Logging, Setting Log Level; a stateless server learns it with each request.

        Args:
            level: One of `mcp_actors.types.LOGGING_LEVELS`.

        Raises:
            LocalProtocolError: There is no such level, or the server of a session did not declare logging.
            McpError: What `request` raises.
        """

    async def roots_changed(self) -> None:
        """Tells the server of a session to list the roots again; a stateless one asks when it needs them.

        MCP 2025-11-25, Roots, Root List Changes.

        Raises:
            LocalProtocolError: This client was given no roots, or is not connected.
            ConnectionLost: The connection has ended.
        """

    async def list_tools(
        self, cursor: str | None = None, *, refresh: bool = False, for_apps: bool = False
    ) -> ListToolsResult:
        """Returns one page of the tools; `tools` iterates over all of them. MCP 2026-07-28, Tools, Listing Tools.

        Over HTTP a stateless server's tool is left out, with a warning, if its parameters are to be sent in headers
        that cannot be; calling it raises `LocalProtocolError`.

        Args:
            cursor: The ``next_cursor`` of the page before; by default the first page.
            refresh: Whether the server is asked even if an earlier answer is good still, as it said itself.
            for_apps: Whether tools are among them that only pages of the server may call, `app`, and that must not be
                offered to models (SEP-1865, Visibility). By default they are left out.

        Raises:
            LocalProtocolError: The server did not declare tools, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """

    def tools(self, *, refresh: bool = False, for_apps: bool = False) -> AsyncIterator[Tool]:
        """Iterates over all tools; each page is requested when it is needed. See `list_tools`."""

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: None = None,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
        key: str | None = None,
    ) -> CallToolResult:
        """Calls a tool; a failure inside the tool is a result with ``is_error``, not an exception.

        MCP 2026-07-28, Tools, Calling Tools. Structured content is checked against the tool's output schema if the
        tool was listed before.

        Args:
            name: The tool.
            arguments: Its arguments, as JSON values.
            returns: The class of what the tool returns: ``returns=Forecast`` makes this return a ``Forecast``, and
                raise `ToolFailed` for a failure inside the tool. A dataclass, an attrs class, a `TypedDict`, a pydantic
                model, ``int``, ``list[Forecast]``: whatever the parameters of tools may be. The value is the structured
                content, or what servers put into it under ``result``; without any, as in old revisions, it is
                the text, or the JSON in it. By default the whole `CallToolResult` is returned.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.
            on_progress: A function, sync or async, that is called with each report (`Progress`) in the order of
                arrival, and with all of them before this returns. An exception of it ends the call and is raised here.
            meta: Further members of the request's ``_meta``.
            answers: The answers to an `InputRequired` that an earlier call raised, by its keys.
            state: The state of that `InputRequired`.
            key: Names the call, in up to 256 characters: the server begins nothing twice that has the same key, and
                answers from what the first call left (see `mcp_actors.extensions.Idempotency`). With it the call is
                made again within its time when its connection is lost, and the program may make it again with the same
                key after any error.

        Raises:
            TypeError: ``arguments`` is not a mapping, a value in it is not a JSON value, ``returns`` is not a class, or
                ``key`` is no text.
            KeyConflict: The key belongs to a call with other arguments.
            OutcomeUnknown: The key belongs to a call of which nobody knows what came of it.
            ToolFailed: With ``returns``: the tool failed.
            UnexpectedResult: With ``returns``: what the tool returned does not fit.
            WrongArguments: With ``Client(arguments=)``: they do not fit what the server has listed.
            LocalProtocolError: The server did not declare tools, or the client is not connected, or there is half of a
                surrogate pair in a text; the message says where.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
            InputRequired: The server asks for input, and the client has ``answer_input=False``.
        """

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: type[T],
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
        key: str | None = None,
    ) -> T: ...
    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: UnionType,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
        key: str | None = None,
    ) -> Any: ...
    def stream_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: Any = None,
        timeout: float | None = None,
        cap: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[ToolStream]:
        """Calls a tool for the length of the block; iterate over what it yields for the parts of the result.

        ``parts.result`` is the whole result after the last part, and ``await parts.send(message)`` sends something to
        the function while it runs. A program that reads slowly holds the function. Over HTTP with sessions a stream
        that breaks off is resumed, and each part comes once. Leaving the block before the end cancels the call.

        Args:
            name: The tool.
            arguments: Its arguments, as JSON values.
            returns: The class of one part: ``returns=Row`` makes each part a ``Row``, and raises `ToolFailed` for a
                failure inside the tool. By default parts are text, content blocks or JSON values.
            timeout: Seconds without an answer or a report of progress; by default the client's.
            cap: Seconds in all, with the time that the program takes to read; by default the client's.
            meta: Further members of the request's ``_meta``.

        Raises:
            TypeError: ``arguments`` is not a mapping, a value in it is not a JSON value, or ``returns`` is not a class.
            WrongArguments: With ``Client(arguments=)``: they do not fit what the server has listed.
            LocalProtocolError: The client is not connected.
            McpError: What else `call_tool` raises; the iteration raises it, after the parts that came before.
        """

    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        cap: float | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
        key: str | None = None,
    ) -> TaskHandle:
        """Calls a tool as a task and returns a handle of it at once: the tool goes on without its caller.

        MCP 2025-11-25, Tasks; SEP-2663. A tool or a server that has no tasks is waited for, and the handle has the
        result already. What a tool asks before its task begins is answered here. After a cancellation there may
        still be a task, which ends with its time: started again with the same ``key``, it is found.

        Args:
            name: The tool.
            arguments: Its arguments, as JSON values.
            ttl: Seconds for which a session's server shall keep the task; by default, and over a stateless revision
                always, as the server likes.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all until there is a task; by default the client's. They are no deadline for the task.
            meta: Further members of the request's ``_meta``.
            answers: The answers to an `InputRequired` that an earlier call raised, by its keys.
            state: The state of that `InputRequired`.
            key: As in `call_tool`: the same key has the same task. The tool needs ``idempotent=`` at its server.

        Raises:
            TypeError: ``arguments`` is not a mapping, a value in it is not a JSON value, or ``key`` is no text.
            KeyConflict: The key belongs to a call with other arguments.
            OutcomeUnknown: The key belongs to a call of which nobody knows what came of it.
            LocalProtocolError: The server did not declare tools, or the client is not connected, or there is half of a
                surrogate pair in a text; the message says where.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
            InputRequired: The server asks for input, and the client has ``answer_input=False``.
        """

    def task(self, id: str) -> TaskHandle:
        """Returns a handle of a task that was started before, by this program or another one.

        Nothing is asked: whether there is such a task, the handle's methods tell.

        Args:
            id: The `TaskHandle.id`.

        Raises:
            TypeError: It is not text, or empty.
        """

    def tasks(self) -> AsyncIterator[TaskStatus]:
        """Iterates over the caller's tasks; each page is requested when it is needed.

        MCP 2025-11-25, Tasks, Listing Tasks; a stateless revision has no list of tasks.

        Raises:
            LocalProtocolError: The server has no list of tasks, or the client is not connected.
            McpError: What `TaskHandle.status` raises.
        """

    async def list_resources(
        self, cursor: str | None = None, *, refresh: bool = False
    ) -> ListResourcesResult:
        """Returns one page of the resources; `resources` iterates over all of them.

        MCP 2026-07-28, Resources, Listing Resources.

        Args:
            cursor: The ``next_cursor`` of the page before; by default the first page.
            refresh: Whether the server is asked even if an earlier answer is good still, as it said itself.

        Raises:
            LocalProtocolError: The server did not declare resources, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """

    def resources(self, *, refresh: bool = False) -> AsyncIterator[Resource]:
        """Iterates over all resources; each page is requested when it is needed. Raises as `list_resources` does."""

    async def list_resource_templates(
        self, cursor: str | None = None, *, refresh: bool = False
    ) -> ListResourceTemplatesResult:
        """Returns one page of the resource templates; `resource_templates` iterates over all of them.

        MCP 2026-07-28, Resources, Resource Templates. Arguments and errors are those of `list_resources`.
        """

    def resource_templates(self, *, refresh: bool = False) -> AsyncIterator[ResourceTemplate]:
        """Iterates over all resource templates; each page is requested when it is needed. Raises as the list does."""

    async def read_resource(
        self,
        uri: str,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        refresh: bool = False,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> ReadResourceResult:
        """Reads a resource. MCP 2026-07-28, Resources, Reading Resources.

        Args:
            uri: The resource.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.
            refresh: Whether the server is asked even if an earlier answer is good still, as it said itself.
            answers: The answers to an `InputRequired` that an earlier call raised, by its keys.
            state: The state of that `InputRequired`.

        Raises:
            ResourceNotFound: The server has no such resource.
            LocalProtocolError: The server did not declare resources, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
            InputRequired: The server asks for input, and the client has ``answer_input=False``.
        """

    async def app(
        self, tool: Tool | str, *, timeout: float | None = None, cap: float | None = None
    ) -> AppPage:
        """Reads the page on which a host shows the results of a tool, and checks it (SEP-1865).

        What the page asks for beyond the extension, such as an origin that is none, is left out, and logged. A host
        shows the page in a sandbox, and lets it call those tools of this server alone that have ``"app"`` in their
        `~mcp_actors.types.Tool.visibility`.

        Args:
            tool: The tool, as it was listed, or the ``ui://`` URI of a page.
            timeout: Seconds without an answer; by default the client's.
            cap: Seconds in all; by default the client's.

        Raises:
            LocalProtocolError: The tool has no page (its ``app_uri`` is ``None``), or the client is not connected.
            AppRefused: It must not be shown: it is not HTML of this kind, has more than 4 MiB, or no ``ui://`` URI.
            ResourceNotFound: The server has no such page.
            McpError: What else `read_resource` raises.
        """

    def skills(self) -> AsyncIterator[Skill]:
        """Iterates over the skills that the server lists (SEP-2640, Listing Skills); none of their files is read.

        A server may have skills that it does not list: `get_skill` asks for one by its URI. An entry that must not be
        used, because it is incomplete or names files elsewhere, is left out, and logged.

        Raises:
            LocalProtocolError: The server did not declare skills, or the client is not connected.
            McpError: What else `request` raises.
        """

    async def get_skill(self, uri: str) -> Skill:
        """Asks for the entry of one skill, listed or not, as it is now (SEP-2640, Getting a Skill).

        Args:
            uri: The URI of its ``SKILL.md``.

        Raises:
            LocalProtocolError: The server did not declare skills, or the client is not connected.
            RpcError: The server has no such skill (-32602), or answered with another error.
            DefinitionChanged: With ``lock``: it is not what was approved.
            RemoteProtocolError: The answer is not the entry of that skill, or one that must not be used.
            McpError: What else `request` raises.
        """

    async def load_skill(
        self, skill: Skill, *, timeout: float | None = None, cap: float | None = None
    ) -> str:
        """Reads the ``SKILL.md`` of a skill: instructions for a model, if a person has approved this entry.

        Its size, its SHA-256 and its frontmatter are those of the entry (SEP-2640, Integrity and Verification); of a
        dynamic skill the frontmatter alone. This proves no more than that they belong together: the text is as much to
        be trusted as the server.

        Args:
            skill: The entry, as `skills` or `get_skill` has returned it.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.

        Raises:
            SkillRefused: It is not what the entry says, or the skill has more than 512 files or 16 MiB.
            ImportError: The library for YAML is not installed: ``pip install 'pyyaml>=6.0.2'``.
            McpError: What else a read raises, such as `RpcError` for a file that the server has no more.
        """

    async def read_skill_file(
        self, skill: Skill, path: str, *, timeout: float | None = None, cap: float | None = None
    ) -> bytes:
        """Reads one file of a skill, when a model asks for it; it is what the entry says, as `load_skill` checks it.

        Args:
            skill: The entry from which the skill was loaded.
            path: The file as the skill refers to it, from its folder on, such as ``"references/FORMS.md"``; or its URI.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.

        Raises:
            SkillRefused: It is not in the entry, which has all files of the skill, or not what that says.
            McpError: What else a read raises, such as `RpcError` for a file that the server has no more.
        """

    def directory(self, uri: str) -> AsyncIterator[Resource]:
        """Iterates over what is in a directory of the server now (SEP-2640, Reading Directories).

        Directories in it have the type ``inode/directory``. A file of a skill that its entry does not have must not be
        read: `get_skill` asks for the entry of today.

        Args:
            uri: The directory, without a slash at its end, such as `Skill.root`.

        Raises:
            LocalProtocolError: The server did not declare that it can, or the client is not connected.
            RpcError: It is no directory (-32602), or the server answered with another error.
            McpError: What else `request` raises.
        """

    async def list_prompts(self, cursor: str | None = None, *, refresh: bool = False) -> ListPromptsResult:
        """Returns one page of the prompts; `prompts` iterates over all of them.

        MCP 2026-07-28, Prompts, Listing Prompts.

        Args:
            cursor: The ``next_cursor`` of the page before; by default the first page.
            refresh: Whether the server is asked even if an earlier answer is good still, as it said itself.

        Raises:
            LocalProtocolError: The server did not declare prompts, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """

    def prompts(self, *, refresh: bool = False) -> AsyncIterator[Prompt]:
        """Iterates over all prompts; each page is requested when it is needed. Raises as `list_prompts` does."""

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> GetPromptResult:
        """Fills in a prompt. MCP 2026-07-28, Prompts, Getting a Prompt.

        Args:
            name: The prompt.
            arguments: Its arguments; all are text.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.
            answers: The answers to an `InputRequired` that an earlier call raised, by its keys.
            state: The state of that `InputRequired`.

        Raises:
            LocalProtocolError: The server did not declare prompts, or the client is not connected, or there is half of
                a surrogate pair in a text; the message says where.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
            InputRequired: The server asks for input, and the client has ``answer_input=False``.
        """

    async def complete(
        self, ref: CompletionReference, argument: str, value: str, context: Mapping[str, str] | None = None
    ) -> Completion:
        """Asks for completions of an argument that the user is typing. MCP 2026-07-28, Completion.

        Args:
            ref: The prompt or resource template.
            argument: The name of its argument.
            value: What was typed so far.
            context: The other arguments that have a value already.

        Returns:
            At most 100 values, and whether there are more.

        Raises:
            LocalProtocolError: The server did not declare completions, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """

    def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: tuple[str, ...] = (),
        members: Mapping[str, Sequence[str]] | None = None,
    ) -> AbstractAsyncContextManager[Listener]:
        """Subscribes to changes for the length of the block, in both eras; iterate over what it yields.

        MCP 2026-07-28, Subscriptions; MCP 2025-11-25, Resources, Subscriptions. When the block is entered the
        subscription is in force, as far as ``Listener.honored`` says; leaving it waits at most one second for the
        server to take it back.

        Args:
            tools: Whether changes of the list of tools are wanted.
            prompts: Whether changes of the list of prompts are wanted.
            resources: Whether changes of the list of resources are wanted.
            uris: The resources whose updates are wanted.
            members: Keys for the members of the filter that extensions have, such as ``{"taskIds": [id]}``. What the
                server says of them goes to the extension's functions of notifications, and what it has granted is in
                ``Listener.honored.extra``. A session has no such members.

        Raises:
            SubscriptionLost: The server refused, or the connection ended; also raised by the iteration, later.
            CallTimeout: The server did not confirm in time.
            LocalProtocolError: The client is not connected, or the server did not declare subscriptions.
            McpError: What else `request` raises.
        """

    async def subscribe_resource(self, uri: str) -> None:
        """Subscribes to a resource until its session ends, or `unsubscribe_resource`; `listen` does it in both eras.

        MCP 2025-11-25, Resources, Subscriptions; no stateless server has it. Changes are
        reported to ``on_change`` and to every `Listener` of the resource.

        Args:
            uri: The resource.

        Raises:
            LocalProtocolError: The server did not declare resources.subscribe, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """

    async def unsubscribe_resource(self, uri: str) -> None:
        """Takes `subscribe_resource` back; raises as it does. A `Listener` of the same resource goes on."""

    def watch_tools(self) -> AbstractAsyncContextManager[AsyncIterator[ListChange[Tool]]]:
        """Yields the list of tools and whatever becomes of it, for the length of the block; iterate over what comes.

        First comes the list as it is, then what differs each time: `ListChange` has both. No list is older than the one
        before. Differences that arrive between two looks are one, so a slow reader gets the newest list and nothing
        grows. It goes on over losses of the connection, where the client makes it again (``restart=True``, or over
        HTTP), and over restarts of the server, in both eras. Where the server announces no changes the list is read
        again in each new connection, and when the time is over that the server has named (``ttlMs``); where it does and
        has no stream for them over HTTP, once a minute.

        Cancelling a look loses nothing; leaving the block waits at most one second for the server to take the
        subscription back.

        Raises:
            LocalProtocolError: The server did not declare tools, or the client is not connected.
            ConnectionLost: By the iteration: there is no connection, and none will be made.
            ConnectFailed: By the iteration: the last attempt to connect again failed.
            McpError: By the iteration: what else `list_tools` raises, after which it may go on. It waits and asks again
                after a connection that failed, a request without an answer in time, and a server that is overloaded or
                stops.
        """

    def watch_resources(self) -> AbstractAsyncContextManager[AsyncIterator[ListChange[Resource]]]:
        """Yields the list of resources and whatever becomes of it, as `watch_tools` does; raises as it does."""

    def watch_prompts(self) -> AbstractAsyncContextManager[AsyncIterator[ListChange[Prompt]]]:
        """Yields the list of prompts and whatever becomes of it, as `watch_tools` does; raises as it does."""

    def watch_resource(self, uri: str) -> AbstractAsyncContextManager[AsyncIterator[ReadResourceResult]]:
        """Yields a resource and its newest contents each time that they differ, as `watch_tools` does for lists.

        Where the server takes no subscription to it, it is read again in each new connection, and when the time is over
        that the server has named (``ttlMs``).

        Args:
            uri: The resource. Updates of what lies below it count, too.

        Raises:
            LocalProtocolError: The server did not declare resources, or the client is not connected.
            ResourceNotFound: By the iteration: the server has no such resource now. The iteration may go on, and then
                waits until something is heard of it.
            McpError: By the iteration: what `watch_tools` and `read_resource` raise.
        """

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Sends any request and returns its raw result: for methods that are not part of the protocol.

        Cancelled, the server is sent a cancellation.

        Args:
            method: The method.
            params: Its parameters, as JSON values; ``_meta`` is added to, and says of the client what the client is.
            timeout: Seconds without an answer; by default the client's.

        Raises:
            LocalProtocolError: The request cannot be sent: it is too long, or its method fits no header.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer is not an object.
            CallTimeout: The server did not answer in time.
            ConnectionLost: There is no connection, or it ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Sends any notification: for methods that are not part of the protocol. It has no answer.

        Args:
            method: The method, as `Server.notification` names it.
            params: Its parameters, as JSON values.

        Raises:
            LocalProtocolError: The client is not connected, the notification is too long, or its method fits no header.
            ConnectionLost: The connection has ended.
        """

    def tree(self) -> SessionStatistics:
        """Returns a snapshot of this client: its calls in both directions and its connection.

        While the handshake is performed, from another task than the one that enters the client, it shows that.

        Raises:
            ConnectionLost: There is no connection.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session.
        """

class ClientGroup:
    """Clients of many servers for programs on asyncio, used as ``async with ClientGroup("mcp.json") as group``.

    Entering the block connects to all of them at once. One that cannot be connected to is among `failures`, and the
    others are there; a connection that is lost later is made again by itself. ``group["name"]`` is the `Client` of a
    server. Leaving the block closes all of them, within a bounded time.

    A tool or prompt is called ``server__tool`` here: the name of its server, with ``_`` for every character that the
    APIs of models do not allow, the separator, and its own name.

    Args:
        servers: The path of a configuration, its text or the mapping that it contains, as in
            `read_server_entries`; what that returned, or some of its entries; or a mapping
            of names to whatever a `Client` takes as its target, and to entries of a configuration.
        required: Names of servers without which entering the block fails.
        separator: What separates the name of a server from that of its tool.
        at_once: How many servers are connected to at a time, and how many calls one `call_all` has in flight.
        connect_timeout: Seconds after which a server that has not completed its handshake counts as failed. A program
            that is downloaded first may need more than the 60 of the default: `reconnect` tries again.
        options_for: Returns more options for the client of the server with a name, so that ``elicitation``, for
            example, knows which server asks, as a host has to show (MCP 2026-07-28, Elicitation).
        options: Options of each `Client`; ``restart`` is true by default here. The members ``era``, ``timeout`` and
            ``cap`` of an entry take precedence, and ``auth`` is for the servers at URLs of HTTP and WebSocket that have
            no credentials of their own.

    Raises:
        ConfigurationError: The configuration as a whole cannot be read.
        TypeError: A target or an option is of a wrong kind.
        ValueError: A target or an option cannot be, a required server is not among them, or two names of servers cannot
            be distinguished.
        TransportNotFound: No binding is installed for the URL of a target outside of a configuration.
    """

    def __init__(
        self,
        servers: GroupServers,
        *,
        required: Collection[str] = (),
        separator: str = "__",
        at_once: int = 32,
        connect_timeout: float = 60.0,
        options_for: OptionsFor | None = None,
        **options: Any,
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc_info: object) -> None: ...
    def __getitem__(self, name: str) -> Client: ...
    @property
    def names(self) -> Sequence[str]:
        """The names of all servers, in the order in which they were given."""

    @property
    def failures(self) -> Mapping[str, McpError]:
        """The reasons why servers cannot be used at present, by their names.

        A server is among them if it could not be connected to, if its connection was lost and is not made again yet,
        and if the last list that was asked of it could not be had. One that is there again is no longer among them.
        """

    async def reconnect(self, name: str) -> Client:
        """Connects to a server anew, whether it failed before or is connected; its variables are looked up again.

        Cancelled, or if it fails, the server is not connected.

        Args:
            name: The server.

        Returns:
            Its client, which is another one than before.

        Raises:
            KeyError: The group has no server of this name.
            LocalProtocolError: The group is not open, or the server is being connected to.
            McpError: What entering a `Client` raises; it is among `failures`, too.
        """

    async def tools(self, *, refresh: bool = False) -> list[Tool]:
        """Returns the tools of all servers, under the names that `call_tool` takes, in the order of the servers.

        A server whose list cannot be had is left out; it is among `failures` then.

        Args:
            refresh: Whether servers are asked even if an earlier answer is good still, as they said themselves.

        Raises:
            LocalProtocolError: The group is not open.
        """

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Calls a tool of one of the servers; `Client.call_tool` has more options.

        Args:
            name: The tool, as `tools` names it: ``"weather__forecast"``.
            arguments: Its arguments, as JSON values.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.
            on_progress: A function, sync or async, that is called with each report.
            meta: Further members of the request's ``_meta``.

        Raises:
            LocalProtocolError: No server of the group has a name that this one begins with.
            ConnectFailed: The server could not be connected to.
            McpError: What else `Client.call_tool` raises.
        """

    async def call_all(
        self,
        calls: Iterable[tuple[str, Mapping[str, Any] | None]],
        *,
        timeout: float | None = None,
        cap: float | None = None,
    ) -> list[CallToolResult | Exception]:
        """Makes many calls at once, each of which fails alone; ``at_once`` of them are in flight at a time.

        Cancelled, all of them are, at their servers as well.

        Args:
            calls: The tools, as `tools` names them, and their arguments.
            timeout: Seconds that each may take without an answer or a progress report; by default those of its client.
            cap: Seconds that each may take in all; by default those of its client.

        Returns:
            The result of each call, or the exception that `call_tool` raised for it, in the order of the calls.
        """

    async def prompts(self, *, refresh: bool = False) -> list[Prompt]:
        """Returns the prompts of all servers, under the names that `get_prompt` takes; see `tools`.

        Args:
            refresh: Whether servers are asked even if an earlier answer is good still, as they said themselves.

        Raises:
            LocalProtocolError: The group is not open.
        """

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """Fills in a prompt of one of the servers.

        Args:
            name: The prompt, as `prompts` names it.
            arguments: Its arguments; all are text.

        Raises:
            LocalProtocolError: No server of the group has a name that this one begins with.
            ConnectFailed: The server could not be connected to.
            McpError: What else `Client.get_prompt` raises.
        """

    async def resources(self, *, refresh: bool = False) -> dict[str, list[Resource]]:
        """Returns the resources of all servers, by the names of the servers, whose ``read_resource`` takes their URIs.

        URIs are not prefixed, and two servers may have the same one. A server whose list cannot be had is left out, and
        is among `failures` then.

        Args:
            refresh: Whether servers are asked even if an earlier answer is good still, as they said themselves.

        Raises:
            LocalProtocolError: The group is not open.
        """

    async def resource_templates(self, *, refresh: bool = False) -> dict[str, list[ResourceTemplate]]:
        """Returns the resource templates of all servers, by the names of the servers; see `resources`.

        Args:
            refresh: Whether servers are asked even if an earlier answer is good still, as they said themselves.

        Raises:
            LocalProtocolError: The group is not open.
        """

class ClientPool:
    """Owns many clients, used as ``async with ClientPool() as pool``; leaving the block closes all of them at once.

    Clients of asyncio programs may be closed in any order, from any task, without it too. A client that fails costs
    nothing but itself.
    """

    def __init__(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc_info: object) -> None: ...
    async def open(self, client: Client) -> Client:
        """Opens ``client``, which stays open until `close`, its own `Client.aclose`, or the end of the pool's block.

        Legal from any task. Cancelled, or if it fails, nothing is left of the client.

        Args:
            client: A client that was never opened: ``await pool.open(Client("stdio:COMMAND", timeout=5))``.

        Returns:
            The same client.

        Raises:
            LocalProtocolError: The pool is not open, or the client was opened before.
            McpError: What else entering a `Client` raises.
        """

    async def close(self, client: Client) -> None:
        """Closes ``client`` and waits until nothing is left of it; calls in flight raise `ConnectionLost`.

        Idempotent, and legal from any task. Cancelled, it is closed all the same.

        Args:
            client: A client of this pool; nothing happens for any other client, or if it was closed before.

        Raises:
            Exception: What the lifespan of a server in this process raised at its end.
        """

class Listener:
    """The changes that were subscribed to, as an async iterator of `Event`; made by `Client.listen`.

    Changes that arrive between reads are coalesced, so a slow reader sees the newest state and nothing grows. The
    iteration ends when the subscription ended in order; it raises `SubscriptionLost` when it broke off.
    """

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Event: ...
    @property
    def filter(self) -> SubscriptionFilter:
        """The filter that was asked for."""

    @property
    def honored(self) -> SubscriptionFilter | None:
        """The part of it that the server has granted; in a session, which does not tell, all of it."""

    @property
    def uris(self) -> Sequence[str]:
        """The resources that are subscribed to."""

class TaskHandle:
    """A call of a tool that goes on at the server, whatever becomes of this program and its connection.

    Made by `Client.start_tool` and `Client.task`. Dropping it changes nothing: the task goes on, and its ``id`` is good
    for another handle, in another process too, as long as the caller is the same to the server. The id is a secret:
    without authorization, any program that has it may read and cancel the task.
    """

    @property
    def id(self) -> str | None:
        """The task's id; ``None`` if the server answered at once, without a task."""

    async def status(self, *, timeout: float | None = None) -> TaskStatus:
        """Asks the server for the state of the task. MCP 2025-11-25, Tasks, Getting Tasks; SEP-2663.

        Args:
            timeout: Seconds without an answer, also over a lost connection; by default the client's.

        Raises:
            TaskNotFound: The server knows no such task, or no longer.
            RpcError: The server answered with another error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended, and did not come back in time.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session, and did not begin another one in time.
        """

    def updates(self, *, timeout: float | None = None) -> AsyncIterator[TaskStatus]:
        """Iterates over the task's states and messages as they change; the terminal state is the last one.

        It looks as often as the server asks for, within 0.1 s and 60 s, and at once when the server tells of a change.
        Changes that follow each other faster may be left out. Raises as `status` does; a task that is forgotten while
        it is iterated over raises `TaskNotFound`. A program that stops before the end has nothing to close.

        Args:
            timeout: Seconds that one look at the task may take; by default the client's.
        """

    async def result(
        self,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> CallToolResult:
        """Waits until the task has ended and returns what the call of the tool would have returned.

        What the task asks is answered by the client's handlers. Cancelled, or out of time, it leaves the task running:
        `cancel` ends it.

        Args:
            timeout: Seconds that one look at the task may take, also over a lost connection; by default the client's.
                The pauses between looks do not count: while the server answers looks, it is not silent.
            cap: Seconds in all; by default without an end, for a task may take days.
            on_progress: A function, sync or async, that is called with each change of the task's state or message, as
                a `Progress` whose ``progress`` counts them.

        Raises:
            TaskCancelled: The task was cancelled.
            TaskNotFound: The server knows no such task, or no longer.
            RpcError: The call failed, or the server answered with another error.
            RemoteProtocolError: The answer cannot be understood, or the task asks without an end.
            CallTimeout: A clock ran out.
            ConnectionLost: The connection ended, and did not come back in time.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session, and did not begin another one in time.
            InputRequired: The task asks for input, and the client has ``answer_input=False``: `answer` it.
        """

    async def answer(self, answers: Mapping[str, InputResponse], *, timeout: float | None = None) -> None:
        """Answers questions of the task, in place of the client's handlers. SEP-2663, ``tasks/update``.

        Some of the questions may be left for later. A question that was answered elsewhere is passed over.

        Args:
            answers: The answers by the keys of `InputRequired`.
            timeout: Seconds without an answer; by default the client's.

        Raises:
            RemoteProtocolError: In a session the server asks by requests of its own, which handlers answer.
            TaskNotFound: The server knows no such task, or no longer.
            McpError: What else `status` raises.
        """

    async def send(self, message: Any, *, timeout: float | None = None) -> None:
        """Sends a message to the function while it runs, which takes it from ``ctx.inbox``; at whatever node that is.

        Messages arrive in the order of these calls. The function may read them at any time, or never: that the message
        is there is all that this says. Those that it has not taken are kept with the task, also for a node that runs it
        again. Cancelled, or after a loss of the connection, the message may be there or not.

        Args:
            message: Any JSON value.
            timeout: Seconds in all; by default the client's.

        Raises:
            CallEnded: The task has ended.
            InboxUnavailable: The server takes no messages for tasks: it is not one of this engine.
            Overloaded: Too many messages wait for the function, for the whole time.
            TaskNotFound: The server knows no such task, or no longer.
            McpError: What else `status` raises.
        """

    async def cancel(self, *, timeout: float | None = None) -> None:
        """Cancels the task; one that has ended stays as it is. MCP 2025-11-25, Tasks, Cancelling Tasks; SEP-2663.

        A stateless server may take note of it only, and end the task later, or never: `status` tells.

        Args:
            timeout: Seconds without an answer; by default the client's.

        Raises:
            TaskNotFound: The server knows no such task, or no longer.
            McpError: What else `status` raises.
        """

class ToolStream:
    """The parts of a tool's result, as an async iterator; made by `Client.stream_tool`.

    A part is text, a content block, a list of these, or the JSON value that the tool has yielded; with ``returns=``
    it is an object of that class. A tool or a server without parts has one part, which is the whole. Each part comes
    once.
    """

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Any: ...
    @property
    def result(self) -> CallToolResult:
        """The whole result, with all parts in it; a failure inside the tool is one with ``is_error``.

        Raises:
            LocalProtocolError: The call has not ended: iterate to the end first.
            McpError: Why the call has failed.
        """

    async def send(self, message: Any, *, timeout: float | None = None) -> None:
        """Sends a message to the function while it runs, which takes it from ``ctx.inbox``.

        Messages arrive in the order of these calls. The function may read them at any time, or never: that the message
        is there is all that this says. Cancelled, or after a loss of the connection, it may be there or not.

        Args:
            message: Any JSON value.
            timeout: Seconds in all; by default the client's.

        Raises:
            CallEnded: The call has ended.
            InboxUnavailable: The server does not have the extension.
            Overloaded: Too many messages wait for the function, for the whole time.
            CallTimeout: The call was not found at the server, or it did not answer, for the whole time.
            RpcError: The server answered with another error.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session.
        """
