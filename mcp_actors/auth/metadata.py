"""The metadata of protected resources (RFC 9728) and authorization servers (RFC 8414, OpenID Connect Discovery).

A document is believed if it speaks for the very resource or issuer that it was asked about, and not used otherwise:
nothing is sent to any URL in it. Where it is found, the ``WWW-Authenticate`` header says (RFC 9110 section 11, RFC 6750
section 3), which is read and written here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import msgspec

from mcp_actors.auth.effects import Fetched
from mcp_actors.auth.urls import covers, require_usable
from mcp_actors.errors import AuthorizationUnavailable, DiscoveryFailed, MetadataMismatch
from mcp_actors.supervision.printable import printable

__all__ = [
    "AuthorizationServer",
    "Challenge",
    "ProtectedResource",
    "authorization_server_from",
    "first_parameter",
    "format_challenge",
    "guessed_authorization_server",
    "json_object",
    "parse_challenges",
    "read_authorization_server",
    "read_protected_resource",
    "said",
    "shown",
]

# Entries of a list in metadata that are read, such as scopes.
MAX_ENTRIES = 1000
_OK = 200
_BAD_GATEWAY = 502
_CUT = 200
# Something that a random token may be, and no word of a sentence is.
_LONG_WORD = re.compile(r"[A-Za-z0-9._~+/=-]{24,}")

# Characters that are read, of all field lines of one response together.
MAX_CHARACTERS = 32 * 1024

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_PARAMETER = re.compile(
    rf'[\s,]*({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"=][^\s,"]*))(?=[\s,]|$)', re.DOTALL
)
_SCHEME = re.compile(rf"[\s,]*({_TOKEN})(?:\s+([A-Za-z0-9._~+/-]+=*)(?=\s*(?:,|$)))?(?=[\s,]|$)")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")


# -- The documents ---------------------------------------------------------------------------------


@attrs.frozen
class ProtectedResource:
    """The metadata of an MCP server: its resource, verbatim, and the issuers that it trusts, verbatim."""

    resource: str
    authorization_servers: tuple[str, ...]
    scopes_supported: tuple[str, ...] = ()
    dpop_required: bool = False
    dpop_algorithms: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class AuthorizationServer:
    """The metadata of an authorization server. A list that the document does not have is ``None``."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    grant_types_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool = False
    client_id_metadata_document_supported: bool = False

    def as_document(self) -> dict[str, Any]:
        """Returns the document that `authorization_server_from` makes the same value of."""
        values = attrs.asdict(self, filter=lambda _, value: value is not None)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


_URLS = ("token_endpoint", "authorization_endpoint", "registration_endpoint", "revocation_endpoint")
_LISTS = (
    "scopes_supported",
    "grant_types_supported",
    "code_challenge_methods_supported",
    "token_endpoint_auth_methods_supported",
    "dpop_signing_alg_values_supported",
)
_FLAGS = ("authorization_response_iss_parameter_supported", "client_id_metadata_document_supported")


def json_object(body: bytes) -> dict[str, Any] | None:
    """Returns the JSON object that a body is, ``None`` if it is anything else. Never raises."""
    try:
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_protected_resource(
    fetched: Fetched, server_url: str, *, resource: str | None = None
) -> ProtectedResource | None:
    """Returns the metadata of the server at ``server_url``, ``None`` if the response is not such a document.

    Args:
        fetched: The response.
        server_url: The URL that the user configured.
        resource: The resource that the user configured, in place of one that the URL proves.

    Raises:
        MetadataMismatch: The document speaks for another resource.
        DiscoveryFailed: It names no authorization server.
    """
    document = json_object(fetched.body) if fetched.status == _OK else None
    if document is None or not ("resource" in document or "authorization_servers" in document):
        return None
    named = document.get("resource")
    if not isinstance(named, str) or not (
        covers(named, server_url) if resource is None else named == resource
    ):
        raise MetadataMismatch(
            f"the metadata of {server_url} speaks for the resource {shown(named)}, so it is not used. Use "
            "that URL if it is the server that you mean, or pass resource= with exactly this text if both are one"
        )
    issuers = _strings(document, "authorization_servers")
    if not issuers:
        raise DiscoveryFailed(f"the metadata of {server_url} names no authorization server")
    return ProtectedResource(
        named,
        issuers,
        _strings(document, "scopes_supported") or (),
        document.get("dpop_bound_access_tokens_required") is True,
        _strings(document, "dpop_signing_alg_values_supported") or (),
    )


