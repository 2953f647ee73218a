"""Runs a program whose clients speak one era where they choose none: ``python program_in_era.py ERA FILE``.

The methods of all requests and notifications that this process has sent, on either side, are written to the file that
the environment variable ``METHODS`` names, one a line.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import mcp_actors
from mcp_actors import client, server
from mcp_actors._wire import codec

WRITERS = ("encode_request", "encode_notification")
LOADED = (client, server)


def choose_era(era: str) -> None:
    """Makes ``era`` the default of every `Client` in this process."""
    made = mcp_actors.Client.__init__

    @wraps(made)
    def init(self: Any, target: Any, **options: Any) -> None:
        made(self, target, **{"era": era, **options})

    mcp_actors.Client.__init__ = init  # type: ignore[method-assign]


def note_methods(methods: set[str]) -> None:
    """Adds the method of each message that is written from now on."""
    for name in WRITERS:
        original = getattr(codec, name)
        for module in list(sys.modules.values()):
            if getattr(module, name, None) is original:
                setattr(module, name, noting(original, methods))


def noting(original: Callable[..., bytes], methods: set[str]) -> Callable[..., bytes]:
    place = 1 if original.__name__ == "encode_request" else 0

    @wraps(original)
    def write(*args: Any, **more: Any) -> bytes:
        methods.add(args[place])
        return original(*args, **more)

    return write


if __name__ == "__main__":
    era, program = sys.argv[1:]
    sent: set[str] = set()
    choose_era(era)
    note_methods(sent)
    sys.path[0] = str(Path(program).parent)
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        Path(os.environ["METHODS"]).write_text("\n".join(sorted(sent)))
