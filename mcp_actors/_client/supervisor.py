"""The life of a client: it connects, performs the handshake, notices the end of the connection, and connects again.

All tasks of a client are in one nursery, which is opened by ``async with Client`` (`BlockNursery`) or belongs to a
`ClientPool`. `ClientLife` is the task in it that lasts from the opening of the client to its end. Inside of that,
`Supervisor` holds one connection after the other in a task of its own, so that any other task may close the client.
What may happen when is a table in `mcp_actors._client.connectivity`.

`IdlePings` keep a silent connection from being forgotten, and notice a server that is gone. `EraCache` saves the next
client of a process the probing: it has the era that the server at each URL spoke last.

Trio closes nurseries in the task that opened them, and in reverse order. A program that breaks this rule gets an
internal error of Trio from elsewhere, and ends. `BlockNursery` gives its nursery up before Trio notices, so that the
rest of the program goes on as if the nursery had been closed.
"""

from __future__ import annotations

import atexit
import functools
import math
import random
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NoReturn, Protocol

import attrs
import trio

from mcp_actors._actors.inbound_call import DispatchRules
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.session import Session
from mcp_actors._client.connectivity import OPENED_BEFORE, ClientEvent, Connectivity, Negotiated
from mcp_actors._client.handshake import ConnectAnew, Handshake, Preference
from mcp_actors._client.notifications import Notifications, Subscriptions
from mcp_actors._client.options import CLOSE_TIMEOUT, ClientOptions, shown, transport_to
from mcp_actors._client.request_handlers import RequestHandlers
from mcp_actors._client.requests import Requests
from mcp_actors._eras.client_negotiation import ClientNegotiation, Lifetime
from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy import LATEST_LEGACY
from mcp_actors._eras.server_negotiation import VERSIONS
from mcp_actors.abc import ClientTransport, FrameChannel
from mcp_actors.abc.telemetry import ObservedSession, guarded
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationUnavailable,
    CallTimeout,
    ClosedElsewhere,
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    McpError,
    ProtocolError,
    RpcError,
    SessionExpired,
)
from mcp_actors.supervision.arguments import require_trio
from mcp_actors.supervision.containment import (
    INNERMOST_SCOPE,
    Containment,
    crash_in,
    one_error,
    start,
    start_again,
    start_and_wait,
)
from mcp_actors.supervision.descriptors import may_open
from mcp_actors.supervision.logging import log, write_to_stderr
from mcp_actors.supervision.task_kinds import (
    CLIENT_CONNECTION,
    CLIENT_LIFE,
    CLIENT_NOTIFICATIONS,
    CLIENT_PINGS,
    CLIENT_SUBSCRIPTION,
    CLIENT_SUPERVISOR,
)

__all__ = ["ERA_CACHE", "BlockNursery", "ClientLife", "EraCache", "IdlePings", "Supervisor"]

# Waits between attempts to connect again, seconds; the last one repeats. Each is cut by up to a half, by chance, so
# that the clients of a server that was away do not come back all at once.
BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0)
# A connection that did not last so long, seconds, counts as another failed attempt.
STEADY = 1.0


class UsesSession(Protocol):
    """A part of the client that needs each new session."""

    def connected(self, session: Session, negotiated: Negotiated) -> None: ...


