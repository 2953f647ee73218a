"""Which processes run, as Windows says it, and how the programs of these checks are started."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import trio

from mcp_actors import Client
from mcp_transports.stdio import StdioClientTransport

__all__ = ["PATIENCE", "PROGRAMS", "all_end", "connected", "is_running", "python", "served"]

PROGRAMS = Path(__file__).parent.parent / "programs"
# Seconds for what takes one on a quiet machine.
PATIENCE = 150
_SYNCHRONIZE, _STILL_WAITING = 0x10_0000, 258

kernel32: Any = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
kernel32.OpenProcess.restype = ctypes.c_void_p
kernel32.OpenProcess.argtypes = ctypes.c_uint32, ctypes.c_int, ctypes.c_uint32
kernel32.WaitForSingleObject.argtypes = ctypes.c_void_p, ctypes.c_uint32
kernel32.CloseHandle.argtypes = (ctypes.c_void_p,)


def ends_within(pid: int, seconds: float) -> bool:
    """Waits for the end of a process, and returns whether it has come."""
    handle = kernel32.OpenProcess(_SYNCHRONIZE, False, pid)
    if not handle:
        return True
    try:
        return bool(kernel32.WaitForSingleObject(handle, int(1000 * seconds)) != _STILL_WAITING)
    finally:
        kernel32.CloseHandle(handle)


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    return not ends_within(pid, 0)


async def all_end(pids: list[int]) -> bool:
    """Waits for the end of all processes."""
    return await trio.to_thread.run_sync(lambda: all(ends_within(pid, PATIENCE) for pid in pids))


def python(code: str, **options: Any) -> StdioClientTransport:
    """Returns a transport that starts a program given as text."""
    return StdioClientTransport([sys.executable, "-c", code], **options)


def served(*words: str, **options: Any) -> StdioClientTransport:
    """Returns a transport that starts the server of these checks."""
    return StdioClientTransport([sys.executable, str(PROGRAMS / "served.py"), *words], **options)


def connected(target: Any, **options: Any) -> Client:
    """Returns a client that waits as long as a test does: to start Python takes long there on a busy machine."""
    return Client(target, timeout=PATIENCE, probe_timeout=PATIENCE, **options)
