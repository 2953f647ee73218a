"""An era as a value: one object per protocol revision, made by `legacy` and `modern`, read by every floor above."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec

from mcp_actors import types as t
from mcp_actors._eras.vocabulary import Hook, named
from mcp_actors._wire.codec import LONGEST_ID, RequestId
from mcp_actors.errors import INVALID_PARAMS, RemoteProtocolError, RpcError
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.printable import masked_uri
from mcp_actors.types import Implementation, ServerCapabilities

__all__ = [
    "ACKNOWLEDGED",
    "CALL_MESSAGE",
    "DEADLINE",
    "DEADLINES",
    "ETAG",
    "ETAGS",
    "IDEMPOTENCY",
    "KEY",
    "KIND_OF_METHOD",
    "METHOD_OF_KIND",
    "PARTIAL_RESULT",
    "PARTS_READ",
    "READS",
    "RESULT_STAMPS",
    "STREAMS",
    "UNCHANGED",
    "ClientRules",
    "Era",
    "EraName",
    "Event",
    "EventKind",
    "InvalidResult",
    "Invocation",
    "Method",
    "NotAnswered",
    "Peer",
    "TextBlock",
    "ValueResult",
    "check_id",
    "declared_names",
    "made_late",
    "progress_token",
    "read_result",
    "shared_kinds",
    "structured",
]


# -- the kinds of changes on a server, and the notification of each ------------------------------------------------

EventKind = Literal["tools", "prompts", "resources", "resource_updated"]
"""The subject of a change: one of the lists, or one resource."""


class Event(msgspec.Struct, frozen=True):
    """A change of a list (``uri`` is ``None``) or of the resource ``uri``."""

    kind: EventKind
    uri: str | None = None


METHOD_OF_KIND: dict[EventKind, str] = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
    "resource_updated": "notifications/resources/updated",
}

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

KIND_OF_METHOD = {method: kind for kind, method in METHOD_OF_KIND.items()}


@cache
def shared_kinds(kinds: frozenset[EventKind]) -> frozenset[EventKind]:
    """Returns the one set of these kinds that all sessions have, since a set for each of them would be large."""
    return kinds


# -- the dotted names of capabilities that the method tables use (`Method.requires`) -------------------------------


def declared_names(capabilities: ServerCapabilities) -> frozenset[str]:
    """Returns the dotted names of the declared capabilities."""
    names = {
        name
        for name in ("tools", "prompts", "resources", "completions", "logging")
        if getattr(capabilities, name) is not None
    }
    if capabilities.resources is not None and capabilities.resources.subscribe:
        names.add("resources.subscribe")
    if capabilities.tasks is not None:
        names |= {"tasks", *(f"tasks.{name}" for name in ("list", "cancel") if name in capabilities.tasks)}
    return frozenset(names)


# -- the ids of extensions (SEP-2133) ------------------------------------------------------------------------------

# A reverse domain as prefix, a slash and a name, both as keys of _meta have them.
_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_ID = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def check_id(id: object) -> str:
    """Returns an extension's id; raises `ValueError` for anything else."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise ValueError(f'{id!r:.80} is not an id of an extension: write one such as "com.example/name"')
    return id


IDEMPOTENCY = "mcp-actors/idempotency"
"""The extension of servers that keep the answers to calls with keys."""
KEY = "mcp-actors/key"
"""The member of a call's ``_meta`` that has its key: a server with that extension begins nothing twice for it."""
STREAMS = "mcp-actors/streams"
"""The extension of parts of results and of messages to calls, and the member of ``_meta`` in which a call asks for it:
``{"token": …, "window": …}``. The token names the call in what follows; the client reads so many bytes ahead."""
PARTIAL_RESULT = "notifications/mcp-actors/partial_result"
"""Brings one part of the result of a call; in the form of SEP-2998 as far as that goes."""
PARTS_READ = "mcp-actors/streams/read"
"""The request by which a client says up to which part it has read."""
CALL_MESSAGE = "mcp-actors/streams/send"
"""The request by which a client sends a message to the function of a call that runs."""

