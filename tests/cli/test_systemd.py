"""The protocol of systemd, spoken with ``serve``: its state, the watchdog, and sockets that systemd has opened."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors.cli import systemd
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.cli.systemd import ServiceNotifier, service_notifier, take_sockets
from tests.cli.conftest import LIMIT
from tests.cli.test_ending import ask, modern

SERVER = """
import os
from mcp_actors import Server
server = Server("service")

@server.tool
async def inherited() -> str:
    return " ".join(sorted(each for each in os.environ if each.startswith(("NOTIFY", "WATCHDOG", "LISTEN"))))
"""

# The number of the process is known in it alone. A shell does not do: some take no descriptor above 9.
AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class Manager:
    """The service manager's side: what it was told, in order, without the signs of life."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.signs = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(LIMIT)

    def told(self) -> str:
        while True:
            text = self._socket.recv(4096).decode()
            if text != "WATCHDOG=1":
                return text
            self.signs += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_a_service_says_its_state_and_serves_at_the_socket_that_it_was_given(
    workers: tuple[str, ...], manager: Manager, tmp_path: Path
) -> None:
    (tmp_path / "service.py").write_text(SERVER)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        words = [sys.executable, "-m", "mcp_actors", "serve", str(tmp_path / "service.py")]
        words += ["--listen", f"http://127.0.0.1:{port}/mcp", *workers]
        variables = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "200000", "LISTEN_FDS": "1"}
        with subprocess.Popen(
            [sys.executable, "-c", AS_SYSTEMD, str(listening.fileno()), *words],
            stdin=subprocess.DEVNULL,
            stderr=None,
            pass_fds=[listening.fileno()],
            env={**os.environ, **variables},
        ) as process:
            try:
                assert manager.told() == "READY=1"
                message, headers = modern("tools/call", name="inherited", arguments={})
                _, _, answer = ask(port, "POST", "/mcp", message, **headers)
                assert answer["result"]["content"][0]["text"] == ""
                if workers:
                    process.send_signal(signal.SIGHUP)
                    reloading, _, at = manager.told().partition("\nMONOTONIC_USEC=")
                    assert reloading == "RELOADING=1"
                    assert int(at) <= time.monotonic_ns() // 1000
                    assert manager.told() == "READY=1"
                process.send_signal(signal.SIGTERM)
                assert manager.told() == "STOPPING=1"
                assert process.wait(LIMIT) == 0
            finally:
                process.kill()
    assert manager.signs


async def test_the_watchdog_hears_twice_in_its_time(manager: Manager, autojump_clock: MockClock) -> None:
    notifier = ServiceNotifier(str(manager.path), watchdog=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifier.keep_alive)
        await trio.sleep(21)
        nursery.cancel_scope.cancel()
    notifier.ready()
    assert manager.told() == "READY=1"
    assert manager.signs == 5


def test_a_manager_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    with capture_logs() as logs:
        ServiceNotifier(str(tmp_path / "nothing")).ready()
    assert [each["state"] for each in logs] == ["READY=1"]


@pytest.mark.parametrize(
    ("path", "watched"), [("", "1000"), ("relative", "1000"), ("/a/path", ""), ("/a/path", "1000")]
)
def test_the_variables_leave_the_environment(
    path: str, watched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    monkeypatch.setenv("WATCHDOG_USEC", watched)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    notifier = service_notifier()
    assert (notifier is not None) == path.startswith("/")
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)


def test_a_socket_of_no_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(systemd, "_FIRST_DESCRIPTOR", listening.fileno())
        monkeypatch.setenv("LISTEN_FDS", "1")
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        with pytest.raises(WrongUsage, match="for no address of this server"):
            take_sockets(["http://127.0.0.1:1/mcp"])
        monkeypatch.setenv("LISTEN_FDS", "1")
        monkeypatch.setenv("LISTEN_PID", "1")
        # They are those of another process.
        take_sockets(["http://127.0.0.1:1/mcp"])
