"""The stateless revisions as values (MCP 2026-07-28), and how their requests are opened.

=====================  ================================================================================================
with sessions          here
=====================  ================================================================================================
a handshake once       each request says in its ``_meta`` which version, capabilities and client it comes from
``initialize``         ``server/discover``, which a client may leave out; there is no ``ping``
requests of a server   input-required results, which the client answers by a retry (SEP-2322)
subscriptions of URIs  one request, ``subscriptions/listen``, whose response stream carries the changes
memory of the server   a sealed ``requestState``, which the client sends back
the body alone         over HTTP, headers repeat parts of the body, so that proxies need not read it (SEP-2243)
roots changed, tasks   dropped, as is ``logging/setLevel``: a request names the log level that it wants
=====================  ================================================================================================
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import importlib
import math
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from mcp_actors import types as t
from mcp_actors._eras.era import (
    DEADLINE,
    ClientRules,
    Era,
    Invocation,
    Method,
    Peer,
    TextBlock,
    ValueResult,
    made_late,
    progress_token,
)
from mcp_actors._eras.vocabulary import describer
from mcp_actors._wire.codec import RequestId, check_text, decode_value, encode_value
from mcp_actors.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    HeaderMismatch,
    LocalProtocolError,
    MalformedMessage,
    MethodNotFound,
    ResourceNotFound,
    RpcError,
    UnsupportedVersion,
)
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import LOGGING_LEVELS

__all__ = [
    "ANNOTATION",
    "CAPABILITIES",
    "CLIENT_INFO",
    "CLIENT_METHODS",
    "CLIENT_NOTIFICATIONS",
    "CLIENT_RULES",
    "ENVELOPE",
    "LATEST_MODERN",
    "LOG_LEVEL",
    "METHOD_HEADER",
    "MODERN",
    "NAME_HEADER",
    "PARAM_PREFIX",
    "SERVER_INFO",
    "SERVER_METHODS",
    "SERVER_NOTIFICATIONS",
    "STATE_LIFETIME",
    "SUBSCRIPTION_ID",
    "VERSION",
    "VERSION_HEADER",
    "AcceptedMeta",
    "MirroredParam",
    "StateSealer",
    "annotated_params",
    "check_names",
    "check_params",
    "check_version",
    "decode_value",
    "encode_value",
    "mirrored",
    "open_request",
    "version_header",
]


# The keys of ``_meta`` in requests.
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

# The engine's own members of a request, never what a caller adds to one: they say who sends it in which revision, and
# the token says which call a report of progress belongs to.
ENVELOPE = frozenset({VERSION, CAPABILITIES, CLIENT_INFO, "progressToken"})

# Those in results.
SERVER_INFO = "io.modelcontextprotocol/serverInfo"

# Those in all messages of a subscription.
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"


# -- requests and notifications ------------------------------------------------------------------------------------


def _table(methods: Iterable[Method]) -> Mapping[str, Method]:
    return MappingProxyType({method.name: method for method in methods})


SERVER_METHODS = _table(
    (
        Method("server/discover", "RequestParams", "DiscoverResult", cacheable=True),
        Method("tools/list", "PaginatedParams", "ListToolsResult", requires="tools", cacheable=True),
        Method(
            "tools/call", "CallToolParams", "CallToolResult", requires="tools", target="name", may_ask=True
        ),
        Method(
            "resources/list", "PaginatedParams", "ListResourcesResult", requires="resources", cacheable=True
        ),
        Method(
            "resources/templates/list",
            "PaginatedParams",
            "ListResourceTemplatesResult",
            requires="resources",
            cacheable=True,
        ),
        Method(
            "resources/read",
            "ReadResourceParams",
            "ReadResourceResult",
            requires="resources",
            target="uri",
            cacheable=True,
            may_ask=True,
        ),
        Method("prompts/list", "PaginatedParams", "ListPromptsResult", requires="prompts", cacheable=True),
        Method(
            "prompts/get",
            "GetPromptParams",
            "GetPromptResult",
            requires="prompts",
            target="name",
            may_ask=True,
        ),
        Method("completion/complete", "CompleteParams", "CompleteResult", requires="completions"),
        Method("subscriptions/listen", "SubscriptionsListenParams", "SubscriptionsListenResult"),
    )
)
"""The requests that a server answers."""

CLIENT_METHODS = _table(
    (
        Method("roots/list", "ListRootsParams", "ListRootsResult", requires="roots"),
        Method("sampling/createMessage", "CreateMessageParams", "CreateMessageResult", requires="sampling"),
        Method("elicitation/create", "ElicitParams", "ElicitResult", requires="elicitation"),
    )
)
"""The requests that a client answers. They are never sent as requests, but inside input-required results (SEP-2322)."""

CLIENT_NOTIFICATIONS = frozenset({"notifications/cancelled"})

SERVER_NOTIFICATIONS = frozenset(
    {
        "notifications/cancelled",
        "notifications/progress",
        "notifications/message",
        "notifications/resources/updated",
        "notifications/resources/list_changed",
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/subscriptions/acknowledged",
    }
)


# -- annotations of an input schema: the parameters that are also sent in headers (SEP-2243) -----------------------
#
# An annotation is allowed only at a string, an integer or a boolean that is reached from the root by ``properties``
# alone. A tool with an annotation elsewhere, or with a malformed one, is invalid as a whole.

ANNOTATION = "x-mcp-header"
PARAM_PREFIX = "mcp-param-"

# The characters of a header name, RFC 9110 section 5.6.2.
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TYPES = ("string", "integer", "boolean")
# Levels of nesting: as many as the codec accepts in a message.
MAX_DEPTH = 128

# The keywords whose values are schemas, beside `properties`. The values of others (`default`, `enum`, …) are data.
_SCHEMA = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_SCHEMAS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_SCHEMAS_BY_NAME = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties")


class MirroredParam(NamedTuple):
    """A parameter that is also sent in a header."""

    header: str
    """The whole name of the header, in lower case."""
    path: tuple[str, ...]
    """The names of the properties that lead to the parameter."""


def annotated_params(input_schema: Mapping[str, Any]) -> tuple[MirroredParam, ...]:
    """Returns the mirrored parameters of a tool, in time linear in the size of its schema.

    Raises `ValueError`, which says what is wrong and where, for an annotation that is not allowed and for more than
    `MAX_DEPTH` levels of nesting.
    """
    found: list[MirroredParam] = []
    headers: set[str] = set()
    # Each entry: the schema, its path in words, and its path by properties, None if that has another step in it.
    todo: list[tuple[Any, tuple[str, ...], tuple[str, ...] | None]] = [(input_schema, (), ())]
    while todo:
        schema, where, path = todo.pop()
        if not isinstance(schema, Mapping):
            continue
        if len(where) > MAX_DEPTH:
            raise ValueError(f"the schema is nested more than {MAX_DEPTH} levels deep")
        if ANNOTATION in schema:
            param = _param(schema, where, path)
            if param.header in headers:
                raise ValueError(
                    f"{_at(where)}: another parameter has the {ANNOTATION} {schema[ANNOTATION]!r} too"
                )
            headers.add(param.header)
            found.append(param)
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            for name, each in properties.items():
                todo.append((each, (*where, name), None if path is None else (*path, name)))
        for step, each in _elsewhere(schema):
            todo.append((each, (*where, step), None))
    return tuple(found)


def _elsewhere(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in schema.keys() & _ELSEWHERE:
        value = schema[keyword]
        if isinstance(value, Mapping):
            if keyword in _SCHEMAS_BY_NAME:
                for name, each in value.items():
                    yield f"{keyword}/{name}", each
            elif keyword in _SCHEMA:
                yield keyword, value
        elif isinstance(value, list) and keyword in _SCHEMAS:
            for each in value:
                yield keyword, each


_ELSEWHERE = frozenset({*_SCHEMA, *_SCHEMAS, *_SCHEMAS_BY_NAME})


def _param(schema: Mapping[str, Any], where: tuple[str, ...], path: tuple[str, ...] | None) -> MirroredParam:
    name = schema[ANNOTATION]
    if not path:
        raise ValueError(f"{_at(where)}: {ANNOTATION} is allowed only where `properties` alone lead")
    if not isinstance(name, str):
        raise ValueError(f"{_at(where)}: {ANNOTATION} must be a string")
    if not name:
        raise ValueError(f"{_at(where)}: {ANNOTATION} is empty")
    if not re.fullmatch(_TOKEN, name):
        raise ValueError(f"{_at(where)}: {ANNOTATION} {name!r} cannot be part of a header's name")
    type = schema.get("type")
    if type not in _TYPES:
        raise ValueError(f"{_at(where)}: {ANNOTATION} needs a type of {', '.join(_TYPES)}, not {type!r}")
    return MirroredParam(PARAM_PREFIX + name.lower(), path)


def _at(where: tuple[str, ...]) -> str:
    return ".".join(where) or "the schema itself"


# -- header mirroring (SEP-2243) -----------------------------------------------------------------------------------
#
# A client makes the headers (`mirrored`). A server must refuse a request whose headers differ from its body, and checks
# in this order: the version header is present, the metadata keys are present (`open_request`), the two agree, the
# version is served (`open_request`), then all the others. Header names are in lower case. Annotations in a tool's input
# schema decide which parameters are mirrored (`annotated_params`).

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"

# The marks of a value in base64; they are case-sensitive.
_PREFIX, _SUFFIX = "=?base64?", "?="
# Larger integers lose digits in languages whose numbers are doubles.
MAX_INTEGER = 2**53 - 1
# 42.0 is 42. Beside leading zeros there are as many digits as MAX_INTEGER has: a longer number is never legal.
_INTEGER_TEXT = re.compile(r"(-?0*[0-9]{1,16})(?:\.0+)?")
# Characters of a value that an error message quotes.
_SHOWN = 80


def encode_header_value(text: str) -> str:
    """Returns the header value for a text: the text itself if a header can hold it, otherwise the marked base64 of it.

    The value is printable ASCII without a space at its ends. Raises `UnicodeEncodeError` for lone surrogates.
    """
    if _is_plain(text) and text == text.strip(" ") and not _is_marked(text):
        return text
    return f"{_PREFIX}{base64.b64encode(text.encode()).decode('ascii')}{_SUFFIX}"


def decode_header_value(value: str) -> str:
    """Returns the text of a header value, without white space at its ends.

    A value without both marks is literal. Raises `HeaderMismatch` for characters that no header may contain, and for
    marked base64 with a wrong alphabet, wrong padding or content that is not UTF-8.
    """
    value = value.strip(" \t")
    # A tab between two characters is legal (RFC 9110 section 5.5), though our client encodes it.
    if not _is_plain(value) and not _is_plain(value.replace("\t", " ")):
        raise HeaderMismatch("a header value holds characters that are not allowed in it")
    if not _is_marked(value) or len(value) < len(_PREFIX) + len(_SUFFIX):
        return value
    try:
        return binascii.a2b_base64(value[len(_PREFIX) : -len(_SUFFIX)], strict_mode=True).decode()
    except ValueError:
        raise HeaderMismatch(f"a header value is not base64 of UTF-8: {_shown(value)}") from None


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_marked(text: str) -> bool:
    return text.startswith(_PREFIX) and text.endswith(_SUFFIX)


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")


def mirrored(
    version: str,
    method: str,
    params: Mapping[str, Any],
    annotated: Sequence[MirroredParam] = (),
    target: str | None = None,
) -> dict[str, str]:
    """Returns the headers of a request or notification.

    ``annotated`` are the mirrored parameters of the tool that it calls, and ``target`` is that of a method of an
    extension (`Method.target`). Raises `LocalProtocolError` for a method or an
    integer that a header cannot hold, and for half of a surrogate pair.
    """
    if not _is_plain(method) or method != method.strip(" "):
        raise LocalProtocolError(f"a method must be printable ASCII to be sent over HTTP: {_shown(method)}")
    metadata = {VERSION_HEADER: version, METHOD_HEADER: method}
    known = SERVER_METHODS.get(method)
    if known is not None:
        target = known.target
    if target is not None:
        name = params.get(target)
        if isinstance(name, str):
            check_text(f"{method}.{target}", name)
            metadata[NAME_HEADER] = encode_header_value(name)
    if annotated:
        arguments = params.get("arguments")
        for param in annotated:
            value = _value_at(arguments, param.path)
            if _is_integer(value) and abs(value) > MAX_INTEGER:
                raise LocalProtocolError(
                    f"{'.'.join(param.path)} is sent in a header too, so it must be within ±{MAX_INTEGER}"
                )
            text = _text_of(value)
            if text is not None:
                check_text(".".join((method, "arguments", *param.path)), text)
                metadata[param.header] = encode_header_value(text)
    return metadata


def _value_at(arguments: Any, path: Sequence[str]) -> Any:
    """The value at a path; ``None`` if it is absent, since neither is mirrored."""
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def _is_integer(value: Any) -> bool:
    """Whether a value is an integer in JSON Schema: 42.0 is, true is not."""
    return type(value) is int or (type(value) is float and value.is_integer())


def _text_of(value: Any) -> str | None:
    """The text of a value; ``None`` if it is absent or of a type that an annotated parameter cannot have."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if _is_integer(value) else None