class Supervisor:
    """Keeps one connection alive for as long as its client is open.

    Args:
        options: The client's options.
        connectivity: Learns of everything that happens to the connection.
        handshake: What is performed on each new connection.
        handlers: Answer what the server requests in a session.
        on_notification: Gets the server's notifications, in the read path, so it must not wait.
        users: Who is handed each new session, before ``connectivity`` is.
    """

    def __init__(
        self,
        options: ClientOptions,
        connectivity: Connectivity,
        handshake: Handshake,
        handlers: RequestHandlers,
        on_notification: Callable[[str, dict[str, Any]], None],
        users: Iterable[UsesSession],
    ) -> None:
        self._options = options
        self._connectivity = connectivity
        self._handshake = handshake
        self._handlers = handlers
        self._on_notification = on_notification
        self._users = (*users, connectivity)
        # Only the era of a URL means something to the next client, and only one that may speak all versions finds it.
        self._url = (
            options.target if isinstance(options.target, str) and options.versions == VERSIONS else None
        )
        known = None if self._url is None else ERA_CACHE.get(self._url)
        self._preference = Preference() if known is None else Preference(known, Lifetime.PROCESS)
        self._prior = options.prior_discover
        # The attempt to connect that is being made, or the pause before one.
        self._attempt: trio.CancelScope | None = None
        self._connections = 0
        self._done = trio.Event()

    def __repr__(self) -> str:
        return f"{shown(self._options.target)!r} {self._connectivity.state.value}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        """Connects, and stays connected for the length of the block; yields the nursery for the client's tasks.

        Leaving the block closes the connection and ends every task, within a bounded time. What the block raises must
        not be raised here, or it would leave in a group.

        Raises:
            LocalProtocolError: The client was opened before.
            ConnectFailed: The transport could not connect.
            TransportNotFound: Nothing is registered for the scheme of the URL.
            McpError: What else `Handshake.perform` raises.
        """
        self._connectivity.move(ClientEvent.OPEN)
        failure: Exception | None = None
        with one_error():
            async with trio.open_nursery() as nursery:
                try:
                    async with transport_to(self._options.target, nursery, self._options.auth) as transport:
                        try:
                            await self._start(nursery, transport)
                            yield nursery
                        finally:
                            with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
                                await self.stop()
                except Exception as error:
                    # It is raised outside of the nursery, which would make a group of it.
                    failure = error
                finally:
                    self._end()
                    nursery.cancel_scope.cancel(reason="the client is closed")
        if failure is not None:
            raise failure

    async def stop(self) -> None:
        """Ends the connection and waits until all that came with it is gone. Legal from any task, any time."""
        connectivity = self._connectivity
        connectivity.move(ClientEvent.CLOSE)
        if self._attempt is not None:
            self._attempt.cancel(reason="the client is closed")
        elif connectivity.is_connected:
            connectivity.session.stop()
        if connectivity.is_closing:
            await self._done.wait()

    async def _start(self, nursery: trio.Nursery, transport: ClientTransport) -> None:
        try:
            await start_and_wait(
                nursery, CLIENT_SUPERVISOR, self._supervise, transport, on_crash=self._crashed
            )
        except BaseException as error:
            crash = crash_in(error)
            if crash is None or isinstance(crash, McpError):
                raise
            raise ConnectFailed(f"could not connect: {crash!r}") from crash

    def _crashed(self, crash: BaseException) -> None:
        lost = ConnectionLost(f"the client has failed: {crash!r}")
        lost.__cause__ = crash
        self._connectivity.disconnected(lost)
        self._end()

    def _end(self) -> None:
        if not self._done.is_set():
            self._done.set()
            self._connectivity.move(ClientEvent.END)

    # -- one connection after the other ----------------------------------------------------------------------------

    async def _supervise(
        self, transport: ClientTransport, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await self._connect_again_and_again(transport, task_status)
            if not self._connectivity.has_met_server:
                raise ConnectionLost("the client was closed before it was connected")
        finally:
            self._end()

    async def _connect_again_and_again(
        self, transport: ClientTransport, task_status: trio.TaskStatus[None]
    ) -> None:
        """Returns when no further connection is to be made."""
        connectivity = self._connectivity
        failures = 0
        while not connectivity.is_closing:
            began = trio.current_time()
            try:
                await self._connect(transport, task_status)
                if trio.current_time() - began >= STEADY:
                    failures = 0
            except Exception as error:
                if not connectivity.has_met_server:
                    raise
                # Whatever else a handshake or a transport raises, what worked before is tried again.
                connectivity.disconnected(_why_not_again(error))
                if isinstance(error, AuthorizationError) and not isinstance(error, AuthorizationUnavailable):
                    # Another attempt would ask a person again, or a server that has refused already.
                    return
            expired = isinstance(connectivity.loss, SessionExpired)
            if not (connectivity.restarts or expired) or connectivity.is_closing:
                return
            connectivity.move(ClientEvent.LOST)
            # A server that has forgotten a session is there, and refused calls wait for the new one.
            if failures or not expired:
                await self._pause(BACKOFF[min(failures, len(BACKOFF) - 1)])
            failures += 1

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds * (1 - random.random() / 2)) as self._attempt:
            await trio.sleep_forever()
        self._attempt = None

    async def _connect(self, transport: ClientTransport, task_status: trio.TaskStatus[None]) -> None:
        """As `_connect_once`; once more, if what was said to the server leads to that."""
        try:
            await self._connect_once(transport, task_status, self._preference)
        except ConnectAnew as anew:
            if self._connectivity.is_closing:
                raise anew.cause from None
            try:
                await self._connect_once(transport, task_status, Preference(LATEST_LEGACY, anew.lifetime))
            except ConnectAnew as again:
                raise again.cause from None

    async def _connect_once(
        self, transport: ClientTransport, task_status: trio.TaskStatus[None], preference: Preference
    ) -> None:
        """Makes a connection, hands its session to those who use it, and returns when it has ended."""
        failure: Exception | None = None
        if not may_open():
            raise ConnectFailed(
                "this process has no descriptors left for another connection: raise its limit (ulimit -n), or keep "
                "fewer connections open"
            )
        with one_error(), trio.CancelScope() as self._attempt:
            async with transport.connect() as channel, trio.open_nursery() as nursery:
                session, negotiation = self._new_session(channel)
                await start_and_wait(nursery, CLIENT_CONNECTION, session.run, about=session.dispatcher.name)
                is_first = not self._connectivity.has_met_server
                self._connectivity.attempted = session
                telemetry, began = self._options.telemetry, trio.current_time()
                if telemetry is not None:
                    guarded(telemetry.session_began, "client")
                try:
                    if self._prior is not None:
                        prior, self._prior = self._prior, None
                        negotiated, lifetime = self._handshake.believe(session, negotiation, prior)
                    else:
                        negotiated, lifetime = await self._handshake.perform(session, negotiation, preference)
                    self._attempt = None
                    self._remember(negotiated.era, lifetime)
                    for user in self._users:
                        user.connected(session, negotiated)
                    if is_first:
                        task_status.started()
                    await session.ended.wait()
                except Exception as error:
                    # It is raised outside of the nursery, which would make a group of it.
                    failure = error
                finally:
                    self._connectivity.disconnected(session.loss)
                    if telemetry is not None:
                        name, version = session.dispatcher.name, session.outbound.version
                        seconds = trio.current_time() - began
                        ended = ObservedSession(
                            "client", name, session.peer, version, seconds, session.is_broken
                        )
                        guarded(telemetry.session_ended, ended)
                    nursery.cancel_scope.cancel(reason="the connection ended")
        if failure is not None:
            raise failure

    def _new_session(self, channel: FrameChannel) -> tuple[Session, ClientNegotiation]:
        self._connections += 1
        # Questions of the server are of no use once the connection ends, so its end does not wait for answers.
        limits = attrs.evolve(self._options.limits, drain_grace=0.0)
        negotiation = ClientNegotiation()
        session = Session(
            f"client#{self._connections}",
            channel,
            negotiation,
            self._handlers,
            DispatchRules(answers_malformed=False),
            limits=limits,
            on_notification=self._on_notification,
        )
        return session, negotiation

    def _remember(self, era: Era, lifetime: Lifetime) -> None:
        if lifetime is not Lifetime.CONNECTION:
            self._preference = Preference(era, lifetime)
        if lifetime is Lifetime.PROCESS and self._url is not None:
            ERA_CACHE.put(self._url, era)


def _why_not_again(error: Exception) -> McpError:
    if isinstance(error, ConnectFailed | ConnectionLost | SessionExpired):
        return error
    if not isinstance(error, McpError):
        log.error("connecting failed", exc_info=error)
    failed = ConnectFailed(f"could not connect again: {error}")
    failed.__cause__ = error
    return failed


# -- eras by URL -----------------------------------------------------------------------------------------------------

MAX_ENTRIES = 1024


class EraCache:
    """Eras by URL; the oldest entry is dropped when there are more than ``max_entries``.

    An entry may be wrong, because a server can be replaced: it only says what to try first.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._eras: dict[str, Era] = {}

    def __repr__(self) -> str:
        return f"<EraCache {len(self._eras)}/{self._max_entries}>"

    def get(self, url: str) -> Era | None:
        """Returns the era that the server at ``url`` spoke last."""
        return self._eras.get(url)

    def put(self, url: str, era: Era) -> None:
        """Remembers an era; the entry is the newest then."""
        self._eras.pop(url, None)
        self._eras[url] = era
        if len(self._eras) > self._max_entries:
            del self._eras[next(iter(self._eras))]


