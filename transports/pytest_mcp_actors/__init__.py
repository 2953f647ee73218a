"""The pytest plugin: a client of the server under test, in tests on Trio, in tests on asyncio, and in plain ones.

pytest imports this in every run where mcp-actors is installed, so it imports nothing of the engine: the first test that
asks for a client does. That is why it is a package of its own.

- `mcp_server`: the server under test. Define it anew, in a test file or in ``conftest.py``.
- `mcp_client`: a client of it, connected in memory, in the form that fits the test.
- `mcp_client_options`: the keyword arguments of that client. Define it anew to change them.
- `mcp_virtual_time`: time that passes at once while everything waits, for tests on Trio.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any

import pytest

__all__ = ["mcp_client", "mcp_client_options", "mcp_server", "mcp_virtual_time"]


@pytest.fixture
def mcp_server() -> Any:
    """The server under test: whatever `mcp_actors.Client` connects to. It has to be defined anew."""
    raise _refusal(
        "no server to test: define a fixture mcp_server, in this file or in conftest.py, that returns it"
    )


@pytest.fixture
def mcp_client_options() -> Mapping[str, Any]:
    """The keyword arguments of the client, such as ``elicitation=``; none by default."""
    return {}


@pytest.fixture
def mcp_client(request: pytest.FixtureRequest) -> Any:
    """A client of `mcp_server`, connected in memory, until the end of the test.

    It is a `mcp_actors.Client` in tests on Trio (pytest-trio, anyio), a `mcp_actors.asyncio.Client` in tests on asyncio
    (pytest-asyncio, anyio), and a `mcp_actors.sync.Client` in plain tests.
    """
    return request.getfixturevalue(_FIXTURES[_kind(request)])


@pytest.fixture
def mcp_virtual_time(request: pytest.FixtureRequest) -> Any:
    """Time that passes at once while everything waits: a test of a timeout of 300 seconds takes none.

    It is the clock of the test, a `trio.testing.MockClock`. With pytest-trio the test has to name it as an argument.
    With anyio it is the ``clock`` in the options of the fixture ``anyio_backend``.
    """
    kind = _kind(request)
    if kind == "trio":
        if "mcp_virtual_time" not in request.node._fixtureinfo.argnames:
            raise _refusal(
                "the test itself has to name mcp_virtual_time as an argument, so that it runs by that clock"
            )
        return importlib.import_module("trio.testing").MockClock(autojump_threshold=0)
    if kind == "anyio, trio":
        backend = request.getfixturevalue("anyio_backend")
        clock = {} if isinstance(backend, str) else backend[1]
        if "clock" in clock:
            return clock["clock"]
        raise _refusal(
            "mcp_virtual_time with anyio needs a fixture anyio_backend that returns"
            ' ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})'
        )
    raise _refusal(
        "mcp_virtual_time is for tests on Trio: with asyncio and in plain tests the engine has a thread of its own"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the fixture for pytest-asyncio, which takes only those that it has made itself."""
    if _has(config, "asyncio"):
        made = importlib.import_module("pytest_asyncio").fixture(
            _for_pytest_asyncio, name=_FIXTURES["asyncio"]
        )
        holder = ModuleType("pytest_mcp_actors.asyncio")  # pytest looks for fixtures in modules and classes
        vars(holder)[_FIXTURES["asyncio"]] = made
        config.pluginmanager.register(holder, holder.__name__)


_FIXTURES = {
    "plain": "_mcp_client_plain",
    "trio": "_mcp_client_trio",
    "anyio, trio": "_mcp_client_trio",
    "anyio, asyncio": "_mcp_client_anyio",
    "asyncio": "_mcp_client_asyncio",
}


@pytest.fixture
def _mcp_client_plain(mcp_server: Any, mcp_client_options: Mapping[str, Any]) -> Iterator[Any]:
    with _kept_in_the_test():
        with importlib.import_module("mcp_actors.sync").Client(mcp_server, **mcp_client_options) as client:
            yield client


