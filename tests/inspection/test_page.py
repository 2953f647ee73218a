"""The page has the table of rules as it is. ``python -m tests.inspection.test_page`` writes it there."""

from __future__ import annotations

from pathlib import Path

from mcp_actors.cli.inspect.rules import RULES

PAGE = Path(__file__).parents[2] / "docs" / "inspect.md"
BEGIN, END = "<!-- rules: begin -->\n", "<!-- rules: end -->"


def table_of_rules() -> str:
    rows = [
        f"| `{rule.name}` | {rule.severity} | {rule.text} | "
        f"{'; '.join(str(place) for place in (rule.legacy, rule.modern) if place is not None)} |"
        for rule in RULES
    ]
    return "\n".join(["| rule | | demand | place |", "|---|---|---|---|", *rows]) + "\n"


def with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table_of_rules() + END + after


def test_the_page_has_the_rules() -> None:
    assert PAGE.read_text() == with_table(PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
