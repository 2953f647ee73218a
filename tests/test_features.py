"""Every feature of the official list is on a page, with a program that has both sides and is run in both eras.

The list is that of SEP-1730: the features that are not experimental of ``feature-list.md`` in the conformance suite.
``python -m tests.test_features`` writes the table of ``docs/reference/features.md`` again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tests.pages import (
    DOCS,
    PAGES,
    RUN_BY_HAND,
    WITH_FRAMEWORKS,
    anchors,
    files_beside,
    outputs,
    programs,
    python_path,
    with_table,
)

pytestmark = pytest.mark.slow

SECONDS = 180  # against programs that hang; a busy machine needs twenty of them for one
LAUNCHER = Path(__file__).parent / "program_in_era.py"
TABLE = "reference/features.md"


class Feature(NamedTuple):
    """A feature as the official list names it, and where its page and program are."""

    name: str
    method: str
    place: str
    files: str
    eras: str


BOTH = "both, alike"
LISTENS = "both; a stateless client listens"
ASKED = "both; a stateless client calls again with the answer"
FEATURES = (
    Feature("Tools - listing", "tools/list", "tools.md#list-the-tools", "stock.py", BOTH),
    Feature("Tools - calling", "tools/call", "tools.md#call-a-tool", "price.py", BOTH),
    Feature("Tools - text results", "", "tools.md#text", "stock.py", BOTH),
    Feature("Tools - image results", "", "tools.md#image", "picture.py", BOTH),
    Feature("Tools - audio results", "", "tools.md#audio", "chime.py", BOTH),
    Feature("Tools - embedded resources", "", "tools.md#embedded-resource", "report.py", BOTH),
    Feature("Tools - error handling", "", "tools.md#errors", "kettle.py", BOTH),
    Feature(
        "Tools - change notifications",
        "notifications/tools/list_changed",
        "tools.md#changed",
        "seasons.py",
        LISTENS,
    ),
    Feature("Resources - listing", "resources/list", "resources.md#list-the-resources", "library.py", BOTH),
    Feature("Resources - reading text", "resources/read", "resources.md#read-text", "library.py", BOTH),
    Feature("Resources - reading binary", "resources/read", "resources.md#read-bytes", "cover.py", BOTH),
    Feature(
        "Resources - templates",
        "resources/templates/list",
        "resources.md#list-the-templates",
        "atlas.py",
        BOTH,
    ),
    Feature("Resources - template reading", "", "resources.md#read-by-template", "atlas.py", BOTH),
    Feature(
        "Resources - subscribing", "resources/subscribe", "resources.md#subscribe", "price_tag.py", LISTENS
    ),
    Feature(
        "Resources - unsubscribing",
        "resources/unsubscribe",
        "resources.md#unsubscribe",
        "by_hand.py",
        "both; a stateless client stops listening",
    ),
    Feature(
        "Resources - change notifications",
        "notifications/resources/list_changed",
        "resources.md#changed",
        "new_books.py",
        LISTENS,
    ),
    Feature("Prompts - listing", "prompts/list", "prompts.md#list-the-prompts", "letters.py", BOTH),
    Feature("Prompts - getting simple", "prompts/get", "prompts.md#get-a-prompt", "letters.py", BOTH),
    Feature("Prompts - getting with arguments", "prompts/get", "prompts.md#arguments", "lessons.py", BOTH),
    Feature("Prompts - embedded resources", "", "prompts.md#embedded-resource", "review.py", BOTH),
    Feature("Prompts - image content", "", "prompts.md#image", "review.py", BOTH),
    Feature(
        "Prompts - change notifications",
        "notifications/prompts/list_changed",
        "prompts.md#changed",
        "offers.py",
        LISTENS,
    ),
    Feature(
        "Sampling - creating messages",
        "sampling/createMessage",
        "sampling.md#the-server",
        "summary.py",
        ASKED,
    ),
    Feature("Elicitation - form mode", "elicitation/create", "elicitation.md#form", "coffee.py", ASKED),
    Feature("Elicitation - URL mode", "elicitation/create", "elicitation.md#url", "bank.py", ASKED),
    Feature("Elicitation - schema validation", "", "elicitation.md#validation", "ticket.py", ASKED),
    Feature("Elicitation - default values", "", "elicitation.md#default-values", "coffee.py", ASKED),
    Feature("Elicitation - enum values", "", "elicitation.md#enum-values", "pizza.py", ASKED),
    Feature(
        "Elicitation - complete notification",
        "notifications/elicitation/complete",
        "elicitation.md#complete-notification",
        "shop_login.py",
        "sessions of 2025-11-25",
    ),
    Feature("Roots - listing", "roots/list", "roots.md#list-the-roots", "project.py", ASKED),
    Feature(
        "Roots - change notifications",
        "notifications/roots/list_changed",
        "roots.md#changed",
        "folders.py",
        "sessions",
    ),
    Feature(
        "Logging - sending log messages",
        "notifications/message",
        "logging.md#send-messages",
        "backup.py",
        BOTH,
    ),
    Feature(
        "Logging - setting level",
        "logging/setLevel",
        "logging.md#set-the-level",
        "quieter.py",
        "both; a stateless request carries the level",
    ),
    Feature(
        "Completions - resource argument",
        "completion/complete",
        "completion.md#resource-argument",
        "cities.py",
        BOTH,
    ),
    Feature(
        "Completions - prompt argument",
        "completion/complete",
        "completion.md#prompt-argument",
        "cities.py",
        BOTH,
    ),
    Feature(
        "Ping", "ping", "connections.md#ping", "clock.py alive.py", "both; `server/discover` if stateless"
    ),
    Feature(
        "Streamable HTTP transport (client)",
        "",
        "connections.md#streamable-http",
        "clock.py clock_http.py",
        BOTH,
    ),
    Feature(
        "Streamable HTTP transport (server)",
        "",
        "connections.md#streamable-http",
        "clock.py clock_http.py",
        BOTH,
    ),
    Feature(
        "SSE transport - legacy (client)", "", "connections.md#httpsse", "clock.py clock_http.py", "sessions"
    ),
    Feature(
        "SSE transport - legacy (server)", "", "connections.md#httpsse", "clock.py clock_http.py", "sessions"
    ),
    Feature("stdio transport (client)", "", "connections.md#stdio", "clock.py ask_clock.py", BOTH),
    Feature("stdio transport (server)", "", "connections.md#stdio", "clock.py ask_clock.py", BOTH),
    Feature("Progress notifications", "", "progress-and-cancellation.md#progress", "copying.py", BOTH),
    Feature("Cancellation", "", "progress-and-cancellation.md#cancellation", "baking.py", BOTH),
    Feature("Pagination", "", "pagination.md#pagination", "birds.py", BOTH),
    Feature("Capability negotiation", "", "connections.md#capabilities", "declared.py", BOTH),
    Feature("Protocol version negotiation", "", "connections.md#versions", "versions.py", BOTH),
    Feature("JSON Schema 2020-12 support", "", "schemas.md#json-schema-of-your-own", "booking.py", BOTH),
)
FEATURE_PAGES = sorted({f"how-to/{each.place.partition('#')[0]}" for each in FEATURES})
HOW_TO = [
    name
    for page in FEATURE_PAGES
    for name in outputs(PAGES[page])
    if name not in WITH_FRAMEWORKS | RUN_BY_HAND
]
# The list names no method for these, and each has one all the same.
SENT = {"Progress notifications": "notifications/progress", "Cancellation": "notifications/cancelled"}


def table() -> str:
    """The features as a Markdown table."""
    rows = ["| | feature | method | page | programs | eras |", "|---|---|---|---|---|---|"]
    for number, each in enumerate(FEATURES, 1):
        page = each.place.partition("#")[0]
        method = f"`{each.method}`" if each.method else ""
        files = ", ".join(f"`{name}`" for name in each.files.split())
        link = f"[{page.removesuffix('.md')}](../how-to/{each.place})"
        rows.append(f"| {number} | {each.name} | {method} | {link} | {files} | {each.eras} |")
    return "\n".join(rows) + "\n"


@cache
def run_in_a_session(name: str) -> tuple[str, set[str]]:
    """Returns what a program prints whose clients speak the legacy era, and the methods that it has sent."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        for file, text in files_beside(name):
            (folder / file).write_text(text)
        methods = folder / "methods"
        environment = {
            **os.environ,
            "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
            "PYTHONPATH": python_path(),
            "PYTHONWARNINGS": "error",
            "METHODS": str(methods),
        }
        done = subprocess.run(
            ["python", str(LAUNCHER), "legacy", str(folder / name)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, set(methods.read_text().split())


@pytest.mark.parametrize("name", HOW_TO)
def test_the_program_prints_the_same_in_a_session(name: str) -> None:
    assert run_in_a_session(name)[0] == outputs()[name]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: str(feature.name))
def test_a_feature_has_a_section_and_a_program_with_both_sides(feature: Feature) -> None:
    page, _, anchor = feature.place.partition("#")
    text = PAGES[f"how-to/{page}"]
    assert anchor in anchors(text)
    shown = [programs(text)[name] for name in feature.files.split()]
    assert "Server(" in "".join(shown)
    assert "Client(" in "".join(shown)
    main = feature.files.split()[-1]
    assert main in outputs(text)
    if method := feature.method or SENT.get(feature.name):
        assert method in run_in_a_session(main)[1]


@pytest.mark.parametrize("page", FEATURE_PAGES)
def test_a_page_begins_with_its_program(page: str) -> None:
    head = PAGES[page].splitlines()[:30]
    assert "```python" in head


def test_the_page_has_the_table_of_features() -> None:
    assert len(FEATURES) == 48
    assert PAGES[TABLE] == with_table(PAGES[TABLE], "features", table())


if __name__ == "__main__":
    page = DOCS / TABLE
    page.write_text(with_table(page.read_text(), "features", table()))
