"""A parking lot that costs next to nothing until a task waits in it: in most sessions none ever does."""

from __future__ import annotations

import trio

__all__ = ["WaitingTasks"]


class WaitingTasks:
    """Lets tasks wait until they are woken, as a `trio.lowlevel.ParkingLot` does, which it makes when one waits."""

    __slots__ = ("_lot",)

    def __init__(self) -> None:
        self._lot: trio.lowlevel.ParkingLot | None = None

    def __repr__(self) -> str:
        return f"<WaitingTasks {0 if self._lot is None else len(self._lot)}>"

    def __bool__(self) -> bool:
        return bool(self._lot)

    async def park(self) -> None:
        """Waits until this task is woken."""
        if self._lot is None:
            self._lot = trio.lowlevel.ParkingLot()
        await self._lot.park()

    def unpark(self) -> None:
        """Wakes the task that has waited longest, if there is one."""
        if self._lot is not None:
            self._lot.unpark()

    def unpark_all(self) -> None:
        """Wakes every task that waits."""
        if self._lot is not None:
            self._lot.unpark_all()
