"""``mcp-actors login``, ``logout`` and ``whoami``: a login at one server, how it is shown, and where it is stored.

A login is shown without its tokens: who, where, for what and until when. Stored are its tokens, and the options with
which the client was registered.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import click
import trio

from mcp_actors.auth import AuthorizationCode, OAuth, TokenStore
from mcp_actors.auth.client.authorization import Authorization
from mcp_actors.auth.client.settings import Browser, Redirect
from mcp_actors.auth.effects import RedirectAnswer, Steps
from mcp_actors.auth.urls import canonical_resource
from mcp_actors.cli.failures import LoginNeeded, WrongUsage, reported, run_interruptible, traceback_option
from mcp_actors.cli.output import echo, safe
from mcp_actors.errors import LoginRequired
from mcp_actors.supervision.platform import join_words
from mcp_actors.supervision.printable import spelled_out

__all__ = [
    "LoginStatus",
    "LoginWords",
    "command",
    "expiry_in_words",
    "forget_words",
    "load_words",
    "log_in",
    "log_out",
    "login_lines",
    "login_status",
    "login_url",
    "save_words",
    "stored_auth",
    "subject_of",
    "token_store",
    "told_browser",
]


# -- A login as a person reads it ----------------------------------------------------------------------

# Characters of a part of a token that is looked at, and of a subject that is shown.
LONGEST_CLAIMS = 64 * 1024
LONGEST_SUBJECT = 200
# Characters that are shown of a fact.
LONGEST_FACT = 2000

_UNITS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


@attrs.frozen
class LoginStatus:
    """The known facts of a login. ``expires_at`` is in seconds since the epoch, or ``None`` if unknown."""

    issuer: str
    resource: str
    client_id: str
    scopes: Sequence[str]
    expires_at: float | None
    refreshable: bool
    token: str = attrs.field(repr=False)


def login_lines(status: LoginStatus, url: str) -> list[str]:
    """Returns a login as a person reads it."""
    return [f"  {f'{name}:':<10} {_on_one_line(text)}" for name, text in _facts(status, url)]


def _on_one_line(text: str) -> str:
    """Spells out all that is not printable: a line feed in a name would make up another fact."""
    return spelled_out(text[:LONGEST_FACT])


def _facts(status: LoginStatus, url: str) -> Iterator[tuple[str, str]]:
    yield "issuer", status.issuer
    yield "resource", status.resource
    yield "client", status.client_id
    subject = subject_of(status.token)
    if subject is not None:
        yield "subject", f"{subject} (as the token says)"
    yield "scopes", " ".join(status.scopes) or "not known"
    yield "expires", expiry_in_words(status.expires_at, time.time())
    if status.refreshable:
        yield "renewal", "by itself, without a login"
    else:
        yield "renewal", f"none; then run: mcp-actors login {join_words([url])}"


def expiry_in_words(expires_at: float | None, now: float) -> str:
    """Returns when a token ends, for a person."""
    if expires_at is None:
        return "not known; the authorization server did not say"
    remaining = expires_at - now
    size, unit = next((each for each in _UNITS if abs(remaining) >= each[0]), _UNITS[-1])
    count = int(abs(remaining) / size)
    length = f"{count} {unit}{'' if count == 1 else 's'}"
    try:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(expires_at))
    except (OverflowError, ValueError, OSError):
        return "not known; the authorization server said a time that no calendar has"
    return f"in {length} ({at})" if remaining > 0 else f"{length} ago ({at})"


def subject_of(token: str) -> str | None:
    """Returns the ``sub`` of a token that is a JWT; nothing verifies it, so it is for people to read only."""
    parts = token.split(".")
    if len(parts) != 3 or len(parts[1]) > LONGEST_CLAIMS:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    subject = claims.get("sub") if isinstance(claims, dict) else None
    return subject[:LONGEST_SUBJECT] if isinstance(subject, str) and subject else None


# -- Stored logins -------------------------------------------------------------------------------------


@attrs.frozen
class LoginWords:
    """The options that a client logs in with; all absent where the client registers itself."""

    client_id: str | None = None
    client_secret: str | None = attrs.field(default=None, repr=False)
    client_metadata_url: str | None = None
    scopes: Sequence[str] = ()
    issuer: str | None = None
    """The authorization server where the login succeeded: no other one ever sees the client's id and secret."""

    def oauth(self, store: TokenStore, browser: Browser) -> OAuth:
        """Returns the settings of a client that logs in with these options."""
        grant = AuthorizationCode(
            browser=browser,
            client_id=self.client_id,
            client_secret=self.client_secret,
            issuer=None if self.client_id is None else self.issuer,
            client_metadata_url=self.client_metadata_url,
        )
        return OAuth(grant, store=store, scopes=tuple(self.scopes))


