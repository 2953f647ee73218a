"""The access of one channel to its server: credentials for each request, and what is done when one is refused.

All channels with the same `~mcp_actors.auth.OAuth` object and server share one state: however many requests are refused
at once, in however many clients, one task gets new access and all others wait for it. Nothing is locked meanwhile.

That task is a `Flight`: one run of a state machine of `mcp_actors.auth`. A `Performer` drives it: it carries out each
effect that the machine yields, and sends the answer back. A token that the program has already needs none of this:
`BearerAccess`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import trio

from mcp_actors.auth import AuthorizationCode, BearerToken, ClientAuth, MemoryTokenStore, OAuth, UrlPolicy
from mcp_actors.auth.client.authorization import Answered, Authorization, SentRequest
from mcp_actors.auth.client.settings import Browser, Redirect
from mcp_actors.auth.effects import (
    Ask,
    Effect,
    Fetch,
    Fetched,
    FetchFailed,
    LoadRecord,
    Lock,
    LogIn,
    OpenRedirect,
    RedirectAnswer,
    Steps,
    SwapRecord,
    Unlock,
)
from mcp_actors.auth.store import TokenStore
from mcp_actors.errors import AuthorizationError, AuthorizationFailed, LoginFailed, LoginRequired
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import AUTHORIZATION
from mcp_transports.auth.browsers import default_browser
from mcp_transports.auth.fetcher import Fetcher

__all__ = [
    "Answered",
    "Authorizer",
    "BearerAccess",
    "Fetching",
    "Flight",
    "FlightWaiter",
    "Performer",
    "SentRequest",
]

RESTORE, RENEW, LOG_IN, LOG_OUT = "restore", "renew", "log in", "log out"
# Seconds after a refresh ahead of time has failed during which no other is tried: the token may still be good.
RENEWAL_PAUSE = 10.0

# As `BearerToken` has it.
_TOKEN = re.compile(r"[\x21-\x7e]+")

T = TypeVar("T")

# Seconds for a function of the program, such as that for an ID token.
ASK_TIMEOUT = 60.0
# Seconds, when a machine has ended, to give back the locks.
END_TIMEOUT = 5.0


# -- The access of one channel ---------------------------------------------------------------------


class AccessMachine(Protocol):
    """The client's side of authorization at one server: `Authorization` or `BearerAccess`."""

    @property
    def token(self) -> str | None: ...
    @property
    def access(self) -> object:
        """Equal to an earlier value if requests are still made for the same caller with the same scopes."""

    @property
    def refresh_due(self) -> bool: ...
    def restore(self) -> Steps[None]: ...
    def renew(self) -> Steps[None]: ...
    def headers(self, method: str, url: str) -> Sequence[tuple[str, str]]: ...
    def note(self, url: str, nonce: str | None) -> None: ...
    def succeeded(self, operation: str) -> None: ...
    def sends_again(self, sent: SentRequest, answer: Answered) -> bool: ...
    def react(self, sent: SentRequest, answer: Answered) -> Steps[bool]: ...
    def log_in(self) -> Steps[None]: ...
    def log_out(self) -> Steps[None]: ...


class SharedAccess:
    """The access to one server, for all channels that use the same settings in the same run of Trio."""

    def __init__(self, machine: AccessMachine, performer: Performer, owner: object) -> None:
        self.machine = machine
        self.performer = performer
        self.flight: Flight | None = None
        self.is_restored = False
        self.stepped_up: set[str] = set()
        """The operations that were refused for a lack of scopes and have not succeeded since."""
        self.failed: Flight | None = None
        """The last run, if it has failed."""
        self._renews_at = 0.0
        # What the key of the registry names must live for as long as this.
        self._owner = owner

    @property
    def is_ready(self) -> bool:
        """Whether a request may be sent without waiting for anything."""
        return self.is_restored and not self.is_renewal_due

    @property
    def is_renewal_due(self) -> bool:
        """Whether the token ends soon and it is time to try to get another one."""
        return self.machine.refresh_due and trio.current_time() >= self._renews_at

    async def fly(self, flight: Flight, steps: Steps[Any]) -> None:
        """Runs a machine; no other one may run until it has ended."""
        try:
            await flight.run(steps, self.performer)
            self.failed = flight if flight.failure is not None else None
            if flight.reason == RENEW and flight.failure is not None:
                self._renews_at = trio.current_time() + RENEWAL_PAUSE
                log.warning("the token could not be refreshed ahead of its end", error=str(flight.failure))
        finally:
            self.flight = None


