"""What authors of servers use: files that change under ``--reload``, simulations, and the plugin of pytest."""

from __future__ import annotations

import math
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Server
from mcp_actors.testing.simulate import (
    Constant,
    Empirical,
    Exponential,
    LinkProfile,
    LogNormal,
    Uniform,
    User,
    World,
    simulate,
)
from tests.cli.reload.test_reloading import Project, modules_kept, number_of

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

# -- files that change while calls are in flight -----------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with modules_kept():
        yield Project(tmp_path)


def in_place_of(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Takes the file away, and makes something else in its place."""

    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            # The path of a socket is short.
            made.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - it is about files
        await trio.sleep(0.01)


NUMBER = "NUMBER = 2\n"
BROKEN: dict[str, Callable[[Path], object]] = {
    "half a statement": lambda path: path.write_text("NUMBER = (2"),
    "half of it": lambda path: path.write_text(NUMBER[:4]),
    "nothing": lambda path: path.write_text(""),
    "deleted": Path.unlink,
    "NUL": lambda path: path.write_bytes(b"NUMBER = 2\n\0"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00NUMBER = 2"),
    "another encoding": lambda path: path.write_bytes(b"# coding: rot13\nAHZORE = 2\n"),
    "deep": lambda path: path.write_text("NUMBER = " + "(" * 1000 + ")" * 1000 + "\n"),
    "nested": lambda path: path.write_text("NUMBER = " + "-" * 100_000 + "1\n"),
    "huge": lambda path: path.write_text("x = [" + "1," * 500_000 + "]\n"),
    "a folder": in_place_of(Path.mkdir),
    "a loop of links": in_place_of(lambda path: path.symlink_to(path)),
    "a link to nothing": in_place_of(lambda path: path.symlink_to("/nothing/there")),
    "a device": in_place_of(lambda path: path.symlink_to("/dev/zero")),
    "a pipe": in_place_of(os.mkfifo),
    "a socket": in_place_of(bind),
    "exits": lambda path: path.write_text("import sys\nsys.exit(3)\n"),
    "Ctrl-C": lambda path: path.write_text("raise KeyboardInterrupt\n"),
    "generator exit": lambda path: path.write_text("raise GeneratorExit\n"),
    "no memory": lambda path: path.write_text("raise MemoryError\n"),
    "recursion": lambda path: path.write_text("def f():\n    return f()\nf()\n"),
    "an odd error": lambda path: path.write_text(
        "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd\n"
    ),
    "a group": lambda path: path.write_text("raise ExceptionGroup('many', [ValueError('\x1b[31m')] * 100)\n"),
    "a signal handler": lambda path: path.write_text(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    ),
    "an event loop": lambda path: path.write_text("import trio\ntrio.run(trio.sleep, 0)\n1 / 0\n"),
}


@pytest.mark.parametrize("which", ["main.py", "helper.py"])
@pytest.mark.parametrize("name", BROKEN)
async def test_a_file_that_is_broken_costs_no_call_and_is_mended(
    name: str, which: str, project: Project
) -> None:
    path = project.folder / which
    good = path.read_text()
    async with project.served() as (client, _), trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def call_on() -> None:
            while True:
                answers.append(await number_of(client))
                await trio.sleep(0.01)

        nursery.start_soon(call_on)
        await until(lambda: answers)
        BROKEN[name](path)
        await project.hears("was not reloaded")
        taken = len(answers)
        await until(lambda: len(answers) > taken + 1)
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        project.put(which, good.replace("NUMBER = 1", "NUMBER = 2"))
        await project.hears("reloaded in")
        await until(lambda: answers[-1] == (2 if which == "helper.py" else 1))
        nursery.cancel_scope.cancel()
    assert answers[0] == 1


# -- worlds that cannot be, and those that are hostile -----------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(NAN),
        lambda: Constant(-1),
        lambda: Constant(INF),
        lambda: Uniform(2, 1),
        lambda: Uniform(0, NAN),
        lambda: Uniform(-1, 1),
        lambda: Exponential(NAN),
        lambda: Exponential(-1),
        lambda: LogNormal(NAN, 1),
        lambda: LogNormal(1, INF),
        lambda: Empirical([]),
        lambda: Empirical([NAN]),
        lambda: Empirical([1], [0]),
        lambda: Empirical([1, 2], [1]),
        lambda: Empirical([1], [NAN]),
        lambda: Empirical([1, 2], [1e308, 1e308]),
        lambda: LinkProfile(latency=NAN),
        lambda: LinkProfile(latency=-1),
        lambda: LinkProfile(stall=1.5),
        lambda: LinkProfile(disconnect=NAN),
        lambda: LinkProfile(bandwidth=0),
        lambda: LinkProfile(bandwidth=NAN),
        lambda: LinkProfile(disconnect_every=NAN),
        lambda: LinkProfile(disconnect_every=0),
        lambda: LinkProfile(disconnect_at_frame=0),
        lambda: World(clients=0),
        lambda: World(clients=-1),
        lambda: World(clients=1, servers=0),
        lambda: World(clients=1, cancel=NAN),
        lambda: World(clients=1, ramp=NAN),
        lambda: World(clients=1, timeout=NAN),
        lambda: World(clients=1, cap=-1),
        lambda: World(clients=1, think=NAN),
        lambda: simulate(World(clients=1), seed=1, duration=0),
        lambda: simulate(World(clients=1), seed=1, duration=NAN),
        lambda: simulate(World(clients=1), seed=1, duration=INF),
    ],
)
def test_a_world_that_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


class Wrong:
    """A distribution of numbers that are no durations."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def sample(self, rng: random.Random) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.mark.parametrize("field", ["think", "service", "latency", "stall_time", "notice"])
@pytest.mark.parametrize("value", [-1.0, NAN, INF, "1", None, ZeroDivisionError("no")], ids=repr)
def test_a_distribution_of_something_else_ends_the_run_with_a_reason(field: str, value: Any) -> None:
    if field in ("think", "service"):
        world = World(clients=2, ramp=0, **{field: Wrong(value)})
    else:
        link = LinkProfile(stall=1.0, disconnect=0.5, **{field: Wrong(value)})
        world = World(clients=2, ramp=0, think=Constant(1), link=link)
    if value == INF:
        # As a link over which nothing comes any more: it is a duration, without an end.
        assert simulate(world, seed=1, duration=30).answered == 0
        return
    with pytest.raises((ValueError, ZeroDivisionError), match=r"a duration is|no"):
        simulate(world, seed=1, duration=30)


async def raises(user: User) -> None:
    raise LookupError("of the behaviour")


async def waits_backwards(user: User) -> None:
    await user.call("work", {"seconds": 0}, patience=-1)


async def closes(user: User) -> None:
    await user.client.aclose()
    await user.call("work", {"seconds": 0})


async def calls_the_wrong(user: User) -> None:
    for tool, arguments in (("nothing", {}), ("work", {"seconds": "x"}), ("work", {}), ("", None)):
        await user.call(tool, arguments)


async def cancels_itself(user: User) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await user.call("work", {"seconds": 1})


async def impatient(user: User) -> None:
    for patience in (0.0, 1e-9, INF):
        await user.call("work", {"seconds": 1}, patience=patience)


async def many(user: User) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(500):
            nursery.start_soon(user.call, "work", {"seconds": 1})


def no_server() -> Server:
    raise LookupError("of the server")


def deaf() -> Server:
    server = Server("deaf")

    @server.tool
    async def work(seconds: float) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(10_000)
        return "late"

    return server


def crashing() -> Server:
    server = Server("crashing")

    @server.tool
    async def work(seconds: float) -> str:
        raise SystemExit(3)

    return server


@pytest.mark.parametrize("behaviour", [calls_the_wrong, cancels_itself, closes, impatient, many])
def test_a_hostile_behaviour_is_counted_and_the_same_each_time(behaviour: Any) -> None:
    world = World(clients=3, ramp=1, behaviour=behaviour, link=LinkProfile(latency=0.1))
    report = simulate(world, seed=5, duration=60)
    assert report == simulate(world, seed=5, duration=60)
    assert report.calls == report.answered + report.cancelled + report.failed + report.unfinished


@pytest.mark.parametrize("behaviour", [raises, waits_backwards])
def test_what_a_behaviour_raises_ends_the_run(behaviour: Any) -> None:
    with pytest.raises((LookupError, ValueError), match=r"of the behaviour|seconds"):
        simulate(World(clients=3, behaviour=behaviour), seed=1, duration=10)


def test_what_making_a_server_raises_ends_the_run() -> None:
    with pytest.raises(LookupError):
        simulate(World(clients=1, server=no_server), seed=1, duration=10)


@pytest.mark.parametrize("server", [deaf, crashing])
def test_a_hostile_server_ends_no_run(server: Any) -> None:
    report = simulate(World(clients=2, server=server, ramp=0, think=Constant(1)), seed=1, duration=120)
    assert report.answered == 0
    assert report.calls > 0


# -- servers under test that are none, or that are hostile to the plugin ----------------------------------------------

PLUGIN = """
import pytest, os
from mcp_actors import Client, Server
{loop}

class Lifespan:
    def __init__(self, error): self.error = error
    def __call__(self, server): return self
    async def __aenter__(self): raise self.error
    async def __aexit__(self, *_): pass

class Ends(Lifespan):
    async def __aenter__(self): pass
    async def __aexit__(self, *_): raise self.error

def raising(error):
    raise error

good = Server("good")
@good.tool
async def add(a: int) -> int:
    return a

SERVERS = {{
    "None": lambda: None,
    "number": lambda: 5,
    "class": lambda: Server,
    "function": lambda: (lambda: good),
    "dictionary": lambda: {{"name": "x"}},
    "no scheme": lambda: "nothing at all",
    "unknown scheme": lambda: "gopher://x",
    "nobody there": lambda: "tcp://127.0.0.1:1",
    "no such file": lambda: "unix:/nothing/there",
    "no such program": lambda: "stdio:/nothing/there",
    "ends at once": lambda: "stdio:true",
    "raises": lambda: raising(ValueError("no server today")),
    "begins not": lambda: Server("s", lifespan=Lifespan(ValueError("no lifespan"))),
    "begins by leaving": lambda: Server("s", lifespan=Lifespan(SystemExit(3))),
    "ends badly": lambda: Server("s", lifespan=Ends(ValueError("no end"))),
}}
OPTIONS = [{{"era": "none"}}, {{"timeout": "x"}}, {{"nothing": 1}}, {{"on_log": 5}}, 5, None]

@pytest.fixture
def kind(request):
    return request.param

@pytest.fixture
def mcp_server(kind):
    return SERVERS[kind]() if isinstance(kind, str) else good

@pytest.fixture
def mcp_client_options(kind):
    return {{}} if isinstance(kind, str) else kind[0]

@pytest.mark.parametrize("kind", [*SERVERS, *([each] for each in OPTIONS)], indirect=True, ids=str)
{asynchronous}def test_hostile(kind, mcp_client):
    pass

@pytest.mark.parametrize("kind", [[{{}}]], indirect=True)
{asynchronous}def test_good(kind, mcp_client):
    assert ({wait}mcp_client.call_tool("add", {{"a": 1}})).data == 1
"""
HOSTILE = 21


@pytest.mark.parametrize("loop", ["plain", "trio", "asyncio"])
def test_a_hostile_server_under_test_costs_its_own_test(loop: str, pytester: pytest.Pytester) -> None:
    mark = "" if loop == "plain" else f"pytestmark = pytest.mark.{loop}"
    asynchronous, wait = ("", "") if loop == "plain" else ("async ", "await ")
    pytester.makepyfile(PLUGIN.format(loop=mark, asynchronous=asynchronous, wait=wait))
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    plugins = ["-p", "no:xdist", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
    result = pytester.runpytest_subprocess(*plugins, "-p", "pytest_mcp_actors", timeout=300)
    outcomes = result.parseoutcomes()
    # pytest-trio sets up fixtures within the test.
    assert outcomes.get("errors", 0) + outcomes.get("failed", 0) == HOSTILE
    # A server that only ends badly has been tested by then, where its end is not a part of the test.
    assert outcomes["passed"] == (1 if loop == "trio" else 2)
