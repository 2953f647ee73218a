"""The signals by which a person or a program tells a process to end."""

from __future__ import annotations

import signal
import sys

__all__ = ["STOP_SIGNALS"]

if sys.platform == "win32":
    # SIGBREAK is Ctrl-Break, the closing of the console's window, and the end of the session. A parent process can send
    # it to a child in a process group of its own. SIGTERM comes from this process alone.
    STOP_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)
else:
    STOP_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
