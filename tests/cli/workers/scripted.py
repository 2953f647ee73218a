"""A worker that does what its script says: ``python scripted.py FOLDER``. It imports little, to be quick.

FOLDER has a file ``script`` with a word for each worker that is started, in the order of their starts; the last word
holds for all later ones. What happens is written to the file ``log``, a line each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    folder = Path(sys.argv[1])
    assignment = json.loads(os.environ["MCP_ACTORS_WORKER"])
    with open(folder / "starts", "ab") as starts:
        starts.write(b".")
    words = (folder / "script").read_text().split()
    number = (folder / "starts").stat().st_size
    word = words[min(number, len(words)) - 1]

    def note(text: str) -> None:
        with open(folder / "log", "a") as log:
            log.write(f"{assignment['number']} {text}\n")

    def end(number: int, _: object) -> None:
        note(signal.Signals(number).name)
        if word != "deaf":
            os._exit(0)

    signal.signal(signal.SIGTERM, end)
    note(word)
    said: dict[str, Any] = {"type": "Ready", "places": ["somewhere"], "offer": "an offer", "drain": 0.0}
    if word == "dies":
        os._exit(7)
    if word == "refuses":
        said = {"type": "Failed", "reason": "it does not want to", "exit_code": 2}
    if word == "babbles":
        os.write(assignment["control"], b"[]\n")
    elif word != "hangs":
        os.write(assignment["control"], json.dumps(said).encode() + b"\n")
    if word in ("refuses", "brief"):
        time.sleep(0.05 if word == "brief" else 0)
        os._exit(said.get("exit_code", 3))
    while os.read(assignment["control"], 1):
        note("retires")
        os._exit(0)


main()