ETAGS = "mcp-actors/etags"
"""The extension of servers that say by a tag whether lists and resources are what a client has already."""
ETAG = "mcp-actors/etag"
"""The member of ``_meta`` that has the tag: of a result its own, of a request that of the answer the client has."""
UNCHANGED = "mcp-actors/unchanged"
"""The member of ``_meta`` of a result that stands for the one whose tag the client has sent."""

READS = frozenset(
    {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}
)
"""The requests that change nothing, and whose answer is the same whenever one caller asks at one time."""


# -- the differences for clients, as one value ---------------------------------------------------------------------


class ClientRules(msgspec.Struct, frozen=True):
    """The client's side of an era; `Era.client` of each revision, made by `legacy` and `modern`."""

    handshake_method: str
    """The request that opens a connection."""
    ping_method: str
    """The request that only asks whether the server is alive."""
    log_level_method: str | None
    """The request that sets the log level; ``None`` where each request carries it in its ``_meta``."""
    listen_method: str | None
    """The request that subscribes for as long as it is not answered; ``None`` where a session gets changes unasked."""
    visits_urls_on_error: bool
    """Whether a server asks for a visit to a URL by the error -32042, after which the call is made again."""
    request_meta: Callable[[str, Any, Any, str | None], dict[str, Any]]
    """Makes what each request carries in its ``_meta``, of the version, the client's capabilities and info as JSON,
    and the log level."""
    mirrored: Callable[..., dict[str, str]] | None
    """Makes what is mirrored of a request in headers, of the version, the method, the params, the annotated parameters
    of the tool and the target of an extension's method; ``None`` where requests mirror nothing of their own."""
    mirrored_params: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Finds the parameters that a tool's input schema wants mirrored; raises `ValueError` for a bad annotation."""


T = TypeVar("T")

RESULT_STAMPS = ("resultType", "ttlMs", "cacheScope")
"""The members that only results of the stateless revisions have."""

EraName = Literal["legacy", "modern"]
"""Whether a revision has sessions (legacy) or each request is complete by itself (modern)."""


class Method(msgspec.Struct, frozen=True):
    """One request method of one revision. A method absent from an era's table does not exist in it: -32601.

    ``takes`` and ``gives`` are what its `params` and its `result` are structured as, by the name in `mcp_actors.types`:
    only what is used is loaded. ``requires`` is the dotted capability that the *receiver* must have declared
    (``"resources.subscribe"``). ``target`` names the member of ``params`` that says what is meant (a tool's name, a
    resource's uri); ``shown`` is whether operators are shown it: a handle that is a secret is not.
    """

    name: str
    takes: str | type
    gives: str | type
    requires: str | None = None
    target: str | None = None
    cacheable: bool = False
    may_ask: bool = False
    shown: bool = True

    @property
    def params(self) -> Any:
        """The class of its params, or the union of several."""
        return named(self.takes)

    @property
    def result(self) -> Any:
        """The class of its result."""
        return named(self.gives)


