"""Settings for every test: what a run inherits is put right, how tests are divided, and fixtures of many rooms."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator

import pytest
import structlog
from hypothesis import settings

from mcp_actors.supervision import flush_to_stderr
from tests.browser.chromium import find_browser
from tests.interop.installation import Peers, install
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer

# No example has a time limit of its own: a busy machine is no bug. In CI every run tries the same examples, and
# fewer of them, because to try the same ones again finds little; elsewhere each run tries others.
CI = os.environ.get("CI") == "true"
settings.register_profile("house", deadline=None, derandomize=CI, max_examples=15 if CI else 100)
settings.load_profile("house")

FOREIGN_PROGRAMS = frozenset({"peers", "browser", "redis_server", "postgres"})
"""Fixtures that need programs of somebody else: official SDKs, the conformance suite, a browser, Redis, PostgreSQL."""


PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def pytest_configure(config: pytest.Config) -> None:
    """Undoes what a run inherits: ignored signals, and proxies for HTTP.

    A shell lets jobs in the background ignore SIGINT, and `nohup` does so with SIGHUP. Programs that a test starts
    inherit that, and then cannot be interrupted. A proxy would be asked for what is on this machine.
    """
    for name in PROXIES:
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGTERM", "SIGCHLD"):
        number = getattr(signal, name, None)  # Windows has the second one alone
        if number is not None and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than cores, because many tests wait for a program that they started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that need foreign programs, but for those that have a run of their own with them, and puts the
    files with the longest tests first.

    Files are divided among the processes in this order (``--dist loadfile``), so that no process is left alone with
    a long one at the end. A file stays together because its tests may share a server.
    """
    for item in items:
        separate = item.get_closest_marker("frameworks")
        if not separate and FOREIGN_PROGRAMS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.peers)
    first = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in first)


@pytest.fixture(scope="module", autouse=True)
def old_objects_left_alone() -> None:
    """Lets the garbage collector pass over what exists by now: a process with all tests in it has a million objects.

    Tests that ask what is still held collect often, and each time would look at every one of them.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Waits for the lines that a thread writes for a test while its output is captured, between a test and its teardown
    too: a green run shows no traceback of a failure that was planted."""
    try:
        yield
    finally:
        flush_to_stderr()


@pytest.fixture(autouse=True)
def structlog_as_it_was() -> Iterator[None]:
    """Forgets how a test configured structlog: its own default renders tracebacks for seconds, if `rich` is there."""
    yield
    flush_to_stderr()
    structlog.reset_defaults()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A Redis server of the test's own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of the test's own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def peers() -> Peers:
    """The official SDKs, installed. A test that asks for them belongs to the run of ``pytest -m peers``."""
    return install()


@pytest.fixture(scope="session")
def browser() -> str:
    """Chromium. A test that asks for it belongs to the run of ``pytest -m peers``."""
    found = find_browser()
    if found is None:
        pytest.fail("there is no Chromium; Debian has it as a package: apt-get install chromium")
    return found


@pytest.fixture
def collector_rests() -> Iterator[None]:
    """Collects once, and not again until the test is over: what is freed in it is freed by reference counts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