ERA_CACHE = EraCache()
"""The cache that all clients of a process share."""


# -- pings -----------------------------------------------------------------------------------------------------------

# Seconds. Less than the silence after which routers and load balancers are known to forget a connection.
DEFAULT_INTERVAL = 30.0


class IdlePings:
    """Asks the server of a silent connection whether it is alive, and ends the connection when it does not say so.

    MCP 2025-11-25, Ping. A stateless server is asked by ``server/discover``. Any answer counts, an error too.

    Args:
        interval: Seconds of silence before a ping, and for its answer; 0 for no pings. With ``None`` channels that
            need it are pinged, after 30 s.
        requests: Know what is mirrored of a request.
    """

    def __init__(self, interval: float | None, requests: Requests) -> None:
        self._interval = interval
        self._requests = requests

    def connected(self, session: Session, negotiated: Negotiated) -> None:
        """Watches over the connection of ``session`` until it ends."""
        interval = self._interval
        if interval is None:
            interval = DEFAULT_INTERVAL if session.link.channel.needs_pings else 0.0
        if interval > 0:
            method = negotiated.era.client.ping_method
            session.start_task(CLIENT_PINGS, partial(self._watch, session, method, interval))

    async def _watch(self, session: Session, method: str, interval: float) -> None:
        while True:
            before = session.link.statistics().frames_in
            await trio.sleep(interval)
            if session.link.statistics().frames_in == before and not _is_judged_by_a_call(session):
                await self._ping(session, method, interval)

    async def _ping(self, session: Session, method: str, seconds: float) -> None:
        before = session.link.statistics().frames_in
        options = CallOptions(idle=seconds, cap=math.inf, cancellable=False)
        try:
            metadata = self._requests.metadata_of(method, {})
            await session.outbound.request(method, {}, options, metadata=metadata)
        except CallTimeout:
            if session.link.statistics().frames_in == before:
                session.lose(f"no answer to a ping within {seconds:g} s")
        except (RpcError, ProtocolError, ConnectionLost, SessionExpired):
            # The server has answered, or the connection has ended by itself.
            pass


