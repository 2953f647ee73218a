"""The options of the commands that change the file of a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mcp_actors.cli.install.clients import CLIENTS

__all__ = ["change_options"]

_F = TypeVar("_F", bound=Callable[..., Any])


def change_options(function: _F) -> _F:
    """Adds ``--client``, ``--config``, ``--dry-run`` and ``--yes``."""
    for option in (
        click.option("--yes", "-y", is_flag=True, help="Write without asking."),
        click.option("--dry-run", is_flag=True, help="Show the change only."),
        click.option(
            "--config",
            metavar="FILE",
            help="Another file of that client: one of a project, or of a profile.",
        ),
        click.option(
            "--client",
            required=True,
            type=click.Choice(list(CLIENTS)),
            help="The program whose configuration it is.",
        ),
    ):
        function = option(function)
    return function
