"""The files of the page on where a server runs: each read by its own program, or run where that is possible."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trustme

from interop.installation import install_separately
from interop.servers import free_port
from mcp_actors import Client
from mcp_transports.http.client import HttpClientTransport
from tests.pages import PAGES, blocks, programs

pytestmark = pytest.mark.peers

PAGE = PAGES["how-to/where-it-runs.md"]
FILES = {
    text.partition("\n")[0].removeprefix("# "): text for _, text in blocks(PAGE) if text.startswith("# ")
}
PATIENCE = 400.0
HOST = "mcp.example.org"
# A call that lasts longer than a proxy needs to see that its server ends.
SLOW = """

@server.tool
async def slow() -> str:
    import trio

    await trio.sleep(5)
    return "done"
"""


def the(file: str) -> str:
    """The text of a file of the page."""
    return next(text for name, text in FILES.items() if Path(name).name == file)


def ran(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, (
        f"{shlex.join(map(str, command))}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    )
    return done.stdout + done.stderr


def program(name: str, package: str) -> str:
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    assert path is not None, f"{name} is not installed: apt-get install --no-install-recommends {package}"
    return path


# -- what is read only ---------------------------------------------------------------------------------


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    ours = Path(sys.executable).with_name("mcp-actors")
    for name in ("weather.service", "weather.socket"):
        (tmp_path / name).write_text(the(name).replace("/opt/weather/bin/mcp-actors", str(ours)))
    said = ran(
        program("systemd-analyze", "systemd"),
        "verify",
        tmp_path / "weather.service",
        tmp_path / "weather.socket",
    )
    assert "weather" not in said
    broken = tmp_path / "weather.service"
    broken.write_text(broken.read_text().replace("WatchdogSec", "WatchDogSec"))
    with pytest.raises(AssertionError, match="WatchDogSec"):
        assert "WatchDogSec" not in ran(program("systemd-analyze", "systemd"), "verify", broken)


def test_the_options_of_the_files_are_options() -> None:
    shown = set(re.findall(r"--[a-z-]+", ran(sys.executable, "-m", "mcp_actors", "serve", "--help")))
    for name, begins, ends in (
        ("weather.service", "ExecStart=", "ExecReload"),
        ("Dockerfile", 'CMD ["--', "]"),
        ("compose.yaml", "command:", "environment:"),
        ("weather.yaml", "args:", "env:"),
    ):
        used = set(re.findall(r"--[a-z-]+", the(name).partition(begins)[2].partition(ends)[0]))
        assert len(used) > 2
        assert used <= shown, name


@pytest.mark.parametrize("version", ["1.30", ""])
def test_the_objects_of_kubernetes_are_valid(tmp_path: Path, version: str) -> None:
    validate = install_separately("places").with_name("kubernetes-validate")
    file = tmp_path / "weather.yaml"
    file.write_text(the("weather.yaml"))
    of_version = ["-k", version] if version else []
    ran(validate, "--strict", *of_version, file)
    file.write_text(the("weather.yaml").replace("maxUnavailable: 1", "maxUnavailible: 1"))
    with pytest.raises(AssertionError, match="maxUnavailible"):
        ran(validate, "--strict", *of_version, file)


def test_compose_reads_its_file(tmp_path: Path) -> None:
    compose = install_separately("places").with_name("docker-compose")
    for name in ("compose.yaml", "Dockerfile"):
        (tmp_path / name).write_text(the(name))
    (tmp_path / "redis_password").write_text("s3cr3t")
    settings = {"cwd": tmp_path, "MCP_ACTORS_STATE_KEY": "00" * 32}
    read = json.loads(ran(compose, "config", "--format", "json", **settings))
    assert read["services"]["weather"]["deploy"]["replicas"] == 2
    assert read["services"]["weather"]["environment"] == {"MCP_ACTORS_STATE_KEY": "00" * 32}
    (tmp_path / "compose.yaml").write_text(the("compose.yaml").replace("stop_grace_period", "grace_period"))
    # It says what is wrong, and exits with 0.
    assert "grace_period" in ran(compose, "config", "--quiet", **settings)


def test_caddy_reads_its_file(tmp_path: Path) -> None:
    file = tmp_path / "Caddyfile"
    file.write_text(the("Caddyfile"))
    said = ran(
        program("caddy", "caddy"), "validate", "--adapter", "caddyfile", "--config", file, HOME=str(tmp_path)
    )
    assert "Valid configuration" in said


# -- the proxies, with two servers behind them ---------------------------------------------------------


@contextmanager
def serving(folder: Path, *extra: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server of the page, and its port."""
    port = free_port()
    (folder / "weather.py").write_text(programs()["weather.py"] + SLOW)
    words = [
        sys.executable,
        "-m",
        "mcp_actors",
        "serve",
        "weather.py",
        "--listen",
        f"http://127.0.0.1:{port}/mcp",
    ]
    with (folder / f"{port}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *words,
                "--allow-host",
                HOST,
                "--health",
                "/health",
                "--drain-delay",
                "2",
                "--drain",
                "60",
                *extra,
            ],
            cwd=folder,
            env={**os.environ, "MCP_ACTORS_STATE_KEY": "00" * 32},
            stderr=log,
        )
        try:
            until(lambda: is_ready(port), f"the server is not ready: {folder}/{port}.log")
            yield port, process
        finally:
            process.kill()
            process.wait()


