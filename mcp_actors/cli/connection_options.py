"""The words about its connection that every command with a client takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import click

from mcp_actors.cli.headers import bearer_from_environment, given_headers, takes_headers

__all__ = ["ConnectionOptions", "client_options", "inspection_options", "upstream_options"]

_F = TypeVar("_F", bound=Callable[..., Any])


@attrs.frozen
class ConnectionOptions:
    """The server that a command talks to and how long it waits: the words that `client_options` adds to it."""

    url: str
    era: str
    timeout: float
    cap: float
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)


_SILENCE = "Seconds without answer or progress."
_IN_ALL = "Seconds for a call in all, progress or not."


def client_options(function: _F) -> Callable[..., Any]:
    """Adds ``URL``, ``--era``, ``--timeout``, ``--cap``, ``--header`` and ``--bearer-env`` to a command.

    The command gets them as ``connection``.
    """
    return _with_era(function, _clocks(30.0, 300.0, _SILENCE, _IN_ALL))


def upstream_options(function: _F) -> Callable[..., Any]:
    """Adds the same, with the patience of somebody whose clients have clocks of their own: see `Upstream`."""
    return _with_era(function, _clocks(300.0, 3600.0, _SILENCE, _IN_ALL))


def _with_era(function: _F, clocks: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    era = click.option(
        "--era",
        default="auto",
        show_default=True,
        metavar="ERA",
        help="auto, legacy, modern, or a revision to insist on.",
    )
    return era(_with_connection(function, clocks))


def inspection_options(function: _F) -> Callable[..., Any]:
    """Adds what `client_options` adds, but ``--era``: an inspection looks at every era, and its clocks are others."""
    clocks = _clocks(10.0, 300.0, "Seconds for one answer, 10 at most.", "Seconds for all of it.")
    return _with_connection(function, clocks)


def _clocks(timeout: float, cap: float, timeout_help: str, cap_help: str) -> Sequence[Callable[..., Any]]:
    return (
        click.option("--cap", type=float, default=cap, show_default=True, help=cap_help),
        click.option("--timeout", type=float, default=timeout, show_default=True, help=timeout_help),
    )


def _with_connection(function: _F, clocks: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def with_connection(
        url: str,
        timeout: float,
        cap: float,
        header: tuple[str, ...],
        bearer_env: str | None,
        era: str = "auto",
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
        *clocks,
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
