"""The table of what a gateway passes on: features by pairs of eras.

``python -m tests.gateway.passed_on`` writes it into ``docs/gateway.md`` again. Each cell is a test:
``test_what_is_passed_on.py``.
"""

from __future__ import annotations

from pathlib import Path

import attrs

__all__ = ["CELLS", "FEATURES", "KEPT", "PAGE", "Feature", "with_table"]

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
BEGIN, END = "<!-- passed on: begin -->\n", "<!-- passed on: end -->"

LL, LM, ML, MM = PAIRS = [
    (client, server) for client in ("legacy", "modern") for server in ("legacy", "modern")
]
_NAMES = {"legacy": "session", "modern": "stateless"}
KEPT = ""
"""The cell of what is kept as it is; any other cell says what cannot be."""


@attrs.frozen
class Feature:
    """A row: its title, and what is not kept, by pair of client's and server's era."""

    title: str
    lost: dict[tuple[str, str], str] = attrs.field(factory=dict)

    def cell(self, pair: tuple[str, str]) -> str:
        return self.lost.get(pair, KEPT)


_NO_STATELESS_NOTICE = (
    "The stateless revisions have no such notification: a server asks when it needs to know."
)
_NO_END = "A stateless server tells no end of a visit; the client is asked again, or gets the result."
_CALLS_AGAIN = "A stateless client is told no end of a visit: its retry waits for it."
_OBJECTS = "Revisions with sessions have objects only; the text of the result is kept."
_URL_ERROR = "The stateless revisions have no such error: their servers ask by an input-required result."
_NO_TASKS = "A stateless server lists no tool as one for tasks: the call of a session is plain, and waits for the task."
_REFUSED = "The server refuses such a client, which is sent the refusal (-32021)."
_NO_HINTS = "Revisions with sessions have no caching hints."
_NOT_CACHED = (
    "A server with sessions says nothing of it: the client is told to keep nothing (`ttlMs` 0, `private`)."
)

FEATURES = {
    "results": Feature("arguments, and results with members that no revision knows"),
    "structured": Feature("structured content that is an object"),
    "any_json": Feature(
        "structured content that is any JSON value", {LL: _OBJECTS, LM: _OBJECTS, ML: _OBJECTS}
    ),
    "prompts": Feature("prompts, with their arguments"),
    "resources": Feature("resources, as text and as bytes"),
    "completion": Feature("completion of arguments"),
    "hints": Feature("caching hints of what is read", {LL: _NO_HINTS, LM: _NO_HINTS, ML: _NOT_CACHED}),
    "tool_errors": Feature("results that are errors of a tool"),
    "errors": Feature("errors with their code, message and data"),
    "own_codes": Feature(
        "codes that only one era has",
        {
            LM: "The code is that of the server's revision: what it was before is not known.",
            ML: "The code is that of the client's revision (-32602 in place of -32002).",
        },
    ),
    "lost": Feature("the end of the server in the middle of a call, as an error of the gateway's own (502)"),
    "timeout": Feature("the silence of a server, as an error of the gateway's own (504)"),
    "cancellation": Feature("cancellation by the client"),
    "progress": Feature("progress with its total and message"),
    "clocks": Feature("each report of progress as a sign of life, at the gateway and at the client"),
    "meta": Feature("`_meta` of requests and results, without what belongs to one hop"),
    "trace": Feature("the context of a trace"),
    "capabilities": Feature("the capabilities of the client, and the extensions that it declares"),
    "logs": Feature("log messages of the wanted level, to the client that wants them"),
    "form": Feature("elicitation by a form"),
    "url": Feature("elicitation by a URL"),
    "url_end": Feature(
        "the end of a visit to a URL, by a notification", {LM: _NO_END, ML: _CALLS_AGAIN, MM: _CALLS_AGAIN}
    ),
    "url_error": Feature(
        "the error -32042, which asks for visits",
        {LM: _URL_ERROR, MM: _URL_ERROR, ML: "The client is asked by an input-required result instead."},
    ),
    "sampling": Feature("sampling, with tools and context"),
    "roots": Feature("roots"),
    "roots_changed": Feature(
        "the notification that the roots have changed",
        {LM: _NO_STATELESS_NOTICE, ML: _NO_STATELESS_NOTICE, MM: _NO_STATELESS_NOTICE},
    ),
    "refusal": Feature("that the person declines"),
    "undeclared": Feature("the refusal of a question that the client cannot be asked"),
    "rounds": Feature("several questions after another"),
    "own_methods": Feature("methods of extensions, which the upstream's settings name"),
    "own_notifications": Feature(
        "notifications beyond the protocol, during a call",
        {
            LM: "A connection in memory, by stdio or a socket that is shared does not tell whose they are; "
            "over HTTP they are kept.",
            MM: "A connection in memory, by stdio or a socket that is shared does not tell whose they are; "
            "over HTTP they are kept.",
        },
    ),
}
FEATURES |= {
    "tasks": Feature(
        "calls that become tasks, in the dialect of the client, with their questions", {LM: _NO_TASKS}
    ),
    "task_cancel": Feature("the end of a task by the client", {LM: _NO_TASKS}),
    "task_only": Feature("tools that run as tasks only, for clients without tasks", {MM: _REFUSED}),
}
CELLS = [(name, pair) for name in FEATURES for pair in PAIRS]


def table() -> str:
    """The table in Markdown, with what is not kept below it."""
    reasons = list(dict.fromkeys(reason for each in FEATURES.values() for reason in each.lost.values()))
    heads = [f"{_NAMES[client]} → {_NAMES[server]}" for client, server in PAIRS]
    lines = [f"| client → server | {' | '.join(heads)} |", "|---" * (len(PAIRS) + 1) + "|"]
    for each in FEATURES.values():
        cells = [each.cell(pair) for pair in PAIRS]
        shown = ["kept" if cell == KEPT else f"- <sup>{reasons.index(cell) + 1}</sup>" for cell in cells]
        lines.append(f"| {each.title} | {' | '.join(shown)} |")
    notes = [f"- <sup>{number}</sup> {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines) + "\n\n" + "\n".join(notes) + "\n"


def with_table(page: str) -> str:
    """Returns ``page`` with the table as it is now between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
