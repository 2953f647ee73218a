"""A PostgreSQL server of a test's own, in a temporary folder."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

__all__ = ["PostgresServer"]

_PATIENCE = 60.0


def _programs() -> Path | None:
    """Debian keeps those of each version in a folder that is not on the path."""
    found = shutil.which("pg_ctl")
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda each: float(each.parts[4]))
    return versions[-1].parent if versions else Path(found).parent if found else None


class PostgresServer:
    """A process ``postgres`` that listens on a Unix socket, and trusts whoever reaches it.

    It refuses to run as root, so for root it runs as the user ``nobody``, to whom its folder belongs.
    """

    def __init__(self) -> None:
        programs = _programs()
        assert programs is not None, "PostgreSQL is not installed: apt-get install postgresql"
        self._programs = programs
        # Imported where there is a server: Windows has no such module, and imports this file too.
        self._user = importlib.import_module("pwd").getpwnam("nobody").pw_uid if os.getuid() == 0 else None
        self._folder = tempfile.mkdtemp(prefix="postgres-")
        self.url = f"postgresql://tester@/postgres?host={self._folder}"

    def __enter__(self) -> PostgresServer:
        if self._user is not None:
            os.chown(self._folder, self._user, -1)
        data = f"{self._folder}/data"
        # It keeps nothing for longer than a test, so it need not wait for the disk.
        settings = f"-k {self._folder} -c listen_addresses= -c fsync=off -c shared_buffers=16MB"
        self._do("initdb", "--pgdata", data, "--username", "tester", "--auth", "trust", "--no-sync")
        self._do("pg_ctl", "start", "-D", data, "-w", "-o", settings, "-l", f"{self._folder}/log")
        self._pid = int(Path(data, "postmaster.pid").read_text().splitlines()[0])
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.kill(self._pid, signal.SIGINT)  # it cuts its connections off, and ends in order
        self._do("pg_ctl", "stop", "-D", f"{self._folder}/data", "-m", "immediate", check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _do(self, program: str, *arguments: str, check: bool = True) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            # What it leaves running would hold a pipe open.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd=self._folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            timeout=_PATIENCE,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{program} failed with exit code {done.returncode}"
