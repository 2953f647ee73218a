"""Log lines: writing one never raises and never blocks, whatever standard error is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st

import mcp_actors
import mcp_actors.telemetry
from mcp_actors.supervision.containment import CHARACTERS, KEPT, CrashLog, crash_log, start_again
from mcp_actors.supervision.logging import (
    BURST,
    QUEUE_BYTES,
    REPEATED_AFTER,
    TEXTS,
    WINDOW,
    RareWarning,
    RepeatLimit,
    log,
)
from mcp_actors.supervision.printable import (
    printable,
    safe,
    safe_json,
    spelled_out,
    without_paths,
    without_places,
)
from mcp_actors.supervision.task_kinds import DRAIN
from mcp_actors.types import Implementation, Resource, ResourceLink, Tool
from mcp_actors.types.records import ValueRecord

pytestmark = pytest.mark.slow

# Lines of some 200 bytes: ten times what fills a pipe and froze a server.
LINES = 8_000


def run(program: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Runs a program with the buffers that Python has by itself."""
    code = textwrap.dedent(program)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    given: dict[str, Any] = {"env": env, "timeout": 60, "check": False, **options}
    return subprocess.run([sys.executable, "-c", code], **given)


FLOOD = f"""
    from mcp_actors.supervision.logging import log
    for number in range({LINES}):
        log.warning(f"{{number:05}}" + "x" * 150)
    print("done", flush=True)
"""


def test_a_pipe_that_nobody_reads_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    try:
        assert run(FLOOD, stderr=writing, stdout=subprocess.PIPE).stdout.splitlines() == [b"done"]
    finally:
        os.close(reading)
        os.close(writing)


def test_a_pipe_that_nobody_reads_holds_no_thread_up_that_outlives_the_main_one() -> None:
    """A server may run in a thread whose program has nothing more to do itself."""
    work = "import threading\ndef work():\n    threading.main_thread().join()\n"
    flood = textwrap.indent(textwrap.dedent(FLOOD), "    ")
    program = f"{work}{flood}\nthreading.Thread(target=work).start()"
    reading, writing = os.pipe()
    try:
        assert run(program, stderr=writing, stdout=subprocess.PIPE).stdout.splitlines() == [b"done"]
    finally:
        os.close(reading)
        os.close(writing)


def test_a_pipe_that_is_broken_ends_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = run(FLOOD, stderr=writing, stdout=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stdout.splitlines()) == (0, [b"done"])


def test_a_disk_that_is_full_ends_nobody() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = run(FLOOD, stderr=full, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout.splitlines()) == (0, [b"done"])


