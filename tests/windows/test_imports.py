"""Every module can be imported on Windows, or says in one sentence why it has no use there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .pretended import NO_MODULES, NO_NAMES, run_in_windows, sources

pytestmark = pytest.mark.slow

# Modules that refuse to be imported on Windows, with a word of the reason.
REFUSING = {
    "mcp_actors.cli.workers.supervisor": "workers inherit",
    "mcp_actors.cli.workers.serving": "workers inherit",
    "mcp_actors.examples.filesystem": "openat(2)",
    "mcp_actors.examples.transports.http2": "descriptors as POSIX has them",
    # The packages import them elsewhere alone.
    "mcp_transports.stdio.starting": "mcp_transports.stdio.windows",
    "mcp_transports.stdio.streams": "mcp_transports.stdio.windows",
}
PROGRAM = """
import json, sys
from tests.windows.pretended import NO_MODULES, NO_NAMES, pretend, sources
pretend(everything=True, kernel32=None, msvcrt=type(sys)("msvcrt"))
import importlib
there = []
for name in NO_MODULES:
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    there.append(name)
for module, names in NO_NAMES.items():
    there += [f"{module}.{each}" for each in names.split() if hasattr(importlib.import_module(module), each)]
failures = {}
for name in sources():
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except BaseException as error:
            failures[name] = f"{type(error).__name__}: {error}"
import ctypes, signal, sys
print(json.dumps([sys.platform, signal.SIGBREAK, hasattr(ctypes, "WinDLL"), there, failures]))
"""


@pytest.fixture(scope="module")
def found() -> list[Any]:
    """Runs the program in a process of its own: the platform, a signal, libraries, what is too much, and failures."""
    result: list[Any] = json.loads(run_in_windows(PROGRAM))
    return result


def test_the_process_looks_like_windows(found: list[Any]) -> None:
    assert found[:4] == ["win32", 21, True, []]
    assert "fcntl" in NO_MODULES
    assert "killpg" in NO_NAMES["os"].split()


def test_every_module_is_imported_on_windows(found: list[Any]) -> None:
    assert len(sources()) > 300
    assert {name: reason for name, reason in found[4].items() if name not in REFUSING} == {}


def test_a_module_without_use_there_says_why(found: list[Any]) -> None:
    for name, reason in REFUSING.items():
        assert reason in found[4].get(name, "it can be imported")


# -- Every binding over a network with the branches for Windows, and what it says of Unix sockets --------

PROGRAM_NETWORK = """
import json, sys
from tests.windows.pretended import pretend
from tests.windows.system import fake_msvcrt
pretend(everything=True, kernel32=lambda: None, msvcrt=fake_msvcrt())
import socket
# Windows has it, Linux has not: as a harmless option.
vars(socket)["SO_EXCLUSIVEADDRUSE"] = socket.SO_KEEPALIVE
import trio
import mcp_actors.sync
from mcp_actors import Client, Server
from mcp_transports._poller import Poller
server = Server("on windows", version="1")

@server.tool
async def double(x: int) -> int:
    return 2 * x

async def answer(url, era):
    async with Client(url, era=era) as client:
        result = await client.call_tool("double", {"x": 21})
        return [client.era, result.content[0].text]

async def refused(url):
    try:
        async with trio.open_nursery() as nursery:
            if url.startswith("serve "):
                await nursery.start(server.serve, url[6:])
            else:
                async with Client(url):
                    pass
            nursery.cancel_scope.cancel()
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}"

async def main():
    said = {}
    async with trio.open_nursery() as nursery:
        urls = ["http://127.0.0.1:0/mcp", "ws://127.0.0.1:0/ws", "tcp://127.0.0.1:0"]
        served = await nursery.start(server.serve, *urls)
        with trio.fail_after(120):
            for url in served:
                for era in ("modern", "legacy"):
                    said[f"{url.partition(':')[0]} {era}"] = await answer(url, era)
            said["loop"] = await trio.to_thread.run_sync(from_a_thread, served[0])
            for url in ("unix:///tmp/x.sock", "unix://C:\\\\x.sock", "unix:C:/x.sock",
                        "http+unix://%2Ftmp%2Fx.sock/mcp", "serve unix:///tmp/x.sock",
                        "serve unix://C:\\\\x.sock", "serve http+unix://%2Ftmp%2Fx.sock/mcp"):
                said[url] = await refused(url)
        said["pollers"] = sorted({type(each).__name__ for each in all_of(Poller)})
        nursery.cancel_scope.cancel()
    return said

def from_a_thread(url):
    with mcp_actors.sync.Client(url) as client:
        return client.call_tool("double", {"x": 4}).content[0].text

def all_of(kind):
    import gc
    return [each for each in gc.get_objects() if isinstance(each, kind)]

print(json.dumps(trio.run(main)))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_in_windows(PROGRAM_NETWORK))
    return found


@pytest.mark.parametrize("binding", ["http", "ws", "tcp"])
def test_a_binding_serves_both_eras(binding: str, said: dict[str, Any]) -> None:
    assert said[f"{binding} modern"] == ["modern", "42"]
    assert said[f"{binding} legacy"] == ["legacy", "42"]
    assert said["pollers"] == ["PortablePoller"]


def test_the_engine_has_a_thread(said: dict[str, Any]) -> None:
    assert said["loop"] == "8"


def test_unix_sockets_are_refused_in_one_sentence(said: dict[str, Any]) -> None:
    refused = {url: text for url, text in said.items() if "unix" in url}
    assert len(refused) == 7
    for text in refused.values():
        assert "Python has no Unix sockets on Windows" in text, refused
        assert not text.startswith(("AttributeError", "None"))


SETTINGS = """
import hypothesis, pytest, trio.testing
from tests.windows.pretended import pretend
from tests.windows.system import fake_msvcrt
pretend(everything=True, kernel32=lambda: None, msvcrt=fake_msvcrt())
import tests.conftest
print(tests.conftest.pytest_xdist_auto_num_workers())
"""


def test_the_settings_of_the_tests_can_be_loaded() -> None:
    assert int(run_in_windows(SETTINGS)) > 2