def version_header(metadata: Mapping[str, str]) -> str:
    """Returns the version in the header. Raises `HeaderMismatch` if the header is missing."""
    version = metadata.get(VERSION_HEADER)
    if version is None:
        raise _missing(VERSION_HEADER)
    return version.strip(" \t")


def check_version(metadata: Mapping[str, str], version: str) -> None:
    """Raises `HeaderMismatch` unless the header has the same version as ``_meta``."""
    header = metadata.get(VERSION_HEADER)
    if header != version:
        if header is None:
            raise _missing(VERSION_HEADER)
        if header.strip(" \t") != version:
            raise _differs(VERSION_HEADER, header, version)


def check_names(
    metadata: Mapping[str, str], method: str, params: Mapping[str, Any], target: str | None
) -> None:
    """Raises `HeaderMismatch` unless the headers have the method and the name of its target.

    ``target`` is the member of ``params`` with this name (`Method.target`); without one the header is not checked.
    """
    header = metadata.get(METHOD_HEADER)
    if header != method:
        if header is None:
            raise _missing(METHOD_HEADER)
        if header.strip(" \t") != method:
            raise _differs(METHOD_HEADER, header, method)
    if target is not None:
        name = params.get(target)
        # A name that is not a string counts as absent: it is refused with the params later, but a header for it here.
        _check_text(metadata, NAME_HEADER, name if isinstance(name, str) else None)


