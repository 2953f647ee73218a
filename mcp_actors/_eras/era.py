"""An era as a value: one object per protocol revision, made by `legacy` and `modern`, read by every floor above."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import attrs
import msgspec
from cattrs import BaseConverter

from mcp_actors import types as t
from mcp_actors._eras.client_rules import ClientRules
from mcp_actors._eras.convert import structure_error_text
from mcp_actors._eras.vocabulary import named
from mcp_actors._wire.codec import LONGEST_ID
from mcp_actors._wire.messages import RequestId
from mcp_actors.errors import INVALID_PARAMS, RemoteProtocolError, RpcError
from mcp_actors.principal import Principal
from mcp_actors.types import Implementation

__all__ = [
    "RESULT_STAMPS",
    "Era",
    "EraName",
    "Invocation",
    "Method",
    "NotAnswered",
    "Peer",
    "progress_token",
    "read_result",
    "structured",
]

T = TypeVar("T")

RESULT_STAMPS = ("resultType", "ttlMs", "cacheScope")
"""The members that only results of the stateless revisions have."""

EraName = Literal["legacy", "modern"]
"""Whether a revision has sessions (legacy) or each request stands for itself (modern)."""


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


@attrs.frozen(eq=False)
class Era:
    """One protocol revision.

    ``server_methods`` are the requests that a server answers, ``client_methods`` those that a client answers (in the
    modern era they travel inside input-required results). ``seal`` turns a typed or plain result into the JSON object
    that goes on the wire of this revision. ``client`` is what clients do differently in the two eras.
    """

    name: EraName
    version: str
    converter: BaseConverter
    server_methods: Mapping[str, Method]
    client_methods: Mapping[str, Method]
    client_notifications: frozenset[str]
    server_notifications: frozenset[str]
    seal: Callable[[Any, Method, Mapping[str, Any]], dict[str, Any]]
    client: ClientRules
    error_codes: Mapping[int, int]
    """The codes of errors that this revision does not have, with those that are sent instead."""
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
        return era.converter.structure(value, cls)
    except Exception as error:  # cattrs raises whatever the member's own conversion raised
        raise RpcError(INVALID_PARAMS, f"invalid params: {structure_error_text(error)}") from None


class NotAnswered(Exception):
    """A request that the revision does not have in this direction, and that gets no answer for this reason."""


def read_result(era: Era, value: Any, cls: type) -> Any:
    """Returns what a server sent as an object of ``cls``; raises `RemoteProtocolError` if it does not fit."""
    try:
        return era.converter.structure(value, cls)
    except Exception as error:  # cattrs raises whatever the member's own conversion raised
        raise RemoteProtocolError(f"the server sent a malformed {cls.__name__}: {error}") from error


def progress_token(meta: Mapping[str, Any]) -> RequestId | None:
    """The request's progress token, 0 and "" included; what is neither string nor integer is -32602."""
    token = meta.get("progressToken")
    if token is None or type(token) is int or (isinstance(token, str) and len(token) <= LONGEST_ID):
        return token
    raise RpcError(
        INVALID_PARAMS,
        f"progressToken must be an integer or a string of at most {LONGEST_ID} characters",
    )


class Invocation(msgspec.Struct, eq=False):
    """A request whose envelope, version, metadata and method were found good: ready for a handler.

    ``params`` is the decoded object without ``_meta``; ``progress_token`` is ``None`` when none was given (0 and ""
    are tokens). ``answers`` and ``state`` are what a retry after an input-required result carried. ``principal`` is the
    caller that the transport has authenticated, and ``address`` is where a request came from that came by itself.
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
