"""The fixtures of the pytest plugin, in runs of pytest of their own, with each plugin that runs async tests."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

# What the inner runs import is imported here once, because pytest forgets what an inner run has imported.
import mcp_actors.asyncio
import mcp_actors.sync
import pytest_mcp_actors

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
assert pytest_mcp_actors.__all__
assert mcp_actors.asyncio.Client is not mcp_actors.sync.Client

SERVER = """
import pytest
from mcp_actors import Client, Server, SyncContext
import mcp_actors.asyncio, mcp_actors.sync

@pytest.fixture
def mcp_server():
    server = Server("under test", version="1")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    def name(ctx: SyncContext) -> str:
        return str(ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}}).content)

    return server

"""
# Without it pytest-asyncio warns of what it will do one day.
LOOPS = "asyncio_default_fixture_loop_scope = function\n"
BLOCKED = ["-p", "no:xdist", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]


def ran(pytester: pytest.Pytester, text: str, *words: str, settings: str = "") -> pytest.RunResult:
    pytester.makepyfile(SERVER + text)
    loops = "" if "no:asyncio" in words or "loop_scope" in settings else LOOPS
    pytester.makeini(f"[pytest]\nfilterwarnings = error\n{loops}{settings}")
    return pytester.runpytest_inprocess("-p", "pytest_mcp_actors", *BLOCKED, *words)


PLAIN = """
def test_plain(mcp_client):
    assert type(mcp_client) is mcp_actors.sync.Client
    assert mcp_client.call_tool("add", {"a": 1, "b": 2}).data == 3
    assert mcp_client.server_info.name == "under test"

class TestClass:
    def test_method(self, mcp_client):
        assert mcp_client.call_tool("add", {"a": 2, "b": 2}).data == 4
"""
ON_TRIO = """
import trio

MARK
async def test_trio(mcp_client, nursery):
    assert type(mcp_client) is Client
    assert (await mcp_client.call_tool("add", {"a": 1, "b": 2})).data == 3
    nursery.start_soon(trio.lowlevel.checkpoint)

@pytest.fixture
async def answer(mcp_client):
    return (await mcp_client.call_tool("add", {"a": 20, "b": 22})).data

MARK
async def test_a_fixture_that_uses_it(answer, mcp_client):
    assert answer == 42
"""
ON_ASYNCIO = """
import asyncio

MARK
async def test_asyncio(mcp_client):
    assert type(mcp_client) is mcp_actors.asyncio.Client
    results = await asyncio.gather(*(mcp_client.call_tool("add", {"a": n, "b": 1}) for n in range(3)))
    assert [result.data for result in results] == [1, 2, 3]
"""


def test_in_plain_tests(pytester: pytest.Pytester) -> None:
    assert ran(pytester, PLAIN).parseoutcomes() == {"passed": 2}


@pytest.mark.parametrize(
    ("mark", "settings"), [("@pytest.mark.trio", ""), ("", "trio_mode = true")], ids=["marked", "mode"]
)
def test_with_pytest_trio(pytester: pytest.Pytester, mark: str, settings: str) -> None:
    text = PLAIN + ON_TRIO.replace("MARK", mark)
    assert ran(pytester, text, "-p", "no:asyncio", settings=settings).parseoutcomes() == {"passed": 4}


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_with_pytest_asyncio(pytester: pytest.Pytester, mode: str) -> None:
    text = PLAIN + ON_ASYNCIO.replace("MARK", "@pytest.mark.asyncio" if mode == "strict" else "")
    assert ran(pytester, text, settings=f"asyncio_mode = {mode}").parseoutcomes() == {"passed": 3}


def test_with_pytest_asyncio_in_a_loop_of_the_whole_run(pytester: pytest.Pytester) -> None:
    text = ON_ASYNCIO.replace("MARK", "@pytest.mark.asyncio")
    settings = "asyncio_default_test_loop_scope = session\nasyncio_default_fixture_loop_scope = session"
    assert ran(pytester, text, settings=settings).parseoutcomes() == {"passed": 1}


ON_ANYIO = """

@pytest.mark.anyio
async def test_either(mcp_client, anyio_backend_name):
    expected = Client if anyio_backend_name == "trio" else mcp_actors.asyncio.Client
    assert type(mcp_client) is expected
    assert (await mcp_client.call_tool("add", {"a": 1, "b": 2})).data == 3
"""


@pytest.mark.parametrize("words", [["-p", "no:asyncio"], []], ids=["alone", "beside pytest-asyncio"])
def test_with_anyio_on_both_of_its_loops(pytester: pytest.Pytester, words: list[str]) -> None:
    text = PLAIN + ON_ANYIO
    assert ran(pytester, text, *words).parseoutcomes() == {"passed": 4}


def test_all_of_them_in_one_file(pytester: pytest.Pytester) -> None:
    text = (
        PLAIN
        + ON_TRIO.replace("MARK", "@pytest.mark.trio")
        + ON_ASYNCIO.replace("MARK", "@pytest.mark.asyncio")
        + ON_ANYIO
    )
    assert ran(pytester, text).parseoutcomes() == {"passed": 7}


WITH_OPTIONS = """
from mcp_actors.types import ElicitResult