def check_params(
    metadata: Mapping[str, str], annotated: Sequence[MirroredParam], arguments: Mapping[str, Any] | None
) -> None:
    """Raises `HeaderMismatch` unless each annotated parameter equals its header; an absent one must have none."""
    for param in annotated:
        value = _value_at(arguments, param.path)
        if _is_integer(value):
            _check_integer(metadata, param.header, int(value))
        else:
            _check_text(metadata, param.header, _text_of(value))


def _check_text(metadata: Mapping[str, str], name: str, text: str | None) -> None:
    header = metadata.get(name)
    if header is None:
        if text is not None:
            raise _missing(name)
        return
    if text is None:
        raise HeaderMismatch(f"header mismatch: {name} is sent, but the body has no such value")
    if decode_header_value(header) != text:
        raise _differs(name, header, text)


def _check_integer(metadata: Mapping[str, str], name: str, number: int) -> None:
    header = metadata.get(name)
    if header is None:
        raise _missing(name)
    if abs(number) > MAX_INTEGER:
        raise HeaderMismatch(f"header mismatch: {name} must be within ±{MAX_INTEGER}")
    match = _INTEGER_TEXT.fullmatch(decode_header_value(header))
    if match is None or int(match[1]) != number:
        raise _differs(name, header, str(number))


