"""The context of a sync function: in a worker thread its methods wait, since there is nothing to be awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import trio

from mcp_actors import types as t
from mcp_actors._server.context import Context
from mcp_actors._server.on_loop import on_loop
from mcp_actors._server.questions import FormResult
from mcp_actors._server.scope import StateT
from mcp_actors.errors import CallCancelled, LocalProtocolError
from mcp_actors.types import LoggingLevel

__all__ = ["SyncContext"]

T = TypeVar("T")


class SyncContext(Context[StateT]):
    """The `Context` that a plain ``def`` is given: ``ctx.progress(1)`` in place of ``await ctx.progress(1)``.

    In a worker thread, and in any other that the function starts, each method runs on the event loop while the thread
    waits for it, and so does what is called of ``ctx.session`` and ``ctx.server`` that never waits: ``log``,
    ``elicitation_complete``, ``add_tool``, ``stop``. The parameter may be annotated with either class; with this one
    type checkers know that nothing is to be awaited. Each method raises what the
    one of `Context` raises, and `CallCancelled` when the client has cancelled the call, its time is up, or the question
    ends it. A function that is declared ``inline`` runs on the event loop itself and cannot wait there: the methods
    raise `LocalProtocolError`.
    """

    __slots__ = ("_inline", "_over", "_scopes")

    def __init__(self, ctx: Context, inline: bool) -> None:
        for name in Context.__slots__:
            setattr(self, name, getattr(ctx, name))
        self._inline = inline
        self._over = False
        self._scopes: set[trio.CancelScope] = set()

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:  # type: ignore[override]
        """Reports progress; see `Context.progress`."""
        return self._wait(super().progress, progress, total, message)

    def notify(self, method: str, params: dict[str, Any]) -> None:  # type: ignore[override]
        """Sends a notification that belongs to this call; see `Context.notify`."""
        return self._wait(super().notify, method, params)

    def log(self, level: LoggingLevel, data: Any, logger: str | None = None) -> None:  # type: ignore[override]
        """Sends a log message to the client; see `Context.log`."""
        return self._wait(super().log, level, data, logger)

    def close_stream(self) -> None:
        """Closes the HTTP response that waits for this call; see `Context.close_stream`."""
        on_loop(self._scope.token, super().close_stream)

    @overload  # type: ignore[override]
    def elicit(
        self,
        message: str,
        schema: type[T],
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> FormResult[T]: ...

    @overload
    def elicit(
        self,
        message: str,
        schema: Mapping[str, Any],
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> t.ElicitResult: ...

    def elicit(
        self,
        message: str,
        schema: Any,
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> Any:
        """Asks the person at the client to fill in a form; see `Context.elicit`."""
        return self._wait(super().elicit, message, schema, key=key, ttl=ttl)

    def elicit_url(  # type: ignore[override]
        self, message: str, url: str | Callable[[str], str], *, key: str | None = None
    ) -> t.ElicitResult:
        """Asks the person to do something at a URL; see `Context.elicit_url`."""
        return self._wait(super().elicit_url, message, url, key=key)

    def sample(  # type: ignore[override]
        self,
        messages: str | Sequence[t.SamplingMessage],
        *,
        max_tokens: int,
        key: str | None = None,
        ttl: float | None = None,
        **more: Any,
    ) -> t.CreateMessageResult:
        """Asks the client's model; see `Context.sample`."""
        return self._wait(super().sample, messages, max_tokens=max_tokens, key=key, ttl=ttl, **more)

    def list_roots(self, *, key: str | None = None) -> list[t.Root]:  # type: ignore[override]
        """Asks for the folders that the server may work in; see `Context.list_roots`."""
        return self._wait(super().list_roots, key=key)

    def ask(  # type: ignore[override]
        self, questions: Mapping[str, t.InputRequest], *, ttl: float | None = None
    ) -> dict[str, Any]:
        """Asks the client several things at once; see `Context.ask`."""
        return self._wait(super().ask, questions, ttl=ttl)

    def end(self) -> None:
        """The call no longer waits for the function: what its thread waits for ends with `CallCancelled`."""
        self._over = True
        for scope in self._scopes:
            scope.cancel(reason="the call has ended, while its function runs on in a worker thread")

    def _wait(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        if not trio.lowlevel.in_trio_run():
            try:
                return trio.from_thread.run(
                    self._bounded, method, args, options, trio_token=self._scope.token
                )
            except trio.RunFinishedError:
                raise CallCancelled(f"{self.method}: the server's event loop has ended") from None
        if self._inline:
            raise LocalProtocolError(
                f"ctx.{getattr(method, '__name__', '')}() waits, which an inline function must not: write async def, "
                "or remove inline=True"
            )
        # The coroutine of a plain function that has called an async one; that one awaits this.
        awaited: Any = method(*args, **options)
        return awaited  # type: ignore[no-any-return]

    async def _bounded(
        self, method: Callable[..., Awaitable[T]], args: tuple[Any, ...], options: dict[str, Any]
    ) -> T:
        # Trio runs this in a task of its own, which the end of the call does not cancel.
        if not self._over:
            with trio.CancelScope() as scope:
                self._scopes.add(scope)
                try:
                    return await method(*args, **options)
                finally:
                    self._scopes.discard(scope)
        raise CallCancelled(f"{self.method}: nobody waits for its result any more")
