"""The page about eras shows the table of decisions as it is.

``python tests/eras/test_decisions_page.py`` writes the table into ``docs/eras.md`` again.
"""

from __future__ import annotations

from pathlib import Path

from mcp_actors._eras.client_negotiation import DECISIONS

PAGE = Path(__file__).parent.parent.parent / "docs" / "eras.md"
BEGIN, END = "<!-- decisions: begin -->\n", "<!-- decisions: end -->"


def table_of_decisions() -> str:
    """The decisions as a Markdown table."""
    lines = [
        "| asked | answer | step | times | otherwise | kept | taken back by |",
        "|---|---|---|---|---|---|---|",
    ]
    for (asked, answer), decision in DECISIONS.items():
        repeats = decision.step is not decision.otherwise
        cells = [
            asked.value,
            answer.value,
            decision.step.value,
            str(decision.times) if repeats else "-",
            decision.otherwise.value if repeats else "-",
            "-" if decision.kept is None else decision.kept.value,
            decision.taken_back or "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table_of_decisions(page: str) -> str:
    """Returns ``page`` with `DECISIONS` as it is now between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table_of_decisions() + END + after


def test_the_page_has_the_table_of_decisions_as_it_is() -> None:
    page = PAGE.read_text()
    assert page == with_table_of_decisions(page)


if __name__ == "__main__":
    PAGE.write_text(with_table_of_decisions(PAGE.read_text()))