@contextmanager
def running(command: list[str], **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **settings)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_ready(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health/ready", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def until(holds: object, what: str) -> None:
    assert callable(holds)
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def nginx(folder: Path, text: str) -> list[list[str]]:
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"pid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{text}}}\n"
    (folder / "nginx.conf").write_text(main)
    command = [program("nginx", "nginx-light"), "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"]
    return [[*command, "-t"], [*command, "-g", "daemon off;"]]


def haproxy(folder: Path, text: str) -> list[list[str]]:
    (folder / "haproxy.cfg").write_text(text)
    command = [program("haproxy", "haproxy")]
    return [[*command, "-c", "-f", f"{folder}/haproxy.cfg"], [*command, "-db", "-f", f"{folder}/haproxy.cfg"]]


async def slow(client: Client) -> None:
    answer = await client.call_tool("slow")
    assert not answer.is_error


PROXIES = {"weather.conf": nginx, "haproxy.cfg": haproxy}


@pytest.mark.parametrize("file", PROXIES)
async def test_calls_go_through_a_proxy_with_its_file_of_the_page(tmp_path: Path, file: str) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST, "127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "fullchain.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    port = free_port()
    with ExitStack() as stack:
        (first, ending), (second, _) = (stack.enter_context(serving(tmp_path)) for _ in range(2))
        text = the(file).replace("/etc/ssl/mcp.example.org", str(tmp_path))
        text, count = re.subn(r"(listen |bind :)443", rf"\g<1>{port}", text)
        assert count == 1
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{first}").replace(
            "127.0.0.1:8001", f"127.0.0.1:{second}"
        )
        check, serve = PROXIES[file](tmp_path, text)
        await trio.to_thread.run_sync(lambda: ran(*check))
        stack.enter_context(running(serve))
        await trio.to_thread.run_sync(until, lambda: accepts(port), f"{serve[0]} does not listen")
        http = httpx2.AsyncClient(verify=context, headers={"host": HOST})
        transport = HttpClientTransport(f"https://127.0.0.1:{port}/mcp", client=http)
        answers = 0
        with trio.fail_after(PATIENCE):
            async with http, Client(transport) as client, trio.open_nursery() as nursery:
                while answers < 60 or ending.poll() is None:
                    if answers == 20:
                        # One goes to each server.
                        nursery.start_soon(slow, client)
                        nursery.start_soon(slow, client)
                        await trio.sleep(1)
                        ending.send_signal(signal.SIGTERM)
                    answer = await client.call_tool("forecast", {"city": "Oslo"})
                    assert not answer.is_error
                    answers += 1
        assert answers >= 60
        assert await trio.to_thread.run_sync(ending.wait) == 0