def _is_judged_by_a_call(session: Session) -> bool:
    """Whether a call waits whose own clock will tell: a server may be too busy with it to answer anything else."""
    return any(pending.deadline.at < math.inf for pending in session.outbound.pending.values())


# -- the task and the block of a client ------------------------------------------------------------------------------

Lifespan = Callable[[], AbstractAsyncContextManager[object]]


class ClientLife:
    """Opens a client in a task of its own, which any task can ask to end.

    Args:
        supervisor: Keeps the client's connection.
        notifications: Calls the client's handlers of notifications.
        subscriptions: Gets the nursery of the client's tasks.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        notifications: Notifications,
        subscriptions: Subscriptions,
    ) -> None:
        self._supervisor = supervisor
        self._notifications = notifications
        self._subscriptions = subscriptions
        self._has_begun = False
        self._ending = trio.Event()
        self._ended = trio.Event()
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<ClientLife {'ended' if self._ended.is_set() else 'ending' if self._ending.is_set() else 'open'}>"

    async def begin(self, nursery: trio.Nursery, lifespans: Sequence[Lifespan] = ()) -> None:
        """Connects; the client lives in ``nursery`` from then on. Raises as entering a `Client` does.

        Cancelled, or if it fails, nothing is left. ``lifespans`` make what extensions enter once the client is
        connected, and leave when it is closed; they have the client, which therefore does not have them.
        """
        if self._has_begun:
            raise LocalProtocolError(OPENED_BEFORE)
        self._has_begun = True
        await start_and_wait(nursery, CLIENT_LIFE, self._live, lifespans, about=repr(self._supervisor))

    def end(self) -> None:
        """Has the client close its connection and end. Legal from any task, any time."""
        self._ending.set()

    async def wait_until_ended(self) -> None:
        """Waits until nothing is left of the client, cancelled or not, but no longer than closing may take."""
        with trio.move_on_after(2 * CLOSE_TIMEOUT, shield=True):
            await self._ended.wait()

    def raise_failure(self) -> None:
        """Raises what the lifespan of a server in this process raised at its end; once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _live(self, lifespans: Sequence[Lifespan], *, task_status: trio.TaskStatus[None]) -> None:
        is_open = False
        try:
            async with self._supervisor.running() as nursery:
                self._subscriptions.run_in(nursery)
                start_again(nursery, CLIENT_NOTIFICATIONS, self._notifications.run)
                if self._notifications.follows_changes:
                    follow, changed = self._subscriptions.follow, self._notifications.changed
                    start(nursery, CLIENT_SUBSCRIPTION, follow, changed, about="on_change")
                async with AsyncExitStack() as stack:
                    for each in lifespans:
                        await stack.enter_async_context(each())
                    is_open = True
                    task_status.started()
                    with Containment(CLIENT_LIFE):
                        await self._ending.wait()
        except Exception as error:
            if not is_open:
                raise
            # The task of a server in this process has written it to the log.
            self._failure = error
        finally:
            self._notifications.close()
            self._ended.set()