def token_store() -> TokenStore:
    """Returns the store that all commands share. Nothing is opened yet."""
    store: TokenStore = importlib.import_module("mcp_transports.auth.file_store").FileTokenStore()
    return store


async def load_words(store: TokenStore, url: str) -> LoginWords | None:
    """Returns the options of the login at a URL; ``None`` if nothing is stored.

    Raises:
        TokenStoreFailed: The store cannot be read.
    """
    key = _key(url)
    record = None if key is None else await store.load(key)
    return None if record is None else _words(record.value)


async def save_words(store: TokenStore, url: str, words: LoginWords) -> None:
    """Stores the options of the login at a URL.

    Raises:
        TokenStoreFailed: The store cannot be written.
    """
    await _replace(store, url, {**attrs.asdict(words), "scopes": list(words.scopes)})


async def forget_words(store: TokenStore, url: str) -> None:
    """Forgets the options of the login at a URL.

    Raises:
        TokenStoreFailed: The store cannot be written.
    """
    await _replace(store, url, None)


async def stored_auth(url: str) -> OAuth | None:
    """Returns the settings for a URL where somebody has logged in; no login begins with them.

    Raises:
        TokenStoreFailed: The store cannot be read.
    """
    store = token_store()
    words = await load_words(store, url)
    if words is None:
        return None
    return words.oauth(store, _NoLogin(words.client_id is not None))


@attrs.frozen
class _NoLogin:
    """A `Browser` that opens nothing, for all commands but ``login``. Its errors name the URL of the login if known."""

    _is_registered: bool

    @asynccontextmanager
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[Redirect]:
        if not registered and not self._is_registered:
            # With a redirect URI the client would be registered, for a login that does not take place.
            raise LoginRequired("a person must log in")
        yield _NoRedirect(next(iter(registered), "http://127.0.0.1/callback"))


@attrs.frozen
class _NoRedirect:
    """A `Redirect` to which no login comes back."""

    uri: str

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        raise LoginRequired("a person must log in", url)


async def _replace(store: TokenStore, url: str, value: Mapping[str, Any] | None) -> None:
    key = _key(url)
    assert key is not None, "commands that log in check the URL"
    while True:
        record = await store.load(key)
        if record is None and value is None:
            return
        if await store.swap(key, None if record is None else record.generation, value):
            return


def _key(url: str) -> str | None:
    """Returns the key of a URL, the same for all spellings; ``None`` where a login is impossible."""
    try:
        # A user in the URL is a credential of its own.
        return None if urlsplit(url).username is not None else f"mcp-actors login {canonical_resource(url)}"
    except ValueError:
        return None


def _words(value: Mapping[str, Any]) -> LoginWords:
    def text(name: str) -> str | None:
        found = value.get(name)
        return found if isinstance(found, str) else None

    scopes = value.get("scopes")
    return LoginWords(
        text("client_id"),
        text("client_secret"),
        text("client_metadata_url"),
        tuple(each for each in scopes if isinstance(each, str)) if isinstance(scopes, list) else (),
        text("issuer"),
    )


# -- Logging in and out: the driver of authorization for one command -----------------------------------

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
    """Returns how a person logs in; stderr says what is opened and what is waited for."""
    browsers = importlib.import_module("mcp_transports.auth")
    browser: Browser = browsers.PastedAnswer() if no_browser else browsers.default_browser()
    opens = "a browser opens" if isinstance(browser, browsers.LoopbackBrowser) else "a browser is needed"
    return _ToldBrowser(browser, opens)


async def log_in(oauth: OAuth, url: str) -> LoginStatus:
    """Logs in, and returns what is known of the login. If it is cancelled, the stored login stays as it was.

    Raises:
        AuthorizationError: The person did not log in, or was refused.
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
    """Returns what is stored of a login, ``None`` if nothing is. Never asks a person.

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
    """Runs a state machine of authorization in this task."""
    driver = importlib.import_module("mcp_transports.auth.authorizer")
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
        echo(f"{self._opens} for the login at {at}; waiting until you have logged in, Ctrl-C stops", err=True)
        answer = await self._redirect.log_in(url, accepts)
        echo("the answer has come; asking for a token", err=True)
        return answer


# -- ``mcp-actors login`` ------------------------------------------------------------------------------

# Seconds for the last step, keeping the words of a login that succeeded, which Ctrl-C does not interrupt.
SAVE_TIMEOUT = 5.0


