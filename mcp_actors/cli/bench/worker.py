"""The process of a load: it reads its plan on stdin, and writes lines of JSON, the last of which is the result.

It is a process of its own so that nothing else, not even the display, takes time from sending and receiving.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

import trio

from mcp_actors.abc import ClientTransport
from mcp_actors.bench.errors import LoadError
from mcp_actors.bench.load import RunningLoad, run_load
from mcp_actors.bench.plan import LoadPlan
from mcp_actors.discovery import client_transport
from mcp_actors.errors import McpError
from mcp_actors.platform.signals import STOP_SIGNALS

__all__ = ["main"]

if sys.platform != "win32":
    import resource


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _transport(plan: LoadPlan) -> ClientTransport | None:
    """Returns the transport's client where it needs what a URL cannot say."""
    if not plan.through_client:
        return None
    options: dict[str, Any] = {"headers": plan.headers} if plan.headers else {}
    if plan.url.partition(":")[0].lower() == "stdio":
        options = {"stderr": None}
    elif plan.login:
        auth = trio.run(importlib.import_module("mcp_actors.cli.stored_login").stored_auth, plan.url)
        options["auth"] = auth
    return client_transport(plan.url, **options)


def main() -> int:
    """Does the load. The exit code is 1 if there is no result; the last line then says why."""
    if sys.platform != "win32":
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    load = RunningLoad(LoadPlan.from_json(sys.stdin.readline()), _write)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: load.stop())
    try:
        _write({"result": run_load(load, _transport(load.plan))})
    except BrokenPipeError:
        # Nobody waits for the figures any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (LoadError, McpError) as error:
        _write({"failure": str(error) or type(error).__name__})
        return 1
    except BaseExceptionGroup as group:
        found = group.subgroup((LoadError, McpError))
        if found is None:
            raise
        leaf: BaseException = found
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        _write({"failure": str(leaf) or type(leaf).__name__})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
