"""Logging in and out: the driver of authorization, for one server and one command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import click

from mcp_actors.auth import OAuth
from mcp_actors.auth.client.browser import Browser, Redirect
from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.cli.login_text import LoginStatus
from mcp_actors.cli.output import safe

__all__ = ["log_in", "log_out", "login_status", "login_url", "told_browser"]

_F = TypeVar("_F", bound=Callable[..., Any])

_SCHEMES = ("http", "https", "ws", "wss")


def login_url(function: _F) -> _F:
    """Adds the argument ``URL`` to a command: that of a server to log in to."""
    return click.argument("url", callback=_checked)(function)


def _checked(_ctx: click.Context, _parameter: click.Parameter, url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _SCHEMES and parts.hostname is not None and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise click.UsageError("there are logins at http, https, ws and wss URLs only: write https://HOST/PATH")
    if parts.username is not None:
        raise click.UsageError("a URL with a user and a password in it needs no login")
    return url


def told_browser(no_browser: bool) -> Browser:
    """Returns how a person logs in, who is told on stderr what is opened and what is waited for."""
    browsers = importlib.import_module("mcp_transports.auth.browsers")
    if no_browser:
        return browsers.PastedAnswer()
    return _ToldBrowser(browsers.default_browser())


class _ToldBrowser:
    """A `Browser` that tells a person what it opens and waits for."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @asynccontextmanager
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[Redirect]:
        async with self._browser.open_redirect(registered) as redirect:
            yield _ToldRedirect(redirect)


@attrs.frozen
class _ToldRedirect:
    """A `Redirect` that tells a person what is opened and waited for."""

    _redirect: Redirect

    @property
    def uri(self) -> str:
        return self._redirect.uri

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        click.echo(f"opening the login of {safe(origin)} in a browser; if none appears, open this:", err=True)
        click.echo(safe(url), err=True)
        click.echo("waiting until you have logged in; Ctrl-C stops", err=True)
        return await self._redirect.log_in(url, accepts)