@click.command("login", short_help="Log in to a server.")
@login_url
@click.option("--client-id", metavar="ID", help="A client that was registered beforehand.")
@click.option(
    "--client-secret-env",
    metavar="VAR",
    help="The environment variable that holds the secret of that client, if it has one.",
)
@click.option(
    "--client-metadata-url",
    metavar="URL",
    help="The https URL of a client ID metadata document, which is the client's id.",
)
@click.option(
    "--scope",
    metavar="SCOPE",
    multiple=True,
    help="Scopes beyond those that the server names; blanks between several, may be repeated.",
)
@click.option("--no-browser", is_flag=True, help="Show the URL to open, and take the answer as text.")
@traceback_option
def command(
    url: str,
    client_id: str | None,
    client_secret_env: str | None,
    client_metadata_url: str | None,
    scope: tuple[str, ...],
    no_browser: bool,
    show_traceback: bool,
) -> None:
    """Log in to a server that asks for authorization: a browser opens, once.

    list, call, read and prompt use the login from then on, and renew it without a person where the authorization server
    lets them. Tokens are kept in a file that only you can read. The client registers itself where it can; what the
    options say of it otherwise is kept with the login, its secret too, so that no other command needs them.

    Ctrl-C leaves everything as it was.

    \b
    mcp-actors login https://mcp.example.org/mcp
    mcp-actors login https://mcp.example.org/mcp --client-id my-client --scope 'mcp:read mcp:write'
    """
    secret = _secret(client_id, client_secret_env)
    if client_id is not None and client_metadata_url is not None:
        raise click.UsageError(
            "--client-id and --client-metadata-url exclude each other: a client has one id"
        )
    scopes = list(dict.fromkeys(word for each in scope for word in each.split()))

    async def work() -> list[str]:
        store = token_store()
        words = await load_words(store, url) or LoginWords()
        if client_id is not None or client_metadata_url is not None:
            words = LoginWords(client_id, secret, client_metadata_url, words.scopes)
        if scopes:
            words = attrs.evolve(words, scopes=scopes)
        try:
            oauth = words.oauth(store, told_browser(no_browser))
        except (ValueError, TypeError) as error:
            raise WrongUsage(str(error)) from error
        status = await log_in(oauth, url)
        with trio.move_on_after(SAVE_TIMEOUT, shield=True):
            await save_words(store, url, attrs.evolve(words, issuer=status.issuer))
        return login_lines(status, url)

    with reported(show_traceback):
        lines = run_interruptible(work, "interrupted; no login was stored")
    echo(f"logged in to {safe(url)}")
    for line in lines:
        echo(line)


def _secret(client_id: str | None, variable: str | None) -> str | None:
    """Returns the secret of the client that was registered beforehand, if it has one."""
    if variable is None:
        return None
    if client_id is None:
        raise click.UsageError("--client-secret-env is for the client of --client-id")
    secret = os.environ.get(variable)
    if not secret:
        # The argument may be the secret itself, given by mistake, so it is not shown.
        raise click.UsageError(
            "the environment variable that --client-secret-env names is not set; it takes the name of a variable, "
            "not a secret"
        )
    return secret


# -- ``mcp-actors logout`` -------------------------------------------------------------------------------


@click.command("logout", short_help="Forget a login.")
@login_url
@traceback_option
def logout_command(url: str, show_traceback: bool) -> None:
    """Forget the login at a server: its tokens, and the options that its client was registered with.

    The tokens are revoked where the authorization server lets us. They are forgotten here even if it cannot be reached.
    """

    async def work() -> bool:
        oauth = await stored_auth(url)
        if oauth is None:
            return False
        await log_out(oauth, url)
        await forget_words(token_store(), url)
        return True

    with reported(show_traceback):
        known = run_interruptible(work, "interrupted; to be sure, run it again")
    echo(f"logged out of {safe(url)}" if known else f"there was no login at {safe(url)}")


# -- ``mcp-actors whoami`` -------------------------------------------------------------------------------


@click.command("whoami", short_help="Show a login.")
@login_url
@traceback_option
def whoami_command(url: str, show_traceback: bool) -> None:
    """Show the login that is stored for a server: its issuer, resource, client, scopes and expiry, never its tokens.

    Only the store is read: a login that was revoked is shown until it is used. Exit code 3 without a login.
    """

    async def work() -> LoginStatus | None:
        oauth = await stored_auth(url)
        return None if oauth is None else await login_status(oauth, url)

    with reported(show_traceback):
        status = run_interruptible(work, "interrupted")
        if status is None:
            raise LoginNeeded(
                f"no login is stored for {safe(url)}; run: mcp-actors login {join_words([url])}"
            )
    for line in login_lines(status, url):
        echo(line)
