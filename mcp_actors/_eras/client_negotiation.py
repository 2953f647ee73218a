"""The client's side of negotiation: how it finds the era of its server, and which requests a server may send to it.

What an answer to ``server/discover`` or ``initialize`` leads to is one table of decisions (docs/why/eras.md shows it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

import attrs

from mcp_actors._eras.era import Era, Invocation, NotAnswered, Peer
from mcp_actors._eras.legacy import LATEST_LEGACY, LEGACY, open_method
from mcp_actors._eras.modern import MODERN
from mcp_actors._eras.server_negotiation import params_of
from mcp_actors._wire.codec import JsonRpcRequest
from mcp_actors.errors import (
    ConnectionLost,
    HeaderMismatch,
    McpError,
    MethodNotFound,
    MissingCapability,
    RemoteProtocolError,
    RpcError,
    Unavailable,
    UnsupportedVersion,
)
from mcp_actors.types import ClientCapabilities, DiscoverResult, Implementation

__all__ = [
    "DECISIONS",
    "Answer",
    "Asked",
    "ClientNegotiation",
    "Decision",
    "Lifetime",
    "NextStep",
    "Outcome",
    "discoverable",
    "newest_common",
    "read_discovery",
    "read_initialize",
    "request_meta",
    "versions_for",
]


# -- the table of decisions; nothing else decides what an answer means ---------------------------------------------
#
# MCP 2026-07-28, Versioning and Discovery, Backward Compatibility; MCP 2025-11-25, Lifecycle, Initialization. Rules:
#
# * Only an answer says something about the era of a server. Silence, an outage and a lost connection say nothing:
#   after each of them ``initialize`` is tried as well, and what comes of it is not kept for other clients.
# * A process that ended before it read anything did not die of what it was asked: another one would end the same way.
# * A version without sessions that the server names, in whatever answer, leads to discovery, also late.
# * What is kept is only a suggestion about what to ask first. An answer that contradicts it takes it back.
# * One connection has one bound, `Client(timeout=)` and `Client(probe_timeout=)` together; the rows say how often
#   what is repeated within it.
#
# ``docs/why/eras.md`` shows the table, and a test compares the two.


class Asked(Enum):
    """A request of the client, and what else it has asked on the connection."""

    DISCOVER = "`server/discover`"
    DISCOVER_LATE = "`server/discover`, and `initialize` too"
    INITIALIZE = "`initialize` as the first request"
    INITIALIZE_AFTER = "`initialize` after discovery has failed"
    INITIALIZE_BESIDE = "`initialize` while discovery is silent"


class Answer(Enum):
    """An answer of the server, or the reason why there is none."""

    AGREED = "a result with a version of ours"
    NAMES_STATELESS = "an error that names a version of ours without sessions"
    NAMES_SESSIONS = "a result or an error that names only versions of ours with sessions"
    NAMES_OTHERS = "a result or an error that names only versions which are not ours"
    STATELESS_ERROR = "-32020 or -32021"
    REFUSED = "any other error or result, or a 4xx without one of these"
    UNAVAILABLE = "5xx, 408, 425, 429, or a request lost while the connection goes on"
    SILENT = "nothing for `probe_timeout`"
    LATE = "nothing within the bound"
    LOST = "the end of the connection or of the process"
    UNREAD = "the end of a process that has read nothing"
    UNREACHABLE = "no connection, 401, 403, or a request that cannot be sent"


class NextStep(Enum):
    """The reaction of the client."""

    SPEAK = "speak that version"
    DISCOVER = "ask `server/discover`, in the version that was named if one was"
    INITIALIZE = "send `initialize`"
    REPEAT = "ask the same again, after a pause"
    WAIT = "wait for what else was asked"
    CONNECT_ANEW = "connect anew, with `initialize` first"
    FAIL = "raise it"


class Lifetime(Enum):
    """The time for which the era is remembered that is found in the end."""

    CONNECTION = "this connection"
    CLIENT = "this client"
    PROCESS = "all clients of the URL in this process"


@attrs.frozen
class Decision:
    """A row of the table: what an answer leads to.

    ``times`` is how often ``step`` is taken in one connection, after which it is ``otherwise``. ``otherwise`` is also
    what a client does whose versions leave it no choice. ``kept`` is what the row does to the lifetime of an era that
    the same connection, or the one that is made anew, finds later; ``None`` leaves that as it is.
    """

    step: NextStep
    times: int = 1
    otherwise: NextStep = NextStep.FAIL
    kept: Lifetime | None = None
    taken_back: str = ""
    """What shows later that the decision was wrong."""


_SPOKEN = "a lost connection: the next one asks again"
_REFUSAL = "a refusal of `initialize`"
_DISCOVERED = Decision(NextStep.SPEAK, kept=Lifetime.PROCESS, taken_back="a refusal of `server/discover`")
_FAIL = Decision(NextStep.FAIL)
# A server may refuse the first version that we name, even one that it then says it supports.
_NAMED = Decision(NextStep.DISCOVER, times=2)
_NAMED_BY_INITIALIZE = Decision(NextStep.DISCOVER, taken_back="a refusal of `server/discover`")
_NAMES_SESSIONS = Decision(NextStep.INITIALIZE, kept=Lifetime.PROCESS, taken_back=_REFUSAL)
_OUTAGE = Lifetime.CONNECTION
_DIED = Decision(NextStep.CONNECT_ANEW, kept=Lifetime.CLIENT, taken_back=_REFUSAL)

DECISIONS: Mapping[tuple[Asked, Answer], Decision] = MappingProxyType(
    {
        (Asked.DISCOVER, Answer.AGREED): _DISCOVERED,
        (Asked.DISCOVER, Answer.NAMES_STATELESS): _NAMED,
        (Asked.DISCOVER, Answer.NAMES_SESSIONS): _NAMES_SESSIONS,
        (Asked.DISCOVER, Answer.NAMES_OTHERS): _FAIL,
        (Asked.DISCOVER, Answer.STATELESS_ERROR): _FAIL,
        (Asked.DISCOVER, Answer.REFUSED): _NAMES_SESSIONS,
        (Asked.DISCOVER, Answer.UNAVAILABLE): Decision(
            NextStep.REPEAT, times=2, otherwise=NextStep.INITIALIZE, kept=_OUTAGE, taken_back=_SPOKEN
        ),
        (Asked.DISCOVER, Answer.SILENT): Decision(
            NextStep.INITIALIZE, kept=_OUTAGE, taken_back="the late answer; " + _SPOKEN
        ),
        (Asked.DISCOVER, Answer.LATE): _FAIL,
        (Asked.DISCOVER, Answer.LOST): _DIED,
        (Asked.DISCOVER, Answer.UNREAD): _FAIL,
        (Asked.DISCOVER, Answer.UNREACHABLE): _FAIL,
        # Discovery may be answered while initialize is under way, or be asked again because that was refused.
        (Asked.DISCOVER_LATE, Answer.AGREED): _DISCOVERED,
        (Asked.DISCOVER_LATE, Answer.NAMES_STATELESS): _NAMED,
        (Asked.DISCOVER_LATE, Answer.NAMES_SESSIONS): Decision(
            NextStep.WAIT, otherwise=NextStep.WAIT, kept=Lifetime.PROCESS, taken_back=_REFUSAL
        ),
        (Asked.DISCOVER_LATE, Answer.NAMES_OTHERS): _FAIL,
        (Asked.DISCOVER_LATE, Answer.STATELESS_ERROR): _FAIL,
        (Asked.DISCOVER_LATE, Answer.REFUSED): Decision(
            NextStep.WAIT, otherwise=NextStep.WAIT, kept=Lifetime.PROCESS, taken_back=_REFUSAL
        ),
        (Asked.DISCOVER_LATE, Answer.UNAVAILABLE): Decision(
            NextStep.REPEAT, times=2, otherwise=NextStep.WAIT
        ),
        (Asked.DISCOVER_LATE, Answer.LATE): _FAIL,
        (Asked.DISCOVER_LATE, Answer.LOST): _DIED,
        (Asked.DISCOVER_LATE, Answer.UNREAD): _FAIL,
        (Asked.DISCOVER_LATE, Answer.UNREACHABLE): _FAIL,
        (Asked.INITIALIZE, Answer.AGREED): Decision(NextStep.SPEAK, taken_back=_REFUSAL),
        (Asked.INITIALIZE, Answer.NAMES_STATELESS): _NAMED_BY_INITIALIZE,
        (Asked.INITIALIZE, Answer.NAMES_OTHERS): _FAIL,
        (Asked.INITIALIZE, Answer.REFUSED): Decision(NextStep.DISCOVER),
        (Asked.INITIALIZE, Answer.UNAVAILABLE): Decision(NextStep.REPEAT, times=2),
        (Asked.INITIALIZE, Answer.LATE): _FAIL,
        (Asked.INITIALIZE, Answer.LOST): _FAIL,
        (Asked.INITIALIZE, Answer.UNREAD): _FAIL,
        (Asked.INITIALIZE, Answer.UNREACHABLE): _FAIL,
        (Asked.INITIALIZE_AFTER, Answer.AGREED): Decision(NextStep.SPEAK, taken_back=_REFUSAL),
        (Asked.INITIALIZE_AFTER, Answer.NAMES_STATELESS): _NAMED_BY_INITIALIZE,
        (Asked.INITIALIZE_AFTER, Answer.NAMES_OTHERS): _FAIL,
        # A gateway may have begun the session of its server when it passed our discovery on.
        (Asked.INITIALIZE_AFTER, Answer.REFUSED): Decision(NextStep.CONNECT_ANEW, taken_back=_REFUSAL),
        (Asked.INITIALIZE_AFTER, Answer.UNAVAILABLE): Decision(NextStep.REPEAT, times=2),
        (Asked.INITIALIZE_AFTER, Answer.LATE): _FAIL,
        (Asked.INITIALIZE_AFTER, Answer.LOST): _DIED,
        (Asked.INITIALIZE_AFTER, Answer.UNREAD): _FAIL,
        (Asked.INITIALIZE_AFTER, Answer.UNREACHABLE): _FAIL,
        (Asked.INITIALIZE_BESIDE, Answer.AGREED): Decision(NextStep.SPEAK, taken_back=_SPOKEN),
        (Asked.INITIALIZE_BESIDE, Answer.NAMES_STATELESS): _NAMED_BY_INITIALIZE,
        (Asked.INITIALIZE_BESIDE, Answer.NAMES_OTHERS): Decision(NextStep.WAIT, otherwise=NextStep.WAIT),
        (Asked.INITIALIZE_BESIDE, Answer.REFUSED): Decision(NextStep.DISCOVER),
        (Asked.INITIALIZE_BESIDE, Answer.UNAVAILABLE): Decision(
            NextStep.REPEAT, times=2, otherwise=NextStep.WAIT
        ),
        (Asked.INITIALIZE_BESIDE, Answer.LATE): _FAIL,
        (Asked.INITIALIZE_BESIDE, Answer.LOST): _DIED,
        (Asked.INITIALIZE_BESIDE, Answer.UNREAD): _FAIL,
        (Asked.INITIALIZE_BESIDE, Answer.UNREACHABLE): _FAIL,
    }
)
"""A pair that is missing here cannot come up: only discovery is given up on after `probe_timeout`."""


# -- reading an answer to ``server/discover`` or ``initialize`` ----------------------------------------------------
#
# MCP 2026-07-28, Versioning and Discovery, Backward Compatibility.

Outcome = Mapping[str, Any] | McpError
"""The result of a request, or the reason why it has none."""


def versions_for(choice: str) -> tuple[str, ...]:
    """Returns the versions that ``"auto"``, ``"legacy"``, ``"modern"`` or one version mean, oldest first.

    Raises `ValueError` for anything else.
    """
    by_name = {"auto": (*LEGACY, *MODERN), "legacy": tuple(LEGACY), "modern": tuple(MODERN)}
    if choice in by_name:
        return by_name[choice]
    if choice in LEGACY or choice in MODERN:
        return (choice,)
    raise ValueError(
        f"era must be 'auto', 'legacy', 'modern' or one of {', '.join((*LEGACY, *MODERN))}: {choice!r}"
    )


def newest_common(ours: Sequence[str], theirs: Any) -> str | None:
    """Returns the newest version that both sides speak, or ``None``; ``theirs`` may be any JSON value."""
    if not isinstance(theirs, list | tuple):
        return None
    return next((version for version in reversed(ours) if version in theirs), None)


def discoverable(ours: Sequence[str], prior: DiscoverResult) -> str:
    """Returns the newest version without sessions that an earlier answer to ``server/discover`` and ``ours`` share.

    Raises:
        ValueError: There is none.
    """
    version = newest_common([version for version in ours if version in MODERN], prior.supported_versions)
    if version is None:
        theirs = ", ".join(prior.supported_versions) or "nothing"
        raise ValueError(f"prior_discover names no version of this client without sessions: {theirs}")
    return version


def read_discovery(outcome: Outcome, ours: Sequence[str]) -> tuple[Answer, Era | None]:
    """Returns what an answer to ``server/discover`` is, and the era that it names, if it names one of ``ours``."""
    if isinstance(outcome, HeaderMismatch | MissingCapability):
        return Answer.STATELESS_ERROR, None
    if isinstance(outcome, UnsupportedVersion) and outcome.supported:
        return _named(outcome.supported, ours, Answer.NAMES_STATELESS)
    if isinstance(outcome, McpError):
        return _failed(outcome), None
    supported = outcome.get("supportedVersions")
    if not isinstance(supported, list) or not supported:
        return Answer.REFUSED, None
    return _named(supported, ours, Answer.AGREED)


def read_initialize(outcome: Outcome, ours: Sequence[str]) -> tuple[Answer, Era | None]:
    """Returns what an answer to ``initialize`` is, and the era that it names, if it names one of ``ours``."""
    if isinstance(outcome, McpError):
        theirs = _supported(outcome)
        named = newest_common([version for version in ours if version in MODERN], theirs)
        if named is not None:
            return Answer.NAMES_STATELESS, MODERN[named]
        return (Answer.NAMES_OTHERS if theirs else _failed(outcome)), None
    version = outcome.get("protocolVersion")
    if isinstance(version, str) and version in ours and version in LEGACY:
        return Answer.AGREED, LEGACY[version]
    return Answer.NAMES_OTHERS, None


def _named(theirs: list[Any], ours: Sequence[str], stateless: Answer) -> tuple[Answer, Era | None]:
    version = newest_common(ours, theirs)
    if version is None:
        return Answer.NAMES_OTHERS, None
    return (Answer.NAMES_SESSIONS, LEGACY[version]) if version in LEGACY else (stateless, MODERN[version])


def _supported(error: McpError) -> list[Any]:
    """Returns the versions that an error names, whatever its code: servers refuse ``initialize`` with several."""
    data = error.data if isinstance(error, RpcError) else None
    listed = data.get("supported") if isinstance(data, dict) else None
    return listed if isinstance(listed, list) else []


def _failed(error: McpError) -> Answer:
    if isinstance(error, Unavailable | ConnectionLost):
        return Answer.UNAVAILABLE
    return Answer.REFUSED if isinstance(error, RpcError | RemoteProtocolError) else Answer.UNREACHABLE


def request_meta(
    era: Era, info: Implementation, capabilities: ClientCapabilities, log_level: str | None
) -> dict[str, Any]:
    """Returns what every request of a client carries in its ``_meta`` about that client; see `ClientRules`."""
    return era.client.request_meta(
        era.version, era.unstructure(capabilities), era.unstructure(info), log_level
    )


class ClientNegotiation:
    """Checks the requests that a server sends: only legacy servers may, and before the handshake only pings.

    MCP 2025-11-25, Lifecycle, Initialization; in MCP 2026-07-28 servers send no requests, and clients no responses.
    """

    def __init__(self) -> None:
        self.era: Era | None = None

    @property
    def batches(self) -> bool:
        return self.era is not None and self.era.batches

    def open(self, request: JsonRpcRequest) -> Invocation:
        """Returns the request as an invocation.

        Raises:
            RpcError: This revision does not let a server ask for it.
            NotAnswered: This revision does not let a server ask for anything.
        """
        era = self.era or LATEST_LEGACY
        if era.name != "legacy":
            raise NotAnswered(request.method)
        method = era.client_methods.get(request.method)
        if method is None or (self.era is None and request.method != "ping"):
            raise MethodNotFound(request.method)
        return open_method(era, method, request.id, params_of(request), Peer(era, {}, None, None))

    def notified(self, name: str) -> None:
        """Does nothing: a client's lifecycle is moved by its own requests only."""