class Era(msgspec.Struct, frozen=True, eq=False):
    """One protocol revision.

    ``server_methods`` are the requests that a server answers, ``client_methods`` those that a client answers (in the
    modern era they travel inside input-required results). ``seal`` turns a typed or plain result into the JSON object
    that goes on the wire of this revision. ``client`` is what clients do differently in the two eras.
    """

    name: EraName
    version: str
    make_converter: Callable[[], Any]
    describe: Hook
    """Writes as `unstructure` does, and needs no converter: for what a server says of itself."""
    server_methods: Mapping[str, Method]
    client_methods: Mapping[str, Method]
    client_notifications: frozenset[str]
    server_notifications: frozenset[str]
    seal: Callable[[Any, Method, Mapping[str, Any]], Any]
    client: ClientRules
    error_codes: Mapping[int, int]
    """The codes of errors that this revision does not have, with those that are sent instead."""
    make_tool_result_reader: Callable[[], Callable[[msgspec.Raw], t.CallToolResult | None]]
    wanted_log_level: Callable[[Invocation], str | None]
    """Returns the least severe level that the client of a call wants to hear, ``None`` when it wants none."""
    declares_sampling_context: bool = True
    """Whether clients declare that ``includeContext`` may ask for more than nothing; if not, sampling is enough."""
    batches: bool = False
    progress_message: bool = True
    mirrors_version: bool = True
    """Whether bindings that mirror tell the version outside the body too."""
    asks_by_retry: bool = False
    """Whether a question to the client ends the call with an input-required result; if not, it is a request."""
    declares_in_requests: bool = False
    """Whether a client says in each request what it can do; what is missing there has an error of its own."""
    resumes: bool = False
    """Whether clients come back by themselves for a stream that was closed before its end."""
    has_all_results: bool = True
    """Whether complete results of every other revision are results of this one, once `seal` has taken away what it
    lacks: then they are passed on without being read. Lists are not meant, whose rows have changed in each revision."""

    @property
    def converter(self) -> Any:
        """A converter of cattrs, made when it is first asked for: a server needs none before its first answer."""
        return self.make_converter()

    @property
    def read_tool_result(self) -> Callable[[msgspec.Raw], t.CallToolResult | None]:
        """Reads a result of ``tools/call`` of the common form; see `mcp_actors._eras.convert.tool_result_reader`."""
        return self.make_tool_result_reader()

    def structure(self, value: Any, cls: type) -> Any:
        """JSON to the neutral vocabulary; what this revision does not know is kept in ``extra``."""
        return self.converter.structure(value, cls)

    def unstructure(self, value: Any) -> Any:
        """The neutral vocabulary to JSON; what this revision does not know is left out."""
        return self.converter.unstructure(value)


class Peer:
    """A client's description of itself: sent once per session (legacy) or in every request (modern).

    A modern request repeats all of it, so the JSON is turned into types only when something reads it.
    """

    __slots__ = ("_capabilities", "_info", "era", "log_level", "raw_capabilities", "raw_info")

    def __init__(
        self, era: Era, raw_capabilities: dict[str, Any], raw_info: Any, log_level: str | None
    ) -> None:
        self.era = era
        self.raw_capabilities = raw_capabilities
        self.raw_info = raw_info
        self.log_level = log_level
        self._capabilities: t.ClientCapabilities | None = None
        self._info: Implementation | None = None

    @property
    def version(self) -> str:
        """The protocol revision this client speaks."""
        return self.era.version

    @property
    def capabilities(self) -> t.ClientCapabilities:
        """The capabilities that the client declared; raises `RpcError` -32602 when they are malformed."""
        if self._capabilities is None:
            self._capabilities = structured(self.era, self.raw_capabilities, t.ClientCapabilities)
        return self._capabilities

    @property
    def info(self) -> Implementation | None:
        """The client's name and version, for display only: never decide anything by it."""
        if self._info is None and self.raw_info is not None:
            self._info = structured(self.era, self.raw_info, Implementation)
        return self._info

    def __repr__(self) -> str:
        name = self.raw_info.get("name") if isinstance(self.raw_info, dict) else None
        return f"<Peer {name!r} {self.version}>"


def structured(era: Era, value: Any, cls: type[T]) -> T:
    """Structures what a peer sent; what does not fit is its mistake: -32602 with the member's name."""
    try:
        found: T = era.converter.structure(value, cls)
    except Exception as error:  # cattrs raises whatever the member's own conversion raised
        raise RpcError(INVALID_PARAMS, f"invalid params: {_reason(error)}") from None
    return found


def _reason(error: Exception) -> str:
    text: str = _conversion().structure_error_text(error)
    return text