def _missing(name: str) -> HeaderMismatch:
    return HeaderMismatch(f"header mismatch: {name} is missing")


def _differs(name: str, header: str, text: str) -> HeaderMismatch:
    return HeaderMismatch(f"header mismatch: {name} says {_shown(header)}, the body says {_shown(text)}")


# -- a client ------------------------------------------------------------------------------------------------------


def _request_meta(version: str, capabilities: Any, info: Any, log_level: str | None) -> dict[str, Any]:
    meta = {VERSION: version, CAPABILITIES: capabilities, CLIENT_INFO: info}
    if log_level is not None:
        meta[LOG_LEVEL] = log_level
    return meta


CLIENT_RULES = ClientRules(
    handshake_method="server/discover",
    # There is no ping: discovery is the cheapest request that every server must answer.
    ping_method="server/discover",
    log_level_method=None,
    listen_method="subscriptions/listen",
    visits_urls_on_error=False,
    request_meta=_request_meta,
    mirrored=mirrored,
    mirrored_params=annotated_params,
)


# -- the revisions as values ---------------------------------------------------------------------------------------

# A URL is visited for an input-required result, and what is not found are wrong params (SEP-2164).
ERROR_CODES = {ResourceNotFound.CODE: INVALID_PARAMS, URL_ELICITATION_REQUIRED: INTERNAL_ERROR}

