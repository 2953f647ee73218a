"""A run does not depend on what it inherits from the shell that starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def test_no_signal_is_ignored_and_no_proxy_is_asked() -> None:
    assert [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN] == []
    assert [name for name in PROXIES if name in os.environ] == []


def test_a_run_in_bad_surroundings_is_like_any_other() -> None:
    """The test above, in the background of a shell with no input, no terminal and no home, behind a proxy."""
    inner = f"{__file__}::{test_no_signal_is_ignored_and_no_proxy_is_asked.__name__}"
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", inner]
    done = subprocess.run(
        ["sh", "-c", "trap '' HUP INT TERM CHLD; exec \"$@\" <&-", "sh", *command],
        env={
            "PATH": os.environ["PATH"],
            "LC_ALL": "POSIX",
            "TZ": "Asia/Kathmandu",
            **dict.fromkeys(PROXIES, "socks5://127.0.0.1:9"),
        },
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
