"""The stdio client and its child processes: what it says, how it ends, and that nobody is left."""

from __future__ import annotations

import fcntl
import io
import itertools
import json
import math
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client
from mcp_actors.abc import ClientTransport, Frame, FrameChannel, ServerTransport
from mcp_actors.abc.framing import LineChannel
from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, RemoteProtocolError
from mcp_transports.stdio import StdioClientTransport, StdioServerTransport, from_url
from mcp_transports.stdio.streams import DescriptorReceiveStream, DescriptorSendStream

TIMEOUT = 60
CAT = "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line)\n    sys.stdout.buffer.flush()"
# A leader that ignores SIGTERM and EOF, with a grandchild that ignores SIGTERM and holds all three pipes.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = os.fork()
if grandchild: os.write(1, b"%d %d\\n" % (os.getpid(), grandchild))
time.sleep(1000)
"""
# A leader that leaves at EOF, a grandchild that ignores everything.
LEAVES_ONE_BEHIND = STUBBORN.replace(
    "time.sleep(1000)", "time.sleep(0 if grandchild and not os.read(0, 1) else 1000)"
)
EXITS_WITH_WORDS = """
import os, sys
os.write(1, b"hello\\n")
for number in range(80): print("line", number, file=sys.stderr)
sys.stderr.write("last words, no newline")
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def exit_status_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than half a second from the end of a pipe to the exit of its process."""
    monkeypatch.setattr("mcp_transports.stdio.child.EXIT_STATUS_WAIT", TIMEOUT)


def python(code: str, **options: Any) -> StdioClientTransport:
    return StdioClientTransport([sys.executable, "-c", code], **options)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


async def exit_of(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        trio.lowlevel.notify_closing(descriptor)
        os.close(descriptor)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def ending_of(channel: FrameChannel) -> BaseException:
    try:
        while True:
            await channel.receive_many()
    except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        return error


async def test_echo_and_a_clean_end() -> None:
    with trio.fail_after(TIMEOUT):
        async with python(CAT).connect() as channel:
            await channel.send_many([Frame(b"1"), Frame(b"2")])
            received = [*await channel.receive_many()]
            while len(received) < 2:
                received += await channel.receive_many()
            pid = channel.pid  # type: ignore[attr-defined]
            assert channel.loss_report() == {"exit_code": None, "stderr": ()}
            assert f"pid {pid}" in channel.peer

    assert [frame.data for frame in received] == [b"1", b"2"]
    assert channel.loss_report()["exit_code"] == 0
    assert not is_running(pid)


# What it is at each start goes into a file: the program that a client starts again is seen there twice.
CRASHES = """
import sys
print("start", file=open(sys.argv[1], "a"))
{reads}
raise RuntimeError("no database")
"""
# A server with sessions that expects nothing before initialize, and ends with the same code as one that crashes.
EXPECTS_INITIALIZE = CRASHES.format(
    reads="""
import json
request = json.loads(sys.stdin.readline())
while request["method"] == "initialize":
    answer = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer}), flush=True)
    sys.stdin.read()
    sys.exit()
