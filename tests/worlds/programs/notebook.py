"""Runs a notebook in a kernel, cell after cell, and prints what each of them showed as JSON: ``notebook.py``.

``notebook.py FOLDER`` runs two, each of which ends in a call, and has `witness.py` write into the folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

# A child is not handed PYTHONPATH, by which this program finds the package.
PYTHON = ["env", f"PYTHONPATH={os.environ['PYTHONPATH']}", sys.executable]
TOOLS = "stdio:" + shlex.join([*PYTHON, str(Path(__file__).with_name("tools.py"))])
OPENS = f"""
from mcp_actors.asyncio import Client
from mcp_actors.types import ElicitResult

async def answer(params):
    return ElicitResult("accept", {{"name": "Ada"}})

client = await Client({TOOLS!r}, elicitation=answer).open()
client.server_info.name
"""
STATE = "print((await client.call_tool('state')).content[0].text)"
CELLS = {
    "opens": OPENS,
    "calls": "print((await client.call_tool('add', {'a': 1, 'b': 2})).content[0].text)",
    "progress": "await client.call_tool('steps', on_progress=lambda report: print(int(report.progress)));",
    "elicitation": "print((await client.call_tool('ask')).content[0].text)",
    "interrupted": "await client.call_tool('slow', on_progress=lambda report: print('begins'))",
    "state": STATE,
    "sys.exit": "import asyncio, sys\nbegan = asyncio.Event()\n"
    "call = asyncio.create_task(client.call_tool('slow', on_progress=lambda report: began.set()))\n"
    "await began.wait()\nsys.exit(3)",
    "cancellation": "call.cancel()\nawait asyncio.wait([call])\nprint(call.cancelled())",
    "state after that": STATE,
    "without await": f"from mcp_actors import sync\nwith sync.Client({TOOLS!r}) as other:\n"
    "    print(other.call_tool('add', {'a': 3, 'b': 4}).content[0].text)",
    "interrupted without await": f"with sync.Client({TOOLS!r}) as other:\n"
    "    other.call_tool('slow', on_progress=lambda report: print('begins'))",
    "left in flight": "import asyncio, os\nlost = asyncio.create_task(client.call_tool('slow'))\n"
    "await asyncio.sleep(0)\nprint(os.getpid())",
}

FATAL = {"os._exit": "os._exit(3)", "kill -9": "os.kill(os.getpid(), 9)"}
CLOSES = """
import os
from mcp_actors.asyncio import Client
client = await Client({target!r}, era="legacy").open()
await client.call_tool("slow", on_progress=lambda report: {ending})
"""


def notebook_of(*cells: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])


async def end(ending: str, folder: Path) -> str:
    """Runs a cell that ends its kernel in a call; returns the name of what that raises here."""
    witness = [*PYTHON, str(Path(__file__).with_name("witness.py")), str(folder / ending)]
    notebook = notebook_of(CLOSES.format(target=witness, ending=FATAL[ending]))
    runs = NotebookClient(notebook, timeout=60, kernel_name="python3")
    async with runs.async_setup_kernel():
        try:
            await runs.async_execute_cell(notebook.cells[0], 0)
        except DeadKernelError as error:
            return type(error).__name__
    return "nothing"


async def main_of_fatal(folder: Path) -> None:
    raised = await asyncio.gather(*(end(each, folder) for each in FATAL))
    print(json.dumps(dict(zip(FATAL, raised, strict=True))))


async def main() -> None:
    notebook = notebook_of(*CELLS.values())
    runs = NotebookClient(notebook, timeout=60, kernel_name="python3")
    shown: dict[str, Any] = {}
    async with runs.async_setup_kernel():
        for number, (name, cell) in enumerate(zip(CELLS, notebook.cells, strict=True)):
            execution = asyncio.ensure_future(runs.async_execute_cell(cell, number))
            if name.startswith("interrupted"):
                # Its call runs at the server, and it waits for the answer.
                while not cell.outputs:  # noqa: ASYNC110 - in another process
                    await asyncio.sleep(0.02)
                await runs.km.interrupt_kernel()
                # A signal does not wake the loop of a kernel, only what comes from a frontend does.
                runs.kc.kernel_info()
            try:
                await execution
            except CellExecutionError as error:
                shown[f"{name}: raised"] = error.ename
            shown[name] = "".join(
                each.get("text") or each.get("data", {}).get("text/plain", "") for each in cell.outputs
            )
    print(json.dumps(shown))


asyncio.run(main_of_fatal(Path(sys.argv[1])) if sys.argv[1:] else main())
