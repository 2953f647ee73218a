"""Every async test in this folder runs in virtual time, and ends: one that would hang fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

# Virtual seconds, reached at once when nothing else is left to wait for.
FOR_EVER = 1_000_000


def run_in_virtual_time(main: Callable[[], Awaitable[Any]], **options: Any) -> Any:
    """`trio.run` with a clock that jumps to the next deadline."""

    async def bounded() -> Any:
        with trio.fail_after(FOR_EVER):
            return await main()

    return trio.run(bounded, **{**options, "clock": MockClock(autojump_threshold=0)})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(getattr(test, "hypothesis", None), "inner_test", test)
        if item.path.parent == Path(__file__).parent and iscoroutinefunction(test):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
