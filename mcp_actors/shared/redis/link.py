"""A connection to Redis that comes back, with pipelined requests of bounded time; and the names of its keys."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import trio
from coredis.connection import BaseConnection
from coredis.exceptions import MovedError, NoScriptError, ReadOnlyError

from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.errors.protocol import SharedRole
from mcp_actors.shared.redis.address import Redis, reason_of, run_connection
from mcp_actors.supervision.containment import start_and_wait
from mcp_actors.supervision.logging import RareWarning, log
from mcp_actors.supervision.task_kinds import STORE_CONNECTION

__all__ = ["CONNECTING", "LAST_PAUSE", "Keys", "RedisLink", "Script", "short"]


# -- keys --------------------------------------------------------------------------------------------------------------

_DIGEST_BYTES = 16


def short(text: str | bytes) -> str:
    """Returns a name of 22 characters for any text: keys contain nothing that is secret or that others chose."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Keys:
    """The names of the keys of one server.

    Args:
        prefix: What the keys of all servers begin with.
        server: The server's name.
        is_cluster: Whether all of them have to be in one slot: then what they begin with is their hash tag.
    """

    def __init__(self, prefix: str, server: str, *, is_cluster: bool = False) -> None:
        root = f"{prefix}:{quote(server, safe='')}"
        self.root = f"{{{root}}}:" if is_cluster else f"{root}:"
        self.bus = f"{self.root}bus"
        # Exists while nodes may be writing again what Redis has forgotten or let end.
        self.returning = f"{self.root}returning"

    def __repr__(self) -> str:
        return f"<Keys {self.root}>"

    def node(self, node: str) -> str:
        """The lease of a node: it exists while the node does."""
        return f"{self.root}node:{node}"

    def ended(self, node: str) -> str:
        """The mark of a node that has ended, and will not come back."""
        return f"{self.root}ended:{node}"

    def mailbox(self, node: str) -> str:
        """The stream of messages to a node."""
        return f"{self.root}mail:{node}"

    def session(self, session: str) -> str:
        """The place of a session."""
        return f"{self.root}session:{short(session)}"

    def record(self, session: str) -> str:
        """The key of the record of a session that was handed over."""
        return f"{self.root}record:{short(session)}"

    def shut(self, node: str, number: str) -> str:
        """Exists while a mailbox takes nothing that begins something."""
        return f"{self.root}shut:{node}/{number}"

    def events(self, session: str) -> str:
        """The stream of a session's events."""
        return f"{self.root}events:{short(session)}"

    def heads(self, session: str) -> str:
        """The last event of each open stream of a session."""
        return f"{self.root}heads:{short(session)}"

    def used(self, name: bytes) -> str:
        """The mark of something that was used."""
        return f"{self.root}used:{short(name)}"

    def value(self, key: str) -> str:
        """A value by its key."""
        return f"{self.root}value:{short(key)}"


# -- the connection ----------------------------------------------------------------------------------------------------

# Seconds between two attempts to connect: doubled from the first to the last, and made unequal for each node, so that
# ten thousand nodes do not come back at the same moment.
FIRST_PAUSE = 0.05
LAST_PAUSE = 1.0
# Timeouts that one attempt to connect may take: for a search, a greeting and the scripts.
CONNECTING = 2
# Seconds without an answer, and without a request that waits for one, after which Redis is asked whether it is there.
# So a connection that is seldom used is known to be lost before it is needed.
IDLE = 5.0
# Bytes of requests that wait for their answers on one connection: four of the longest messages of the protocol.
MAX_IN_FLIGHT = 64 * 1024 * 1024