"""
)


@pytest.mark.parametrize("through_a_shell", [False, True])
async def test_a_child_that_ends_before_it_reads_is_started_once(
    through_a_shell: bool, tmp_path: Path
) -> None:
    """It has not died of the question about its era, so that another start would end in the same way."""
    starts, lines = tmp_path / "starts", list[str]()
    command = [sys.executable, "-c", CRASHES.format(reads=""), str(starts)]
    if through_a_shell:  # as through npx and the like, whose process has the pipe too
        command = ["sh", "-c", f"{shlex.join(command)}; exit $?"]
    with trio.fail_after(TIMEOUT), pytest.raises(ConnectionLost, match="exited with code 1") as lost:
        async with Client(StdioClientTransport(command, stderr=lines.append)):
            raise AssertionError("never reached")
    assert starts.read_text() == "start\n"
    assert lines.count("RuntimeError: no database") == 1
    assert (lost.value.exit_code, lost.value.has_read) == (1, False)
    assert lost.value.stderr[-1] == "RuntimeError: no database"


async def test_a_child_that_dies_of_a_question_is_started_once_more(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    command = [sys.executable, "-c", EXPECTS_INITIALIZE, str(starts)]
    with trio.fail_after(TIMEOUT):
        async with Client(StdioClientTransport(command, stderr=None)) as client:
            assert client.version == "2025-11-25"
    assert starts.read_text() == "start\nstart\n"


async def test_large_messages_pass_both_ways_at_once() -> None:
    message = Frame(bytes(range(33, 127)) * 50_000)
    with trio.fail_after(TIMEOUT):
        async with python(CAT).connect() as channel, trio.open_nursery() as nursery:
            nursery.start_soon(channel.send_many, [message, message])
            assert await channel.receive() == message
            assert await channel.receive() == message


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["/no/such/program", "a b"], "cannot start '/no/such/program': there is no command"),
        (["no-such-command-for-test"], "there is no command 'no-such-command-for-test'"),
        (
            ["npx -y server"],
            "no command 'npx -y server'; its arguments have to be words of their own: put them into args",
        ),
        (["/"], "Permission denied"),
        (["a\0b"], "null byte"),
    ],
)
async def test_what_cannot_be_started_is_said_in_one_line(
    command: list[str], reason: str, collector_rests: None
) -> None:
    before = open_descriptors()
    with pytest.raises(ConnectFailed) as caught:
        async with StdioClientTransport(command).connect():
            pass

    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert open_descriptors() == before


async def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    with pytest.raises(ConnectFailed, match="the working directory '/no/such/place': No such file"):
        async with python(CAT, cwd="/no/such/place").connect():
            pass
    with pytest.raises(ConnectFailed, match="Exec format error"):
        async with StdioClientTransport([str(tmp_path / "text")]).connect():
            pass


# What a child may see: secrets of this process stay here, unless its caller hands them on.
ENVIRONMENTS: dict[str, tuple[Any, dict[str, str | None]]] = {
    "by default": (None, {"SECRET": None, "LC_TIME": "C", "GREETING": None, "USER": "me"}),
    "a mapping": ({"GREETING": "hello", "USER": None}, {"SECRET": None, "GREETING": "hello", "USER": None}),
    "inherit": ("inherit", {"SECRET": "x", "GREETING": None, "USER": "me"}),
}


@pytest.mark.parametrize(("env", "seen"), ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
async def test_environment_and_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: Any, seen: dict[str, str | None]
) -> None:
    for name, value in {"SECRET": "x", "LC_TIME": "C", "USER": "me", "HOME": "() { :; }"}.items():
        monkeypatch.setenv(name, value)
    code = "import os, json; print(json.dumps([dict(os.environ), os.getcwd(), os.getsid(0) == os.getpid()]))"
    with trio.fail_after(TIMEOUT):
        async with python(code, env=env, cwd=tmp_path).connect() as channel:
            environ, folder, leads = json.loads((await channel.receive()).data)
    assert {name: environ.get(name) for name in seen} == seen
    assert environ["PATH"] == os.environ["PATH"]
    assert ("HOME" in environ) is (env == "inherit")  # a function of a shell is not handed on
    assert (folder, leads) == (str(tmp_path), True)


def test_a_word_other_than_inherit_is_no_environment() -> None:
    with pytest.raises(TypeError, match="env is a mapping of variables, 'inherit' or None, not 'all'"):
        StdioClientTransport(["true"], env="all")  # type: ignore[arg-type]


async def test_the_ending_carries_exit_code_and_last_words() -> None:
    with trio.fail_after(TIMEOUT):
        async with python(EXITS_WITH_WORDS, stderr_lines=5).connect() as channel:
            assert (await channel.receive()).data == b"hello"
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()
            report = channel.loss_report()
            with pytest.raises(trio.BrokenResourceError):
                await channel.send(Frame(b"anybody there?"))

    assert report["exit_code"] == 3
    assert report["stderr"] == (*[f"line {number}" for number in range(76, 80)], "last words, no newline")


async def test_a_killed_child_ends_receiving_and_sending_at_once() -> None:
    with trio.fail_after(TIMEOUT):
        async with python(CAT).connect() as channel:
            os.kill(channel.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            assert isinstance(await ending_of(channel), trio.EndOfChannel)
            assert channel.loss_report()["exit_code"] == -signal.SIGKILL


async def test_a_dead_child_is_over_though_a_grandchild_holds_its_pipes() -> None:
    # The child goes on when the grandchild has left its process group, which ends with the child.
    code = (
        "import os, time\n"
        "left, leave = os.pipe()\n"
        "grandchild = os.fork()\n"
        "if grandchild == 0:\n    os.setsid(); os.write(leave, b'.'); time.sleep(1000)\n"
        "os.read(left, 1)\n"
        "os.write(1, b'%d\\n' % grandchild + b'x' * 100 + b'\\nend\\n'); os.read(0, 100); os._exit(4)"
    )
    with trio.fail_after(TIMEOUT):
        async with python(code).connect() as channel:
            grandchild = int((await channel.receive()).data)
            try:
                # Fills the pipe: the sender waits when the child leaves, and must be told.
                with pytest.raises(trio.BrokenResourceError):
                    await channel.send(Frame(b"x" * 1_000_000))
                assert channel.loss_report()["exit_code"] == 4
                rest = await channel.receive_many()
                assert [frame.data for frame in rest][-1] == b"end"
                assert isinstance(await ending_of(channel), trio.EndOfChannel)
                # A session of its own: a daemon on purpose, not ours to end.
                assert is_running(grandchild)
            finally:
                os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize("code", [STUBBORN, LEAVES_ONE_BEHIND], ids=["stubborn", "leaves one behind"])
@pytest.mark.parametrize("way", ["leave", "raise", "cancel"])
async def test_nobody_is_left(code: str, way: str) -> None:
    # Whoever leaves by itself has the time for it, however busy the machine is.
    transport = python(code, grace=0.1 if code is STUBBORN else 20, kill_after=0.1)
    pids: list[int] = []
    raised: KeyError | None = None
    with trio.fail_after(TIMEOUT):
        with trio.CancelScope() as scope:
            try:
                async with transport.connect() as channel:
                    pids = [int(word) for word in (await channel.receive()).data.split()]
                    assert all(map(is_running, pids))
                    if way == "raise":
                        raise KeyError("mine")
                    if way == "cancel":
                        scope.cancel()
                        await trio.sleep_forever()
            except KeyError as error:
                raised = error

    assert (raised is not None) == (way == "raise")
    assert scope.cancelled_caught == (way == "cancel")
    assert len(pids) == 2
    assert not any(map(is_running, pids))
    assert channel.loss_report()["exit_code"] == (-signal.SIGKILL if code is STUBBORN else 0)


async def test_sigterm_comes_before_sigkill() -> None:
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('cleaned up'))\n"
        "os.write(1, b'ready\\n')\n"
        "while True: time.sleep(1000)"
    )
    with trio.fail_after(TIMEOUT):
        async with python(code, grace=0.05, kill_after=20).connect() as channel:
            await channel.receive()

    assert channel.loss_report() == {"exit_code": 1, "stderr": ("cleaned up",)}


async def test_output_is_drained_while_the_child_comes_to_its_end() -> None:
    code = (
        "import os, sys\n"
        "os.write(1, b'ready\\n'); os.read(0, 1)\n"
        "for _ in range(64): os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)\n"
        "sys.exit(7)"
    )
    with trio.fail_after(TIMEOUT):
        async with python(code, grace=20, stderr_lines=3).connect() as channel:
            await channel.receive()
            await channel.aclose()
            assert isinstance(await ending_of(channel), trio.ClosedResourceError)
            with pytest.raises(trio.ClosedResourceError):
                await channel.send(Frame(b"x"))

    assert channel.loss_report()["exit_code"] == 7
    (line,) = channel.loss_report()["stderr"]
    assert line == "y" * 2048


async def test_closing_wakes_the_task_that_receives() -> None:
    endings: list[BaseException] = []

    async def receive(channel: FrameChannel) -> None:
        endings.append(await ending_of(channel))

    with trio.fail_after(TIMEOUT):
        async with python(CAT).connect() as channel, trio.open_nursery() as nursery:
            nursery.start_soon(receive, channel)
            await trio.testing.wait_all_tasks_blocked()
            await channel.aclose()
            await channel.aclose()

    assert isinstance(endings[0], trio.ClosedResourceError)


async def test_a_line_of_stderr_that_comes_in_pieces_keeps_its_beginning() -> None:
    """It is longer than a pipe holds, so that no read brings all of it."""
    code = "import sys; sys.stderr.write('first ' + 'x' * 300_000 + ' last\\nnext\\n')"
    lines: list[str] = []
    with trio.fail_after(TIMEOUT):
        async with python(code, stderr=lines.append).connect() as channel:
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()
    long, following = lines
    assert long.startswith("first xxx")
    assert following == "next"
    assert channel.loss_report()["stderr"][0].startswith("first xxx")


async def test_the_last_words_are_waited_for_no_longer_than_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_transports.stdio.child.EXIT_STATUS_WAIT", math.inf)
    with trio.fail_after(TIMEOUT):
        async with python(EXITS_WITH_WORDS, stderr_lines=1).connect() as channel:
            assert (await channel.receive()).data == b"hello"
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()
    assert channel.loss_report()["stderr"] == ("last words, no newline",)


async def test_stderr_lines_are_told_and_a_failing_listener_is_dropped() -> None:
    code = "import sys; sys.stderr.buffer.write(b'one\\r\\n\\xfftwo\\nthree\\n' + b'x' * 5000 + b'\\n')"
    heard: list[str] = []

    def listener(line: str) -> None:
        heard.append(line)
        if len(heard) == 2:
            raise ValueError("enough")

    with trio.fail_after(TIMEOUT):
        async with python(code, stderr=listener).connect() as channel:
            await ending_of(channel)

    assert heard == ["one", "\ufffdtwo"]
    lines = channel.loss_report()["stderr"]
    assert lines[:2] == ("one", "\ufffdtwo")
    assert "ValueError('enough')" in lines[2]
    assert lines[3:] == ("three", "x" * 2048)


async def test_a_message_over_the_limit_breaks_the_connection() -> None:
    code = "import os; os.write(1, b'x' * 5000); os.read(0, 1)"
    with trio.fail_after(TIMEOUT):
        async with python(code, max_message_bytes=4999).connect() as channel:
            ending = await ending_of(channel)

    assert isinstance(ending, trio.BrokenResourceError)
    assert isinstance(ending.__cause__, RemoteProtocolError)


async def test_fifty_connections_leave_no_descriptor_and_no_task(collector_rests: None) -> None:
    async def one() -> None:
        async with python("import os; os.write(1, b'hi\\n'); os.read(0, 1)").connect() as channel:
            await channel.receive()

    with trio.fail_after(2 * TIMEOUT):
        await one()
        before, tasks = open_descriptors(), trio.lowlevel.current_statistics().tasks_living
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(one)

    assert open_descriptors() == before
    assert trio.lowlevel.current_statistics().tasks_living == tasks


async def test_children_do_not_hold_each_others_pipes() -> None:
    """Were a pipe end inherited by the second child, the first would not see its input end while the second lives."""
    with trio.fail_after(TIMEOUT):
        async with python(CAT, grace=20).connect() as first, python(CAT).connect() as second:
            for channel in (first, second):
                await channel.send(Frame(b"up"))
                await channel.receive()
            await first.aclose()
            await exit_of(first.pid)  # type: ignore[attr-defined]
            await second.send(Frame(b"still here"))
            assert (await second.receive()).data == b"still here"


PARENT = f"""
import os, sys, trio
from mcp_transports.stdio import StdioClientTransport
async def main():
    child = StdioClientTransport([sys.executable, "-c", {CAT!r}])
    async with child.connect() as first, child.connect() as second:
        os.write(1, b"%d %d\\n" % (first.pid, second.pid))
        await trio.sleep_forever()
