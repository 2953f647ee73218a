"""Runs the state machines of authorization: each effect that one yields is performed, and the answer is sent to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol, TypeVar

import trio

from mcp_actors.auth.client.browser import Browser, Redirect
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
from mcp_actors.errors import AuthorizationError, LoginFailed, LoginRequired

__all__ = ["Fetching", "Performer"]

T = TypeVar("T")

# Seconds for a function of the program, such as that for an ID token.
ASK_TIMEOUT = 60.0
# Seconds, when a machine has ended, to give back the locks.
END_TIMEOUT = 5.0


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
