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
PATIENCE = 90
_SYNCHRONIZE, _STILL_WAITING = 0x10_0000, 258

kernel32: Any = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
kernel32.OpenProcess.restype = ctypes.c_void_p
kernel32.OpenProcess.argtypes = ctypes.c_uint32, ctypes.c_int, ctypes.c_uint32
kernel32.WaitForSingleObject.argtypes = ctypes.c_void_p, ctypes.c_uint32
kernel32.CloseHandle.argtypes = (ctypes.c_void_p,)


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    handle = kernel32.OpenProcess(_SYNCHRONIZE, False, pid)
    if not handle:
        return False
    try:
        return bool(kernel32.WaitForSingleObject(handle, 0) == _STILL_WAITING)
    finally:
        kernel32.CloseHandle(handle)


async def all_end(pids: list[int]) -> bool:
    """Waits until all processes have ended."""
    with trio.move_on_after(PATIENCE):
        while any(map(is_running, pids)):
            await trio.sleep(0.05)
    return not any(map(is_running, pids))


def python(code: str, **options: Any) -> StdioClientTransport:
    """Returns a transport that starts a program given as text."""
    return StdioClientTransport([sys.executable, "-c", code], **options)


def served(*words: str, **options: Any) -> StdioClientTransport:
    """Returns a transport that starts the server of these checks."""
    return StdioClientTransport([sys.executable, str(PROGRAMS / "served.py"), *words], **options)


def connected(target: Any, **options: Any) -> Client:
    """Returns a client that waits as long as a test does: to start Python takes long there on a busy machine."""
    return Client(target, timeout=PATIENCE, probe_timeout=PATIENCE, **options)
