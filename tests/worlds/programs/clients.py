"""A program with a client of `witness.py`, which ends in a call: ``clients.py asyncio|sync|threads ENDING FILE``.

It says what it has seen as lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from mcp_actors import McpError, Progress, sync
from mcp_actors import asyncio as on_asyncio
from mcp_actors.types import ElicitResult

KIND, ENDING, RECORD = sys.argv[1:]
TARGET = [sys.executable, str(Path(__file__).with_name("witness.py")), RECORD]
THREADS = 4


class Enough(Exception):
    """A callback raises it to give up its call."""


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def answer(params: object) -> ElicitResult:
    return ElicitResult("accept", {"name": "Ada"})


def end(report: Progress) -> None:
    """Ends the program, or waits for what ends it; called when the last call runs at the server."""
    if ENDING == "Ctrl-C":
        say(waits=True)
    elif ENDING == "kill -9":
        os.kill(os.getpid(), signal.SIGKILL)
    elif ENDING == "os._exit":
        os._exit(3)
    elif ENDING == "sys.exit":
        sys.exit(3)
    else:
        asyncio.get_running_loop().stop()


async def use(client: on_asyncio.Client) -> None:
    told: list[float] = []
    await client.call_tool("steps", on_progress=lambda report: told.append(report.progress))
    say(progress=told)
    say(elicitation=(await client.call_tool("ask")).text)
    began = asyncio.Event()
    call = asyncio.create_task(client.call_tool("slow", on_progress=lambda report: began.set()))
    await began.wait()
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    say(cancellation=call.cancelled())


async def main() -> None:
    async with on_asyncio.Client(TARGET, era="legacy", elicitation=answer) as client:
        if ENDING == "Ctrl-C":
            await use(client)
        await client.call_tool("slow", on_progress=end)


def threads_left() -> list[str]:
    """The threads beside this one that would keep the program from its end."""
    return [each.name for each in threading.enumerate()[1:] if not each.daemon]


def close_the_loop() -> None:
    """Runs ``main`` in a loop that is stopped and closed in the call, without a word to anybody."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    loop.run_forever()
    loop.close()
    limit = time.monotonic() + 60
    while '"end"' not in Path(RECORD).read_text() and time.monotonic() < limit:
        time.sleep(0.02)
    say(ended='"end"' in Path(RECORD).read_text(), threads=threads_left())
    task._log_destroy_pending = False  # type: ignore[attr-defined] # it is this program that has dropped it


def give_up(report: Progress) -> None:
    raise Enough


def use_in_thread(client: sync.Client) -> tuple[list[float], str, bool]:
    told: list[float] = []
    client.call_tool("steps", on_progress=lambda report: told.append(report.progress))
    said = client.call_tool("ask").text
    try:
        client.call_tool("slow", on_progress=give_up)
    except Enough:
        return told, said, True
    return told, said, False


def wait_in_thread(client: sync.Client, began: threading.Barrier) -> None:
    with suppress(McpError):
        client.call_tool("slow", on_progress=lambda report: began.wait() and None)


def main_in_threads(number: int) -> None:
    with sync.Client(TARGET, era="legacy", elicitation=answer) as client:
        if ENDING == "Ctrl-C":
            with ThreadPoolExecutor(number) as threads:
                progress, elicitation, cancellation = zip(
                    *threads.map(use_in_thread, [client] * number), strict=True
                )
            say(progress=progress[0], elicitation=elicitation[0], cancellation=all(cancellation))
            say(same=progress == progress[:1] * number and elicitation == elicitation[:1] * number)
        began = threading.Barrier(number)
        for _ in range(number - 1):
            threading.Thread(target=wait_in_thread, args=(client, began)).start()
        began.wait()
        client.call_tool("slow", on_progress=end)


if KIND == "asyncio" and ENDING == "loop closed":
    close_the_loop()
elif KIND == "asyncio":
    asyncio.run(main())
else:
    main_in_threads(THREADS if KIND == "threads" else 1)
