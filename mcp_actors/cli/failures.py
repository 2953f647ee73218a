"""Failures as one readable line on stderr and an exit code; the traceback only where it was asked for."""

from __future__ import annotations

import shutil
import sys
import textwrap
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, TypeVar

import click
import trio

from mcp_actors.cli.output import echo, echo_json, safe, styled
from mcp_actors.cli.start import EXIT_INTERRUPTED
from mcp_actors.errors import (
    CallTimeout,
    ConfigurationError,
    ConnectFailed,
    ConnectionLost,
    DefinitionChanged,
    LoginRequired,
    McpError,
    RpcError,
    SharedStateUnavailable,
    TransportNotFound,
)
from mcp_actors.errors.protocol import see_page
from mcp_actors.supervision.logging import flush_to_stderr
from mcp_actors.supervision.platform import STOP_SIGNALS

__all__ = [
    "EXIT_ANSWERED",
    "EXIT_CODES",
    "EXIT_CROSSED",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_LOGIN",
    "EXIT_TIMEOUT",
    "EXIT_TOOL",
    "EXIT_UNCHECKED",
    "EXIT_USAGE",
    "EXIT_VIOLATES",
    "CommandFailure",
    "ErrorAnswer",
    "FailureAsJson",
    "LoginNeeded",
    "NotAsApproved",
    "WrongUsage",
    "asks_for_login",
    "kind_of",
    "not_as_approved",
    "reported",
    "run_interruptible",
    "sentence",
    "traceback_option",
]


EXIT_FAILED = 1
EXIT_USAGE = 2  # click's own for bad options
EXIT_LOGIN = 3
EXIT_VIOLATES = 4
EXIT_UNCHECKED = 5
EXIT_CROSSED = 6
EXIT_ANSWERED = 7
EXIT_TOOL = 8
EXIT_TIMEOUT = 9
EXIT_CODES = {
    0: "done",
    EXIT_FAILED: "it failed: no connection, or it was lost; a file, an address or a program that cannot be used",
    EXIT_USAGE: "wrong usage: bad option, unknown target, malformed argument",
    EXIT_LOGIN: "the server asks for authorization, and a person has to log in: mcp-actors login URL",
    EXIT_VIOLATES: "inspect: a rule of the protocol is violated; --lock: it is not as approved; card: it is malformed",
    EXIT_UNCHECKED: "mcp-actors inspect: no violation was found, but some rules could not be checked",
    EXIT_CROSSED: "mcp-actors bench: a limit of --fail-if was crossed, or a regression was found; diff: answers differ",
    EXIT_ANSWERED: "the server answered with an error",
    EXIT_TOOL: "the tool reported an error",
    EXIT_TIMEOUT: "a clock ran out before the server answered",
    EXIT_INTERRUPTED: "ended by Ctrl-C; a call in flight was cancelled at the server too",
}
"""All exit codes of all commands, as ``mcp-actors --help`` lists them."""

_F = TypeVar("_F", bound=Callable[..., Any])


class CommandFailure(click.ClickException):
    """Ends the command with exit code 1: its message goes to stderr behind the program's name."""

    exit_code = EXIT_FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        # What the log still has to write must not come between these lines.
        flush_to_stderr()
        # A part of it may come from the server, and goes to a terminal.
        first, *rest = map(safe, self.message.splitlines() or [""])
        head = styled("mcp-actors:", fg="red", bold=True)
        echo(f"{head} {_between_words(first, len('mcp-actors: '))}", file=file, err=True)
        for line in rest:
            echo(styled(line, dim=True), file=file, err=True)


