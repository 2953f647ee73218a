"""The errors of listening, as the engine's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_transports._sockets import InvalidSocketPath, ListenError

__all__ = ["as_engine_errors"]


@contextmanager
def as_engine_errors() -> Iterator[None]:
    """Translates the errors of listening for the users of the engine.

    Raises:
        ConnectFailed: Instead of `ListenError`.
        LocalProtocolError: Instead of `InvalidSocketPath`.
    """
    try:
        yield
    except ListenError as error:
        raise ConnectFailed(str(error)) from error.__cause__
    except InvalidSocketPath as error:
        raise LocalProtocolError(str(error)) from None