def test_a_standard_error_that_is_no_file_gets_what_is_written() -> None:
    program = """
        import sys
        class Tee:
            def write(self, text):
                sys.stdout.write(text)
            def flush(self):
                sys.stdout.flush()
        sys.stderr = Tee()
        from mcp_actors.supervision.logging import log
        log.warning("told")
    """
    ended = run(program, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert ended.returncode == 0
    assert b"told" in ended.stdout


@pytest.mark.parametrize("how", ["sys.stderr.close()", "sys.stderr = None", "os.close(2)"])
def test_a_standard_error_that_is_closed_ends_nobody(how: str) -> None:
    program = f"import os, sys\n{how}\n" + textwrap.dedent(FLOOD)
    ended = run(program, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert ended.stdout.splitlines() == [b"done"]


def test_what_is_written_is_all_there_in_order() -> None:
    program = """
        from mcp_actors.supervision.logging import log
        for number in range(500):
            log.warning(f"line {number} of many")
    """
    ended = run(program, stderr=subprocess.PIPE)
    assert [line.split(b"line ")[1].split()[0] for line in ended.stderr.splitlines()] == [
        str(number).encode() for number in range(500)
    ]


GATHERING = """
    import json
    import trio
    from mcp_actors.supervision import logging
    logging.GATHERED = 600
    pieces = []
    write, logging._write = logging._write, pieces.append
    for number in range(100):
        logging.write_line("access", {"number": number})
"""


def test_lines_of_an_access_log_are_written_together_and_not_behind_others() -> None:
    program = textwrap.dedent(GATHERING) + textwrap.dedent("""
        logging.write_to_stderr("something else")
        trio.run(logging.wait_until_written)
        print(json.dumps(pieces))
    """)
    ended = run(program, stdout=subprocess.PIPE)
    [piece] = json.loads(ended.stdout)
    *lines, last = piece.splitlines()
    assert [line.split()[-1] for line in lines] == [f"number={number}" for number in range(100)]
    assert last == "something else"


def test_lines_that_wait_for_others_are_written_at_the_end() -> None:
    program = textwrap.dedent(GATHERING) + "logging._write = write\n"
    ended = run(program, stderr=subprocess.PIPE)
    assert len(ended.stderr.splitlines()) == 100


def test_what_was_dropped_is_counted_when_somebody_reads_again() -> None:
    program = f"""
        import os
        import sys
        import threading
        from mcp_actors.supervision.logging import log
        for number in range({LINES}):
            log.warning(f"{{number:05}}" + "x" * 150)
        print("full", flush=True)
        sys.stdin.readline()
        while True:
            log.warning("once more")
            if not sys.stdin.readline():
                break
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline().splitlines() == [b"full"]
    child.stdin.write(b"\n")
    child.stdin.flush()
    seen = 0
    for line in child.stderr:
        seen += 1
        if b"log lines were dropped" in line:
            dropped = int(line.split()[0])
            break
        if b"once more" in line:
            child.stdin.write(b"\n")
            child.stdin.flush()
    child.communicate(timeout=60)
    # The queue and the pipe hold something, and nothing else is missing.
    assert 0 < dropped < LINES
    assert (LINES - dropped) * 150 < QUEUE_BYTES + 4 * 65536
    assert seen > 0


@pytest.mark.parametrize("lines", [1_000, 10_000])
def test_lines_that_say_the_same_are_written_so_often_and_then_counted(lines: int) -> None:
    now = [0.0]
    limit = RepeatLimit(lambda: now[0])

    def written(
        level: str = "error", event: str = "handler failed", **details: object
    ) -> list[dict[str, Any]]:
        try:
            return [limit(None, level, {"event": event, **details})]
        except structlog.DropEvent:
            return []

    kept = [line for number in range(lines) for line in written(id=number)]
    assert [line["id"] for line in kept] == list(range(BURST))
    # Others are not held back by it.
    assert written(event="another") == [{"event": "another"}]
    assert written(level="warning") == [{"event": "handler failed"}]
    now[0] += WINDOW
    assert written(id=-1) == [{"event": "handler failed", "id": -1, "dropped_before": lines - BURST}]
    assert written(id=-2) == [{"event": "handler failed", "id": -2}]


def test_texts_without_end_are_not_all_remembered() -> None:
    limit = RepeatLimit()
    for number in range(10 * TEXTS):
        assert limit(None, "error", {"event": f"text {number}"})
    assert len(limit._windows) <= TEXTS


def test_standard_error_gets_no_more_than_that() -> None:
    program = f"""
        from mcp_actors.supervision.logging import log
        for number in range({LINES}):
            log.error("handler failed", number=number)
        log.error("something else")
    """
    ended = run(program, stderr=subprocess.PIPE)
    assert BURST + 1 <= len(ended.stderr.splitlines()) <= 3 * BURST
    assert b"something else" in ended.stderr


class Unspeakable:
    """Fails when it is written."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_a_line_waits_for_another_thread_that_is_importing_structlog() -> None:
    program = """
        import sys, threading
        from mcp_actors.supervision.logging import log

        reached, go_on = threading.Event(), threading.Event()

        class Slow:
            def find_spec(self, name, path, target=None):
                if name == "structlog.processors":
                    reached.set()
                    go_on.wait(60)

        sys.meta_path.insert(0, Slow())
        threads = [threading.Thread(target=log.warning, args=(word,)) for word in ("first", "second")]
        threads[0].start()
        assert reached.wait(60)
        threads[1].start()
        threads[1].join(0.2)
        go_on.set()
        for thread in threads:
            thread.join()
    """
    lines = run(program, stderr=subprocess.PIPE).stderr.decode().splitlines()
    assert sorted(line.split("] ")[1].strip() for line in lines) == ["first", "second"]


def test_a_line_that_cannot_be_written_is_still_an_object() -> None:
    program = """
        from mcp_actors.supervision.logging import configure_log, log

        class Wrong:
            def __repr__(self):
                raise ValueError

        configure_log(form="json")
        log.warning("an event", detail=Wrong())
    """
    (line,) = run(program, stderr=subprocess.PIPE).stderr.decode().splitlines()
    assert json.loads(line)["event"] == (
        "a log line could not be written: 'an event' detail=<Wrong: ValueError> (ValueError)"
    )


def test_a_sink_of_the_program_that_raises_ends_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*args: object) -> dict[str, object]:
        raise ValueError("a processor of the program's own")

    structlog.configure(processors=[fails])
    try:
        log.error("something happened", session="s#1", detail=Unspeakable())
    finally:
        structlog.reset_defaults()
    written = capsys.readouterr().err
    assert (
        "'something happened' session='s#1' detail=<Unspeakable: ZeroDivisionError> (ValueError)" in written
    )


# -- The last crashes of tasks, for whoever looks from outside -------------------------------------------


class UnspeakableCrashLog(Exception):
    def __repr__(self) -> str:
        raise ValueError("no words")


async def test_a_crash_is_counted_and_kept(autojump_clock: trio.abc.Clock) -> None:
    before = crash_log.counts[DRAIN.name]
    crashes = [RuntimeError("first"), UnspeakableCrashLog()]

    async def work() -> None:
        if crashes:
            raise crashes.pop(0)

    async with trio.open_nursery() as nursery:
        start_again(nursery, DRAIN, work, about="of a test")
    assert crash_log.counts[DRAIN.name] == before + 2
    first, second = list(crash_log.recent)[-2:]
    assert (first.kind, first.task, first.error) == ("drain", "drain of a test", "RuntimeError('first')")
    assert second.error == "UnspeakableCrashLog"
    assert first.restarted


def test_it_is_bounded() -> None:
    log = CrashLog()
    for number in range(3 * KEPT):
        log.note("kind", "t" * 1000, ValueError(f"{number} " + "e" * 10_000), restarted=False)
    assert log.counts["kind"] == 3 * KEPT
    assert len(log.recent) == KEPT
    assert {(len(each.task), len(each.error)) for each in log.recent} == {(CHARACTERS, CHARACTERS)}
    assert log.recent[-1].error.startswith(f"ValueError('{3 * KEPT - 1} ")


def test_threads_lose_no_crash() -> None:
    log, threads, crashes = CrashLog(), 8, 500
    together = threading.Barrier(threads)

    def work() -> None:
        together.wait()
        for number in range(crashes):
            log.note("kind", "task", ValueError(number), restarted=True)
            assert len(list(log.recent)) <= KEPT

    with ThreadPoolExecutor(threads) as pool:
        for each in [pool.submit(work) for _ in range(threads)]:
            each.result()
    assert log.counts["kind"] == threads * crashes
    assert len(log.recent) == KEPT


# -- Texts of peers as people may see them: nothing steers a terminal, hides, or turns the writing round ---

ANYTHING = st.text(st.characters(codec=None), max_size=40)
STEERING = (
    "\x1b",
    "\x9b",
    "\x7f",
    "\r",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u2028",
    "\ud800",
)


@given(ANYTHING)
def test_what_is_left_is_printable_and_can_be_written(text: str) -> None:
    shown = safe(text)
    assert all(each.isprintable() or each in "\n\t" or unicodedata.category(each) == "Zs" for each in shown)
    assert not any(each in shown for each in STEERING)
    assert isinstance(shown.encode(), bytes)
    assert spelled_out(text).isprintable()
    assert printable(text, 20).isprintable()


@given(st.recursive(ANYTHING, lambda inner: st.lists(inner, max_size=4), max_leaves=10))
def test_json_keeps_its_value(value: object) -> None:
    for indent in (None, 2):
        shown = safe_json(json.dumps(value, ensure_ascii=False, indent=indent))
        assert json.loads(shown) == value
        assert not any(each in shown for each in STEERING)


@pytest.mark.parametrize("text", ["", "plain ASCII", "日本語\u3000テスト", "naïve\n\tÀ\u00a0la", "🙂"])
def test_what_people_write_stays(text: str) -> None:
    assert safe(text) == text


@pytest.mark.parametrize("steering", STEERING)
def test_no_log_line_steers_a_terminal(steering: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError(f"said {steering}x\nand more")
    except ValueError:
        log.error(f"failed{steering}", peer=f"a{steering}b", many=[steering], exc_info=True)
    written = capsys.readouterr().err.replace(os.linesep, "\n")
    assert "ValueError: said" in written
    assert "\nand more" in written
    assert not any(each in written for each in STEERING)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot connect to ws://h:9/key: refused", "cannot connect to ws://h:9/...: refused"),
        ("https://h/key?a=b#c; is it there?", "https://h/...; is it there?"),
        ("at 'HTTP://h?key'.", "at 'HTTP://h/...'."),
        ("http://[::1]:80/a (b) and http://h.", "http://[::1]:80/... (b) and http://h."),
        ("unix:///run/x and a/b", "unix:///run/x and a/b"),
    ],
)
def test_of_the_urls_in_a_text_the_hosts_are_left(text: str, shown: str) -> None:
    assert without_paths(text) == shown


