"""Logging in and out: the driver of authorization, for one server and one command."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import click

from mcp_actors.auth import AuthorizationCode, OAuth
from mcp_actors.auth.client.authorization import Authorization
from mcp_actors.auth.client.browser import Browser, Redirect
from mcp_actors.auth.effects import RedirectAnswer, Steps
from mcp_actors.auth.urls import canonical_resource
from mcp_actors.cli.login_text import LoginStatus
from mcp_actors.cli.output import safe

__all__ = ["log_in", "log_out", "login_status", "login_url", "told_browser"]

_F = TypeVar("_F", bound=Callable[..., Any])


def login_url(function: _F) -> _F:
    """Adds the argument ``URL`` to a command: that of a server to log in to."""
    return click.argument("url", callback=_checked)(function)


def _checked(_ctx: click.Context, _parameter: click.Parameter, url: str) -> str:
    try:
        canonical_resource(url)
        user = urlsplit(url).username
    except ValueError:
        raise click.UsageError(
            "there are logins at http, https, ws and wss URLs only: write https://HOST/PATH"
        ) from None
    if user is not None:
        raise click.UsageError("a URL with a user and a password in it needs no login")
    return url


def told_browser(no_browser: bool) -> Browser:
    """Returns how a person logs in, who is told on stderr what is opened and what is waited for."""
    browsers = importlib.import_module("mcp_transports.auth")
    browser: Browser = browsers.PastedAnswer() if no_browser else browsers.default_browser()
    opens = "a browser opens" if isinstance(browser, browsers.LoopbackBrowser) else "a browser is needed"
    return _ToldBrowser(browser, opens)


async def log_in(oauth: OAuth, url: str) -> LoginStatus:
    """Logs in, and returns what there is to know of it. Cancelled, what was stored before is still there.

    Raises:
        AuthorizationError: Nobody logged in, or it was refused.
    """
    authorization = Authorization(oauth, url)
    await _run(oauth, url, authorization.restore())
    await _run(oauth, url, authorization.log_in())
    status = _status(authorization)
    assert status is not None, "a login leaves a token"
    return status


async def log_out(oauth: OAuth, url: str) -> None:
    """Forgets the tokens, and revokes them where the authorization server can.

    Raises:
        AuthorizationError: The store cannot be read or written.
    """
    authorization = Authorization(oauth, url)
    await _run(oauth, url, authorization.restore())
    await _run(oauth, url, authorization.log_out())


async def login_status(oauth: OAuth, url: str) -> LoginStatus | None:
    """Returns what is stored of a login, ``None`` if nothing is. Nobody is asked.

    Raises:
        AuthorizationError: The store cannot be read.
    """
    authorization = Authorization(oauth, url)
    await _run(oauth, url, authorization.restore())
    return _status(authorization)


def _status(authorization: Authorization) -> LoginStatus | None:
    tokens = authorization.tokens
    if tokens is None:
        return None
    return LoginStatus(
        issuer=tokens.server.issuer,
        resource=tokens.resource,
        client_id=tokens.client.client_id,
        scopes=tokens.granted,
        expires_at=tokens.expires_at,
        refreshable=tokens.refresh_token is not None,
        token=tokens.access_token,
    )


async def _run(oauth: OAuth, url: str, steps: Steps[None]) -> None:
    """Runs a machine of authorization in this task."""
    driver = importlib.import_module("mcp_transports.auth.effects_performed")
    fetcher = importlib.import_module("mcp_transports.auth.fetcher").Fetcher(oauth.url_policy, url)
    assert isinstance(oauth.grant, AuthorizationCode)
    browser, seconds = oauth.grant.browser, oauth.grant.login_timeout
    await driver.Performer(fetcher, oauth.store, lambda: browser, seconds).run(steps, lambda _begins: None)


@attrs.frozen
class _ToldBrowser:
    """A `Browser` that tells a person what is opened and what is waited for."""

    _browser: Browser
    _opens: str

    @asynccontextmanager
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[Redirect]:
        async with self._browser.open_redirect(registered) as redirect:
            yield _ToldRedirect(redirect, self._opens)


@attrs.frozen
class _ToldRedirect:
    """A `Redirect` that tells a person what is opened and what is waited for."""

    _redirect: Redirect
    _opens: str

    @property
    def uri(self) -> str:
        return self._redirect.uri

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        parts = urlsplit(url)
        at = safe(f"{parts.scheme}://{parts.netloc}")
        click.echo(
            f"{self._opens} for the login at {at}; waiting until you have logged in, Ctrl-C stops", err=True
        )
        answer = await self._redirect.log_in(url, accepts)
        click.echo("the answer has come; asking for a token", err=True)
        return answer