trio.run(main)
"""


async def test_children_end_by_themselves_when_their_parent_is_killed() -> None:
    with trio.fail_after(TIMEOUT):
        process = await trio.lowlevel.open_process([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
        assert process.stdout is not None
        pids = [int(word) for word in (await process.stdout.receive_some()).split()]
        assert all(map(is_running, pids))
        async with trio.open_nursery() as nursery:
            for pid in pids:
                nursery.start_soon(exit_of, pid)
            await trio.testing.wait_all_tasks_blocked()
            process.kill()
        await process.wait()
        await process.stdout.aclose()

    assert len(pids) == 2
    assert not any(map(is_running, pids))


async def test_cancelling_receives_loses_nothing() -> None:
    count = 3000
    code = f"import os\nfor n in range({count}): os.write(1, b'%d\\n' % n)\nos.read(0, 1)"
    received: list[bytes] = []
    with trio.fail_after(TIMEOUT):
        async with python(code).connect() as channel:
            for attempt in itertools.count():
                if len(received) == count:
                    break
                with trio.move_on_after(0.0001 * (attempt % 3)):
                    received.append((await channel.receive()).data)
                await trio.lowlevel.checkpoint()

    assert received == [b"%d" % number for number in range(count)]


def test_urls() -> None:
    server = from_url("stdio:")
    assert isinstance(server, StdioServerTransport)
    assert isinstance(server, ServerTransport)
    assert not isinstance(server, ClientTransport)

    client = from_url("stdio:python 'my server.py' --flag", grace=1)
    assert isinstance(client, ClientTransport)
    assert repr(client) == "<StdioClientTransport python>"

    with pytest.raises(ConnectFailed, match="No closing quotation"):
        from_url("stdio:python 'my server.py")
    with pytest.raises(ValueError, match="sequence of strings"):
        StdioClientTransport("python server.py")


# -- A frame that is alone on its way is written by whoever has it; it is never torn and never overtakes another ---


@pytest.fixture
async def pipe() -> AsyncIterator[tuple[LineChannel, int]]:
    """A channel that writes into a small pipe, and where to read what it wrote."""
    unused, closed = os.pipe()
    os.close(closed)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    sender, receiver = DescriptorSendStream(writing), DescriptorReceiveStream(unused)
    yield LineChannel(receiver, sender), reading
    sender.close()
    receiver.close()
    os.close(reading)


async def test_one_frame_is_written_at_once(pipe: tuple[LineChannel, int]) -> None:
    channel, reading = pipe
    assert channel.write_now(Frame(b"1"))
    assert os.read(reading, 100) == b"1\n"


async def test_a_full_pipe_takes_nothing_rather_than_a_part(pipe: tuple[LineChannel, int]) -> None:
    channel, reading = pipe
    assert channel.write_now(Frame(b"a" * 4000))
    assert not channel.write_now(Frame(b"b" * 200))
    assert os.read(reading, 9999) == b"a" * 4000 + b"\n"
    assert channel.write_now(Frame(b"b" * 200))


async def test_what_a_pipe_may_tear_is_left_to_the_writer(pipe: tuple[LineChannel, int]) -> None:
    channel, _ = pipe
    assert not channel.write_now(Frame(b"a" * select.PIPE_BUF))


async def test_nothing_is_written_at_once_into_what_is_closed_or_broken(
    pipe: tuple[LineChannel, int],
) -> None:
    channel, reading = pipe
    with pytest.raises(LocalProtocolError):
        channel.write_now(Frame(b"two\nlines"))
    await channel.aclose()
    assert not channel.write_now(Frame(b"1"))
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b""


async def test_nothing_overtakes_a_send_that_waits(pipe: tuple[LineChannel, int]) -> None:
    channel, reading = pipe
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, Frame(b"a" * 9000))
        await trio.testing.wait_all_tasks_blocked()
        os.read(reading, 9999)
        assert not channel.write_now(Frame(b"1"))
        os.set_blocking(reading, False)
        received = b""
        while not received.endswith(b"\n"):
            try:
                received += os.read(reading, 9999)
            except BlockingIOError:
                await trio.testing.wait_all_tasks_blocked()
    assert channel.write_now(Frame(b"1"))
    assert os.read(reading, 9999) == b"1\n"


# -- What a child writes to stderr reaches whoever started it, and no message about a child repeats its arguments ---

SPEAKS = "import sys; sys.stderr.write('opening\\n' + 'x' * 5000 + '\\nno newline'); sys.exit(3)"
# Connects to SPEAKS with the default of `stderr`, and says what the error says.
PROGRAM = f"""
import sys, trio
from mcp_actors import Client
from mcp_actors.errors import ConnectionLost
from mcp_transports.stdio import child
child.EXIT_STATUS_WAIT = {TIMEOUT}
async def main():
    try:
        async with Client([sys.executable, "-c", {SPEAKS!r}], era="legacy"):
            pass
    except ConnectionLost as error:
        print(error.exit_code, error.stderr[0], len(error.stderr), flush=True)
