"""A kernel32 and an msvcrt that behave as those of Windows, over the processes and files of Linux.

A job is the process group of the child that was put into it; Ctrl-Break is SIGTERM to such a group.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import trio

__all__ = ["FakeConsole", "FakeLibrary", "fake_msvcrt", "open_process_as_windows"]

KILL_ON_JOB_CLOSE = 0x2000
CREATE_SUSPENDED = 0x4


class _Function:
    """A function of a library, which `ctypes` lets have types."""

    def __init__(self, call: Callable[..., int | None]) -> None:
        self._call = call
        self.restype: Any = None
        self.argtypes: Any = None

    def __call__(self, *arguments: Any) -> int | None:
        assert len(arguments) == len(self.argtypes), "Windows would take what is on the stack"
        return self._call(*arguments)


class FakeLibrary:
    """kernel32.dll and ntdll.dll in one.

    Args:
        console: Whether this process has a console.
        failing: Functions that fail, as they do without a right or on an older system.
    """

    def __init__(self, *, console: bool = True, failing: frozenset[str] = frozenset()) -> None:
        self.console = console
        self.failing = failing
        self.calls: list[str] = []
        self.open: dict[int, tuple[str, int, int]] = {}
        """Handles that are open: of what kind, of which process or thread, with which rights."""
        self.jobs: dict[int, set[int]] = {}
        self.suspended: set[int] = set()
        self._numbers = itertools.count(0x1_0000_0004, 4)  # longer than 32 bits, as a handle may be

    def __getattr__(self, name: str) -> _Function:
        function = _Function(partial(self._called, name, getattr(type(self), f"_{name}")))
        vars(self)[name] = function
        return function

    def _called(self, name: str, call: Callable[..., int | None], *arguments: Any) -> int | None:
        self.calls.append(name)
        if name in self.failing:
            return -1 if name == "NtResumeProcess" else 0
        return call(self, *arguments)

    def _handle(self, kind: str, of: int = 0, rights: int = 0) -> int:
        number = next(self._numbers)
        self.open[number] = (kind, of, rights)
        return number

    def _GetConsoleCP(self) -> int:
        return 65001 if self.console else 0

    def _CreateJobObjectW(self, attributes: None, name: None) -> int:
        job = self._handle("job")
        self.jobs[job] = set()
        return job

    def _SetInformationJobObject(self, job: int, kind: int, reference: Any, size: int) -> int:
        assert (kind, size, reference._obj.flags) == (9, 144, KILL_ON_JOB_CLOSE)
        return int(job in self.jobs)

    def _QueryInformationJobObject(self, job: int, kind: int, reference: Any, size: int, length: None) -> int:
        assert (kind, size) == (1, 48)
        reference._obj.active_processes = sum(len(_members(pid)) for pid in self.jobs[job])
        return 1

    def _OpenProcess(self, rights: int, inherit: bool, pid: int) -> int:
        return self._handle("process", pid, rights) if Path(f"/proc/{pid}").exists() else 0

    def _AssignProcessToJobObject(self, job: int, process: int) -> int:
        _, pid, rights = self.open[process]
        if rights & 0x101 != 0x101:
            return 0
        self.jobs[job].add(pid)
        return 1

    def _NtResumeProcess(self, process: int) -> int:
        _, pid, rights = self.open[process]
        if not rights & 0x800:
            return -1
        self.suspended.discard(pid)
        return 0

    def _TerminateJobObject(self, job: int, code: int) -> int:
        for pid in self.jobs[job]:
            _kill(pid, signal.SIGKILL)
        return 1

    def _GenerateConsoleCtrlEvent(self, event: int, group: int) -> int:
        assert event == 1
        return int(self.console and _kill(group, signal.SIGTERM))

    def _OpenThread(self, rights: int, inherit: bool, thread: int) -> int:
        return self._handle("thread", thread, rights)

    def _CancelSynchronousIo(self, thread: int) -> int:
        return 0  # nothing can do that on Linux: as if the thread were in another call

    def _CloseHandle(self, handle: int) -> int:
        kind, _, _ = self.open.pop(handle)
        if kind == "job":
            for pid in self.jobs.pop(handle):
                _kill(pid, signal.SIGKILL)
        return 1


def _kill(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _members(group: int) -> list[int]:
    found = []
    for each in os.listdir("/proc"):
        if each.isdigit():
            try:
                state, _, its_group = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()[:3]
            except OSError:
                continue
            if int(its_group) == group and state not in "ZX":
                found.append(int(each))
    return found


def open_process_as_windows(libraries: list[FakeLibrary]) -> None:
    """Has Trio start processes with the flags and arguments of Windows, each in a group of its own.

    Args:
        libraries: The last of them is told who was started suspended.
    """
    real: Any = trio.lowlevel.open_process

    async def open_process(command: str | list[str], *, creationflags: int, **options: Any) -> trio.Process:
        process: trio.Process = await real(
            command, shell=isinstance(command, str), start_new_session=True, **options
        )
        library = libraries[-1]
        if creationflags & CREATE_SUSPENDED:
            library.suspended.add(process.pid)
        library.calls.append(f"open_process {creationflags:#x}")
        return process

    trio.lowlevel.open_process = open_process  # type: ignore[attr-defined]


def fake_msvcrt(console: FakeConsole | None = None) -> ModuleType:
    """Returns a module of locks of single bytes, which other descriptors respect, and of keys.

    Args:
        console: Where keys are read.
    """
    module: Any = ModuleType("msvcrt")
    module.LK_UNLCK, module.LK_NBLCK = 0, 2
    locked: dict[tuple[int, int], int] = {}

    def locking(descriptor: int, mode: int, length: int) -> None:
        assert (length, os.lseek(descriptor, 0, os.SEEK_CUR)) == (1, 0)
        found = os.fstat(descriptor)
        owner = locked.get((found.st_dev, found.st_ino))
        if mode == module.LK_NBLCK and owner is None:
            locked[found.st_dev, found.st_ino] = descriptor
        elif mode == module.LK_UNLCK and owner == descriptor:
            del locked[found.st_dev, found.st_ino]
        else:
            raise PermissionError(errno.EACCES, "Permission denied")

    module.locking = locking
    module.setmode = lambda descriptor, flags: 0x4000
    if console is not None:
        module.kbhit, module.getwch = console.kbhit, console.getwch
    return module


class FakeConsole:
    """Keys that were typed, each of which is there only when the console was looked at before.

    Args:
        keys: The characters, a special key as two of them.
    """

    def __init__(self, keys: str) -> None:
        self._keys = list(keys)

    def kbhit(self) -> bool:
        """Whether a key is there."""
        return bool(self._keys)

    def getwch(self) -> str:
        """Returns the next key; it would block on Windows if there were none."""
        return self._keys.pop(0)
