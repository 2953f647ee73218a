"""``mcp-actors tasks``, and the result of a tool, which may be that of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import click

from mcp_actors import Client, types
from mcp_actors.cli.client_session import Interrupted, run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions, client_options
from mcp_actors.cli.failures import EXIT_INTERRUPTED, EXIT_TOOL, CommandFailure, reported, traceback_option
from mcp_actors.cli.output import blocks_text, echo, echo_json, echo_text, plain, safe
from mcp_actors.cli.progress import CallView, TerminalElicitation
from mcp_actors.supervision.platform import join_words
from mcp_actors.types.tasks import TaskStatus

__all__ = ["command", "kept_running", "show_result"]


Action = Literal["list", "get", "result", "cancel"]
_ACTIONS: tuple[Action, ...] = ("list", "get", "result", "cancel")


@click.command("tasks", short_help="Tasks that go on at a server.")
@client_options
@click.argument("action", type=click.Choice(_ACTIONS), default="list")
@click.argument("task_id", required=False, metavar="[TASK]")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON on stdout.")
@traceback_option
def command(
    connection: ConnectionOptions, action: Action, task_id: str | None, as_json: bool, show_traceback: bool
) -> None:
    """See, wait for and cancel the tasks that calls with --task have started.

    \b
    list          the tasks of this caller, where the server lists them (the default)
    get TASK      its status
    result TASK   waits for its result, and asks here what it asks; Ctrl-C leaves it running
    cancel TASK   cancels it

    \b
    mcp-actors tasks http://localhost:8000/mcp result 4fzyo82mvyr
    """
    if (task_id is None) != (action == "list"):
        raise click.UsageError(
            f"tasks {action} takes {'no task' if action == 'list' else 'the id of a task'}"
        )
    view = CallView("task")
    with reported(show_traceback):
        if action == "list":
            _show_all(run_with_client(connection, _listed, view), as_json)
            return
        assert task_id is not None
        if action == "result":
            _show_result_of(connection, task_id, view, as_json)
            return
        _show_status(run_with_client(connection, _Look(task_id, action == "cancel"), view), as_json)


async def _listed(client: Client) -> list[TaskStatus]:
    return [each async for each in client.tasks()]


@attrs.frozen
class _Look:
    """Looks at one task, and cancels it first if that is wanted."""

    task_id: str
    cancels: bool

    async def __call__(self, client: Client) -> TaskStatus:
        handle = client.task(self.task_id)
        if self.cancels:
            await handle.cancel()
        return await handle.status()


def _show_result_of(connection: ConnectionOptions, task_id: str, view: CallView, as_json: bool) -> None:
    async def work(client: Client) -> types.CallToolResult:
        with view.shown():
            return await client.task(task_id).result(on_progress=view.progress)

    with kept_running(connection, lambda: task_id):
        result = run_with_client(
            connection, work, view, on_log=view.log, elicitation=TerminalElicitation(view), restart=True
        )
    show_result(result, as_json)
    if result.is_error:
        raise click.exceptions.Exit(EXIT_TOOL)


def _show_all(tasks: list[TaskStatus], as_json: bool) -> None:
    if as_json:
        echo_json([_plain(each) for each in tasks])
        return
    for each in tasks:
        echo_text(f"{safe(each.id)}  {_line(each)}")
    if not tasks:
        echo("no tasks; without a login, a server lists those of one connection alone", err=True)


def _show_status(status: TaskStatus, as_json: bool) -> None:
    if as_json:
        echo_json(_plain(status))
    else:
        echo_text(_line(status))


def _line(status: TaskStatus) -> str:
    parts = [status.status, *(safe(each) for each in (status.updated_at, status.message) if each)]
    return "  ".join(parts)


def _plain(status: TaskStatus) -> dict[str, Any]:
    return attrs.asdict(status)


# -- Results of tools, and the message for a task that was left running --------------------------------


class _LeftRunning(CommandFailure):
    """Ctrl-C ended the wait for a task; the task goes on."""

    exit_code = EXIT_INTERRUPTED


@contextmanager
def kept_running(connection: ConnectionOptions, task_id: Callable[[], str | None]) -> Iterator[None]:
    """Turns Ctrl-C during the block into a message on how to get the result of the task later."""
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
    """Prints the result of a tool: all of it as JSON, or the readable part as text."""
    if as_json:
        echo_json(result)
    elif result.content:
        echo_text(blocks_text(result.content), err=bool(result.is_error))
    elif result.structured_content is not types.UNSET:
        echo_json(plain(result.structured_content))
