"""The client: one object, the same for both eras and every transport.

Beside `Client` this module has the types of what its users hold or write: handlers, listeners and statistics.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import UnionType
from typing import Any, NoReturn, TypeVar, overload

import attrs
import trio

from mcp_actors._actors.dispatcher import Counters, LinkStatistics, SessionStatistics
from mcp_actors._actors.inbound_call import CallStatistics
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import CallOptions, OutboundCallStatistics, Progress, ProgressCallback
from mcp_actors._client.apps import read_app
from mcp_actors._client.client_extension import ClientExtension
from mcp_actors._client.connectivity import Connectivity
from mcp_actors._client.handshake import Handshake
from mcp_actors._client.lock import Drift, LockFile, LockGate, ServerLock, approved_now, as_server_lock
from mcp_actors._client.notifications import Listener, Notifications, Subscriptions
from mcp_actors._client.options import (
    Access,
    ChangeHandler,
    ClientCall,
    ClientMiddleware,
    ClientNotification,
    ClientNotificationMiddleware,
    ClientOptions,
    ElicitationHandler,
    HandleNext,
    LogHandler,
    LossHandler,
    NotificationCallback,
    Roots,
    SamplingHandler,
    SendNext,
    Target,
    Telemetry,
    connectable,
)
from mcp_actors._client.pages import AllPages
from mcp_actors._client.request_handlers import RequestHandlers
from mcp_actors._client.requests import Requests, call_options, callers_meta
from mcp_actors._client.skills import ClientSkills
from mcp_actors._client.supervisor import BlockNursery, ClientLife, IdlePings, Supervisor
from mcp_actors._client.task_extension import ClientTasks
from mcp_actors._client.task_handle import TaskHandle
from mcp_actors._client.task_requests import TaskRequests, task_status
from mcp_actors._client.tool_arguments import ArgumentCheck, ArgumentMode
from mcp_actors._client.tool_results import result_reader
from mcp_actors._client.tool_streams import PartStream, ToolStream, streamed
from mcp_actors._client.tool_tasks import ToolTasks
from mcp_actors._client.watching import ListChange, WatchedList, WatchedResource, WatchedState
from mcp_actors._eras.client_negotiation import discoverable, versions_for
from mcp_actors._eras.era import IDEMPOTENCY, KEY, EraName, Event, EventKind
from mcp_actors.abc import SharedState
from mcp_actors.errors import (
    INVALID_PARAMS,
    LocalProtocolError,
    McpError,
    MethodNotFound,
    ResourceNotFound,
    RpcError,
)
from mcp_actors.supervision.tracebacks import shorten
from mcp_actors.types import (
    LOGGING_LEVELS,
    AppPage,
    CallToolResult,
    ClientCapabilities,
    CompleteResult,
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

__all__ = [
    "CallStatistics",
    "ChangeHandler",
    "Client",
    "ClientCall",
    "ClientMiddleware",
    "ClientNotification",
    "ClientNotificationMiddleware",
    "ClientPool",
    "Counters",
    "Drift",
    "ElicitationHandler",
    "Event",
    "EventKind",
    "HandleNext",
    "LinkStatistics",
    "ListChange",
    "Listener",
    "LockFile",
    "LogHandler",
    "LossHandler",
    "NotificationCallback",
    "OutboundCallStatistics",
    "Progress",
    "ProgressCallback",
    "Roots",
    "SamplingHandler",
    "SendNext",
    "ServerLock",
    "SessionStatistics",
    "Target",
    "TaskHandle",
    "ToolStream",
]


VERSION = "1.0.0rc1"

T = TypeVar("T")


class Client:
    """A client of one server, used as ``async with Client(target) as client``.

    Leaving the block closes the connection; what the block raises leaves it unchanged. It is left in the task that
    entered it, before blocks that were entered earlier, or it raises `ClosedElsewhere`: the clients of a `ClientPool`
    are closed in any order, from any task. A callback that fails costs the one call or notification it was made for,
    and is logged.

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
        middleware: Sequence[ClientMiddleware] = (),
        arguments: ArgumentMode = "as-is",
        deadlines: bool = False,
        cache: SharedState | None = None,
        apps: bool = False,
        lock: str | os.PathLike[str] | ServerLock | None = None,
    ) -> None:
        versions = versions_for(era)
        if prior_discover is not None:
            discoverable(versions, prior_discover)
        hosts = {"sampling/createMessage": sampling, "elicitation/create": elicitation}
        answered = [name for name, given in hosts.items() if given]
        client_tasks = ClientTasks()
        try:
            gate = None if lock is None else LockGate(as_server_lock(lock))
            options = ClientOptions(
                target=connectable(target, auth),
                versions=versions,
                info=info or Implementation("mcp-actors", VERSION),
                sampling=sampling,
                sampling_tools=sampling_tools,
                capabilities=capabilities,
                elicitation=elicitation,
                roots=roots,
                on_log=on_log,
                on_change=on_change,
                on_notification=on_notification,
                on_lost=on_lost,
                log_level=log_level,
                call=CallOptions(idle=timeout, cap=cap, sends_deadline=deadlines),
                answer_input=answer_input,
                max_rounds=max_rounds,
                probe_timeout=probe_timeout,
                ping_interval=ping_interval,
                restart=restart,
                arguments=arguments,
                apps=apps,
                prior_discover=prior_discover,
                limits=limits or Limits(),
                auth=auth,
                telemetry=telemetry,
                extensions=extensions,
                middleware=middleware if gate is None else [*middleware, gate],
                cache=cache,
                tasks=client_tasks.extension(takes=tasks, hosts=answered),
            )
        except (McpError, TypeError) as error:
            shorten(error)
            raise
        self._assemble(options, client_tasks, gate)

    def _assemble(self, options: ClientOptions, client_tasks: ClientTasks, gate: LockGate | None) -> None:
        """Makes the parts of the client, which know each other from here on."""
        self._options = options
        self._connectivity = connectivity = Connectivity(options.restart)
        handlers = RequestHandlers(options, connectivity)
        self._requests = requests = Requests(options, connectivity, handlers)
        # The calls during which servers may ask or report.
        self._long_call = attrs.evolve(requests.options, wants_progress=True)
        self._subscriptions = Subscriptions(connectivity, requests)
        self._tasks = TaskRequests(requests, connectivity, self._subscriptions)
        self._tool_tasks = ToolTasks(requests, self._tasks)
        self._task_support = self._tool_tasks.support
        self._skills = ClientSkills(requests, connectivity, options.limits.cache_bytes)
        notifications = Notifications(options, requests, self._subscriptions)
        self._handshake = Handshake(options, handlers.capabilities)
        connectivity.on_lost = notifications.lost
        users = requests, IdlePings(options.ping_interval, requests)
        self._supervisor = Supervisor(
            options, connectivity, self._handshake, handlers, notifications.put, users
        )
        self._life = ClientLife(self._supervisor, notifications, self._subscriptions)
        self._block = BlockNursery("Client")
        client_tasks.bind(self._tasks)
        self._gate = gate
        if gate is not None:
            gate.bind(requests, connectivity)

    def __repr__(self) -> str:
        return f"<Client {self._supervisor!r}>"

    # -- opening and closing -----------------------------------------------------------------------------------------

    def __await__(self) -> NoReturn:
        """Raises `TypeError`: a client is entered; outside of Trio `RuntimeError`, which names what to use there."""
        self._block.refuse(
            "await Client(...)", "a Client is not awaited: use 'async with Client(...) as client'"
        )

    def __enter__(self) -> NoReturn:
        """Always raises: a client is entered with ``async with``.

        Raises:
            RuntimeError: There is no Trio loop; it names what to use without one.
            TypeError: There is one.
        """
        self._block.refuse("a Client", "a Client is entered with 'async with'")

    def __exit__(self, *exc_info: object) -> None:
        """Is there for ``with`` to find `__enter__`, which always raises."""

    async def __aenter__(self) -> Client:
        block = BlockNursery("Client")
        try:
            await self._begin(await block.open())
        except BaseException as error:
            await block.close()
            shorten(error)
            raise
        self._block = block
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # The body's own exception is not handed on, so that it leaves as it is and never in a group of a nursery.
        self._life.end()
        if not self._block.is_innermost:
            await self._life.wait_until_ended()
        await self._block.close()
        self._life.raise_failure()

    async def _begin(self, nursery: trio.Nursery) -> None:
        """Opens the client in a nursery, which has its tasks from then on; raises as entering it does."""
        lifespans: list[Callable[[], Any]] = [
            partial(made, self) for each in self._options.in_use for made in each.lifespans
        ]
        if self._requests.shared is not None:
            lifespans.insert(0, self._requests.shared.opened)
        await self._life.begin(nursery, lifespans)

    async def aclose(self) -> None:
        """Closes the connection and waits for its end; calls in flight raise `ConnectionLost`.

        Idempotent, and legal from any task, a callback's included. A client that is closed before it is
        entered cannot be entered any more. Cancelled, the connection is closed all the same.
        """
        await self._supervisor.stop()

    # -- the server --------------------------------------------------------------------------------------------------

    @property
    def era(self) -> EraName:
        """Whether sessions are spoken with the server; raises `LocalProtocolError` before the client is entered."""
        return self._connectivity.negotiated.era.name

    @property
    def version(self) -> str:
        """The protocol version that was agreed; raises as `era` does."""
        return self._connectivity.negotiated.era.version

    @property
    def server_info(self) -> Implementation:
        """The server's name and version, for display only; raises as `era` does.

        A stateless server need not tell them (MCP 2026-07-28, Base Protocol, ``_meta``): then both are empty.
        """
        return self._connectivity.negotiated.info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declared; raises as `era` does."""
        return self._connectivity.negotiated.capabilities

    @property
    def instructions(self) -> str | None:
        """The server's text for the model, if it has one, with ``lock`` an approved one; raises as `era` does."""
        return (
            self._connectivity.negotiated.instructions
            if self._gate is None
            else self._gate.shown_instructions
        )

    @property
    def discovered(self) -> DiscoverResult | None:
        """The answer to ``server/discover``, for ``prior_discover``; ``None`` in a session. Raises as `era` does."""
        return self._connectivity.negotiated.discovered

    @property
    def extensions(self) -> Mapping[str, Any]:
        """The extensions that both sides have declared (SEP-2133): the server's settings, by their ids.

        Raises:
            LocalProtocolError: The client has not been entered.
        """
        declared = self._connectivity.negotiated.capabilities.extensions or {}
        return {id: settings for id, settings in declared.items() if id in self._requests.extensions.declared}

    async def ping(self, *, timeout: float | None = None) -> None:
        """Asks the server whether it is alive: by ``ping`` in a session, else by ``server/discover``.

        MCP 2025-11-25, Ping; MCP 2026-07-28, Versioning and Discovery.

        Args:
            timeout: Seconds to wait for the answer; by default the client's.

        Raises:
            McpError: What `request` raises.
        """
        requests = self._requests
        method = self._connectivity.negotiated.era.client.ping_method
        await requests.send(method, {}, call_options(requests.options, timeout))

    async def approve(self) -> ServerLock:
        """Has the server list everything that a lock compares, and returns it as what is approved from now on.

        A person has to look at it: what a model reads of a server is in it. ``LockFile({name: lock}).write(path)``
        writes it, and ``mcp-actors lock`` does both.

        Raises:
            LocalProtocolError: The client is not connected, or has a ``lock``, which would hide what is new.
            McpError: What a list raises.
        """
        if self._gate is not None:
            raise LocalProtocolError("this client has a lock=, which hides what is new: approve without it")
        return await approved_now(self._requests, self._connectivity.negotiated)

    async def check_lock(self) -> list[Drift]:
        """Has the server list everything that a lock compares, and returns how it differs from what was approved.

        Returns:
            What has changed, what was not approved, and what was approved and is gone; empty if all is as it was.

        Raises:
            LocalProtocolError: The client was given no ``lock``, or is not connected.
            McpError: What a list raises.
        """
        if self._gate is None:
            raise LocalProtocolError("this client was given no lock=, so there is nothing to compare with")
        return await self._gate.check()

    async def set_log_level(self, level: LoggingLevel) -> None:
        """Sets the least severe log message that is wanted, from now on, in later connections too.

        MCP 2025-11-25, Logging, Setting Log Level; a stateless server learns it with each request.

        Args:
            level: One of `mcp_actors.types.LOGGING_LEVELS`.

        Raises:
            LocalProtocolError: There is no such level, or the server of a session did not declare logging.
            McpError: What `request` raises.
        """
        if level not in LOGGING_LEVELS:
            raise LocalProtocolError(f"no such level: {level!r}; use one of {', '.join(LOGGING_LEVELS)}")
        era = self._connectivity.negotiated.era
        self._handshake.log_level = level
        if era.client.log_level_method is None:
            self._handshake.introduce(self._connectivity.session, era)
        else:
            await self._requests.call(era.client.log_level_method, {"level": level})

    async def roots_changed(self) -> None:
        """Tells the server of a session to list the roots again; a stateless one asks when it needs them.

        MCP 2025-11-25, Roots, Root List Changes.

        Raises:
            LocalProtocolError: This client was given no roots, or is not connected.
            ConnectionLost: The connection has ended.
        """
        if self._options.roots is None:
            raise LocalProtocolError("this client was given no roots, so none of them can change")
        method = "notifications/roots/list_changed"
        if method in self._connectivity.negotiated.era.client_notifications:
            await self._connectivity.session.notify(method)

    # -- tools -------------------------------------------------------------------------------------------------------

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
        page = await self._requests.list_tools(cursor, refresh=refresh)
        self._requests.schemas.learn(page.tools)
        self._tool_tasks.learn(page.tools)
        offered = page.tools if for_apps else [each for each in page.tools if "model" in each.visibility]
        # The page itself may be kept.
        return page if len(offered) == len(page.tools) else attrs.evolve(page, tools=offered)

    def tools(self, *, refresh: bool = False, for_apps: bool = False) -> AsyncIterator[Tool]:
        """Iterates over all tools; each page is requested when it is needed. See `list_tools`."""
        list_page = partial(self.list_tools, refresh=refresh, for_apps=for_apps)
        return AllPages(list_page, lambda page: page.tools)

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
    ) -> CallToolResult: ...

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

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: Any = None,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
        key: str | None = None,
    ) -> Any:
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
        if returns is not None:
            read = result_reader(returns)
            whole = await self.call_tool(
                name,
                arguments,
                timeout=timeout,
                cap=cap,
                on_progress=on_progress,
                meta=meta,
                answers=answers,
                state=state,
                key=key,
            )
            return read(name, whole)
        if key is not None:
            meta = self._with_key(meta, key)
        params = _tool_params(name, arguments, self._requests.schemas.inputs)
        options = call_options(self._long_call, timeout, cap, on_progress, meta)
        return await self._called(name, params, options, answers, state)

    async def _called(
        self,
        name: str,
        params: dict[str, Any],
        options: CallOptions,
        answers: Mapping[str, InputResponse] | None,
        state: str | None,
    ) -> CallToolResult:
        """Makes a call, as a task where the tool cannot be called otherwise; raises as `call_tool`."""
        requests = self._requests
        if self._task_support.get(name) == "required" and self._tool_tasks.may_augment():
            return await self._tool_tasks.call(name, params, options)
        try:
            result: CallToolResult = await requests.call("tools/call", params, options, answers, state)
        except MethodNotFound:
            # So a session's server refuses to call a tool plainly that it runs as a task only; it was not run.
            if not await self._tool_tasks.turns_out_required(name, options):
                raise
            return await self._tool_tasks.call(name, params, options)
        if result.is_error and await self._tool_tasks.turns_out_required(name, options):
            # The official servers refuse it with an error of the tool.
            return await self._tool_tasks.call(name, params, options)
        if name in requests.schemas:
            requests.schemas.check(name, result)
        return result

    def _with_key(self, meta: Mapping[str, Any] | None, key: str) -> dict[str, Any]:
        """Raises `LocalProtocolError` if the server does not take keys: it would begin a second call, too.

        `TypeError` for what is no text: bytes would be sent as another text than they are, and so be another key.
        """
        if not isinstance(key, str):
            raise TypeError(f"key={key!r:.80}: the key of a call is a text, such as 'order-4711'")
        if not self._connectivity.negotiated.takes_keys:
            raise LocalProtocolError(
                f"the server takes no keys ({IDEMPOTENCY}), and nothing was sent: make the call without key="
            )
        return {**(meta or {}), KEY: key}

    @asynccontextmanager
    async def stream_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: Any = None,
        timeout: float | None = None,
        cap: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[ToolStream]:
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
        requests = self._requests
        params = _tool_params(name, arguments, requests.schemas.inputs)
        stream = PartStream(requests, call_options(requests.options, timeout, cap))
        parts = ToolStream(name, requests.spoken, stream, returns)
        options = call_options(self._long_call, timeout, cap, None, {**(meta or {}), **stream.meta})
        call = partial(self._called, name, params, options, None, None)
        async with streamed(stream, self._subscriptions.run_owned, call):
            yield parts

    # -- tasks -------------------------------------------------------------------------------------------------------

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
        if key is not None:
            meta = self._with_key(meta, key)
        params = _tool_params(name, arguments, self._requests.schemas.inputs)
        options = call_options(self._long_call, timeout, cap, None, meta)
        # The task outlives the request that creates it.
        options = attrs.evolve(options, sends_deadline=False)
        return await self._tool_tasks.begin(name, params, options, ttl, answers, state)

    def task(self, id: str) -> TaskHandle:
        """Returns a handle of a task that was started before, by this program or another one.

        Nothing is asked: whether there is such a task, the handle's methods tell.

        Args:
            id: The `TaskHandle.id`.

        Raises:
            TypeError: It is not text, or empty.
        """
        if not isinstance(id, str) or not id:
            raise TypeError(f"the id of a task is the text of TaskHandle.id, not {id!r}")
        return self._tool_tasks.handle_of(id)

    def tasks(self) -> AsyncIterator[TaskStatus]:
        """Iterates over the caller's tasks; each page is requested when it is needed.

        MCP 2025-11-25, Tasks, Listing Tasks; a stateless revision has no list of tasks.

        Raises:
            LocalProtocolError: The server has no list of tasks, or the client is not connected.
            McpError: What `TaskHandle.status` raises.
        """
        return AllPages(self._tool_tasks.list_page, lambda page: [task_status(each) for each in page.tasks])

    # -- resources ---------------------------------------------------------------------------------------------------

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
        page: ListResourcesResult = await self._list("resources/list", cursor, refresh)
        return page

    def resources(self, *, refresh: bool = False) -> AsyncIterator[Resource]:
        """Iterates over all resources; each page is requested when it is needed. Raises as `list_resources` does."""
        list_page = partial(self.list_resources, refresh=refresh)
        return AllPages(list_page, lambda page: page.resources)

    async def list_resource_templates(
        self, cursor: str | None = None, *, refresh: bool = False
    ) -> ListResourceTemplatesResult:
        """Returns one page of the resource templates; `resource_templates` iterates over all of them.

        MCP 2026-07-28, Resources, Resource Templates. Arguments and errors are those of `list_resources`.
        """
        page: ListResourceTemplatesResult = await self._list("resources/templates/list", cursor, refresh)
        return page

    def resource_templates(self, *, refresh: bool = False) -> AsyncIterator[ResourceTemplate]:
        """Iterates over all resource templates; each page is requested when it is needed. Raises as the list does."""
        list_page = partial(self.list_resource_templates, refresh=refresh)
        return AllPages(list_page, lambda page: page.resource_templates)

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
        try:
            options = call_options(self._long_call, timeout, cap)
            result: ReadResourceResult = await self._requests.call(
                "resources/read", {"uri": uri}, options, answers, state, refresh
            )
            return result
        except RpcError as error:
            # The revisions have two codes for it; the data tells which one the stateless code means.
            if error.code == INVALID_PARAMS and isinstance(error.data, dict) and error.data.get("uri") == uri:
                raise ResourceNotFound(uri) from error
            raise

    # -- apps --------------------------------------------------------------------------------------------------------

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
        read = partial(self.read_resource, timeout=timeout, cap=cap)
        has_list = self.server_capabilities.resources is not None
        return await read_app(tool, read, self.resources if has_list else None)

    # -- skills ------------------------------------------------------------------------------------------------------

    def skills(self) -> AsyncIterator[Skill]:
        """Iterates over the skills that the server lists (SEP-2640, Listing Skills); none of their files is read.

        A server may have skills that it does not list: `get_skill` asks for one by its URI. An entry that must not be
        used, because it is incomplete or names files elsewhere, is left out, and logged.

        Raises:
            LocalProtocolError: The server did not declare skills, or the client is not connected.
            McpError: What else `request` raises.
        """
        return self._skills.all()

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
        return await self._skills.get(uri)

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
        return await self._skills.load(skill, call_options(self._long_call, timeout, cap))

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
        return await self._skills.file(skill, path, call_options(self._long_call, timeout, cap))

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
        return self._skills.directory(uri)

    # -- prompts and completion --------------------------------------------------------------------------------------

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
        page: ListPromptsResult = await self._list("prompts/list", cursor, refresh)
        return page

    def prompts(self, *, refresh: bool = False) -> AsyncIterator[Prompt]:
        """Iterates over all prompts; each page is requested when it is needed. Raises as `list_prompts` does."""
        list_page = partial(self.list_prompts, refresh=refresh)
        return AllPages(list_page, lambda page: page.prompts)

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
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = dict(arguments)
        options = call_options(self._long_call, timeout, cap)
        result: GetPromptResult = await self._requests.call("prompts/get", params, options, answers, state)
        return result

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
        requests = self._requests
        params: dict[str, Any] = {
            "ref": self._connectivity.negotiated.era.unstructure(ref),
            "argument": {"name": argument, "value": value},
        }
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        result: CompleteResult = await requests.call("completion/complete", params)
        return result.completion

    async def _list(self, method: str, cursor: str | None, refresh: bool) -> Any:
        params = {} if cursor is None else {"cursor": cursor}
        return await self._requests.call(method, params, refresh=refresh)

    # -- subscriptions -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: tuple[str, ...] = (),
        members: Mapping[str, Sequence[str]] | None = None,
    ) -> AsyncIterator[Listener]:
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
        listener = Listener(
            SubscriptionFilter(
                tools_list_changed=tools or None,
                prompts_list_changed=prompts or None,
                resources_list_changed=resources or None,
                resource_subscriptions=list(uris) or None,
                extra={member: list(keys) for member, keys in (members or {}).items()},
            )
        )
        async with self._subscriptions.opened(listener):
            yield listener

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
        await self._subscriptions.keep(uri)

    async def unsubscribe_resource(self, uri: str) -> None:
        """Takes `subscribe_resource` back; raises as it does. A `Listener` of the same resource goes on."""
        await self._subscriptions.give_back(uri)

    # -- what keeps itself -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watch_tools(self) -> AsyncIterator[AsyncIterator[ListChange[Tool]]]:
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
        watched = self._list_watch("tools", self.list_tools, lambda page: page.tools, lambda each: each.name)
        async with watched.opened():
            yield watched

    @asynccontextmanager
    async def watch_resources(self) -> AsyncIterator[AsyncIterator[ListChange[Resource]]]:
        """Yields the list of resources and whatever becomes of it, as `watch_tools` does; raises as it does."""
        watched = self._list_watch(
            "resources", self.list_resources, lambda page: page.resources, lambda each: each.uri
        )
        async with watched.opened():
            yield watched

    @asynccontextmanager
    async def watch_prompts(self) -> AsyncIterator[AsyncIterator[ListChange[Prompt]]]:
        """Yields the list of prompts and whatever becomes of it, as `watch_tools` does; raises as it does."""
        watched = self._list_watch(
            "prompts", self.list_prompts, lambda page: page.prompts, lambda each: each.name
        )
        async with watched.opened():
            yield watched

    @asynccontextmanager
    async def watch_resource(self, uri: str) -> AsyncIterator[AsyncIterator[ReadResourceResult]]:
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
        watched = WatchedResource(
            WatchedState("resource_updated", uri, "resources/read"),
            self._connectivity,
            self._requests,
            self._subscriptions,
            partial(self.read_resource, uri, refresh=True),
        )
        async with watched.opened():
            yield watched

    def _list_watch(
        self,
        kind: EventKind,
        list_page: Callable[..., Awaitable[Any]],
        entries: Callable[[Any], list[T]],
        key: Callable[[T], str],
    ) -> WatchedList[T]:
        # What is kept of an answer may be older than the subscription.
        return WatchedList(
            WatchedState(kind, None, f"{kind}/list"),
            self._connectivity,
            self._requests,
            self._subscriptions,
            partial(list_page, refresh=True),
            entries,
            key,
        )

    # -- messages of any method --------------------------------------------------------------------------------------

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
        options = call_options(self._requests.options, timeout)
        sent = dict(params or {})
        if isinstance(sent.get("_meta"), Mapping):
            sent["_meta"] = callers_meta(sent["_meta"])
        return await self._requests.request(method, sent, options)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Sends any notification: for methods that are not part of the protocol. It has no answer.

        Args:
            method: The method, as `Server.notification` names it.
            params: Its parameters, as JSON values.

        Raises:
            LocalProtocolError: The client is not connected, the notification is too long, or its method fits no header.
            ConnectionLost: The connection has ended.
        """
        sent = dict(params or {})
        session = self._connectivity.session
        if self._requests.extensions.declared and self._connectivity.negotiated.era.declares_in_requests:
            # Nothing else tells a server without sessions that its sender has an extension.
            sent["_meta"] = {**sent.get("_meta", {}), **session.outbound.meta}
        metadata = self._requests.metadata_of(method, sent)
        await session.notify(method, sent, metadata)

    # -- a look at it ------------------------------------------------------------------------------------------------

    def tree(self) -> SessionStatistics:
        """Returns a snapshot of this client: its calls in both directions and its connection.

        While the handshake is performed, from another task than the one that enters the client, it shows that.

        Raises:
            ConnectionLost: There is no connection.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session.
        """
        return (self._connectivity.attempted or self._connectivity.session).statistics()


def _tool_params(name: str, arguments: Mapping[str, Any] | None, inputs: ArgumentCheck) -> dict[str, Any]:
    """Returns the params of a call of a tool; raises `TypeError` for what is no mapping, and `WrongArguments`."""
    params: dict[str, Any] = {"name": name}
    if arguments is not None:
        # A dict is told at once; the look at an abstract class takes longer than all the rest.
        if arguments.__class__ is not dict and not isinstance(arguments, Mapping):
            raise TypeError(
                f'the arguments of a tool are a dict of their names: call_tool({name!r}, {{"city": "Berlin"}}), '
                f"not a {type(arguments).__name__}"
            )
        params["arguments"] = inputs.to_send(name, dict(arguments))
    else:
        # None are sent, and those that the tool needs are missing all the same.
        inputs.to_send(name, {})
    return params


class ClientPool:
    """Owns the tasks of many clients, used as ``async with ClientPool() as pool``.

    An ``async with Client(…)`` block has to be left by the task that entered it, before every block that was entered
    earlier. A program that keeps clients in a map cannot do that: it opens them here. Leaving the block closes all of
    them at once, within a bounded time. A client that fails costs nothing but itself. The pool's own block is one of
    those that are left where they were entered; else it raises `ClosedElsewhere`.
    """

    def __init__(self) -> None:
        self._clients: set[Client] = set()
        self._nursery: trio.Nursery | None = None
        self._block = BlockNursery("ClientPool")
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<ClientPool {len(self._clients)} clients>"

    async def __aenter__(self) -> ClientPool:
        """Opens the pool; raises `LocalProtocolError` if it was opened before, and `RuntimeError` outside of Trio."""
        if self._nursery is not None:
            raise LocalProtocolError("a ClientPool is good for one 'async with' block; make a new one")
        self._nursery = await self._block.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._is_closing = True
        clients = list(self._clients)
        for client in clients:
            client._life.end()
        for client in clients:
            # One that is still connecting is not waited for.
            with trio.CancelScope(shield=True):
                await client.aclose()
                await client._life.wait_until_ended()
        await self._block.close()

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
        if self._nursery is None or self._is_closing:
            raise LocalProtocolError("this ClientPool is not open: use 'async with ClientPool() as pool'")
        if client in self._clients:
            raise LocalProtocolError("this client is in the pool already")
        self._clients.add(client)
        try:
            await client._begin(self._nursery)
        except BaseException as error:
            self._clients.discard(client)
            shorten(error)
            raise
        return client

    async def close(self, client: Client) -> None:
        """Closes ``client`` and waits until nothing is left of it; calls in flight raise `ConnectionLost`.

        Idempotent, and legal from any task. Cancelled, it is closed all the same.

        Args:
            client: A client of this pool; nothing happens for any other client, or if it was closed before.

        Raises:
            Exception: What the lifespan of a server in this process raised at its end.
        """
        if client in self._clients:
            client._life.end()
            await client._life.wait_until_ended()
            self._clients.discard(client)
            client._life.raise_failure()