_SHARED: WeakValueDictionary[tuple[int, int, str], SharedAccess] = WeakValueDictionary()


def _shared(settings: OAuth, server_url: str) -> SharedAccess:
    run = trio.lowlevel.current_trio_token()
    key = id(settings), id(run), server_url
    access = _SHARED.get(key)
    if access is None:
        grant = settings.grant
        person = grant if isinstance(grant, AuthorizationCode) else None
        performer = Performer(
            Fetcher(settings.url_policy, server_url),
            settings.store,
            None if person is None else lambda: person.browser or default_browser(),
            0.0 if person is None else person.login_timeout,
        )
        access = SharedAccess(Authorization(settings, server_url), performer, (settings, run))
        _SHARED[key] = access
    return access


class Authorizer:
    """The access of one channel.

    Args:
        auth: The settings.
        server_url: The URL of the server, without user, password and fragment.
        nursery: Owns the tasks in which access is had. `close` must be called before it is closed.
    """

    def __init__(self, auth: ClientAuth, server_url: str, nursery: trio.Nursery) -> None:
        self.server_url = server_url
        self._nursery = nursery
        self._begun: Flight | None = None
        self._is_closed = False
        # The token and the access with which a request was accepted last.
        self._accepted_token: str | None = None
        self._accepted: object = None
        self.on_new_access: Callable[[], object] = lambda: None
        """Is called when a request was accepted with other access than those before it."""
        self.on_new_token: Callable[[], object] = lambda: None
        """Is called when a request was accepted with another token, whatever access it gives."""
        if isinstance(auth, BearerToken):
            performer = Performer(Fetcher(UrlPolicy(), server_url), MemoryTokenStore())
            self._access = SharedAccess(BearerAccess(auth, server_url), performer, None)
        else:
            self._access = _shared(auth, server_url)

    def __repr__(self) -> str:
        return f"<Authorizer {self.server_url} {self._access.flight or 'at rest'}>"

    def close(self) -> None:
        """Ends what this channel has begun; other channels that wait for it begin anew. Nothing is begun after it."""
        self._is_closed = True
        if self._begun is not None and self._begun is self._access.flight:
            self._begun.cancel()

    # -- for each request ------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether `headers` can be called without `prepare`."""
        return self._access.is_ready

    @property
    def token(self) -> str | None:
        """The access token of the moment."""
        return self._access.machine.token

    def headers(self, method: str, url: str) -> Sequence[tuple[str, str]]:
        """Returns the headers that give access, made for one sending of one request."""
        return self._access.machine.headers(method, url)

    async def prepare(self, waiter: FlightWaiter | None = None) -> None:
        """Reads what was stored, and refreshes a token that ends soon.

        Raises:
            AuthorizationError: The store cannot be read. A refresh that fails is written to the log: the token may
                still be good, and if not, the server says so.
        """
        access = self._access
        while not access.is_ready and not self._is_closed:
            flight = access.flight
            if flight is None:
                flight = (
                    self._restored() if not access.is_restored else self._begin(RENEW, access.machine.renew())
                )
            elif access.is_restored and flight.reason != RENEW:
                # The token may be good for a while, so that no request need wait.
                return
            try:
                await flight.wait(waiter)
            except AuthorizationError:
                if not access.is_restored and flight.reason == RESTORE:
                    raise

    def _restored(self) -> Flight:
        access = self._access

        def restore() -> Steps[None]:
            yield from access.machine.restore()
            access.is_restored = True

        return self._begin(RESTORE, restore())

    def accepted_with(self, token: str | None) -> None:
        """Takes note of the token with which a request was accepted."""
        if token == self._accepted_token and self._accepted is not None:
            return
        access = self._access.machine.access
        if token == self.token:
            former, self._accepted_token, self._accepted = self._accepted, token, access
            self.on_new_token()
            if former is not None and former != access:
                self.on_new_access()

    def accepted(self, url: str, nonce: str | None, operation: str | None) -> None:
        """Takes note of a response that is not a refusal; ``operation`` is needed if `is_stepping_up`."""
        if nonce is not None:
            self._access.machine.note(url, nonce)
        if operation is not None and operation in self._access.stepped_up:
            self._access.stepped_up.discard(operation)
            self._access.machine.succeeded(operation)

    @property
    def is_stepping_up(self) -> bool:
        """Whether some operation was refused for a lack of scopes and has not succeeded since."""
        return bool(self._access.stepped_up)

    async def react(self, sent: SentRequest, answer: Answered, waiter: FlightWaiter | None = None) -> bool:
        """Does what there is to do about a 401 or 403, and returns whether the request is to be sent again.

        Cancelled, it leaves what others wait for alone; a flight that no one else waits for is ended.

        Args:
            sent: The request that was refused.
            answer: The refusal.
            waiter: Is notified while a person is asked.

        Raises:
            AuthorizationError: Access could not be had.
        """
        access = self._access
        reason = "401" if answer.status == 401 else f"{answer.status} {sent.operation}"
        while True:
            if access.machine.sends_again(sent, answer):
                return True
            flight = access.flight
            if flight is None:
                # The end of a session does not call for access, least of all a person.
                if self._is_closed or sent.method == "DELETE":
                    return False
                failed = access.failed
                if (
                    failed is not None
                    and failed.failure is not None
                    and failed.reason == reason
                    and not sent.operation
                ):
                    # A request of our own, such as the stream of a session, asks no person who has just refused.
                    raise failed.failure.as_new()
                if answer.status == 403:
                    access.stepped_up.add(sent.operation)
                flight = self._begin(reason, access.machine.react(sent, answer))
            try:
                again: bool | None = await flight.wait(waiter)
            except AuthorizationError:
                if flight.reason == reason:
                    raise
                continue
            if flight.reason == reason and again is not None:
                return again

    # -- for a program that logs in beforehand ---------------------------------------------------------------------

    async def log_in(self) -> None:
        """Gets access before any request was refused, with a person if the grant is one of a person's.

        Raises:
            AuthorizationError: Access could not be had.
        """
        await self._alone(LOG_IN)

    async def log_out(self) -> None:
        """Forgets the tokens, and revokes them where the authorization server can.

        Raises:
            AuthorizationError: The store cannot be written.
        """
        await self._alone(LOG_OUT)

    async def _alone(self, reason: str) -> None:
        access, machine = self._access, self._access.machine
        await self.prepare()
        while access.flight is not None:
            with suppress(AuthorizationError):
                await access.flight.wait(None)
        await self._begin(reason, machine.log_in() if reason == LOG_IN else machine.log_out()).wait(None)

    def _begin(self, reason: str, steps: Steps[Any]) -> Flight:
        flight = self._begun = self._access.flight = Flight(reason)
        start(
            self._nursery,
            AUTHORIZATION,
            self._access.fly,
            flight,
            steps,
            about=reason.partition(" ")[0],
            on_crash=flight.fail_after_crash,
        )
        return flight


