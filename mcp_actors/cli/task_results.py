"""Results of tools, and the words for a task whose result nobody waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mcp_actors import types
from mcp_actors.cli.client_session import Interrupted
from mcp_actors.cli.connection_options import ConnectionOptions
from mcp_actors.cli.failures import EXIT_INTERRUPTED, CommandFailure
from mcp_actors.cli.output import blocks_text, echo_json, echo_text, plain
from mcp_actors.platform.command_lines import join_words

__all__ = ["kept_running", "show_result"]


class _LeftRunning(CommandFailure):
    """Ctrl-C ended the waiting for a task, and nothing else."""

    exit_code = EXIT_INTERRUPTED


@contextmanager
def kept_running(connection: ConnectionOptions, task_id: Callable[[], str | None]) -> Iterator[None]:
    """Turns Ctrl-C during the block into the words on how to get the result of the task that goes on."""
    try:
        yield
    except Interrupted as interrupted:
        id = task_id()
        if id is None:
            raise
        # Another program's id may begin like an option.
        end_of_options = ["--"] if id.startswith("-") else []
        words = join_words(["mcp-actors", "tasks", connection.url, "result", *end_of_options, id])
        ends = (
            "\nthe server ends with the command that started it: the task is there later only if the server keeps it"
            if connection.url.startswith("stdio:")
            else ""
        )
        # On a line of its own, which is not broken, so that it can be copied.
        raise _LeftRunning(f"the task goes on; this waits for its result:\n{words}{ends}") from interrupted


def show_result(result: types.CallToolResult, as_json: bool) -> None:
    """Prints the result of a tool: the whole of it as JSON, or what there is of it to read."""
    if as_json:
        echo_json(result)
    elif result.content:
        echo_text(blocks_text(result.content), err=bool(result.is_error))
    elif result.structured_content is not types.UNSET:
        echo_json(plain(result.structured_content))