class BlockNursery:
    """A nursery that is opened by ``__aenter__`` and closed by ``__aexit__`` of ``owner``, a class of this package.

    Its tasks must end by themselves before it is closed, for one that is given up can no longer wait for them.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._opening: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._innermost: Any = None

    def __repr__(self) -> str:
        return f"<BlockNursery of {self._owner} {'open' if self._nursery else 'closed'}>"

    def refuse(self, expression: str, advice: str) -> NoReturn:
        """Refuses a program that uses ``owner`` in another form than ``async with``.

        Raises:
            RuntimeError: There is no Trio loop; it names what to use without one.
            TypeError: There is one; the message is ``advice``.
        """
        require_trio(expression, self._owner)
        raise TypeError(advice)

    async def open(self) -> trio.Nursery:
        """Opens the nursery in the running task, inside everything that is open there.

        Raises:
            RuntimeError: There is no Trio loop.
        """
        require_trio(f"async with {self._owner}(...)", self._owner)
        self._opening = trio.open_nursery()
        self._nursery = await self._opening.__aenter__()
        self._innermost = getattr(self._nursery.parent_task, INNERMOST_SCOPE, None)
        # A loop in another thread goes on until the end of the interpreter, and whoever made it stops it.
        if threading.current_thread() is threading.main_thread():
            _watch_the_end()
            _opened.add(self)
        return self._nursery

    @property
    def is_innermost(self) -> bool:
        """Whether it may be closed here: in the task that opened it, with nothing opened later still open."""
        task = trio.lowlevel.current_task()
        return (
            self._nursery is not None
            and task is self._nursery.parent_task
            and getattr(task, INNERMOST_SCOPE, None) is self._innermost
        )

    async def close(self) -> None:
        """Waits for the nursery's tasks and closes it; without one nothing happens.

        Raises:
            ClosedElsewhere: It may not be closed here. It was given up, and cannot be closed any more.
            BaseException: What a task raised that no row of `mcp_actors.supervision.task_kinds.TASKS` contains.
        """
        nursery, opening = self._nursery, self._opening
        if nursery is None or opening is None:
            return
        is_innermost = self.is_innermost
        in_its_task = trio.lowlevel.current_task() is nursery.parent_task
        self._nursery = self._opening = self._innermost = None
        if not is_innermost:
            _give_up(nursery)
            elsewhere = ClosedElsewhere(self._owner, "in another order" if in_its_task else "in another task")
            # What else the task has left open may end the program in Trio before the exception is seen.
            log.error("closed elsewhere", error=str(elsewhere))
            raise elsewhere
        with one_error():
            await opening.__aexit__(None, None, None)


# Those that were opened; one that is closed has no nursery.
_opened: weakref.WeakSet[BlockNursery] = weakref.WeakSet()


@functools.cache
def _watch_the_end() -> None:
    atexit.register(_name_what_is_open)


def _name_what_is_open() -> None:
    """Names the mistake of a program that ends inside of a block: what Trio says of it are errors of its own."""
    for owner in sorted({each._owner for each in _opened if each._nursery is not None}):
        write_to_stderr(
            f"the program has ended inside of a {owner}: write 'async with {owner}(...)', so that the block is left"
        )


def _give_up(nursery: trio.Nursery) -> None:
    """Takes a nursery without tasks out of the task that opened it, and what is inside of its scope with it.

    Trio has no public names for this. With a Trio that has others, the task gets Trio's own error when it ends.
    """
    opened: list[trio.Nursery] = getattr(nursery.parent_task, "_child_nurseries", [])
    if nursery in opened:
        opened.remove(nursery)
    scope: Any = getattr(nursery.cancel_scope, INNERMOST_SCOPE, None)
    if scope is not None:
        for inner in scope.children:
            inner.parent = scope.parent
        for task in scope.tasks:
            task._activate_cancel_status(scope.parent)
