"""Each row of the terminal's table in ``docs/failures.md`` has tests; they are named here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "failures.md"

# What happens -> what shows it at the terminal, and what shows what a program gets.
TESTED_BY = {
    "a tool fails": [
        "cli/test_clients.py::test_an_error_of_a_tool",
        "cli/test_troubles.py::test_a_failed_tool_is_seen_at_the_end_in_red",
        "api/test_failures.py::test_each_row",
    ],
    "the server writes to its stderr": [
        "cli/test_troubles.py::test_what_a_server_prints_is_shown_with_its_name",
        "transports/test_stdio_stderr.py::test_a_childs_stderr_is_inherited",
    ],
    "the server sends something else than a message": [
        "cli/test_troubles.py::test_what_came_instead_of_messages_is_shown",
        "cli/test_troubles.py::test_a_warning_has_a_line_of_its_own_beside_what_is_waited_for",
        "api/test_no_messages.py::test_the_timeout_of_the_handshake_names_it",
    ],
    "the program ends without a message, as a file without `server.run()` does": [
        "cli/test_troubles.py::test_a_file_without_run_is_told_apart",
        "api/test_no_messages.py::test_a_program_that_serves_nothing_is_told_apart",
    ],
    "something takes longer than two seconds": [
        "cli/test_troubles.py::test_what_is_waited_for_is_said_on_a_terminal",
    ],
    "a clock runs out": ["cli/test_clients.py::test_the_idle_clock"],
    "the server asks for authorization, and you have not logged in, or not for enough": [
        "cli/test_login.py::test_nothing_stored_says_what_to_run",
        "cli/test_login.py::test_a_login_that_ended_asks_for_another_one",
        "transports/http/test_client_answers.py::test_who_is_not_let_in_learns_the_challenge",
    ],
    "Ctrl-C": ["cli/test_terminal.py::test_ctrl_c_cancels_the_call"],
    "one of the lists cannot be had": ["cli/test_troubles.py::test_list_shows_what_can_be_listed"],
    "the server has no such tool": [
        "cli/test_troubles.py::test_an_unknown_tool_is_answered_with_a_known_one",
    ],
    "the target of `mcp-actors serve` cannot be imported": [
        "cli/test_target.py::test_one_line_says_what_is_wrong",
    ],
    "what is given to `Client` is not a server": [
        "cli/test_clients.py::test_wrong_words",
        "api/test_arguments.py::test_what_is_no_target_says_what_to_write",
    ],
    "`mcp-actors serve --shared` names a place that cannot be used": [
        "cli/test_serve.py::test_failures_are_one_line",
        "shared/test_urls.py::test_other_urls_are_refused",
        "shared/test_sqlite.py::test_a_file_that_cannot_be_used_is_refused_and_left",
    ],
    "the task was cancelled, or is not known": [
        "cli/test_tasks.py::test_a_task_is_cancelled",
        "cli/test_tasks.py::test_what_is_wrong_is_said",
        "api/test_client_tasks.py::test_a_task_that_somebody_else_cancels",
        "api/test_client_tasks.py::test_a_task_that_is_forgotten",
    ],
    "an option of `Client` cannot be": [
        "cli/test_clients.py::test_wrong_words",
        "api/test_arguments.py::test_an_option_of_a_client",
    ],
}


def test_every_row_of_the_page_is_tested() -> None:
    table = PAGE.read_text().partition("\n## At the terminal\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(TESTED_BY)


@pytest.mark.parametrize("name", sorted({name for names in TESTED_BY.values() for name in names}))
def test_the_test_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    assert function in {
        node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