# What the revisions with sessions had and the stateless ones dropped.
_ABSENT: dict[str, frozenset[str]] = {
    "RootsCapability": frozenset({"list_changed"}),
    "ClientCapabilities": frozenset({"tasks"}),
    "ServerCapabilities": frozenset({"tasks"}),
    "Tool": frozenset({"execution"}),
    "ElicitUrlParams": frozenset({"elicitation_id"}),
}


class _StampedValue(msgspec.Struct, gc=False):
    resultType: str
    content: list[TextBlock]
    structuredContent: Any
    _meta: Any


def _make_seal(converter: Callable[[], Any]) -> Callable[..., Any]:
    def seal(result: Any, method: Method, stamp: Mapping[str, Any]) -> Any:
        """The result with its type, caching hints where they belong, and who sent it.

        ``stamp`` may have ``ttl_ms`` and ``cache_scope`` for results that say nothing of it themselves, and
        ``server_info``, a ready JSON object, with ``meta``, the encoded ``_meta`` of results that have none of their
        own. ``None`` is the empty result; a plain dict is not changed.
        """
        if result.__class__ is ValueResult:
            value = UNSET if result.value is t.UNSET else result.value
            return _StampedValue("complete", [TextBlock(result.text)], value, stamp.get("meta", UNSET))
        if result is None:
            body: dict[str, Any] = {}
        else:
            body = result.copy() if result.__class__ is dict else converter().unstructure(result)
        kind = body.setdefault("resultType", "complete")
        if method.cacheable and kind == "complete":
            # Without a word from the server nothing may be reused, least of all by somebody else.
            if "ttlMs" not in body:
                body["ttlMs"] = stamp.get("ttl_ms", 0)
            if "cacheScope" not in body:
                body["cacheScope"] = stamp.get("cache_scope", "private")
        info = stamp.get("server_info")
        if info is not None:
            meta = body.get("_meta")
            body["_meta"] = {**meta, SERVER_INFO: info} if meta else {SERVER_INFO: info}
        return body

    return seal


def _wanted_log_level(invocation: Invocation) -> str | None:
    """Each request says it, and one that says nothing wants no messages (MCP 2026-07-28, Logging)."""
    return invocation.log_level


def _make_era(revision: str) -> Era:
    converter = made_late("make_converter", _ABSENT)
    return Era(
        name="modern",
        version=revision,
        make_converter=converter,
        describe=describer(_ABSENT),
        server_methods=SERVER_METHODS,
        client_methods=CLIENT_METHODS,
        client_notifications=CLIENT_NOTIFICATIONS,
        server_notifications=SERVER_NOTIFICATIONS,
        client=CLIENT_RULES,
        seal=_make_seal(converter),
        error_codes=ERROR_CODES,
        make_tool_result_reader=made_late("tool_result_reader", frozenset[str]()),
        wanted_log_level=_wanted_log_level,
        asks_by_retry=True,
        declares_in_requests=True,
    )


MODERN: Mapping[str, Era] = MappingProxyType({"2026-07-28": _make_era("2026-07-28")})
"""Oldest first."""

LATEST_MODERN = MODERN["2026-07-28"]


# -- opening a request ---------------------------------------------------------------------------------------------


class AcceptedMeta:
    """The ``_meta`` that was accepted last, without its progress token and its deadline.

    A client sends the same in all its requests, but for these two, and it is read once. A number equals a boolean here,
    which only a client can notice that sends both.
    """

    __slots__ = ("meta", "peer")

    def __init__(self) -> None:
        self.meta: Mapping[str, Any] | None = None
        self.peer: Peer | None = None

    def __repr__(self) -> str:
        return f"<AcceptedMeta of {self.peer!r}>"