def test_a_cause_counts_until_it_is_over_or_old() -> None:
    """A store that failed once, and that nobody has used since, would be reported as failing for ever."""
    now = 1000.0
    failing = RareWarning("it fails", clock=lambda: now)
    assert failing.cause is None
    failing("full")
    now += REPEATED_AFTER - 1
    failing("locked")
    assert failing.cause == "locked"
    failing.over()
    assert failing.cause is None
    failing("full")
    now += REPEATED_AFTER - 1
    assert failing.cause == "full"
    now += 1
    assert failing.cause is None
    failing("full")
    assert failing.cause == "full"


def test_the_age_of_a_cause_is_independent_of_the_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = RareWarning("it fails")
    failing("full")
    monkeypatch.setattr("time.time", lambda: 2.0e9)
    assert failing.cause == "full"
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert failing.cause == "full"


NAME = st.from_regex(r"[a-z0-9._-]{0,5}Q9[a-z0-9._-]{0,5}", fullmatch=True)
SPACED = st.from_regex(r"[a-z0-9._-]{0,3}Q9 [a-z]{1,5} [a-z0-9._-]{0,3}Q9", fullmatch=True)
PORT = st.integers(1000, 65535)
ADDRESS = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map("[{}]".format))
PLACES = st.one_of(
    st.lists(NAME, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names)),
    st.lists(NAME, min_size=2, max_size=4).map(lambda names: "C:\\" + "\\".join(names)),
    st.lists(st.one_of(NAME, SPACED), min_size=1, max_size=4).map(lambda names: repr("/" + "/".join(names))),
    st.lists(st.one_of(NAME, SPACED), min_size=1, max_size=4).map(lambda names: f'"{"/".join(names)}'),
    st.builds("{}:{}".format, st.one_of(NAME, ADDRESS), PORT),
    st.builds(
        "{}://u:Q9@{}:{}/{}?{}".format, st.sampled_from(["redis", "unix", "https"]), NAME, PORT, NAME, NAME
    ),
    st.builds(lambda host, port: repr((host, port)), st.ip_addresses().map(str), PORT),
    st.builds("{} port {}".format, ADDRESS, PORT),
)
WORDS = st.lists(
    st.sampled_from(["it", "cannot", "be", "can't", "[Errno", "28]", "opened:", "(full)"]), max_size=4
)


