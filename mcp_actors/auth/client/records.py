"""The records of a token store: tokens, registrations, and which issuer a server had last.

Everything that is read from a store is checked: a file may be damaged, and a record that makes no sense counts as none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
import msgspec

from mcp_actors.auth.client.registration import RegisteredClient
from mcp_actors.auth.effects import LoadRecord, Steps, SwapRecord
from mcp_actors.auth.metadata import AuthorizationServer, authorization_server_from
from mcp_actors.auth.store import StoredRecord
from mcp_actors.errors import AuthorizationError, TokenStoreFailed

__all__ = ["LastIssuer", "Tokens", "delete", "key_of", "load", "read_last_issuer", "read_tokens", "replace"]

T = TypeVar("T")

# Tries to replace a record that other processes replace at the same time.
MAX_TRIES = 8


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
    """Returns the tokens of a record, ``None`` if it is none of tokens."""
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
    """Returns the value of a record, ``None`` if it is none of its kind."""
    values = [record.get(name) for name in ("issuer", "resource", "client_id")]
    texts = [value for value in values if isinstance(value, str)]
    return LastIssuer(*texts) if len(texts) == len(values) else None


def key_of(*parts: str) -> str:
    """Returns a key that differs wherever a part does."""
    return msgspec.json.encode(parts).decode()


def load(key: str, read: Callable[[Mapping[str, Any]], T | None]) -> Steps[tuple[T | None, int | None]]:
    """Returns a record, ``None`` if there is none that makes sense, and the generation to replace it by."""
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
