"""The functions of Windows that processes and pipes need, through `ctypes`.

Structures have fields of fixed sizes, so that they are the same wherever they are tested. Functions return what says
whether they worked; the reason is the system's own and of no use to a caller.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

__all__ = ["Kernel32", "kernel32"]

CREATE_SUSPENDED = 0x4
CREATE_NEW_PROCESS_GROUP = 0x200
CREATE_NO_WINDOW = 0x0800_0000
# Informations of a job: numbers of JOBOBJECTINFOCLASS.
_BASIC_ACCOUNTING, _EXTENDED_LIMITS = 1, 9
_KILL_ON_JOB_CLOSE = 0x2000
_CTRL_BREAK_EVENT = 1
_THREAD_TERMINATE = 0x1
# To be put into a job a process has to be opened with the first two; the third is to resume it.
_PROCESS_TERMINATE, _PROCESS_SET_QUOTA, _PROCESS_SUSPEND_RESUME = 0x1, 0x100, 0x800
_KILLED = 1  # the exit code of processes that are ended, as that of `subprocess.Popen.kill`
_HANDLE, _BOOL, _DWORD, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_wchar_p

# Result and arguments. Without them a handle would be cut to 32 bits.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "CreateJobObjectW": (_HANDLE, _HANDLE, _TEXT),
    "SetInformationJobObject": (_BOOL, _HANDLE, _BOOL, _HANDLE, _DWORD),
    "QueryInformationJobObject": (_BOOL, _HANDLE, _BOOL, _HANDLE, _DWORD, _HANDLE),
    "AssignProcessToJobObject": (_BOOL, _HANDLE, _HANDLE),
    "TerminateJobObject": (_BOOL, _HANDLE, _DWORD),
    "OpenProcess": (_HANDLE, _DWORD, _BOOL, _DWORD),
    "OpenThread": (_HANDLE, _DWORD, _BOOL, _DWORD),
    "CancelSynchronousIo": (_BOOL, _HANDLE),
    "CloseHandle": (_BOOL, _HANDLE),
    "GenerateConsoleCtrlEvent": (_BOOL, _DWORD, _DWORD),
    "GetConsoleCP": (_DWORD,),
}


class BasicAccounting(ctypes.Structure):
    """JOBOBJECT_BASIC_ACCOUNTING_INFORMATION."""

    _fields_ = [
        ("times", ctypes.c_int64 * 4),
        ("page_faults", ctypes.c_uint32),
        ("processes", ctypes.c_uint32),
        ("active_processes", ctypes.c_uint32),
        ("terminated_processes", ctypes.c_uint32),
    ]


class ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = [
        ("time_limits", ctypes.c_int64 * 2),
        ("flags", ctypes.c_uint32),
        ("working_set", ctypes.c_size_t * 2),
        ("active_process_limit", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority_and_scheduling", ctypes.c_uint32 * 2),
        ("io_counters", ctypes.c_uint64 * 6),
        ("memory", ctypes.c_size_t * 4),
    ]


class Kernel32:
    """The system's functions, with the arguments that this package needs.

    Args:
        library: kernel32.dll.
        native: ntdll.dll, for the one function that wakes a whole process.
    """

    def __init__(self, library: Any, native: Any) -> None:
        self._call = library
        self._native = native
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        native.NtResumeProcess.restype, native.NtResumeProcess.argtypes = ctypes.c_int32, (_HANDLE,)

    def has_console(self) -> bool:
        """Whether this process has a console, which its children share."""
        return bool(self._call.GetConsoleCP())

    def create_job(self) -> int | None:
        """Returns the handle of a new job, whose processes end when it is closed; ``None`` if that failed."""
        job = self._call.CreateJobObjectW(None, None)
        if not job:
            return None
        limits = ExtendedLimits(flags=_KILL_ON_JOB_CLOSE)
        if not self._call.SetInformationJobObject(
            job, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
        ):
            self.close(job)
            return None
        return int(job)

    def put_into_job(self, job: int, pid: int) -> bool:
        """Puts a process, and those that it will start, into a job."""
        process = self._call.OpenProcess(_PROCESS_TERMINATE | _PROCESS_SET_QUOTA, False, pid)
        if not process:
            return False
        try:
            return bool(self._call.AssignProcessToJobObject(job, process))
        finally:
            self.close(process)

    def resume(self, pid: int) -> bool:
        """Lets a process run that was created suspended."""
        process = self._call.OpenProcess(_PROCESS_SUSPEND_RESUME, False, pid)
        if not process:
            return False
        try:
            # `subprocess` closes the handle of the first thread, which ResumeThread would need.
            return bool(self._native.NtResumeProcess(process) >= 0)
        finally:
            self.close(process)

    def active_processes(self, job: int) -> int | None:
        """Returns the number of processes of a job that have not ended; ``None`` if it is not known."""
        found = BasicAccounting()
        if not self._call.QueryInformationJobObject(
            job, _BASIC_ACCOUNTING, ctypes.byref(found), ctypes.sizeof(found), None
        ):
            return None
        return int(found.active_processes)

    def end_job(self, job: int) -> bool:
        """Ends all processes of a job."""
        return bool(self._call.TerminateJobObject(job, _KILLED))

    def send_break(self, group: int) -> bool:
        """Sends Ctrl-Break to a process group of this console."""
        return bool(self._call.GenerateConsoleCtrlEvent(_CTRL_BREAK_EVENT, group))

    def interrupt(self, thread: int) -> bool:
        """Ends the call on a file in which a thread waits; false if it is in none."""
        handle = self._call.OpenThread(_THREAD_TERMINATE, False, thread)
        if not handle:
            return False
        try:
            return bool(self._call.CancelSynchronousIo(handle))
        finally:
            self.close(handle)

    def close(self, handle: int) -> None:
        """Closes a handle."""
        self._call.CloseHandle(handle)


@functools.cache
def kernel32() -> Kernel32:
    """Returns the functions of this system."""
    load = importlib.import_module("ctypes").WinDLL
    return Kernel32(load("kernel32"), load("ntdll"))