def read_authorization_server(
    fetched: Fetched, issuer: str, *, expected: str | None = None
) -> AuthorizationServer | None:
    """Returns the metadata of an authorization server, ``None`` if the response is not such a document.

    Args:
        fetched: The response.
        issuer: The issuer as the resource's metadata names it.
        expected: The issuer that the document must name; by default ``issuer``, character by character.

    Raises:
        MetadataMismatch: The document speaks for another issuer (RFC 8414 section 3.3).
        DiscoveryFailed: It has no token endpoint.
        UrlRefused: A URL in it must not be used.
        AuthorizationUnavailable: The authorization server is out of order.
    """
    if fetched.status >= 500 and fetched.status != _BAD_GATEWAY:
        raise AuthorizationUnavailable(
            f"the authorization server {shown(issuer)} answers {fetched.status}: try again later"
        )
    document = json_object(fetched.body) if fetched.status == _OK else None
    if document is None or not ("issuer" in document or "token_endpoint" in document):
        return None
    wanted = issuer if expected is None else expected
    if document.get("issuer") != wanted:
        raise MetadataMismatch(
            f"the metadata of the authorization server {shown(issuer)} speaks for "
            f"{shown(document.get('issuer'))}, so it is not used. If the two are known to be the same, "
            "pass trusted_issuers="
        )
    return authorization_server_from(document)


def authorization_server_from(document: Mapping[str, Any]) -> AuthorizationServer:
    """Returns the value of a document whose issuer was compared. What has the wrong type counts as missing.

    Raises:
        DiscoveryFailed: It has no issuer or no token endpoint.
        UrlRefused: A URL in it must not be used.
    """
    values: dict[str, Any] = {name: document.get(name) is True for name in _FLAGS}
    for name in _LISTS:
        values[name] = _strings(document, name)
    for name in _URLS:
        url = document.get(name)
        values[name] = require_usable(url, name) if isinstance(url, str) else None
    issuer = document.get("issuer")
    if not isinstance(issuer, str) or values["token_endpoint"] is None:
        raise DiscoveryFailed(
            f"the metadata of the authorization server {shown(issuer)} has no token_endpoint"
        )
    return AuthorizationServer(issuer=issuer, **values)


def guessed_authorization_server(base: str) -> AuthorizationServer:
    """Returns the endpoints of a server without any metadata (MCP 2025-03-26, Fallbacks for Servers without Metadata).

    Raises:
        UrlRefused: Nothing may be sent to ``base``.
    """
    require_usable(base, "authorization server")
    return AuthorizationServer(
        issuer=base,
        token_endpoint=f"{base}/token",
        authorization_endpoint=f"{base}/authorize",
        registration_endpoint=f"{base}/register",
        code_challenge_methods_supported=("S256",),
    )


def shown(text: object) -> str:
    """Returns a text of a peer for an error: cut, and without characters that do something to a terminal."""
    if not isinstance(text, str):
        return "(none)" if text is None else f"({type(text).__name__})"
    return repr(printable(text, _CUT))


def said(text: object) -> str:
    """Returns the words of a peer, such as an error, as `shown` does; what is long enough to be a token is masked."""
    return shown(_LONG_WORD.sub("…", text[: 2 * _CUT]) if isinstance(text, str) else text)


def _strings(document: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    found = document.get(name)
    if not isinstance(found, list | tuple):
        return None
    return tuple(each for each in found[:MAX_ENTRIES] if isinstance(each, str))


# -- The ``WWW-Authenticate`` header ---------------------------------------------------------------


@attrs.frozen
class Challenge:
    """One challenge: its scheme and the names of its parameters in lower case, the values as they came."""

    scheme: str
    params: Mapping[str, str] = attrs.field(factory=dict)


def parse_challenges(lines: Iterable[str]) -> list[Challenge]:
    """Returns the challenges of the ``WWW-Authenticate`` field lines of a response. Never raises.

    Of a parameter that is repeated the first value counts. A line that stops making sense is read up to there, and of
    a response beyond the limit the beginning.
    """
    found: list[Challenge] = []
    left = MAX_CHARACTERS
    for whole in lines:
        if left <= 0:
            break
        line, at = whole[:left], 0
        left -= len(line) + 1
        params: dict[str, str] | None = None
        while at < len(line):
            match = None if params is None else _PARAMETER.match(line, at)
            if match is not None and params is not None:
                value = match[3] if match[2] is None else _ESCAPED.sub(r"\1", match[2])
                params.setdefault(match[1].lower(), value)
            else:
                match = _SCHEME.match(line, at)
                if match is None:
                    break
                params = {}
                found.append(Challenge(match[1].lower(), params))
            at = match.end()
    return found


def first_parameter(challenges: Iterable[Challenge], name: str) -> str | None:
    """Returns a parameter of the first ``Bearer`` or ``DPoP`` challenge that has it, ``None`` if none does."""
    return next(
        (
            each.params[name]
            for each in challenges
            if each.scheme in ("bearer", "dpop") and name in each.params
        ),
        None,
    )


def format_challenge(scheme: str, params: Mapping[str, str]) -> str:
    """Returns a challenge as one field value, which no value can break out of.

    Every value is quoted. Characters that neither a header nor the attributes of RFC 6750 section 3 may have become
    spaces, and quotes and backslashes become apostrophes.
    """
    quoted = (f'{name}="{_UNPRINTABLE.sub(" ", value).translate(_QUOTES)}"' for name, value in params.items())
    return f"{scheme} {', '.join(quoted)}".rstrip()


_QUOTES = str.maketrans({'"': "'", "\\": "'"})