@given(WORDS, PLACES, WORDS, PLACES, WORDS, st.sampled_from(["", ":", ".", ","]))
def test_of_the_places_in_a_text_nothing_is_left(
    before: list[str], first: str, between: list[str], second: str, after: list[str], mark: str
) -> None:
    for several in ([first], [first, *between, second]):
        shown = without_places(" ".join([*before, *several[:-1], f"{several[-1]}{mark}", *after]))
        assert shown.split()[: len(before)] == before
        assert "Q9" not in shown
        assert not re.search(r"\d{4}|\d\.\d+\.|::", shown)


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        ("database is locked", "database is locked"),
        ("the file did not answer for 0.2 s", "the file did not answer for 0.2 s"),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            "OOM command not allowed when used memory ...",
        ),
        (
            "[Errno 2] No such file or directory: '/srv/my data/x.db'",
            "[Errno 2] No such file or directory: ...",
        ),
        ("10.0.0.1:6379: connection refused", "... connection refused"),
        ("", ""),
    ],
)
def test_what_has_happened_is_left(cause: str, shown: str) -> None:
    assert without_places(cause) == shown


# -- Comparison, hash and representation that all records share, against those that attrs makes ----------


@attrs.frozen(eq=False, repr=False)
class Shared(ValueRecord):
    name: str
    secret: str = attrs.field(default="", repr=lambda text: f"<{len(text)}>")
    unseen: int = attrs.field(default=0, repr=False, eq=False)