def open_request(
    id: RequestId,
    name: str,
    params: dict[str, Any],
    *,
    served: Sequence[str],
    supported: Sequence[str],
    method: Method | None,
    accepted: AcceptedMeta,
    metadata: Mapping[str, str] | None = None,
    mirrored_params: Callable[[str], Sequence[MirroredParam]] = lambda tool: (),
) -> Invocation:
    """Checks in the order that the revision prescribes: metadata keys, version, what is mirrored, method, the rest.

    ``served`` are the modern versions that can be asked for, ``supported`` all that `server/discover` lists.
    ``metadata`` is what was mirrored, ``None`` where nothing is; ``mirrored_params`` are those of a tool.
    """
    if metadata is not None:
        version_header(metadata)
    meta = params.pop("_meta", None)
    described = meta
    if type(meta) is dict and ("progressToken" in meta or DEADLINE in meta):
        described = meta.copy()
        described.pop("progressToken", None)
        described.pop(DEADLINE, None)
    peer = accepted.peer if described == accepted.meta else None
    if peer is None:
        _check_envelope(meta, metadata, served, supported)
    elif metadata is not None:
        check_version(metadata, peer.version)
    era = MODERN[meta[VERSION]] if peer is None else peer.era
    method = method or era.server_methods.get(name)
    if metadata is not None:
        check_names(metadata, name, params, method.target if method else None)
        if name == "tools/call":
            check_params(metadata, mirrored_params(params.get("name", "")), params.get("arguments"))
    if method is None:
        raise MethodNotFound(name)
    if peer is None:
        peer = _peer(era, meta)
        accepted.meta, accepted.peer = described.copy(), peer
    token = None if described is meta else progress_token(meta)
    invocation = Invocation(era, method, params, meta, peer, id, token, peer.log_level)
    if method.may_ask and ("inputResponses" in params or "requestState" in params):
        _read_retry(invocation, params)
    return invocation


def _check_envelope(
    meta: Any, metadata: Mapping[str, str] | None, served: Sequence[str], supported: Sequence[str]
) -> None:
    """Checks what every request has in its ``_meta``, and the version that was mirrored."""
    if not isinstance(meta, dict):
        raise RpcError(INVALID_PARAMS, f"params._meta must be an object with {VERSION} and {CAPABILITIES}")
    version = meta.get(VERSION)
    if not isinstance(version, str):
        raise RpcError(INVALID_PARAMS, f"_meta needs {VERSION}, a string")
    if not isinstance(meta.get(CAPABILITIES), dict):
        raise RpcError(INVALID_PARAMS, f"_meta needs {CAPABILITIES}, an object")
    if metadata is not None:
        check_version(metadata, version)
    if version not in served:
        raise UnsupportedVersion(version, list(supported))


def _peer(era: Era, meta: Mapping[str, Any]) -> Peer:
    level = meta.get(LOG_LEVEL)
    if level is not None and level not in LOGGING_LEVELS:
        raise RpcError(INVALID_PARAMS, f"{LOG_LEVEL} must be one of {', '.join(LOGGING_LEVELS)}")
    return Peer(era, meta[CAPABILITIES], meta.get(CLIENT_INFO), level)


def _read_retry(invocation: Invocation, params: dict[str, Any]) -> None:
    """Multi round-trip requests: a retry repeats the request and adds answers and the state it was given."""
    answers, state = params.pop("inputResponses", None), params.pop("requestState", None)
    if answers is not None and not isinstance(answers, Mapping):
        raise RpcError(INVALID_PARAMS, "inputResponses must be an object")
    if state is not None and not isinstance(state, str):
        raise RpcError(INVALID_PARAMS, "requestState must be a string")
    invocation.answers, invocation.state = answers, state


STATE_LIFETIME = 3600.0
"""Seconds. A person may come back to a form within an hour, and a leaked state soon expires."""

MIN_KEY_LENGTH = 16
"""Bytes. A shorter key could be guessed."""

_TAG_LENGTH = hashlib.sha256().digest_size
_NONCE_LENGTH = 16
# Parts of what is made of the key, so that it differs from anything that is made elsewhere with the same key.
_PURPOSE = b"mcp-actors request state 2"
_HIDING = b"mcp-actors request state 2, hidden"