def _conversion() -> Any:
    # Imported where it is used: cattrs takes as long to load as a tenth of the engine.
    return importlib.import_module("mcp_actors._eras.convert")


def made_late(function: str, *arguments: Any) -> Callable[[], Any]:
    """Returns a function that returns what one of `mcp_actors._eras.convert` returns, and calls that once at most."""

    @cache
    def made() -> Any:
        return getattr(_conversion(), function)(*arguments)

    return made


class NotAnswered(Exception):
    """A request that the revision does not have in this direction, and that gets no answer for this reason."""


def read_result(era: Era, value: Any, cls: type) -> Any:
    """Returns what a server sent as an object of ``cls``; raises `RemoteProtocolError` if it does not fit."""
    try:
        return era.converter.structure(value, cls)
    except Exception as error:  # cattrs raises whatever the member's own conversion raised
        raise RemoteProtocolError(f"the server sent a malformed {cls.__name__}: {error}") from error


DEADLINE = "mcp-actors/deadline-ms"
"""The member of a request's ``_meta`` that says for how many milliseconds its caller still waits."""

DEADLINES = "mcp-actors/deadlines"
"""The identifier of the extension of this engine whose requests say so (SEP-2133)."""


def progress_token(meta: Mapping[str, Any]) -> RequestId | None:
    """The request's progress token, 0 and "" included; what is neither string nor integer is -32602."""
    token = meta.get("progressToken")
    if token is None or type(token) is int or (isinstance(token, str) and len(token) <= LONGEST_ID):
        return token
    raise RpcError(
        INVALID_PARAMS,
        f"progressToken must be an integer or a string of at most {LONGEST_ID} characters",
    )


class InvalidResult(Exception):
    """A function of the user returned a value that cannot be sent. The text says why."""


class ValueResult(msgspec.Struct, gc=False):
    """The result of a tool that returned a plain value, as most do. `Era.seal` makes bytes of it by a template.

    ``text`` is the only block of its content, and ``value``, a JSON value, its structured content.
    """

    text: str
    value: Any = t.UNSET

    def as_result(self) -> t.CallToolResult:
        """Returns the same as an object of the vocabulary, for code of users that reads or changes results."""
        return t.CallToolResult([t.TextContent(self.text)], self.value)


class TextBlock(msgspec.Struct, tag_field="type", tag="text", gc=False):
    """The content block of a `ValueResult`, as every revision has it."""

    text: str


class Invocation(msgspec.Struct, eq=False):
    """A request whose envelope, version, metadata and method were found good: ready for a handler.

    ``params`` is the decoded object without ``_meta``; ``progress_token`` is ``None`` when none was given (0 and ""
    are tokens). ``answers`` and ``state`` are what a retry after an input-required result carried, and ``opened`` is
    what the server has found in that state. ``principal`` is the caller that the transport has authenticated, and
    ``address`` is where a request came from that came by itself.
    ``reported`` becomes true when a report of the call's progress is sent, which the peer has to see before the answer.
    """

    era: Era
    method: Method
    params: dict[str, Any]
    meta: dict[str, Any]
    peer: Peer
    id: RequestId
    progress_token: RequestId | None = None
    log_level: str | None = None
    answers: Mapping[str, Any] | None = None
    state: str | None = None
    principal: Principal | None = None
    address: str | None = None
    reported: bool = False
    opened: dict[str, Any] | None = None
    deadline: float | None = None
    """The time of the event loop at which the caller gives up, ``None`` if it has not said."""


def shown_target(invocation: Invocation) -> str | None:
    """Returns the tool, prompt or resource that a request is about, for logs, telemetry and the live view.

    ``None`` without one, or if it is a secret. A URI is masked as by `masked_uri`.
    """
    method = invocation.method
    target = invocation.params.get(method.target) if method.target and method.shown else None
    if not isinstance(target, str):
        return None
    return masked_uri(target) if method.target == "uri" else target
