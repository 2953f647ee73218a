"""The table of worlds: kinds of programs, and what is promised in each of them.

``python -m tests.worlds.cells`` writes it into ``docs/how-to/embedding.md`` again. Each cell that is no dash is a test:
``test_every_world.py``.
"""

from __future__ import annotations

from tests.pages import ROOT, with_table

__all__ = ["CELLS", "COLUMNS", "PAGE", "ROWS", "table"]

PAGE = ROOT / "docs" / "how-to" / "embedding.md"

ROWS = {
    "asyncio-client": "asyncio client",
    "sync-client": "synchronous client",
    "threads": "four threads with one client",
    "notebook": "notebook",
    "asyncio-tools": "server with asyncio tools",
    "uvicorn": "FastAPI mount, uvicorn",
    "hypercorn": "FastAPI mount, hypercorn",
    "granian": "FastAPI mount, granian",
    "hypercorn-trio": "FastAPI mount, hypercorn on Trio",
}
COLUMNS = (
    "cancellation",
    "progress",
    "elicitation",
    "Ctrl-C",
    "sys.exit",
    "os._exit",
    "kill -9",
    "loop closed",
)
DASHES = {
    ("sync-client", "loop closed"): "There is no loop.",
    ("threads", "loop closed"): "There is no loop.",
    ("notebook", "loop closed"): "A cell runs in the kernel's loop, and a loop that runs cannot be closed.",
    (
        "granian",
        "loop closed",
    ): "The loop belongs to granian's own code, which ends the worker's process with it.",
}
CELLS = [(row, column) for row in ROWS for column in COLUMNS if (row, column) not in DASHES]


def table() -> str:
    """`CELLS` as a Markdown table, with the reasons for its dashes below it."""
    reasons = list(dict.fromkeys(DASHES.values()))
    lines = [f"| a call in flight in | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row, title in ROWS.items():
        shown = ["yes" if (row, each) in CELLS else note(reasons, (row, each)) for each in COLUMNS]
        lines.append(f"| {title} | {' | '.join(shown)} |")
    notes = [f"- <sup>{number}</sup> {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines) + "\n\n" + "\n".join(notes) + "\n"


def note(reasons: list[str], cell: tuple[str, str]) -> str:
    return f"- <sup>{reasons.index(DASHES[cell]) + 1}</sup>"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), "worlds", table()))
