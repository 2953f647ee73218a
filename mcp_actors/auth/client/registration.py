"""The client id: configured, stored, the URL of a metadata document, or registered (RFC 7591)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs
import msgspec

from mcp_actors.auth.client.scopes import union
from mcp_actors.auth.client.settings import (
    AuthorizationCode,
    ClientCredentials,
    EnterpriseManaged,
    Grant,
    WorkloadIdentity,
)
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed, Steps
from mcp_actors.auth.metadata import AuthorizationServer, json_object, said, shown
from mcp_actors.auth.urls import is_loopback
from mcp_actors.errors import AuthorizationUnavailable, RegistrationFailed, UrlRefused

__all__ = ["RegisteredClient", "configured_client", "document_client", "register"]

# Redirect URIs of one registration.
MAX_REDIRECT_URIS = 8

_OK = (200, 201)
_METHODS = ("none", "client_secret_basic", "client_secret_post")
# RFC 6749 appendix A.1 and A.2: what is shown to a person on one line, and put into URLs and headers.
_CLIENT_ID = re.compile(r"[\x20-\x7e]{1,1024}")
_CLIENT_SECRET = re.compile(r"[\x20-\x7e]{1,4096}")
_ADJUSTABLE = ("invalid_redirect_uri", "invalid_client_metadata")


@attrs.frozen(kw_only=True)
class RegisteredClient:
    """A client id and what goes with it. Its ``repr`` shows no secret."""

    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    method: str | None = None
    """How it was registered to authenticate; ``None`` if that follows from the authorization server."""
    is_dynamic: bool = False
    """Whether it was registered by this program, so that another one can be in its place."""
    redirect_uris: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    """The scopes that it was registered with, beyond which it may not ask (RFC 7591 section 2); without any, it may."""
    secret_expires_at: float = 0
    key: ClientCredentials | None = attrs.field(default=None, repr=False)
    """The settings with the private key that it authenticates with."""

    def as_record(self) -> dict[str, Any]:
        """Returns the JSON object that `from_record` makes the same value of; a private key stays out of it."""
        values = attrs.asdict(self, filter=attrs.filters.exclude("key"), recurse=False)
        # The secret of a configured client is in the settings, and may have changed there by the next run.
        secret = self.client_secret if self.is_dynamic else None
        lists = {"redirect_uris": list(self.redirect_uris), "scopes": list(self.scopes)}
        return {**values, "client_secret": secret, **lists}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RegisteredClient | None:
        """Returns the client of a record, ``None`` if it is none of a client."""
        try:
            found = msgspec.convert(record, _ClientRecord)
        except (msgspec.ValidationError, TypeError):
            return None
        return cls(**{name: getattr(found, name) for name in _ClientRecord.__struct_fields__})

    def may_ask(self, redirect_uri: str, scopes: Sequence[str]) -> bool:
        """Returns whether a login may have these parameters, as far as the registration is known."""
        if not self.is_dynamic:
            return True
        return redirect_uri in self.redirect_uris and (not self.scopes or set(scopes) <= set(self.scopes))


class _ClientRecord(msgspec.Struct):
    client_id: str
    client_secret: str | None
    method: str | None
    is_dynamic: bool
    redirect_uris: tuple[str, ...]
    secret_expires_at: float
    scopes: tuple[str, ...] = ()


def configured_client(grant: Grant, server: AuthorizationServer, named: str) -> RegisteredClient | None:
    """Returns the client that the settings name, ``None`` if they name none.

    Args:
        grant: The settings.
        server: The authorization server.
        named: Its issuer as the metadata of the resource has it.

    Raises:
        RegistrationFailed: The client belongs to another authorization server (SEP-2352).
    """
    if isinstance(grant, WorkloadIdentity):
        return RegisteredClient(client_id=grant.client_id or "", method="none")
    if grant.client_id is None:
        return None
    issuer = None if isinstance(grant, EnterpriseManaged) else grant.issuer
    if issuer is not None and issuer not in (server.issuer, named):
        raise RegistrationFailed(
            f"the client {shown(grant.client_id)} is registered at {shown(issuer)}, but the server now names the "
            f"authorization server {shown(named)}: register a client there, and configure its id"
        )
    has_key = isinstance(grant, ClientCredentials) and grant.private_key is not None
    return RegisteredClient(
        client_id=grant.client_id,
        client_secret=grant.client_secret,
        method="private_key_jwt" if has_key else None,
        key=grant if isinstance(grant, ClientCredentials) and has_key else None,
    )


def document_client(grant: Grant, server: AuthorizationServer) -> RegisteredClient | None:
    """Returns the client whose id is a metadata document, ``None`` without one or where that is not supported."""
    if not isinstance(grant, AuthorizationCode) or grant.client_metadata_url is None:
        return None
    if not server.client_id_metadata_document_supported:
        return None
    return RegisteredClient(client_id=grant.client_metadata_url, method="none")


def register(
    grant: AuthorizationCode,
    server: AuthorizationServer,
    redirect_uri: str,
    scopes: Sequence[str],
    *,
    bound: bool,
    former: RegisteredClient | None = None,
) -> Steps[RegisteredClient]:
    """Registers a client (RFC 7591).

    Args:
        grant: The settings.
        server: The authorization server.
        redirect_uri: Where the login comes back to.
        scopes: The scopes that will be asked for.
        bound: Whether its tokens are to be bound to a key.
        former: The registration that is replaced. Programs with other redirect URIs may share the store: the new one
            is for them too if it can be, so that they do not register anew in turns.

    Raises:
        RegistrationFailed: The authorization server does not register clients, or not this one.
        AuthorizationUnavailable: It cannot be reached or is out of order.
        UrlRefused: Its registration endpoint must not be used.
    """
    if server.registration_endpoint is None:
        raise RegistrationFailed(
            f"the authorization server {shown(server.issuer)} does not register clients by itself: register one there, "
            "and configure its client_id, or a client_metadata_url if it supports that"
        )
    is_web = urlsplit(redirect_uri).scheme == "https" and not is_loopback(redirect_uri)
    kinds = ("web", "native") if is_web else ("native", "web")
    uris: tuple[str, ...] = (redirect_uri,)
    tries = [(kind, uris, tuple(scopes)) for kind in kinds]
    if former is not None:
        uris = tuple(dict.fromkeys([redirect_uri, *former.redirect_uris]))[:MAX_REDIRECT_URIS]
        tries.insert(0, (kinds[0], uris, union(scopes, former.scopes)))
    while True:
        kind, uris, asked = tries.pop(0)
        wanted = _wanted(grant, server, uris, asked, kind, bound)
        fetched: Fetched | FetchFailed = yield Fetch(
            "POST",
            server.registration_endpoint,
            [("content-type", "application/json"), ("accept", "application/json")],
            msgspec.json.encode(wanted),
        )
        if isinstance(fetched, FetchFailed):
            error = UrlRefused if fetched.refused else AuthorizationUnavailable
            raise error(f"the client could not be registered at {shown(server.issuer)}: {fetched.reason}")
        document = json_object(fetched.body) or {}
        if not tries or fetched.status in _OK or document.get("error") not in _ADJUSTABLE:
            return _registered(fetched, document, server, uris, asked)


def _wanted(
    grant: AuthorizationCode,
    server: AuthorizationServer,
    redirect_uris: Sequence[str],
    scopes: Sequence[str],
    kind: str,
    bound: bool,
) -> dict[str, Any]:
    listed = server.token_endpoint_auth_methods_supported or ("none",)
    wanted: dict[str, Any] = {
        "client_name": grant.client_name,
        "redirect_uris": list(redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": next((each for each in _METHODS if each in listed), "none"),
        "application_type": kind,
    }
    if scopes:
        wanted["scope"] = " ".join(scopes)
    if bound:
        wanted["dpop_bound_access_tokens"] = True
    return wanted


def _registered(
    fetched: Fetched,
    values: dict[str, Any],
    server: AuthorizationServer,
    redirect_uris: tuple[str, ...],
    scopes: tuple[str, ...],
) -> RegisteredClient:
    if fetched.status >= 500 or fetched.status == 429:
        raise AuthorizationUnavailable(
            f"the authorization server {shown(server.issuer)} answers {fetched.status} to a registration: try "
            "again later"
        )
    client_id = values.get("client_id")
    is_usable = isinstance(client_id, str) and _CLIENT_ID.fullmatch(client_id) is not None
    if fetched.status not in _OK or not is_usable:
        texts = [said(values[name]) for name in ("error", "error_description") if name in values]
        raise RegistrationFailed(
            f"the authorization server {shown(server.issuer)} did not register a client ({fetched.status}"
            f"{', ' if texts else ''}{', '.join(texts)}): register one there, and configure its client_id"
        )
    secret, method, until = (
        values.get(name)
        for name in ("client_secret", "token_endpoint_auth_method", "client_secret_expires_at")
    )
    return RegisteredClient(
        client_id=str(client_id),
        client_secret=secret if isinstance(secret, str) and _CLIENT_SECRET.fullmatch(secret) else None,
        method=method if method in _METHODS else None,
        is_dynamic=True,
        redirect_uris=redirect_uris,
        scopes=scopes,
        secret_expires_at=until if isinstance(until, int | float) and not isinstance(until, bool) else 0,
    )