@pytest.fixture
def mcp_client_options():
    async def answered(request):
        return ElicitResult("accept", {"name": "Ann"})
    return {"elicitation": answered}

def test_plain(mcp_client):
    assert "Ann" in mcp_client.call_tool("name", {}).text

@pytest.mark.trio
async def test_trio(mcp_client):
    assert "Ann" in (await mcp_client.call_tool("name", {})).text

@pytest.mark.asyncio
async def test_asyncio(mcp_client):
    assert "Ann" in (await mcp_client.call_tool("name", {})).text
"""


def test_the_client_has_the_options_of_the_test(pytester: pytest.Pytester) -> None:
    assert ran(pytester, WITH_OPTIONS).parseoutcomes() == {"passed": 3}


VIRTUAL_TIME = """
import trio, trio.testing
from mcp_actors import CallTimeout

@pytest.fixture
def mcp_server():
    server = Server("slow")

    @server.tool
    async def sleep(seconds: float) -> str:
        await trio.sleep(seconds)
        return "woken"

    return server

@pytest.mark.trio
async def test_trio(mcp_client, mcp_virtual_time):
    assert (await mcp_client.call_tool("sleep", {"seconds": 25.0})).text == "woken"
    with pytest.raises(CallTimeout):
        await mcp_client.call_tool("sleep", {"seconds": 1000.0})
    assert trio.current_time() == mcp_virtual_time.current_time()

class TestWithAnyio:
    @pytest.fixture
    def anyio_backend(self):
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}

    @pytest.mark.anyio
    async def test_anyio(self, mcp_client, mcp_virtual_time):
        assert (await mcp_client.call_tool("sleep", {"seconds": 25.0})).text == "woken"
        assert trio.current_time() == mcp_virtual_time.current_time()
"""


def test_virtual_time(pytester: pytest.Pytester) -> None:
    assert ran(pytester, VIRTUAL_TIME).parseoutcomes() == {"passed": 2}


MISUSED = """
@pytest.mark.trio
@pytest.mark.usefixtures("mcp_virtual_time")
async def test_not_named(mcp_client):
    pass

def test_plain(mcp_virtual_time):
    pass

@pytest.mark.asyncio
async def test_asyncio(mcp_virtual_time):
    pass

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_anyio(mcp_virtual_time):
    pass
"""


def test_virtual_time_says_where_it_cannot_be_had(pytester: pytest.Pytester) -> None:
    result = ran(pytester, MISUSED)
    assert result.parseoutcomes() == {"errors": 4}
    result.stdout.fnmatch_lines_random(
        [
            "the test itself has to name mcp_virtual_time as an argument*",
            "mcp_virtual_time is for tests on Trio*",
            "mcp_virtual_time with anyio needs a fixture anyio_backend*",
        ]
    )


FAILING = """
import asyncio, trio

@pytest.fixture
def mcp_server():
    server = Server("hangs")

    @server.tool
    async def hang() -> str:
        await trio.sleep_forever()
        return ""

    return server

def test_plain(mcp_client):
    assert not mcp_client

@pytest.mark.trio
async def test_trio(mcp_client, nursery):
    nursery.start_soon(mcp_client.call_tool, "hang", {})
    await trio.testing.wait_all_tasks_blocked()
    assert not mcp_client

@pytest.mark.asyncio
async def test_asyncio(mcp_client):
    call = asyncio.ensure_future(mcp_client.call_tool("hang", {}))
    await asyncio.sleep(0)
    try:
        assert not mcp_client
    finally:
        call.cancel()

@pytest.mark.anyio
async def test_anyio(mcp_client):
    assert not mcp_client

def test_the_next_one(mcp_client):
    assert mcp_client.server_info.name == "hangs"