def _between_words(line: str, indent: int) -> str:
    """Breaks a long line between words if it goes to a terminal, which would break it anywhere."""
    columns = shutil.get_terminal_size().columns - 1
    if not sys.stderr.isatty() or indent + len(line) <= columns:
        return line
    margin = " " * indent
    shown = textwrap.fill(
        line, columns, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    return shown.removeprefix(margin)


class WrongUsage(CommandFailure):
    """A `CommandFailure` that better arguments would have avoided: exit code 2."""

    exit_code = EXIT_USAGE


class LoginNeeded(CommandFailure):
    """A `CommandFailure` that a login would have avoided: exit code 3."""

    exit_code = EXIT_LOGIN


class ErrorAnswer(CommandFailure):
    """A `CommandFailure` that the server answered: exit code 7."""

    exit_code = EXIT_ANSWERED


class NotAsApproved(CommandFailure):
    """A `CommandFailure` because a definition is not what a lock file has: exit code 4."""

    exit_code = EXIT_VIOLATES


class _TimedOut(CommandFailure):
    """A `CommandFailure` for want of an answer in time: exit code 9."""

    exit_code = EXIT_TIMEOUT


class FailureAsJson(click.ClickException):
    """A failure of a command with ``--json``: a JSON object on stdout, where a program looks for the result.

    Args:
        failure: The failure. Its exit code stays.
    """

    def __init__(self, failure: click.ClickException) -> None:
        super().__init__(failure.format_message())
        self.exit_code = failure.exit_code  # type: ignore[misc]  # click has it for each object, too
        self._cause = failure.__cause__

    def show(self, file: IO[Any] | None = None) -> None:
        flush_to_stderr()
        members: dict[str, Any] = {"message": self.message, "exitCode": self.exit_code}
        if isinstance(self._cause, RpcError):
            members |= {"code": self._cause.code, "data": self._cause.data}
        echo_json({"error": members})


def asks_for_login(error: Exception) -> bool:
    """Returns whether a server asks for authorization, and no login is there, or none that suffices."""
    # The refusals of the bindings are classes of their own, which a command for another binding does not import.
    refused = isinstance(error, ConnectFailed) and getattr(error, "status", None) == 401
    return refused or isinstance(error, LoginRequired)


def traceback_option(function: _F) -> _F:
    """Adds ``--traceback`` to a command."""
    return click.option(
        "--traceback", "show_traceback", is_flag=True, help="Show the whole traceback of a failure."
    )(function)


def not_as_approved(drifts: Iterable[Any]) -> NotAsApproved:
    """Returns the failure that says how a server differs from what was approved of it.

    Args:
        drifts: Of `mcp_actors.client.Drift`.
    """
    lines: list[str] = []
    found = list(drifts)
    for each in found:
        lines += ["", str(each), *each.diff.splitlines()]
    number = "one difference" if len(found) == 1 else f"{len(found)} differences"
    return NotAsApproved("\n".join([f"{number} from what was approved:", *lines[1:]]))


@contextmanager
def reported(show_traceback: bool) -> Iterator[None]:
    """Turns whatever the block raises into a `CommandFailure`."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        if show_traceback:
            echo(traceback.format_exc(), err=True, nl=False)
        raise  # click's own: its `main` prints them and knows their exit codes
    except Exception as error:
        if show_traceback:
            echo(traceback.format_exc(), err=True, nl=False)
        raise kind_of(error)(sentence(error)) from error


def kind_of(error: Exception) -> type[CommandFailure]:
    """Returns the kind of failure that an exception is, which decides the exit code."""
    if isinstance(error, LoginRequired):
        return LoginNeeded
    if isinstance(error, TransportNotFound | ConfigurationError):
        return WrongUsage
    if isinstance(error, CallTimeout):
        return _TimedOut
    if isinstance(error, DefinitionChanged) and error.diff:
        # This client has refused it; without the difference the server, a gateway, has.
        return NotAsApproved
    # Shared state of this process is no server's answer.
    is_answer = isinstance(error, RpcError) and not (
        isinstance(error, SharedStateUnavailable) and error.cause
    )
    return ErrorAnswer if is_answer else CommandFailure


def sentence(error: Exception, *, with_page: bool = True) -> str:
    """Returns the text that a person reads about ``error``: a line, what the server sent or wrote, and its page.

    Args:
        error: What was raised.
        with_page: Whether it names the page that says more, which is too much for one of many.
    """
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # out of the nurseries of the demo
    text = _text(error)
    if with_page and isinstance(error, McpError) and error.PAGE:
        text += f"\n{see_page(error.PAGE)}"
    return text


def _text(error: Exception) -> str:
    if isinstance(error, CallTimeout):
        option = "--timeout" if error.clock == "idle" else "--cap"
        context = click.get_current_context(silent=True)
        if context is not None and not any(option in each.opts for each in context.command.params):
            return str(error)
        first, *rest = str(error).splitlines()
        return "\n".join([f"{first.removesuffix(')')}; {option} sets it)", *rest])
    if isinstance(error, ConnectionLost):
        # What it wrote to stderr was shown when it came.
        error.stderr = ()
        return str(error)
    if isinstance(error, SharedStateUnavailable) and error.cause:
        return f"the shared state cannot be used: {error.cause}"
    if isinstance(error, DefinitionChanged) and error.diff:
        return f"{error.message}\n{error.diff}"
    if isinstance(error, RpcError):
        return f"the server answered: {error}"
    if isinstance(error, McpError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error} (--traceback shows where)"


# -- A command that Ctrl-C may end at any moment -------------------------------------------------------

_T = TypeVar("_T")


class _StoppedBySignal(CommandFailure):
    """Ctrl-C or SIGTERM ended the command."""

    exit_code = EXIT_INTERRUPTED


def run_interruptible(work: Callable[[], Awaitable[_T]], stopped: str) -> _T:
    """Awaits ``work()`` and returns its result. Ctrl-C and SIGTERM cancel it.

    Args:
        work: What to do.
        stopped: What a person reads after Ctrl-C.

    Raises:
        CommandFailure: Ctrl-C or SIGTERM came before there was a result; its exit code is 130.
        McpError: What ``work`` raised.
    """
    return trio.run(_run, work, stopped)


async def _run(work: Callable[[], Awaitable[_T]], stopped: str) -> _T:
    failure: Exception | None = None
    results: list[_T] = []
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, signals, nursery.cancel_scope)
            try:
                results.append(await work())
            except Exception as error:  # kept, because the nursery would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not results:
        raise _StoppedBySignal(stopped)
    return results[0]


async def _cancel_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
