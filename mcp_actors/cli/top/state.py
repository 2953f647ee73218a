"""The state of ``mcp-actors top``, and the keys that change it. Nothing in it draws or waits."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mcp_actors.admin import Action, Snapshot
from mcp_actors.cli.top.panes import PANES, Pane, Row

__all__ = ["TopState"]

# Characters of a filter.
_LONGEST_FILTER = 60
_PAGE = 10


@attrs.define
class Choice:
    """The order and the chosen row of one pane."""

    sort: int
    reverse: bool = True
    key: tuple[str, str] | None = None
    index: int = 0


@attrs.define
class TopState:
    """The pane, the rows and the snapshot that a person looks at."""

    snapshot: Snapshot | None = None
    number: int = 0
    """The pane that is shown."""
    pattern: str = ""
    """Only rows with this text are shown, whatever its case."""
    typing: bool = False
    paused: bool = False
    wanted: Action | None = None
    """An action that waits for a yes."""
    message: str = ""
    """What is said in the last line, until the next key."""
    trouble: str = ""
    """Why no snapshots come, until one does; said in the last line, too."""
    done: bool = False
    choices: list[Choice] = attrs.field(factory=lambda: [Choice(each.sort) for each in PANES])

    @property
    def pane(self) -> Pane:
        """The pane that is shown."""
        return PANES[self.number]

    @property
    def choice(self) -> Choice:
        """The order and the chosen row in it."""
        return self.choices[self.number]

    def rows(self) -> list[Row]:
        """Returns the rows that are shown, in their order; the chosen one stays chosen where it moves."""
        if self.snapshot is None:
            return []
        choice, pattern = self.choice, self.pattern.lower()
        rows = [
            row
            for row in self.pane.all_rows(self.snapshot)
            if not pattern or any(pattern in cell.lower() for cell in row.cells)
        ]
        rows.sort(key=lambda row: row.order[choice.sort], reverse=choice.reverse)
        places = [number for number, row in enumerate(rows) if row.key == choice.key]
        choice.index = places[0] if places else min(choice.index, max(0, len(rows) - 1))
        choice.key = rows[choice.index].key if rows else None
        return rows

    def take(self, snapshot: Snapshot) -> None:
        """Takes a new snapshot, unless the person wants to look at an old one."""
        self.trouble = ""
        if not self.paused:
            self.snapshot = snapshot

    def press(self, key: str) -> Action | None:
        """Takes a key; returns what has to be done at the server, if the person has said yes to something."""
        self.message = ""
        if self.wanted is not None:
            wanted, self.wanted = self.wanted, None
            if key in ("y", "Y"):
                return wanted
            self.message = "nothing was done"
        elif self.typing:
            self._type(key)
        elif key.isdecimal() and 0 < int(key) <= len(PANES):
            self.number = int(key) - 1
        elif (does := _KEYS.get(key)) is not None:
            does(self)
        return None

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.typing = False
            if key == "escape":
                self.pattern = ""
        elif key == "backspace":
            self.pattern = self.pattern[:-1]
        elif len(key) == 1 and key.isprintable():
            self.pattern = (self.pattern + key)[:_LONGEST_FILTER]

    def move(self, by: int) -> None:
        """Chooses another row."""
        rows = self.rows()
        if rows:
            self.choice.index = min(max(0, self.choice.index + by), len(rows) - 1)
            self.choice.key = rows[self.choice.index].key

    def show(self, by: int) -> None:
        """Shows another pane."""
        self.number = (self.number + by) % len(PANES)

    def sort(self) -> None:
        """Sorts by the next column."""
        self.choice.sort = (self.choice.sort + 1) % len(self.pane.columns)

    def reverse(self) -> None:
        """Turns the order round."""
        self.choice.reverse = not self.choice.reverse

    def filter(self) -> None:
        """Begins to take a filter."""
        self.typing = True

    def clear(self) -> None:
        """Shows all rows again."""
        self.pattern = ""

    def pause(self) -> None:
        """Keeps the snapshot that is shown, or goes on."""
        self.paused = not self.paused

    def act(self) -> None:
        """Asks whether the chosen call or session shall be ended."""
        rows = self.rows()
        action = rows[self.choice.index].action if rows else None
        if action is None:
            self.message = "only calls and sessions can be ended: panes 1 and 2"
        self.wanted = action

    def quit(self) -> None:
        """Ends it."""
        self.done = True


_KEYS: dict[str, Callable[[TopState], None]] = {
    "q": TopState.quit,
    "tab": lambda state: state.show(1),
    "right": lambda state: state.show(1),
    "left": lambda state: state.show(-1),
    "up": lambda state: state.move(-1),
    "k": lambda state: state.move(-1),
    "down": lambda state: state.move(1),
    "j": lambda state: state.move(1),
    "page up": lambda state: state.move(-_PAGE),
    "page down": lambda state: state.move(_PAGE),
    "s": TopState.sort,
    "r": TopState.reverse,
    "/": TopState.filter,
    "escape": TopState.clear,
    " ": TopState.pause,
    "x": TopState.act,
    "delete": TopState.act,
}