@attrs.frozen
class Made:
    name: str
    secret: str = attrs.field(default="", repr=lambda text: f"<{len(text)}>")
    unseen: int = attrs.field(default=0, repr=False, eq=False)


@pytest.mark.parametrize("other", [("a", "b", 1), ("a", "b", 2), ("a", "c", 1), ("b", "b", 1)])
def test_it_compares_and_shows_as_attrs_does(other: tuple[str, str, int]) -> None:
    assert (Shared("a", "b", 1) == Shared(*other)) == (Made("a", "b", 1) == Made(*other))
    assert (hash(Shared("a", "b", 1)) == hash(Shared(*other))) == (
        hash(Made("a", "b", 1)) == hash(Made(*other))
    )
    assert repr(Shared(*other)) == repr(Made(*other)).replace("Made", "Shared")


def test_objects_of_other_classes_are_different() -> None:
    assert Resource("file:///a", "a") != ResourceLink("file:///a", "a")
    assert Implementation("a", "1") != ("a", "1")


def test_what_may_change_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Tool("a", {}))


def test_an_object_that_contains_itself_is_shown() -> None:
    tool = Tool("a", {})
    tool.extra["self"] = tool

    assert "'self': ..." in repr(tool)


LEFT_OPEN = """
    import trio
    from mcp_actors import Client, Server

    client = Client(Server("s"))

    async def main() -> None:
        await client.__aenter__()

    try:
        trio.run(main)
    except BaseException:
        print("ended")
"""


def test_a_program_that_ends_inside_of_a_client_ends_and_is_told_so() -> None:
    """What goes with the interpreter logs that its tasks have crashed, when no thread can be started any more."""
    ended = run(LEFT_OPEN, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ended.stdout.splitlines() == [b"ended"]
    told = [
        line
        for line in ended.stderr.splitlines()
        if line.startswith(b"the program has ended inside of a Client")
    ]
    assert len(told) == 1


def test_the_lines_of_a_text_are_one_line_without_marks_in_their_place() -> None:
    assert printable("first\nsecond \r\n\tthird", 40) == "first second third"
    assert printable("a\x1bb\u202ec", 40) == "a?b?c"


def test_the_recipe_for_json_keeps_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "how-to" / "telemetry.md").read_text()
    (recipe,) = re.findall(r"```py\n(structlog\.configure\(.*?)```", page, re.DOTALL)
    exec(recipe, {"structlog": structlog, "mcp_actors": mcp_actors})
    try:
        try:
            raise ValueError("why it failed")
        except ValueError as error:
            log.error("a handler failed", exc_info=error)
    finally:
        structlog.reset_defaults()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (line["event"], line["level"]) == ("a handler failed", "error")
    assert "test_the_recipe_for_json_keeps_tracebacks" in line["exception"]
    assert line["exception"].endswith("ValueError: why it failed")
