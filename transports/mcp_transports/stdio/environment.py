"""The environment of a child: what it needs to run, and what its caller gives it.

The environment of a program holds secrets for that program (tokens, passwords of databases). A server that it starts is
a program of other people, so it gets the variables without which programs do not find their files, their language
or each other, and not the rest. Hosts and the SDKs of other languages do the same, so what works here works there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal

__all__ = ["Environment", "child_environment"]

Environment = Mapping[str, str | None] | Literal["inherit"] | None
"""Variables beside the ones that every child gets, where ``None`` takes one of those away; or all of this process."""

# Names are compared in upper case on Windows, which has no case of its own in them.
_POSIX = frozenset(("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"))
# PATH, PATHEXT and COMSPEC find programs and batch files, and Python finds its libraries by PATH. Without SYSTEMROOT
# nothing can open a socket.
_WINDOWS = frozenset(
    (
        "APPDATA",
        "COMSPEC",
        "HOMEDRIVE",
        "HOMEPATH",
        "LOCALAPPDATA",
        "PATH",
        "PATHEXT",
        "PROCESSOR_ARCHITECTURE",
        "PROGRAMDATA",
        "PROGRAMFILES",
        "SYSTEMDRIVE",
        "SYSTEMROOT",
        "TEMP",
        "TMP",
        "USERNAME",
        "USERPROFILE",
        "WINDIR",
    )
)
_LOCALE = "LC_"
# A function of a shell, which another shell would run (CVE-2014-6271).
_FUNCTION = "()"


def child_environment(env: Environment = None, *, windows: bool = sys.platform == "win32") -> dict[str, str]:
    """Returns the whole environment of a child.

    Args:
        env: What its caller gives it.
        windows: Whether it runs on Windows.
    """
    if env == "inherit":
        return dict(os.environ)
    given = {name: value for name, value in os.environ.items() if _is_given(name, value, windows=windows)}
    for name, value in (env or {}).items():
        for same in [each for each in given if each == name or (windows and each.upper() == name.upper())]:
            del given[same]
        if value is not None:
            given[name] = value
    return given


def _is_given(name: str, value: str, *, windows: bool) -> bool:
    if windows:
        return name.upper() in _WINDOWS
    return (name in _POSIX or name.startswith(_LOCALE)) and not value.startswith(_FUNCTION)