# -- One run of a state machine, and the requests that wait for it ---------------------------------


class FlightWaiter(Protocol):
    """A request that waits for access; its clocks must not run while a person is asked."""

    def hold(self) -> None:
        """A person begins to be asked."""

    def release(self) -> None:
        """The person has answered, or is asked no more. Follows each `hold`."""


class Flight:
    """One run of a machine in a task of its own, for all who need what it gets.

    Args:
        reason: What the run is for: those who have the same reason take its failure as their own.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.failure: AuthorizationError | None = None
        self._result: Any = None
        self._waiters: list[FlightWaiter | None] = []
        self._asks = False
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def __repr__(self) -> str:
        state = "ended" if self._ended.is_set() else "asks a person" if self._asks else "under way"
        return f"<Flight {self.reason!r} {state}, {len(self._waiters)} wait>"

    async def run(self, steps: Steps[Any], performer: Performer) -> None:
        """Runs the machine to its end. Cancelled, it has given back what the machine held."""
        try:
            with self._scope:
                self._result = await performer.run(steps, self._person_asked)
        except AuthorizationError as error:
            self.failure = error
        finally:
            self._ended.set()

    def fail_after_crash(self, crash: BaseException) -> None:
        """Tells those who wait that the run failed by a defect."""
        self.failure = AuthorizationError(
            f"access could not be had, because of a failure on this side: {type(crash).__name__}; see the log"
        )

    def cancel(self) -> None:
        """Ends the run; a request that still waits begins another one."""
        self._scope.cancel(reason="no request waits for access any more")

    async def wait(self, waiter: FlightWaiter | None) -> Any:
        """Waits for the end and returns the result, ``None`` if the run was cancelled.

        Cancelled, it leaves, and the last one who leaves cancels the run.

        Raises:
            AuthorizationError: The failure, as an exception of its own for each who waits.
        """
        self._waiters.append(waiter)
        if self._asks and waiter is not None:
            waiter.hold()
        try:
            await self._ended.wait()
        finally:
            self._waiters.remove(waiter)
            if self._asks and waiter is not None:
                waiter.release()
            if not self._waiters and not self._ended.is_set():
                self.cancel()
        if self.failure is not None:
            raise self.failure.as_new()
        return self._result

    def _person_asked(self, begins: bool) -> None:
        self._asks = begins
        for waiter in self._waiters:
            if waiter is not None:
                (waiter.hold if begins else waiter.release)()


# -- Access by a token that the program has --------------------------------------------------------


class BearerAccess:
    """The state of a `BearerToken` at one server, in the shape of `mcp_actors.auth.client.authorization.Authorization`.

    Args:
        settings: The token, or the function that returns it.
        server: The server's URL, as it may be shown.
    """

    refresh_due = False

    @property
    def access(self) -> object:
        """Equal to an earlier value if requests are still made for the same caller with the same scopes."""
        return (self.token,)

    def __init__(self, settings: BearerToken, server: str) -> None:
        self.token: str | None = None
        self._settings = settings
        self._server = server
        if isinstance(settings.token, str):
            self.token = settings.token

    def __repr__(self) -> str:
        return f"<BearerAccess {self._server}>"

    def restore(self) -> Steps[None]:
        """Asks the program for the token."""
        if callable(self._settings.token):
            yield from self._asked()

    def renew(self) -> Steps[None]:
        """Does nothing: when the token ends is not known."""
        yield from ()

    def headers(self, method: str, url: str) -> Sequence[tuple[str, str]]:
        """Returns the headers of a request."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def note(self, url: str, nonce: str | None) -> None:
        """Does nothing: these tokens are bound to no key."""

    def succeeded(self, operation: str) -> None:
        """Does nothing: there is no server to ask for more scopes."""

    def sends_again(self, sent: SentRequest, answer: Answered) -> bool:
        """Whether the token has changed meanwhile."""
        has_changed = self.token is not None and sent.token != self.token
        return answer.status == 401 and has_changed and not sent.is_given_up

    def react(self, sent: SentRequest, answer: Answered) -> Steps[bool]:
        """Asks the program for another token, once for a request.

        Raises:
            AuthorizationFailed: There is no other token.
        """
        if answer.status != 401:
            return False
        if callable(self._settings.token) and sent.former_tokens == 0:
            yield from self._asked()
            if self.token != sent.token:
                return True
        raise AuthorizationFailed(
            f"{self._server} refuses the bearer token: is it meant for this server, and has it not expired?"
        )

    def log_in(self) -> Steps[None]:
        """Asks the program for the token."""
        yield from self.restore()

    def log_out(self) -> Steps[None]:
        """Forgets a token that the program was asked for."""
        if callable(self._settings.token):
            self.token = None
        yield from ()

    def _asked(self) -> Steps[None]:
        assert callable(self._settings.token)
        token = yield Ask(self._settings.token)
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise AuthorizationError(
                "the function of BearerToken must return a text of visible ASCII characters without spaces, "
                f"and returned {'such a one with others' if isinstance(token, str) else type(token).__name__}"
            )
        self.token = token


