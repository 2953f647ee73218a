"""The client id: configured, stored, the URL of a metadata document, or registered (RFC 7591).

Beside it are the scopes that the client asks for (MCP 2026-07-28, Authorization, Scope Selection Strategy), and the
records of a token store: tokens, registrations, and which issuer a server had last. Everything that is read from a
store is checked: a file may be damaged, and a record that makes no sense is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import msgspec

from mcp_actors.auth.client.settings import (
    AuthorizationCode,
    ClientCredentials,
    EnterpriseManaged,
    Grant,
    WorkloadIdentity,
)
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed, LoadRecord, Steps, SwapRecord
from mcp_actors.auth.metadata import AuthorizationServer, authorization_server_from, json_object, said, shown
from mcp_actors.auth.store import StoredRecord
from mcp_actors.auth.urls import is_loopback
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationUnavailable,
    RegistrationFailed,
    TokenStoreFailed,
    UrlRefused,
)

__all__ = [
    "LastIssuer",
    "RegisteredClient",
    "StepUps",
    "Tokens",
    "configured_client",
    "delete",
    "document_client",
    "key_of",
    "load",
    "read_last_issuer",
    "read_scopes",
    "read_tokens",
    "register",
    "replace",
    "scopes_to_ask_for",
    "union",
]

# Redirect URIs of one registration.
MAX_REDIRECT_URIS = 8

_OK = (200, 201)
_METHODS = ("none", "client_secret_basic", "client_secret_post")
# RFC 6749 appendix A.1 and A.2: what is shown to a person on one line, and put into URLs and headers.
_CLIENT_ID = re.compile(r"[\x20-\x7e]{1,1024}")
_CLIENT_SECRET = re.compile(r"[\x20-\x7e]{1,4096}")
_ADJUSTABLE = ("invalid_redirect_uri", "invalid_client_metadata")

# Scopes of one request: an authorization request is a URL, and that has bounds.
MAX_SCOPES = 200
# Characters of one scope.
MAX_SCOPE = 256
# Authorizations with more scopes for one operation, and refusals after them for all operations of a server together.
MAX_STEP_UPS = 2
# Operations whose step-ups are counted.
MAX_OPERATIONS = 1024

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749 section 3.3
_OFFLINE = "offline_access"

T = TypeVar("T")

# Tries to replace a record that other processes replace at the same time.
MAX_TRIES = 8


# -- The client ------------------------------------------------------------------------------------


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
        """Returns the client of a record, ``None`` if it is not that of a client."""
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


# -- The scopes to ask for -------------------------------------------------------------------------


def read_scopes(text: object) -> tuple[str, ...]:
    """Returns the scopes of a text that came from the network, each once, in their order; nonsense is left out."""
    return union(text.split()) if isinstance(text, str) else ()


def union(*parts: Iterable[str]) -> tuple[str, ...]:
    """Returns the scopes of all parts, each once, in their order."""
    every = dict.fromkeys(scope for part in parts for scope in part)
    return tuple([each for each in every if len(each) <= MAX_SCOPE and _SCOPE.fullmatch(each)][:MAX_SCOPES])


def scopes_to_ask_for(
    challenge: str | None,
    resource: Iterable[str],
    configured: Iterable[str],
    *,
    before: Iterable[str] = (),
    authorization_server: Iterable[str] | None = None,
) -> tuple[str, ...]:
    """Returns the scopes of the next authorization; none of them means that the parameter is left out.

    The challenge is authoritative, and without a scope in it the metadata of the resource is.

    Args:
        challenge: The ``scope`` of the challenge.
        resource: The scopes in the metadata of the resource.
        configured: The scopes that the user asks for beyond those.
        before: The scopes that were asked for at this resource before.
        authorization_server: The scopes that the authorization server lists, if a refresh token is wanted: with
            ``offline_access`` among them it is asked for too (SEP-2207).
    """
    named = tuple(resource) if challenge is None else read_scopes(challenge)
    found = union(before, named, configured)
    if found and authorization_server is not None and _OFFLINE in authorization_server:
        found = union(found, (_OFFLINE,))
    return found


class StepUps:
    """Counts the authorizations with more scopes of one server, for as long as the program runs."""

    def __init__(self) -> None:
        # By operation: the step-ups since it last succeeded.
        self._counts: dict[str, int] = {}
        # Operations that were refused in spite of a step-up, since one succeeded.
        self._in_vain = 0

    def begin(self, operation: str) -> bool:
        """Counts a refusal for a lack of scopes, and returns whether one more authorization is allowed."""
        count = self._counts.get(operation, 0)
        if count:
            self._in_vain += 1
        if count >= MAX_STEP_UPS or self._in_vain >= MAX_STEP_UPS:
            return False
        if len(self._counts) >= MAX_OPERATIONS:
            self._counts.clear()
        self._counts[operation] = count + 1
        return True

    def succeeded(self, operation: str) -> None:
        """Forgets what an operation that has succeeded had needed."""
        if self._counts.pop(operation, None) is not None:
            self._in_vain = 0


# -- The records of a store ------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Tokens:
    """The tokens for one resource, and everything that their refresh takes. Its ``repr`` shows no secret."""

    resource: str
    server: AuthorizationServer = attrs.field(repr=False)
    client: RegisteredClient
    access_token: str = attrs.field(repr=False)
    is_bound: bool = False
    expires_at: float | None = None
    renew_at: float | None = None
    """Seconds since the epoch from which a new token is asked for: some time before this one ends."""
    refresh_token: str | None = attrs.field(default=None, repr=False)
    requested: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    dpop_key: Mapping[str, Any] | None = attrs.field(default=None, repr=False)

    def as_record(self) -> dict[str, Any]:
        """Returns the JSON object that `read_tokens` makes the same value of."""
        values = {field.name: getattr(self, field.name) for field in attrs.fields(Tokens)}
        return {
            **values,
            "server": self.server.as_document(),
            "client": self.client.as_record(),
            "requested": list(self.requested),
            "granted": list(self.granted),
        }


def read_tokens(record: Mapping[str, Any]) -> Tokens | None:
    """Returns the tokens of a record, ``None`` if it does not hold tokens."""
    try:
        values = msgspec.convert(record, dict[str, Any])
        client = RegisteredClient.from_record(values["client"])
        if client is None:
            return None
        fields = msgspec.convert(record, _TokensRecord)
        return Tokens(
            server=authorization_server_from(values["server"]),
            client=client,
            **{each: getattr(fields, each) for each in _TokensRecord.__struct_fields__},
        )
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError, AuthorizationError):
        return None


class _TokensRecord(msgspec.Struct):
    resource: str
    access_token: str
    is_bound: bool
    expires_at: float | None
    renew_at: float | None
    refresh_token: str | None
    requested: tuple[str, ...]
    granted: tuple[str, ...]
    dpop_key: dict[str, Any] | None


@attrs.frozen
class LastIssuer:
    """The tokens that a server was used with last: a restart finds them without asking the network."""

    issuer: str
    resource: str
    client_id: str

    def as_record(self) -> dict[str, Any]:
        """Returns the JSON object that `read_last_issuer` makes the same value of."""
        return attrs.asdict(self)


def read_last_issuer(record: Mapping[str, Any]) -> LastIssuer | None:
    """Returns the value of a record, ``None`` if it is of another kind."""
    values = [record.get(name) for name in ("issuer", "resource", "client_id")]
    texts = [value for value in values if isinstance(value, str)]
    return LastIssuer(*texts) if len(texts) == len(values) else None


def key_of(*parts: str) -> str:
    """Returns a key that differs wherever a part does."""
    return msgspec.json.encode(parts).decode()


def load(key: str, read: Callable[[Mapping[str, Any]], T | None]) -> Steps[tuple[T | None, int | None]]:
    """Returns a record, ``None`` if no sensible one exists, and the generation to replace it by."""
    stored: StoredRecord | None = yield LoadRecord(key)
    return (None, None) if stored is None else (read(stored.value), stored.generation)


def replace(key: str, value: Mapping[str, Any]) -> Steps[None]:
    """Writes a record over whatever is there.

    Raises:
        TokenStoreFailed: Others replace it faster than this does.
    """
    for _ in range(MAX_TRIES):
        stored: StoredRecord | None = yield LoadRecord(key)
        if (yield SwapRecord(key, None if stored is None else stored.generation, value)):
            return
    raise TokenStoreFailed(
        "the token store changes faster than it can be written: does another program write it?"
    )


def delete(key: str) -> Steps[None]:
    """Deletes a record; if another one takes its place meanwhile, that stays."""
    stored: StoredRecord | None = yield LoadRecord(key)
    if stored is not None:
        yield SwapRecord(key, stored.generation, None)