@contextmanager
def _kept_in_the_test() -> Iterator[None]:
    """Has a server that exits cost its own test. A fixture that raises `SystemExit` breaks all tests behind its own."""
    try:
        yield
    except SystemExit as error:
        raise _refusal(
            f"the server under test has ended the program, with the exit code {error.code}"
        ) from error


# pytest-trio and anyio run this in the loop of the test.
@pytest.fixture
async def _mcp_client_trio(mcp_server: Any, mcp_client_options: Mapping[str, Any]) -> AsyncIterator[Any]:
    with _kept_in_the_test():
        async with importlib.import_module("mcp_actors").Client(mcp_server, **mcp_client_options) as client:
            yield client


@asynccontextmanager
async def _on_asyncio(server: Any, options: Mapping[str, Any]) -> AsyncIterator[Any]:
    with _kept_in_the_test():
        async with importlib.import_module("mcp_actors.asyncio").Client(server, **options) as client:
            yield client


@pytest.fixture
async def _mcp_client_anyio(mcp_server: Any, mcp_client_options: Mapping[str, Any]) -> AsyncIterator[Any]:
    async with _on_asyncio(mcp_server, mcp_client_options) as client:
        yield client


async def _for_pytest_asyncio(mcp_server: Any, mcp_client_options: Mapping[str, Any]) -> AsyncIterator[Any]:
    async with _on_asyncio(mcp_server, mcp_client_options) as client:
        yield client


def _has(config: pytest.Config, loop: str) -> bool:
    """Whether the plugin for a loop is there: by its own name, or as a module by ``-p pytest_asyncio.plugin``."""
    return any(config.pluginmanager.has_plugin(each) for each in (loop, f"pytest_{loop}.plugin"))


def _kind(request: pytest.FixtureRequest) -> str:
    """Returns what runs the test, as a key of `_FIXTURES`."""
    function = request.function
    # Hypothesis puts a plain function round an async one.
    if not iscoroutinefunction(getattr(getattr(function, "hypothesis", None), "inner_test", function)):
        return "plain"
    marks = {name for name in _PLUGINS if request.node.get_closest_marker(name) is not None}
    if "trio" in marks and _has(request.config, "trio"):
        return "trio"
    if "anyio_backend" in request.fixturenames:
        backend = request.getfixturevalue("anyio_backend")
        return f"anyio, {backend if isinstance(backend, str) else backend[0]}"
    # In its automatic mode pytest-asyncio marks the tests itself, and pytest-trio likewise.
    if "asyncio" in marks and _has(request.config, "asyncio"):
        return "asyncio"
    raise _refusal(_why_nothing_runs(request.config, marks))


# The plugins that run async tests, by their marks, and the setting with which each takes all of them.
_PLUGINS = {
    "trio": ("pytest-trio", "trio_mode = true"),
    "asyncio": ("pytest-asyncio", "asyncio_mode = auto"),
    "anyio": ("anyio", "anyio_mode = auto"),
}


def _why_nothing_runs(config: pytest.Config, marks: set[str]) -> str:
    missing = [_PLUGINS[each][0] for each in sorted(marks) if not _has(config, each)]
    if missing:
        return (
            f"no plugin runs this async test: it is marked for {missing[0]}, which is not there; install it"
        )
    there = [each for each in _PLUGINS if _has(config, each)]
    if not there:
        return "no plugin runs this async test: install pytest-trio, anyio or pytest-asyncio, and mark the test for it"
    written = " or ".join(f"@pytest.mark.{each}" for each in there)
    settings = " or ".join(_PLUGINS[each][1] for each in there)
    return f"nothing runs this async test: mark it with {written}, or all with {settings} in the settings of pytest"


def _refusal(why: str) -> BaseException:
    return pytest.fail.Exception(why, pytrace=False)