# -- The driver of the state machines --------------------------------------------------------------


class Fetching(Protocol):
    """Makes the HTTP requests of a machine."""

    async def fetch(self, request: Fetch) -> Fetched | FetchFailed: ...


class Performer:
    """Performs the effects of the machines for one server. Nothing is kept from one machine to the next.

    Args:
        fetcher: Makes the HTTP requests.
        store: Keeps the records.
        browser: Returns how a person logs in; called when one has to.
        login_timeout: Seconds for the person.
    """

    def __init__(
        self,
        fetcher: Fetching,
        store: TokenStore,
        browser: Callable[[], Browser] | None = None,
        login_timeout: float = 0.0,
    ) -> None:
        self._fetcher = fetcher
        self._store = store
        self._browser = browser
        self._login_timeout = login_timeout

    async def run(self, steps: Steps[T], person_asked: Callable[[bool], None]) -> T:
        """Runs a machine to its end and returns its result.

        ``person_asked`` is called with true when a person begins to be asked, and with false when that has ended.
        However the machine ends, the locks that it holds are given back, and the place that a login comes back to is
        closed.

        Raises:
            AuthorizationError: The machine raised it, or did not handle that of an effect.
        """
        held = _Held()
        answer: Any = None
        failure: AuthorizationError | None = None
        try:
            while True:
                effect = steps.send(answer) if failure is None else steps.throw(failure)
                answer = failure = None
                try:
                    answer = await self._perform(effect, held, person_asked)
                except AuthorizationError as error:
                    failure = error
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()
            try:
                # It may have a nursery, at whose end no younger scope may be open. It bounds its end itself.
                await held.close_redirect()
            finally:
                with trio.move_on_after(END_TIMEOUT, shield=True):
                    await held.release_locks()

    async def _perform(self, effect: Effect, held: _Held, person_asked: Callable[[bool], None]) -> Any:
        match effect:
            case Fetch():
                return await self._fetcher.fetch(effect)
            case LoadRecord(key):
                return await self._store.load(key)
            case SwapRecord(key, expected, value):
                return await self._store.swap(key, expected, value)
            case Lock(key):
                stack = AsyncExitStack()
                await stack.enter_async_context(self._store.lock(key))
                held.locks[key] = stack
            case Unlock(key):
                await held.locks.pop(key).aclose()
            case OpenRedirect(registered):
                return await self._open_redirect(registered, held)
            case LogIn(url, accepts):
                assert held.redirect is not None, "a login needs a place to come back to"
                return await self._log_in(held.redirect, url, accepts, person_asked)
            case Ask(function, arguments):
                return await _ask(function, arguments)
        return None

    async def _open_redirect(self, registered: Any, held: _Held) -> str:
        await held.close_redirect()
        if self._browser is None:
            raise LoginRequired("a person would have to log in, and these settings have no way for that")
        held.redirect = await held.redirect_stack.enter_async_context(
            self._browser().open_redirect(registered)
        )
        return held.redirect.uri

    async def _log_in(
        self,
        redirect: Redirect,
        url: str,
        accepts: Callable[[RedirectAnswer], bool],
        person_asked: Callable[[bool], None],
    ) -> RedirectAnswer:
        person_asked(True)
        try:
            with trio.move_on_after(self._login_timeout):
                return await redirect.log_in(url, accepts)
        finally:
            person_asked(False)
        raise LoginFailed(
            f"nobody logged in within {self._login_timeout:g} s; try again, or give a longer login_timeout"
        )