trio.run(main)
"""


async def lines_with(stderr: Any, code: str = SPEAKS) -> tuple[str, ...]:
    """Runs a child to its end; returns the lines that were kept of it."""
    with trio.fail_after(TIMEOUT):
        async with StdioClientTransport([sys.executable, "-c", code], stderr=stderr).connect() as channel:
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()
    kept: tuple[str, ...] = channel.loss_report()["stderr"]
    return kept


def run(shell: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", shell, sys.executable, PROGRAM]
    return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=True)


def test_a_childs_stderr_is_inherited() -> None:
    ran = run('exec "$0" -c "$1"')
    assert ran.stderr.splitlines() == ["opening", "x" * 5000, "no newline"]
    assert ran.stdout == "3 opening 3\n"


@pytest.mark.parametrize("unusable", ["2>&-", "2>/dev/full"])
def test_where_nothing_can_be_inherited_the_lines_are_only_kept(unusable: str) -> None:
    ran = run(f'exec "$0" -c "$1" {unusable}')
    assert ran.stdout == "3 opening 3\n"


async def test_a_callable_gets_whole_lines_and_the_tail_is_kept() -> None:
    heard: list[str] = []
    kept = await lines_with(heard.append)
    assert heard == ["opening", "x" * 5000, "no newline"]
    assert kept == ("opening", "x" * 2048, "no newline")


async def test_a_file_gets_the_lines() -> None:
    file = io.StringIO()
    kept = await lines_with(file)
    assert file.getvalue() == f"opening\n{'x' * 5000}\nno newline\n"
    assert len(kept) == 3


async def test_none_only_keeps_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert (await lines_with(None))[0] == "opening"
    assert capfd.readouterr().err == ""


async def test_a_line_without_an_end_is_cut() -> None:
    heard: list[str] = []
    await lines_with(heard.append, "import os\nfor _ in range(200): os.write(2, b'y' * 65536)")
    assert [len(line) for line in heard] == [32 * 1024]


async def test_a_flood_passes_whole() -> None:
    heard: list[str] = []
    kept = await lines_with(heard.append, "import sys\nfor n in range(20000): print(n, file=sys.stderr)")
    assert heard == [str(number) for number in range(20_000)]
    assert kept == tuple(heard[-50:])


@pytest.mark.parametrize("wrong", [3, "stdout", b"x", -1])
def test_what_takes_no_lines_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(
        TypeError, match="stderr is 'inherit', a callable that takes a line, a text file or None"
    ):
        StdioClientTransport(["true"], stderr=wrong)


@pytest.mark.parametrize(
    "command",
    [["true", "--token=hush"], ["/no/such/place/program", "--token=hush"], [sys.executable, "-c", "hush"]],
)
async def test_no_message_repeats_the_arguments(command: list[str]) -> None:
    transport = StdioClientTransport(command, stderr=None)
    with trio.fail_after(TIMEOUT), pytest.raises((ConnectionLost, ConnectFailed)) as caught:
        async with Client(transport):
            pass
    said = (*caught.value.args, repr(transport))
    assert command[0].rpartition("/")[2] in said[0]
    assert not [text for text in said if "hush" in str(text)]
