"""A command whose options stand under headings in its help, and the headings of ``mcp-actors serve``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import click

__all__ = ["BENCH", "BRIDGE", "GATEWAY", "SERVE", "CommandWithSections", "Section"]


@attrs.frozen
class Section:
    """Options that belong together.

    Args:
        title: The heading.
        options: The options by their names, in the order of the help.
        remark: A paragraph behind them, or nothing.
    """

    title: str
    options: Sequence[str]
    remark: str = ""


class CommandWithSections(click.Command):
    """A command with headings in its help; an option that no section names stands at the end, with ``--help``.

    Args:
        sections: In the order of the help.
    """

    def __init__(self, *words: Any, sections: Sequence[Section] = (), **settings: Any) -> None:
        super().__init__(*words, **settings)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        left = {each.opts[0]: record for each in options if (record := each.get_help_record(ctx))}
        for section in self._sections:
            with formatter.section(section.title):
                formatter.write_dl([left.pop(name) for name in section.options])
                if section.remark:
                    formatter.write_paragraph()
                    formatter.write_text(section.remark)
        with formatter.section("Help"):
            formatter.write_dl(list(left.values()))


BENCH = (
    Section(
        "The load",
        [
            "--window",
            "--rate",
            "--ramp",
            "--sessions",
            "--duration",
            "--calls",
            "--warm-up",
            "--cancel",
            "--calls-file",
        ],
    ),
    Section("The figures", ["--json", "--html", "--fail-if", "--compare"]),
    Section("The server", ["--era", "--timeout", "--cap", "--header", "--bearer-env"]),
)
SERVE = (
    Section("Addresses", ["--listen", "--allow-host", "--allow-origin"]),
    Section("Authorization, for HTTP and WebSocket", ["--issuer", "--resource", "--scope"]),
    Section(
        "For operators",
        ["--admin", "--metrics", "--health", "--telemetry"],
        "--metrics answers those who may call this server by its name, and --health anybody (with 503 while the server "
        "ends its calls), both without a token.",
    ),
    Section(
        "Several processes",
        ["--workers", "--shared"],
        "SIGHUP replaces the processes one by one by new ones, which import TARGET again; no connection is refused and "
        "no call is lost. Without --shared redis: they give clients over HTTP no sessions, and no HTTP+SSE: a request "
        "may reach any of them. Each counts its own metrics, and its lines have its number.",
    ),
    Section(
        "Development",
        ["--reload", "--reload-dir", "--traceback"],
        "A reload keeps the connections; an error in a file is shown, and what was there serves on.",
    ),
)

_CALLERS = (
    Section("Authorization, for HTTP and WebSocket", ["--issuer", "--resource", "--scope"]),
    Section("For operators", ["--admin", "--metrics", "--health", "--telemetry"]),
)

GATEWAY = (
    Section("The gateway", ["--check", "--name"]),
    Section("Addresses", ["--listen", "--allow-host", "--allow-origin"]),
    *_CALLERS,
)

BRIDGE = (
    Section(
        "The server",
        ["--header", "--bearer-env", "--sessions", "--era", "--timeout", "--cap"],
        "A login of mcp-actors login URL is used by itself. What the clients of the bridge present is never passed on.",
    ),
    Section("The address", ["--allow-host", "--allow-origin"]),
    *_CALLERS,
)
