"""The access of one channel to its server: credentials for each request, and what is done when one is refused.

All channels with the same `~mcp_actors.auth.OAuth` object and server share one state: however many requests are refused
at once, in however many clients, one task gets new access and all others wait for it. Nothing is locked meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakValueDictionary

import trio

from mcp_actors.auth import AuthorizationCode, BearerToken, ClientAuth, MemoryTokenStore, OAuth, UrlPolicy
from mcp_actors.auth.client.authorization import Answered, Authorization, SentRequest
from mcp_actors.auth.effects import Steps
from mcp_actors.errors import AuthorizationError
from mcp_actors.logging import log
from mcp_actors.supervision import start
from mcp_actors.task_kinds import AUTHORIZATION
from mcp_transports.auth.bearer import BearerAccess
from mcp_transports.auth.browsers import default_browser
from mcp_transports.auth.effects_performed import Performer
from mcp_transports.auth.fetcher import Fetcher
from mcp_transports.auth.flights import Flight, FlightWaiter

__all__ = ["Answered", "Authorizer", "SentRequest"]

RESTORE, RENEW, LOG_IN, LOG_OUT = "restore", "renew", "log in", "log out"
# Seconds after a refresh ahead of time has failed in which none is tried: the token may still be good.
RENEWAL_PAUSE = 10.0


class AccessMachine(Protocol):
    """The client's side of authorization at one server: `Authorization` or `BearerAccess`."""

    @property
    def token(self) -> str | None: ...
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
        """Runs a machine; nobody else runs one until it has ended."""
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
                # The token may be good for a while, so that nobody need wait.
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

    def accepted(self, url: str, nonce: str | None, operation: str | None) -> None:
        """Takes note of a response that is no refusal; ``operation`` is needed if `is_stepping_up`."""
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

        Cancelled, it leaves what others wait for alone; what nobody else waits for is ended.

        Args:
            sent: The request that was refused.
            answer: The refusal.
            waiter: Is told while a person is asked.

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
                # The end of a session is no reason to ask for access, least of all a person.
                if self._is_closed or sent.method == "DELETE":
                    return False
                failed = access.failed
                if (
                    failed is not None
                    and failed.failure is not None
                    and failed.reason == reason
                    and not sent.operation
                ):
                    # What nobody asked for, such as the stream of a session, asks no person who has just refused.
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