class Script:
    """A program that Redis runs as one atomic step, in Lua."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<Script of {len(self.text)} characters>"


class RedisLink:
    """One connection at a time, made again whenever it is lost, for requests of many tasks.

    Nothing is sent a second time: a request that was not answered raises, and may have been carried out, even after
    it raised. Cancelling one leaves it to be carried out.

    Args:
        redis: The server.
        name: A name of the connection, for the operator of the server.
        root: What all keys begin with. It is the key of every script: the server that has it has all of them.
        scripts: What the requests run.
    """

    def __init__(self, redis: Redis, name: str, root: str, scripts: tuple[Script, ...] = ()) -> None:
        self._redis = redis
        self._name = name
        self._root = root
        self._scripts = scripts
        self._served_by: bytes | None = None
        self._digests: dict[Script, bytes] = {}
        self._connection: BaseConnection | None = None
        self._changed = trio.Event()
        self._lost_at = trio.current_time()
        self._in_flight = 0
        # Requests that Redis answers when it likes, and answers none that is behind them before.
        self._held_back = 0
        self._answered_at = self._lost_at
        self._cause = f"there was no connection within {redis.timeout:g} s"
        self._refused = _Refusals(
            "redis refuses what is asked of it: calls that need it are refused",
            over="redis does what is asked of it again",
        )
        self.connected_at: float | None = None
        """When the present connection was made, ``None`` while there is none."""
        self.on_change: Callable[[], object] = lambda: None
        """Is called in the event loop when a connection was made, or was lost."""
        self.on_replaced: Callable[[BaseConnection], Awaitable[object]] | None = None
        """Is called with a connection to another process of Redis than the one before, before it is used."""

    def __repr__(self) -> str:
        return f"<RedisLink {self._redis.place} {'down' if self._connection is None else 'up'}>"

    @property
    def is_up(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    @property
    def failure(self) -> str | None:
        """The cause for which there is no connection, or the last request was refused; ``None`` where neither is so."""
        return self._cause if self._connection is None else self._refused.cause

    def drop(self, cause: str) -> None:
        """Ends the present connection, because it cannot be trusted any more; another one is made."""
        connection = self._connection
        if connection is not None:
            self._cause = cause
            self._down()
            connection.invalidate(cause)

    async def run(self) -> None:
        """Keeps a connection, until it is cancelled."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    lifetime = trio.CancelScope()
                    connection = await self._connect(nursery, lifetime)
                    pause = FIRST_PAUSE
                    self._up(connection)
                    with lifetime:
                        await self._watch(connection)
            except Exception as error:
                self._cause = reason_of(error)
                log.debug("redis cannot be reached", redis=self._redis.place, cause=self._cause)
            self._down()
            await trio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LAST_PAUSE)

    async def _connect(self, nursery: trio.Nursery, lifetime: trio.CancelScope) -> BaseConnection:
        """Makes a connection that runs in ``nursery``, and cancels ``lifetime`` when it ends."""
        with trio.fail_after(CONNECTING * self._redis.timeout):
            # A file with a password may have another one now, and the server may be another one.
            settings = self._redis.settings(self._name)
            location = await self._redis.locate(settings, self._root)
            connection = settings.make(location, **settings.kwargs)
            await start_and_wait(
                nursery, STORE_CONNECTION, _run, connection, lifetime, about=self._redis.place
            )
            try:
                await self._prepare(connection)
            except BaseException:
                connection.invalidate("it could not be prepared")
                raise
        return connection

    async def _prepare(self, connection: BaseConnection) -> None:
        def ask(*command: bytes | str) -> Any:
            return connection.create_request(command[0], *command[1:], decode=False)  # type: ignore[arg-type]

        # All are sent before the first is waited for.
        role = ask(b"ROLE") if self._redis.is_looked_for else None
        about = ask(b"INFO", b"server") if self.on_replaced is not None else None
        loading = [(script, ask(b"SCRIPT LOAD", script.text)) for script in self._scripts]
        if role is not None and (await role)[0] != b"master":
            raise OSError(f"{connection.location} is not a primary")
        for script, digest in loading:
            self._digests[script] = await digest
        if about is not None and self.on_replaced is not None:
            lines = (await about).splitlines()
            serving = next((each for each in lines if each.startswith(b"run_id:")), b"")
            if self._served_by is not None and serving != self._served_by:
                await self.on_replaced(connection)
            self._served_by = serving

    async def _watch(self, connection: BaseConnection) -> None:
        """Asks whether Redis is there whenever nothing was answered for `IDLE` seconds, until the connection is lost.

        Also where requests wait: those who have made them may have less patience than it takes to lose a connection.
        """
        while connection is self._connection:
            idle_until = self._answered_at + IDLE
            if self._held_back:
                # An answer that Redis holds back holds this one back, and has a bound of its own.
                await trio.sleep(IDLE)
            elif trio.current_time() < idle_until:
                await trio.sleep_until(idle_until)
            else:
                with suppress(SharedStateUnavailable):
                    await self._answer("bus", connection, (b"PING",), 0, self._redis.timeout)

    def _up(self, connection: BaseConnection) -> None:
        if self._cause:
            log.debug("redis is connected", redis=self._redis.place)
        self._connection = connection
        self._cause = ""
        self.connected_at = self._answered_at = trio.current_time()
        self._notify()
        self.on_change()

    def _down(self) -> None:
        if self._connection is not None:
            self._cause = self._cause or "the connection was lost"
            log.debug("a connection to redis was lost", redis=self._redis.place, cause=self._cause)
            self._connection = None
            self.connected_at = None
            self._lost_at = trio.current_time()
            self._notify()
            self.on_change()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def up(self, role: SharedRole) -> BaseConnection:
        """Returns the connection; waits for one until it is away for longer than the timeout.

        Raises:
            SharedStateUnavailable: It cannot be made.
        """
        connection = self._connection
        if connection is not None:
            if connection.usable:
                return connection
            self._down()
        with trio.move_on_at(self._lost_at + self._redis.timeout):
            while self._connection is None:
                await self._changed.wait()
            return self._connection
        raise SharedStateUnavailable(role, f"{self._redis.place}: {self._cause}")

    async def request(self, role: SharedRole, command: bytes, *arguments: Any, weight: int = 0) -> Any:
        """Sends one command and returns its answer, as bytes.

        Args:
            role: What needs it.
            command: The name of the command.
            arguments: Its arguments.
            weight: Bytes of the arguments, if they may be many.

        Raises:
            SharedStateUnavailable: It was not answered within the timeout, or with an error.
        """
        connection = await self.up(role)
        return await self._answer(role, connection, (command, *arguments), weight, self._redis.timeout)

    async def run_script(self, role: SharedRole, script: Script, *arguments: Any, weight: int = 0) -> Any:
        """Runs a script, as `request` does. Its arguments are ``ARGV``.

        The one key that it declares is never written: a server of a Cluster that does not have its slot, or is giving
        it away, refuses the script before its first step.
        """
        connection = await self.up(role)
        command = (b"EVALSHA", self._digests[script], 1, self._root, *arguments)
        return await self._answer(role, connection, command, weight, self._redis.timeout)

    async def read(self, role: SharedRole, seconds: float, *command: Any) -> Any:
        """Sends one command that Redis may answer after so many seconds, as `request` does."""
        connection = await self.up(role)
        self._held_back += 1
        try:
            return await self._answer(role, connection, command, 0, seconds + self._redis.timeout)
        finally:
            self._held_back -= 1

    async def _answer(
        self,
        role: SharedRole,
        connection: BaseConnection,
        command: tuple[Any, ...],
        weight: int,
        seconds: float,
    ) -> Any:
        if self._in_flight + weight > MAX_IN_FLIGHT:
            raise SharedStateUnavailable(role, "too much waits to be sent")
        self._in_flight += weight
        try:
            answer = await connection.create_request(*command, decode=False, timeout=seconds)
            self._answered_at = trio.current_time()
            if _kind_of(command) == self._refused.kind:
                self._refused.over()
            return answer
        except TimeoutError as error:
            # What is behind an answer that does not come does not come either.
            self.drop(reason_of(error))
            raise SharedStateUnavailable(role, reason_of(error)) from None
        except NoScriptError:
            self.drop("redis has lost its scripts")
            raise SharedStateUnavailable(role, "redis has lost its scripts") from None
        except Exception as error:
            if not connection.usable:
                if connection is self._connection:
                    self.drop(reason_of(error))
                raise SharedStateUnavailable(role, reason_of(error)) from None
            # It is there, and has refused: it is full, for example, or may only be read.
            self._answered_at = trio.current_time()
            self._look_elsewhere(error)
            self._refused(reason_of(error), redis=self._redis.place, role=role)
            self._refused.kind = _kind_of(command)
            raise SharedStateUnavailable(role, reason_of(error)) from None
        finally:
            self._in_flight -= weight

    async def run_scripts(
        self, role: SharedRole, many: Sequence[tuple[Script, tuple[Any, ...]]]
    ) -> list[Any]:
        """Runs scripts with their arguments in order, all sent at once; an answer may be an exception.

        Raises:
            SharedStateUnavailable: Not all were answered within the timeout.
        """
        connection = await self.up(role)
        try:
            waiting = [
                connection.create_request(
                    b"EVALSHA",
                    self._digests[script],
                    1,
                    self._root,
                    *arguments,
                    decode=False,
                    raise_exceptions=False,
                )
                for script, arguments in many
            ]
            with trio.fail_after(self._redis.timeout):
                answers = [await each for each in waiting]
            self._answered_at = trio.current_time()
        except Exception as error:
            self.drop(reason_of(error))
            raise SharedStateUnavailable(role, reason_of(error)) from None
        if any(isinstance(each, NoScriptError) for each in answers):
            self.drop("redis has lost its scripts")
        if not connection.usable:
            # Those that were in flight have failed; none of them is known to have been carried out.
            raise SharedStateUnavailable(role, "the connection was lost")
        refusal = next((each for each in answers if isinstance(each, Exception)), None)
        if refusal is None:
            self._refused.over()
        else:
            self._look_elsewhere(refusal)
            self._refused(reason_of(refusal), redis=self._redis.place, role=role)
        return answers

    def _look_elsewhere(self, refusal: Exception) -> None:
        """Gives a connection up to a server that is not the primary any more, or has given the keys away."""
        if self._redis.is_looked_for and isinstance(refusal, ReadOnlyError | MovedError):
            self.drop(reason_of(refusal))


async def _run(
    connection: BaseConnection, lifetime: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    try:
        await run_connection(connection, task_status=task_status)
    finally:
        lifetime.cancel()


class _Refusals(RareWarning):
    """The warning of requests that Redis refuses, with the kind of the last one: only one of its kind ends it."""

    kind: tuple[Any, ...] = ()


def _kind_of(command: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what commands have in common that are refused or carried out alike: a name, or a script."""
    return command[:2] if command[0] == b"EVALSHA" else command[:1]
