"""nginx and HAProxy as Debian configures them, each in front of one server.

The files that Debian installs are read and taken as they are, but for what needs root or a place of the system:
users, pid and log files, sockets. No timeout and no buffer is touched, and the route is the shortest that each manual
shows.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.servers import free_port

__all__ = ["PROXIES", "ProgramMissing", "proxied"]

START_LIMIT = 60.0  # seconds until a proxy accepts connections; it takes a fraction of one
STOP_LIMIT = 10.0  # seconds between SIGTERM and SIGKILL


class ProgramMissing(Exception):
    """A proxy or its configuration is not installed; the text says which package has it."""


def _installed(program: str, configuration: str, package: str) -> tuple[str, str]:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if path is None or not Path(configuration).exists():
        raise ProgramMissing(
            f"{program} with Debian's {configuration} is needed: apt-get install --no-install-recommends {package}"
        )
    return path, Path(configuration).read_text()


def _nginx(folder: Path, port: int, upstream: str) -> list[list[str]]:
    program, text = _installed("nginx", "/etc/nginx/nginx.conf", "nginx-light")
    text = re.sub(r"^user .*$", "", text, flags=re.M)
    text = re.sub(r"^(pid|error_log) [^;]*;", rf"\1 {folder}/\1;", text, flags=re.M)
    text = re.sub(r"access_log [^;]*;", f"access_log {folder}/access.log;", text)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    server = f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{upstream}; }} }}\n"
    text, replaced = re.subn(r"^\s*include /etc/nginx/sites-enabled/\*;$", paths + server, text, flags=re.M)
    assert replaced == 1, f"Debian's nginx.conf is not as it was:\n{text}"
    config = folder / "nginx.conf"
    config.write_text(text)
    command = [program, "-c", str(config), "-e", f"{folder}/error_log"]
    return [[*command, "-t"], [*command, "-g", "daemon off;"]]


def _haproxy(folder: Path, port: int, upstream: str) -> list[list[str]]:
    program, text = _installed("haproxy", "/etc/haproxy/haproxy.cfg", "haproxy")
    text = re.sub(r"^\s*(chroot|stats|user|group|daemon|log /dev/log)\b.*$", "", text, flags=re.M)
    assert text.count("timeout server") == 1, f"Debian's haproxy.cfg is not as it was:\n{text}"
    text += f"\nfrontend in\n\tbind 127.0.0.1:{port}\n\tdefault_backend out\n"
    text += f"\nbackend out\n\tserver one {upstream}\n"
    config = folder / "haproxy.cfg"
    config.write_text(text)
    return [[program, "-c", "-f", str(config)], [program, "-db", "-f", str(config)]]


PROXIES: dict[str, Callable[[Path, int, str], list[list[str]]]] = {"nginx": _nginx, "haproxy": _haproxy}
"""Each writes its configuration, and returns the command that checks it and the command that serves."""


@contextmanager
def proxied(name: str, folder: Path, upstream: str) -> Iterator[str]:
    """Runs a proxy in front of ``upstream``, HOST:PORT, and yields its own HOST:PORT.

    Raises:
        ProgramMissing: It is not installed.
    """
    folder.mkdir()
    port = free_port()
    check, serve = PROXIES[name](folder, port, upstream)
    checked = subprocess.run(check, capture_output=True, text=True, timeout=START_LIMIT, check=False)
    assert checked.returncode == 0, f"{name} refuses its configuration:\n{checked.stdout}{checked.stderr}"
    log = folder / "output"
    with log.open("w") as output:
        process = subprocess.Popen(serve, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            _until_it_listens(name, process, port, log)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until_it_listens(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_LIMIT
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{name} does not serve:\n{log.read_text()}")
