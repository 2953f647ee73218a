"""``mcp-actors top`` on a terminal: the keys, the state that they change, and the lines that are drawn of it."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from typing import Any, Self

import attrs
import trio
from rich.cells import set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mcp_actors.cli.top.panes import PANES, Column, Pane, Row, node_line, seconds
from mcp_actors.errors import ConnectFailed, ConnectionLost, RemoteProtocolError
from mcp_actors.telemetry.live_view import Action
from mcp_actors.telemetry.snapshot import Snapshot, cleaned

__all__ = [
    "TopState",
    "client_of",
    "everything",
    "keys",
    "one_by_one",
    "one_picture",
    "picture",
    "split",
    "watch",
]


# -- Keys from a terminal, one by one and without an echo ----------------------------------------------

_SEQUENCES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1bOC": "right", b"\x1bOD": "left", b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[3~": "delete",
}  # fmt: skip
_SINGLE = {0x1B: "escape", 0x0D: "enter", 0x0A: "enter", 0x7F: "backspace", 0x08: "backspace", 0x09: "tab"}
_READ_BYTES = 1024


def split(data: bytes) -> Iterator[str]:
    """Yields the names of the keys of which ``data`` came: a character, or a word such as ``"page up"``.

    Unknown sequences are left out.
    """
    while data:
        if data.startswith((b"\x1b[", b"\x1bO")):
            end = next((n for n in range(2, len(data)) if 0x40 <= data[n] <= 0x7E), len(data) - 1) + 1
            sequence, data = data[:end], data[end:]
            if sequence in _SEQUENCES:
                yield _SEQUENCES[sequence]
        elif data[0] in _SINGLE:
            yield _SINGLE[data[0]]
            data = data[1:]
        else:
            size = next((n for n in range(1, len(data)) if data[n] & 0xC0 != 0x80), len(data))
            text, data = data[:size].decode("utf-8", "ignore"), data[size:]
            if text.isprintable():
                yield from text


@contextmanager
def one_by_one() -> Iterator[int | None]:
    """Makes the terminal of standard input hand over each key at once, for the length of a ``with`` block.

    Yields its descriptor, ``None`` where keys cannot be had: without a terminal, and on Windows.
    """
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield None
        return
    termios: Any = importlib.import_module("termios")
    tty: Any = importlib.import_module("tty")
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        # Ctrl-C remains a signal.
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def keys(descriptor: int) -> AsyncGenerator[str, None]:
    """Yields the keys that are pressed, until the terminal is gone."""
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        try:
            data = os.read(descriptor, _READ_BYTES)
        except OSError:
            return
        if not data:
            return
        for key in split(data):
            yield key


# -- The state, and the keys that change it. Nothing in it draws or waits ------------------------------

# Characters of a filter.
_LONGEST_FILTER = 60
_PAGE = 10
# In the order of the panes, and of a keyboard.
_KEYS_OF_PANES = [*"1234567890-"]


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
    about: str = ""
    """What it would end, as it was when it was chosen."""
    message: str = ""
    """The text of the last line, until the next key."""
    trouble: str = ""
    """Why no snapshots come, until one does."""
    heard: float = attrs.field(factory=time.monotonic)
    """When the last snapshot came."""
    helping: bool = False
    """Whether the keys are explained, until the next key."""
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
        """Takes a new snapshot, unless the display is paused."""
        self.trouble, self.heard = "", time.monotonic()
        if not self.paused:
            self.snapshot = snapshot

    def press(self, key: str) -> Action | None:
        """Takes a key; returns what has to be done at the server, if the person has said yes to something."""
        self.message = ""
        if self.helping:
            self.helping = False
        elif self.wanted is not None:
            wanted, self.wanted = self.wanted, None
            if key in ("y", "Y"):
                return wanted
            self.message = "nothing was done"
        elif self.typing:
            self._type(key)
        elif key in _KEYS_OF_PANES:
            self.number = _KEYS_OF_PANES.index(key)
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
        """Reverses the order."""
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
        """Asks whether to end the chosen call, task or session."""
        rows = self.rows()
        row = rows[self.choice.index] if rows else None
        if row is None or row.action is None:
            self.message = "only calls, tasks and sessions can be ended: panes 2, 3 and 4"
        else:
            self.wanted, self.about = row.action, row.about

    def explain(self) -> None:
        """Explains the keys."""
        self.helping = True

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
    "?": TopState.explain,
}


# -- Drawing, for a terminal of any size or for a file -------------------------------------------------

# Nodes that have a line of their own above every pane; the pane of nodes has all.
_MOST_NODES = 4
_KEY_HELP = "? help  q quit  tab pane  s sort  r reverse  / filter  x end  space pause"
# Troubles that have a line each.
_MOST_TROUBLES = 3
_HELP = (
    ("q", "quit"),
    ("tab, right, left", "the next pane, the one before"),
    (
        "1 to 9, 0, -",
        "a pane: tools, calls, tasks of clients, sessions, upstreams, nodes, crashes, turns, blocked loops, "
        "the engine's own tasks, processes of functions",
    ),
    ("up, down, k, j", "choose a row, which stays chosen; page up, down: ten rows"),
    ("s", "sort by the next column"),
    ("r", "turn the order round"),
    ("/", "show only rows with a text; enter keeps it, escape shows all"),
    ("x, delete", "end the chosen call, task or session, after a question"),
    ("space", "keep this snapshot, go on"),
    ("", ""),
    ("10 MIN", "calls that ended in the last ten minutes, looked at or not"),
    ("FAILED", "those whose function failed, or that found no room; mistakes of clients are none"),
    ("P50, P99", "half of them, and 99 in 100, took no longer"),
    ("LOOP", "a turn of the event loop took so long: a function that does not await keeps everybody waiting"),
    ("red", "calls fail because of it, or soon will; a call older than 30 s"),
)
# Cells of the column of keys.
_HELP_KEYS = 18
# Cells of the column that takes what the others leave.
_LEAST = 14
# Columns in a file, where nothing is cut.
_FILE_WIDTH = 120


def picture(state: TopState, name: str, width: int, height: int) -> list[Text]:
    """Returns the lines of a screen: ``height`` of them, ``width`` cells each.

    Args:
        state: What is shown.
        name: Where the server is.
        width: Cells of a line.
        height: Lines.
    """
    if state.helping:
        return _help(width, height)
    lines = _head(state, name, width)
    rows = state.rows()
    space = max(1, height - len(lines) - 2)
    first = max(0, min(state.choice.index - space // 2, len(rows) - space))
    lines.append(_titles(state, width))
    for number, row in enumerate(rows[first : first + space], first):
        lines.append(_line(row, state.pane.columns, width, chosen=number == state.choice.index))
    lines += [Text()] * (height - 1 - len(lines))
    if state.trouble:
        # Old numbers are not shown as if they were new.
        lines = [_gone(state, width), *(Text(each.plain, "dim") for each in lines[1:])]
    return [*lines[: height - 1], _last(state, width)]


def _help(width: int, height: int) -> list[Text]:
    lines = [_cut("mcp-actors top: keys, and what is shown", width, "bold"), Text()]
    for key, text in _HELP:
        first, *others = textwrap.wrap(text, max(width - _HELP_KEYS, _LEAST)) or [""]
        lines.append(_cut(f"{key:<{_HELP_KEYS}}{first}", width))
        lines += [_cut(f"{'':<{_HELP_KEYS}}{each}", width) for each in others]
    lines += [Text()] * (height - 1 - len(lines))
    return [*lines[: height - 1], _cut("any key goes back", width, "dim")]


def _gone(state: TopState, width: int) -> Text:
    age = seconds(time.monotonic() - state.heard)
    banner = _cut(
        f"GONE, what is below is {age} old; trying again: {state.trouble}", width, "bold white on red"
    )
    banner.pad_right(max(0, width - banner.cell_len))
    return banner


def everything(state: TopState, name: str) -> list[Text]:
    """Returns all panes below each other, every row of them, for a file or a pipe."""
    lines = _head(state, name, _FILE_WIDTH)[:-1]
    for number, pane in enumerate(PANES):
        state.number = number
        rows = state.rows()
        if rows:
            lines += [Text(), Text(f"{pane.name} ({len(rows)})"), _titles(state, _FILE_WIDTH)]
            lines += [_line(row, pane.columns, _FILE_WIDTH, chosen=False) for row in rows]
    for each in lines:
        each.rstrip()
    return lines


def _head(state: TopState, name: str, width: int) -> list[Text]:
    snapshot = state.snapshot
    if snapshot is None:
        return [_cut(f"mcp-actors top  {name}", width, "bold"), Text()]
    at = time.strftime("%H:%M:%S", time.localtime(min(max(snapshot.at, 0), 4e9)))
    count = len(snapshot.nodes)
    grave = sum(each.grave for each in snapshot.troubles)
    well = "healthy" if not grave else "1 trouble" if grave == 1 else f"{grave} troubles"
    paused = "  PAUSED" if state.paused else ""
    said = [
        f"mcp-actors top  {well}{paused}  {cleaned(name)}",
        at,
        f"{count} node{'s' if count != 1 else ''}",
    ]
    said.append(f"{snapshot.watchers} watching, every {snapshot.interval:.1f} s")
    first = _cut("  ".join(said), width, "bold")
    start = len("mcp-actors top  ")
    first.stylize("red" if grave else "green", start, start + len(well))
    lines = [first]
    lines += [
        _cut(f"! {cleaned(each.text)}", width, "bold red" if each.grave else "yellow")
        for each in snapshot.troubles[:_MOST_TROUBLES]
    ]
    lines += [_cut(node_line(each), width) for each in snapshot.nodes[:_MOST_NODES]]
    if count > _MOST_NODES:
        lines.append(_cut(f"and {count - _MOST_NODES} more: pane 6", width, "dim"))
    return [*lines, _tabs(state, width)]


def _tabs(state: TopState, width: int) -> Text:
    tabs = Text()
    if state.pattern or state.typing:
        tabs.append(f"/{state.pattern}{'_' if state.typing else ''} ", "yellow")
    for number, pane in enumerate(PANES):
        if not pane.is_shown(state.snapshot):
            continue
        heading = pane.name if state.snapshot is None else pane.heading(state.snapshot)
        tabs.append(f" {_KEYS_OF_PANES[number]} {heading} ", "reverse" if number == state.number else "")
        tabs.append(" ")
    tabs.truncate(width)
    return tabs


def _titles(state: TopState, width: int) -> Text:
    choice, columns = state.choice, state.pane.columns
    line = Text(style="bold underline")
    for number, (column, size) in enumerate(zip(columns, _widths(columns, width), strict=False)):
        mark = ("▼" if choice.reverse else "▲") if number == choice.sort else ""
        line.append(_cell(column.title + mark, size, column.right)).append(" ")
    line.truncate(width)
    return line


def _line(row: Row, columns: tuple[Column, ...], width: int, *, chosen: bool) -> Text:
    cells = [
        _cell(text, size, column.right)
        for text, column, size in zip(row.cells, columns, _widths(columns, width), strict=False)
    ]
    line = Text(" ".join(cells), f"{row.style} reverse".strip() if chosen else row.style)
    line.truncate(width)
    return line


def _widths(columns: tuple[Column, ...], width: int) -> list[int]:
    """Returns the cells of each column. In a narrow terminal the last ones are left out, and have none."""
    widths = [each.width or _LEAST for each in columns]
    while len(widths) > 1 and sum(widths) + len(widths) - 1 > width:
        widths.pop()
    rest = max(0, width - sum(widths) - len(widths) + 1)
    return [size if column.width else size + rest for column, size in zip(columns, widths, strict=False)]


def _cell(text: str, size: int, right: bool) -> str:
    text = text.replace("\n", " ")
    if right and len(text) < size:
        return text.rjust(size)
    fitted = set_cell_size(text, size)
    return fitted if len(text) <= size else f"{set_cell_size(text, size - 1)}…"


def _cut(text: str, width: int, style: str = "") -> Text:
    line = Text(text, style)
    line.truncate(width, overflow="ellipsis")
    return line


def _last(state: TopState, width: int) -> Text:
    if state.wanted is not None:
        does = "end" if state.wanted.action == "end_session" else "cancel"
        return _cut(f"{does} {state.about}, and tell its client? y/n", width, "bold red")
    return _cut(state.message or _KEY_HELP, width, "yellow" if state.message else "dim")


# -- The loop: snapshots and keys change what is shown, until the person has seen enough ---------------

# Seconds between two attempts to reach a server that was there before.
_TRY_AGAIN = 1.0
_FAILURES = (ConnectFailed, ConnectionLost, RemoteProtocolError)


def client_of(where: str, token: str | None) -> Any:
    """Returns a `mcp_transports.admin.AdminClient`.

    Raises:
        ValueError: ``where`` is not the address of an admin endpoint.
    """
    return importlib.import_module("mcp_transports.admin").AdminClient(where, token)


async def one_picture(client: Any) -> str:
    """Returns as text the first snapshot that has rates, after an interval unless another program watches already.

    Raises:
        ConnectFailed, ConnectionLost, RemoteProtocolError: A snapshot could not be had.
    """
    state = TopState()
    async with client.watching() as snapshots:
        async for snapshot in snapshots:
            rated = state.snapshot is not None or any(each.rates for each in snapshot.nodes)
            state.snapshot = snapshot
            if rated:
                break
    return "\n".join(line.plain for line in everything(state, client.name))


async def watch(client: Any) -> None:
    """Shows snapshots until the person quits.

    Raises:
        ConnectFailed, ConnectionLost, RemoteProtocolError: The first snapshot could not be had.
    """
    state = TopState(snapshot=await client.snapshot())
    with _signals() as signals, _Screen(client, state) as screen:
        screen.draw()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(screen.follow)
            if signals is not None:
                nursery.start_soon(screen.stop_and_go_on, signals)
            if screen.descriptor is None:
                return
            async with aclosing(keys(screen.descriptor)) as pressed:
                async for key in pressed:
                    screen.press(key, nursery)
                    if state.done:
                        break
            nursery.cancel_scope.cancel()


@contextmanager
def _signals() -> Iterator[AsyncIterator[int] | None]:
    """Catches the signals to stop, to go on, and of a new size of the terminal; nothing on Windows."""
    if sys.platform == "win32":
        yield None
    else:
        with trio.open_signal_receiver(signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH) as signals:
            yield signals


def _stop() -> None:
    """Stops this process as the caught signal would have done; returns when it goes on."""
    if sys.platform != "win32":
        caught = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, caught)


class _Screen:
    """The screen of one person, a context manager that takes the terminal and gives it back as it was."""

    def __init__(self, client: Any, state: TopState) -> None:
        self._client = client
        self._state = state
        self._console = Console(highlight=False, markup=False)
        self._taken = ExitStack()
        self._live: Live | None = None
        self.descriptor: int | None = None
        """The descriptor that keys are read from; ``None`` without keys."""

    def __enter__(self) -> Self:
        self.descriptor = self._taken.enter_context(one_by_one())
        live = Live(console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._live = self._taken.enter_context(live)
        return self

    def __exit__(self, *_: object) -> None:
        self._live = None
        self._taken.close()

    def draw(self) -> None:
        """Draws the current state."""
        if self._live is not None:
            width, height = self._console.size
            shown = picture(self._state, self._client.name, width, height)
            self._live.update(Group(*shown), refresh=True)

    def press(self, key: str, nursery: trio.Nursery) -> None:
        """Takes a key, and does at the server what it asks for, while other keys are taken."""
        action = self._state.press(key)
        if action is not None:
            self._state.message = "the server is asked"
            nursery.start_soon(self._act, action)
        self.draw()

    async def _act(self, action: Action) -> None:
        try:
            outcome = await self._client.act(action)
            self._state.message = cleaned(outcome.text) or ""
        except _FAILURES as error:
            self._state.message = str(error)
        self.draw()

    async def stop_and_go_on(self, signals: AsyncIterator[int]) -> None:
        """Gives the terminal back before Ctrl-Z stops this process, and takes it again when it goes on."""
        async for number in signals:
            if sys.platform != "win32" and number != signal.SIGWINCH:
                self.__exit__()
                if number == signal.SIGTSTP:
                    _stop()
                self.__enter__()
            self.draw()

    async def follow(self) -> None:
        """Shows snapshots as they come; tries again when the server is gone."""
        while True:
            try:
                async with self._client.watching() as snapshots:
                    async for snapshot in snapshots:
                        self._state.take(snapshot)
                        self.draw()
                self._state.trouble = "the server has ended"
            except _FAILURES as error:
                self._state.trouble = str(error)
            self.draw()
            await trio.sleep(_TRY_AGAIN)
