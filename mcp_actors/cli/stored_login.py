"""The logins that ``mcp-actors login`` has stored: tokens, and the words that the client was registered with."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs

from mcp_actors.auth import AuthorizationCode, OAuth, TokenStore
from mcp_actors.auth.client.browser import Browser, Redirect
from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.auth.urls import canonical_resource
from mcp_actors.errors import LoginRequired

__all__ = ["LoginWords", "forget_words", "load_words", "save_words", "stored_auth", "token_store"]


@attrs.frozen
class LoginWords:
    """The words that a client logs in with; all absent where the authorization server registers it by itself."""

    client_id: str | None = None
    client_secret: str | None = attrs.field(default=None, repr=False)
    client_metadata_url: str | None = None
    scopes: Sequence[str] = ()
    issuer: str | None = None
    """The authorization server that the login succeeded at: the client is never shown to another one."""

    def oauth(self, store: TokenStore, browser: Browser) -> OAuth:
        """Returns the settings of a client that logs in with these words."""
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
    """Returns the words of the login at a URL; ``None`` if there was none.

    Raises:
        TokenStoreFailed: The store cannot be read.
    """
    key = _key(url)
    record = None if key is None else await store.load(key)
    return None if record is None else _words(record.value)


async def save_words(store: TokenStore, url: str, words: LoginWords) -> None:
    """Keeps the words of the login at a URL.

    Raises:
        TokenStoreFailed: The store cannot be written.
    """
    await _replace(store, url, {**attrs.asdict(words), "scopes": list(words.scopes)})


async def forget_words(store: TokenStore, url: str) -> None:
    """Forgets the words of the login at a URL.

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
    """A `Browser` that opens nothing: no command but ``login`` does. Its errors have the URL of the login if known."""

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
    """Returns the key of a URL, the same for all spellings; ``None`` where nobody can log in."""
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
