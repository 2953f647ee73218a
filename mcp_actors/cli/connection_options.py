"""The words about its connection that every command with a client takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import click

from mcp_actors.cli.headers import bearer_from_environment, given_headers, takes_headers

__all__ = ["ConnectionOptions", "client_options"]

_F = TypeVar("_F", bound=Callable[..., Any])


@attrs.frozen
class ConnectionOptions:
    """The server that a command talks to and how long it waits: the words that `client_options` adds to it."""

    url: str
    era: str
    timeout: float
    cap: float
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)


def client_options(function: _F) -> Callable[..., Any]:
    """Adds ``URL``, ``--era``, ``--timeout``, ``--cap``, ``--header`` and ``--bearer-env`` to a command.

    The command gets them as ``connection``.
    """

    @functools.wraps(function)
    def with_connection(
        url: str,
        era: str,
        timeout: float,
        cap: float,
        header: tuple[str, ...],
        bearer_env: str | None,
        **words: Any,
    ) -> Any:
        headers = _headers(url, header, bearer_env)
        return function(connection=ConnectionOptions(url, era, timeout, cap, headers), **words)

    command: Callable[..., Any] = with_connection
    for option in (
        click.option(
            "--bearer-env",
            metavar="VAR",
            help="The environment variable that holds a token for the server.",
        ),
        click.option(
            "--header",
            metavar="NAME:VALUE",
            multiple=True,
            help="A header of every request (http, https, ws, wss); may be repeated.",
        ),
        click.option(
            "--cap",
            type=float,
            default=300.0,
            show_default=True,
            help="Seconds for a call in all, progress or not.",
        ),
        click.option(
            "--timeout",
            type=float,
            default=30.0,
            show_default=True,
            help="Seconds without answer or progress.",
        ),
        click.option(
            "--era",
            default="auto",
            show_default=True,
            metavar="ERA",
            help="auto, legacy, modern, or a revision to insist on.",
        ),
        click.argument("url", callback=_checked_url),
    ):
        command = option(command)
    return command


def _checked_url(_ctx: click.Context, _parameter: click.Parameter, url: str) -> str:
    if url == "stdio:":
        raise click.UsageError("stdio: needs the command that starts the server: 'stdio:python server.py'")
    if ":" not in url:
        meant = f"'stdio:python {url}'" if url.endswith(".py") else "'stdio:COMMAND ARG...'"
        raise click.UsageError(f"{url!r} is no URL: write {meant} as one word, or scheme://...")
    return url


def _headers(url: str, words: Sequence[str], bearer_env: str | None) -> dict[str, str]:
    """Returns the headers that a person gave for the requests to ``url``."""
    headers = given_headers(words)
    if bearer_env is not None:
        if "authorization" in map(str.lower, headers):
            raise click.UsageError("--bearer-env and --header Authorization exclude each other")
        headers["Authorization"] = f"Bearer {bearer_from_environment(bearer_env)}"
    if headers and not takes_headers(url):
        raise click.UsageError("--header and --bearer-env are for http, https, ws and wss URLs")
    return headers
