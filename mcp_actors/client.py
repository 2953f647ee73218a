"""The client: one object, the same for both eras and every transport.

Beside `Client` this module has the types of what its users hold or write: handlers, listeners and statistics.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import trio

from mcp_actors._actors.call_statistics import CallStatistics
from mcp_actors._actors.counters import Counters, SessionStatistics
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.link import LinkStatistics
from mcp_actors._actors.outbound_call import CallOptions, OutboundCallStatistics, Progress, ProgressCallback
from mcp_actors._argument_checks import require_trio
from mcp_actors._client.any_methods import AnyMethods
from mcp_actors._client.connectivity import Connectivity
from mcp_actors._client.handshake import Handshake
from mcp_actors._client.life import ClientLife
from mcp_actors._client.listener import Listener
from mcp_actors._client.middleware import (
    ClientCall,
    ClientMiddleware,
    ClientNotification,
    ClientNotificationMiddleware,
    HandleNext,
    SendNext,
)
from mcp_actors._client.nesting import BlockNursery
from mcp_actors._client.notifications import Notifications
from mcp_actors._client.options import (
    Access,
    ChangeHandler,
    ClientOptions,
    DeclaredExtension,
    ElicitationHandler,
    LogHandler,
    LossHandler,
    NotificationCallback,
    Roots,
    SamplingHandler,
    Target,
)
from mcp_actors._client.pings import IdlePings
from mcp_actors._client.request_handlers import RequestHandlers
from mcp_actors._client.requests import Requests, call_options
from mcp_actors._client.subscriptions import Subscriptions
from mcp_actors._client.supervisor import Supervisor
from mcp_actors._client.targets import connectable
from mcp_actors._client.task_handle import TaskHandle
from mcp_actors._eras.changes import Event, EventKind
from mcp_actors._eras.probe import discoverable, versions_for
from mcp_actors.abc import Telemetry
from mcp_actors.errors import LocalProtocolError
from mcp_actors.types import (
    LOGGING_LEVELS,
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    LoggingLevel,
)

__all__ = [
    "CallStatistics",
    "ChangeHandler",
    "Client",
    "ClientCall",
    "ClientMiddleware",
    "ClientNotification",
    "ClientNotificationMiddleware",
    "Counters",
    "ElicitationHandler",
    "Event",
    "EventKind",
    "HandleNext",
    "LinkStatistics",
    "Listener",
    "LogHandler",
    "LossHandler",
    "NotificationCallback",
    "OutboundCallStatistics",
    "Progress",
    "ProgressCallback",
    "Roots",
    "SamplingHandler",
    "SendNext",
    "SessionStatistics",
    "Target",
    "TaskHandle",
]

VERSION = "0.1.0"


class Client(AnyMethods):
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
        sampling: Answers servers that want to sample a model. Without it sampling is not declared.
        sampling_tools: Whether ``sampling`` may use tools.
        capabilities: What is declared to servers beyond what follows from the handlers, or more exactly: each member
            that it has replaces what follows. ``ClientCapabilities(elicitation=ElicitationCapability(url={}))`` is for
            a handler that opens URLs and shows no forms. By default forms and URLs are declared, and no context for
            sampling.
        elicitation: Answers servers that want to ask the person. Without it elicitation is not declared.
        roots: The roots that servers may work in, or a function that returns them. Without it none are declared.
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
        restart: Whether a connection that is lost is made again. Calls in flight fail all the same, because nobody
            knows whether they were run. A session that an HTTP server has forgotten is begun anew without it too.
        prior_discover: An earlier answer of the same server, `discovered` of a client of it: the first connection is
            made without asking. If it is no longer true, the first call raises what the server says to that.
        limits: The bounds on calls in flight and messages; see `Limits`.
        auth: Access to a server that demands authorization, at an HTTP or WebSocket URL: `~mcp_actors.auth.OAuth`, or
            `~mcp_actors.auth.BearerToken` for a key of the server's own. While a person is asked to log in, neither
            ``timeout`` nor ``cap`` nor ``probe_timeout`` runs, for any call of the connection: the login has a time of
            its own. A failure raises an `AuthorizationError`, and the connection is not tried again.
        tasks: Whether stateless servers may answer a call with a task (SEP-2663), which `call_tool` then waits for,
            and servers of sessions may have ``sampling`` and ``elicitation`` answered later (MCP 2025-11-25, Tasks).
        telemetry: Is told of each call in both directions and of sessions: an
            `~mcp_actors.telemetry.otel.OpenTelemetry`, `~mcp_actors.telemetry.Metrics` or ``Together(…)`` of both. By
            default there is none, which costs nothing.
        extensions: A list of `~mcp_actors.extensions.ClientExtension`, or a mapping of ids to settings that are only
            declared. None by default.
        middleware: Functions ``async def f(call, call_next)`` that run round every request of the program but the
            handshake and `ping`, the first one outermost. Each returns ``await call_next()``, or something else, or
            raises. An object with ``async def notification(self, note, call_next)`` has that run round ``on_log``,
            ``on_change``, ``on_notification`` and the functions of extensions, too, which are then called in a task of
            their own. `mcp_actors.middleware` has objects that are ready.

    Raises:
        TypeError: The target or an option is of another kind; the message says what to write.
        ValueError: ``era`` is none of those above, the URL is malformed, there is no such command or file,
            ``prior_discover`` names no version that may be spoken, a root is no ``file://`` URI, ``capabilities``
            declares what there is no handler for, ``auth`` is for something else than such a URL, or two extensions
            have the same id, or something else of the same name.
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
        extensions: Mapping[str, Any] | Sequence[DeclaredExtension] = (),
        middleware: Sequence[ClientMiddleware] = (),
    ) -> None:
        versions = versions_for(era)
        if prior_discover is not None:
            discoverable(versions, prior_discover)
        hosts = {"sampling/createMessage": sampling, "elicitation/create": elicitation}
        client_tasks = _tasks_of_client()
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
            call=CallOptions(idle=timeout, cap=cap),
            answer_input=answer_input,
            max_rounds=max_rounds,
            probe_timeout=probe_timeout,
            ping_interval=ping_interval,
            restart=restart,
            prior_discover=prior_discover,
            limits=limits or Limits(),
            auth=auth,
            telemetry=telemetry,
            extensions=extensions,
            middleware=middleware,
            tasks=client_tasks.extension(takes=tasks, hosts=[name for name, given in hosts.items() if given]),
        )
        self._options = options
        self._connectivity = Connectivity(restart)
        handlers = RequestHandlers(options, self._connectivity)
        requests = Requests(options, self._connectivity, handlers)
        super().__init__(requests, Subscriptions(self._connectivity, requests), self._connectivity)
        client_tasks.bind(self._tasks)
        self._notifications = Notifications(options, requests, self._subscriptions)
        self._handshake = Handshake(options, handlers.capabilities)
        self._connectivity.on_lost = self._notifications.lost
        users = requests, IdlePings(options.ping_interval, requests)
        self._supervisor = Supervisor(
            options, self._connectivity, self._handshake, handlers, self._notifications.put, users
        )
        self._life = ClientLife(self._supervisor, self._notifications, self._subscriptions)
        self._block = BlockNursery(type(self).__name__)

    def __repr__(self) -> str:
        return f"<Client {self._supervisor!r}>"

    def __await__(self) -> NoReturn:
        """Raises `TypeError`: a client is entered; outside of Trio `RuntimeError`, which names what to use there."""
        require_trio("await Client(...)", "Client")
        raise TypeError("a Client is not awaited: use 'async with Client(...) as client'")

    def __enter__(self) -> NoReturn:
        """Always raises: a client is entered with ``async with``.

        Raises:
            RuntimeError: There is no Trio loop; it names what to use without one.
            TypeError: There is one.
        """
        require_trio("a Client", "Client")
        raise TypeError("a Client is entered with 'async with'")

    def __exit__(self, *exc_info: object) -> None:
        """Is there for ``with`` to find `__enter__`, which always raises."""

    async def __aenter__(self) -> Client:
        require_trio("async with Client(...)", "Client")
        block = BlockNursery(type(self).__name__)
        try:
            await self._begin(await block.open())
        except BaseException:
            await block.close()
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
        lifespans = [partial(made, self) for each in self._options.in_use for made in each.lifespans]
        await self._life.begin(nursery, lifespans)

    async def aclose(self) -> None:
        """Closes the connection and waits for its end; calls in flight raise `ConnectionLost`.

        Legal from any task, a callback's included, and any number of times. A client that is closed before it is
        entered cannot be entered any more. Cancelled, the connection is closed all the same.
        """
        await self._supervisor.stop()

    # -- the connection --------------------------------------------------------------------------------------------

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

    # -- watching --------------------------------------------------------------------------------------------------

    def tree(self) -> SessionStatistics:
        """Returns a snapshot of this client: its calls in both directions and its connection.

        While the handshake is performed, from another task than the one that enters the client, it shows that.

        Raises:
            ConnectionLost: There is no connection.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session.
        """
        return (self._connectivity.attempted or self._connectivity.session).statistics()


def _tasks_of_client() -> Any:
    # Imported where it is used: a process that only serves has no client.
    return importlib.import_module("mcp_actors._client.task_extension").ClientTasks()
