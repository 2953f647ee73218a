"""A check for what would block an asyncio loop. It loads nothing else, because plain servers make it too."""

from __future__ import annotations

import sys

__all__ = ["refuse_asyncio"]


def refuse_asyncio(what: str, instead: str) -> None:
    """Does nothing where no asyncio loop runs.

    Args:
        what: The expression that would block the loop until it ends.
        instead: The one that does not.

    Raises:
        RuntimeError: An asyncio loop runs in this thread.
    """
    # No loop runs where the module was never imported, and importing it takes longer than many servers take to start.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"{what} would block the asyncio loop that runs here: use '{instead}'")
