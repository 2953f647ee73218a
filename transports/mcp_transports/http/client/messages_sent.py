"""The messages of a channel as a sender sees them that may have to get access to the server first."""

from __future__ import annotations

from types import TracebackType

import msgspec
import trio

from mcp_actors.abc import Frame
from mcp_transports.http.client.session_state import SessionState

__all__ = ["HeldScope", "operation_of"]


class HeldScope:
    """Bounds what it is a block of, by seconds in which no person is asked; a `AccessWaiter` for what is sent in it.

    The block ends early, without an exception, when the seconds are over.

    Args:
        state: The state of the channel, whose clocks stand still while a person is asked.
        seconds: The bound.
    """

    operation = ""

    def __init__(self, state: SessionState, seconds: float) -> None:
        self.is_refused = False
        self._state = state
        self._scope = trio.CancelScope(relative_deadline=seconds)
        self._asked_since = 0.0
        self._deadline = 0.0

    def __enter__(self) -> HeldScope:
        self._scope.__enter__()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return bool(self._scope.__exit__(cls, error, traceback))

    def hold(self) -> None:
        """A person begins to be asked."""
        self._asked_since = trio.current_time()
        self._deadline, self._scope.deadline = self._scope.deadline, trio.current_time() + float("inf")
        self._state.hold()

    def release(self) -> None:
        """The person is asked no more."""
        self._scope.deadline = self._deadline + trio.current_time() - self._asked_since
        self._state.release()


class _Params(msgspec.Struct):
    name: str | None = None
    uri: str | None = None


class _Request(msgspec.Struct):
    params: _Params = msgspec.field(default_factory=_Params)


def operation_of(frame: Frame) -> str:
    """Returns the method of a request, with the name or the URI that it is about behind a colon."""
    try:
        params = msgspec.json.decode(frame.data, type=_Request).params
    except (msgspec.MsgspecError, UnicodeDecodeError):
        params = _Params()
    subject = params.name or params.uri
    return f"{frame.method}:{subject}" if subject else frame.method or ""
