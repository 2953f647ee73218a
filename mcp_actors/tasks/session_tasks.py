"""The tasks that one session has created, for callers that nobody has authenticated."""

from __future__ import annotations

__all__ = ["SessionTasks"]

# The oldest are left out of the list beyond it; they can still be looked at by their ids.
MOST = 1000


class SessionTasks:
    """The ids of the tasks of a session, oldest first: what ``tasks/list`` shows to a caller without a principal."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, id: str) -> None:
        """Adds a new task."""
        self._ids[id] = None
        if len(self._ids) > MOST:
            del self._ids[next(iter(self._ids))]

    def after(self, id: str | None) -> list[str]:
        """Returns the tasks behind one of them, or all of them; none for a task of somebody else."""
        ids = list(self._ids)
        if id is None:
            return ids
        return ids[ids.index(id) + 1 :] if id in self._ids else []