class StateSealer:
    """Seals the ``requestState`` that a server gives to a client between the rounds of a call (SEP-2322), and opens it.

    The client cannot read or change the state, use it after it has expired, or use it for another call, another
    principal or other arguments. It can send it twice: the seal does not prevent repetition. All processes that may
    receive the retry need the same key.

    The body is combined with a stream of bytes that SHAKE-256 makes of a derived key and of a nonce, and the tag is a
    HMAC-SHA-256 over both and over what the state is bound to.

    Args:
        key: at least `MIN_KEY_LENGTH` bytes.
        lifetime: seconds until a state expires.

    Raises:
        ValueError: for a shorter key.
    """

    def __init__(self, key: bytes, *, lifetime: float = STATE_LIFETIME) -> None:
        if len(key) < MIN_KEY_LENGTH:
            raise ValueError(f"a state key needs at least {MIN_KEY_LENGTH} bytes")
        self._key = key
        self._hiding = hmac.digest(key, _HIDING, hashlib.sha256)
        self._lifetime = lifetime

    def __repr__(self) -> str:
        return f"<StateSealer lifetime={self._lifetime:g}s>"

    def seal(
        self,
        payload: dict[str, Any],
        *,
        method: str,
        target: Any,
        principal: Principal | None,
        now: float,
        until: float = math.inf,
    ) -> str:
        """Returns a text that opens only for the same call of the same principal, and not later than the lifetime.

        Args:
            target: the JSON value of the params that must not change (name and arguments); only its digest is used.
            now: the time in seconds since the epoch.
            until: the time at which it expires in any case.
        """
        nonce = os.urandom(_NONCE_LENGTH)
        body = nonce + self._hidden(nonce, encode_value([int(min(now + self._lifetime, until)), payload]))
        return _text(self._tag(body, method, target, principal) + body)

    def open(
        self, text: str, *, method: str, target: Any, principal: Principal | None, now: float
    ) -> dict[str, Any]:
        """Returns the payload. Raises `RpcError` -32602 for a text that was not sealed for this call or expired."""
        sealed = _bytes(text)
        tag, body = sealed[:_TAG_LENGTH], sealed[_TAG_LENGTH:]
        if not hmac.compare_digest(tag, self._tag(body, method, target, principal)):
            raise _refusal("was not issued for this request")
        try:
            expires, payload = decode_value(self._hidden(body[:_NONCE_LENGTH], body[_NONCE_LENGTH:]))
        except (MalformedMessage, TypeError, ValueError):
            raise _refusal("is malformed") from None
        if now >= expires:
            raise _refusal("has expired")
        if not isinstance(payload, dict):
            raise _refusal("is malformed")
        return payload

    def _hidden(self, nonce: bytes, data: bytes) -> bytes:
        """Hides ``data``, or shows what was hidden with the same nonce."""
        stream = hashlib.shake_256(self._hiding + nonce).digest(len(data))
        return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))

    def _tag(self, body: bytes, method: str, target: Any, principal: Principal | None) -> bytes:
        mac = hmac.new(self._key, _PURPOSE, hashlib.sha256)
        # Imported where it is used: servers that ask nobody keep no state.
        canonical = (
            importlib.import_module("json").dumps(target, sort_keys=True, separators=(",", ":")).encode()
        )
        owner = b"" if principal is None else b"=" + principal.key.encode("utf-8", "surrogatepass")
        for part in (method.encode(), hashlib.sha256(canonical).digest(), owner, body):
            # The length goes first, so that no part can be taken for the end of the one before.
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.digest()


def _refusal(why: str) -> RpcError:
    # No revision has a code for it. The official SDK's data tells clients that other arguments would not help.
    return RpcError(INVALID_PARAMS, f"requestState {why}", {"reason": "invalid_request_state"})


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _bytes(text: Any) -> bytes:
    if not isinstance(text, str) or not text.isascii():
        raise _refusal("is malformed")
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise _refusal("is malformed") from None
    # The decoder ignores foreign characters and unused bits; here each value has exactly one spelling.
    if _text(data) != text:
        raise _refusal("is malformed")
    return data