class _Held:
    """The locks that a machine holds, and the place that its login comes back to."""

    def __init__(self) -> None:
        self.locks: dict[str, AsyncExitStack] = {}
        self.redirect: Redirect | None = None
        self.redirect_stack = AsyncExitStack()

    async def close_redirect(self) -> None:
        self.redirect = None
        await self.redirect_stack.aclose()

    async def release_locks(self) -> None:
        async with AsyncExitStack() as stack:
            for lock in self.locks.values():
                stack.push_async_callback(lock.aclose)


async def _ask(function: Callable[..., Any], arguments: Any) -> Any:
    """Calls a function of the program.

    Raises:
        AuthorizationError: The function failed, or took longer than `ASK_TIMEOUT` seconds.
    """
    name = getattr(function, "__name__", "a function")
    try:
        with trio.move_on_after(ASK_TIMEOUT):
            answer = function(*arguments)
            return await answer if inspect.isawaitable(answer) else answer
    except AuthorizationError:
        raise
    except Exception as error:
        # Its text may hold what it was about to return.
        raise AuthorizationError(
            f"{name}, which the program gave to be asked for access, raised {type(error).__name__}"
        ) from error
    raise AuthorizationError(
        f"{name}, which the program gave to be asked for access, took longer than {ASK_TIMEOUT:g} s"
    )
