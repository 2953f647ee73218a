"""Waiting until a person has typed something."""

from __future__ import annotations

import errno
import select

import trio

__all__ = ["wait_for_input"]

# Seconds between two looks at a terminal that cannot be waited for: no person notices that.
_LOOK_AGAIN = 0.05


async def wait_for_input(descriptor: int) -> None:
    """Waits until a terminal has something to read, or its end.

    macOS's kqueue refuses ``/dev/tty`` with EINVAL, while `select` takes it. Then it is looked at from time to time.

    Args:
        descriptor: The terminal's.

    Raises:
        OSError: The system cannot say whether the descriptor has something to read.
    """
    try:
        await trio.lowlevel.wait_readable(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        while True:
            if select.select((descriptor,), (), (), 0)[0]:
                return
            await trio.sleep(_LOOK_AGAIN)