"""


def test_a_test_that_fails_costs_itself_and_ends_its_calls(pytester: pytest.Pytester) -> None:
    result = ran(pytester, FAILING.replace("import asyncio, trio", "import asyncio, trio, trio.testing"))
    assert result.parseoutcomes() == {"failed": 5, "passed": 1}
    assert result.stdout.str().count("assert not <") >= 5


def test_a_missing_server_and_a_missing_plugin_are_said(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(mcp_client): pass\nasync def test_async(mcp_client): pass")
    without = [word for each in ("asyncio", "trio", "anyio") for word in ("-p", f"no:{each}")]
    result = pytester.runpytest_inprocess("-p", "pytest_mcp_actors", *BLOCKED, *without)
    assert result.parseoutcomes() == {"errors": 2}
    result.stdout.fnmatch_lines_random(
        [
            "no server to test: define a fixture mcp_server*",
            "no plugin runs this async test: install pytest-trio*",
        ]
    )


FORGOTTEN = """
async def test_forgotten(mcp_client):
    pass
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            [],
            "mark it with @pytest.mark.trio or @pytest.mark.asyncio or @pytest.mark.anyio, or all with trio_mode*",
        ),
        (
            ["-p", "no:trio"],
            "mark it with @pytest.mark.asyncio or @pytest.mark.anyio, or all with asyncio_mode*",
        ),
        (
            ["-p", "no:trio", "-p", "no:anyio"],
            "mark it with @pytest.mark.asyncio, or all with asyncio_mode = auto*",
        ),
        (
            ["-p", "no:asyncio", "-p", "no:anyio"],
            "mark it with @pytest.mark.trio, or all with trio_mode = true*",
        ),
    ],
)
def test_a_mark_that_was_forgotten_is_named(pytester: pytest.Pytester, words: list[str], says: str) -> None:
    result = ran(pytester, FORGOTTEN, *words)
    assert result.parseoutcomes() == {"errors": 1}
    result.stdout.fnmatch_lines([f"nothing runs this async test: {says}"])


@pytest.mark.parametrize(("mark", "plugin"), [("trio", "pytest-trio"), ("asyncio", "pytest-asyncio")])
def test_a_plugin_that_a_mark_is_for_and_that_is_not_there(
    pytester: pytest.Pytester, mark: str, plugin: str
) -> None:
    settings = f"markers = {mark}: for a plugin that is not there\n"
    text = FORGOTTEN.replace("async", f"@pytest.mark.{mark}\nasync")
    result = ran(pytester, text, "-p", f"no:{mark}", settings=settings)
    assert result.parseoutcomes() == {"errors": 1}
    result.stdout.fnmatch_lines(
        [f"no plugin runs this async test: it is marked for {plugin}, which is not there*"]
    )


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("trio_mode = true", ["-p", "no:asyncio", "-p", "no:anyio"]),
        ("asyncio_mode = auto", ["-p", "no:trio", "-p", "no:anyio"]),
    ],
)
def test_a_mode_needs_no_marks(pytester: pytest.Pytester, mode: str, words: list[str]) -> None:
    assert ran(pytester, FORGOTTEN, *words, settings=f"{mode}\n").parseoutcomes() == {"passed": 1}


def test_a_server_that_does_not_start_is_an_error_of_that_test(pytester: pytest.Pytester) -> None:
    text = "@pytest.fixture\ndef mcp_server():\n    return 'stdio:no-such-program-anywhere'\n" + PLAIN
    result = ran(pytester, text)
    assert result.parseoutcomes() == {"errors": 2}
    result.stdout.fnmatch_lines(["*ConnectFailed*no-such-program-anywhere*"])


def test_with_plugins_that_are_named_by_their_modules(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    text = ON_TRIO.replace("MARK", "@pytest.mark.trio") + ON_ASYNCIO.replace("MARK", "@pytest.mark.asyncio")
    words = ("-p", "pytest_trio.plugin", "-p", "pytest_asyncio.plugin")
    assert ran(pytester, text, *words).parseoutcomes() == {"passed": 3}


def test_a_server_may_be_a_url(pytester: pytest.Pytester) -> None:
    program = "import sys\\nfrom mcp_actors import Server\\nServer('in a process').run()"
    text = f"""
import shlex, sys

@pytest.fixture
def mcp_server():
    return "stdio:" + shlex.join([sys.executable, "-c", "{program}"])

def test_it(mcp_client):
    assert mcp_client.server_info.name == "in a process"
"""
    assert ran(pytester, text).parseoutcomes() == {"passed": 1}


def test_a_run_without_the_fixtures_imports_nothing_of_the_engine(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import json, sys\ndef test_it():\n    open('modules', 'w').write(json.dumps(sorted(sys.modules)))\n"
    )
    without = ["no:trio", "no:anyio", "no:xdist", "no:asyncio", "no:hypothesispytest", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *[word for each in without for word in ("-p", each)]]
    loaded = []
    for plugin in ("pytest_mcp_actors", "no:pytest_mcp_actors"):
        subprocess.run([*command, "-p", plugin], cwd=tmp_path, check=True, timeout=60)
        loaded.append(set(json.loads((tmp_path / "modules").read_text())))
    # The debugger, which pytest imports, imports asyncio from CPython 3.14 on.
    with_it, without_it = loaded
    assert "pytest_mcp_actors" in with_it - without_it
    assert {
        "mcp_actors",
        "trio",
        "asyncio",
        "attrs",
        "msgspec",
        "structlog",
        "pytest_asyncio",
    } & (with_it - without_it) == set()


def test_pytest_finds_it_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_mcp_actors": "pytest_mcp_actors"}
    assert "transports/pytest_mcp_actors" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
