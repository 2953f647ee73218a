"""The decisions of a client about the era of its server as a table; nothing else decides what an answer means.

MCP 2026-07-28, Versioning and Discovery, Backward Compatibility; MCP 2025-11-25, Lifecycle, Initialization. Rules:

* Only an answer says something about the era of a server. Silence, an outage and a lost connection say nothing: after
  each of them ``initialize`` is tried as well, and what comes of it is not kept for other clients.
* A version without sessions that the server names, in whatever answer, leads to discovery, also late.
* What is kept is only a suggestion about what to ask first. An answer that contradicts it takes it back.
* One connection has one bound, `Client(timeout=)` and `Client(probe_timeout=)` together; the rows say how often what is
  repeated within it.

``docs/eras.md`` shows the table, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import attrs

__all__ = ["DECISIONS", "Answer", "Asked", "Decision", "Lifetime", "NextStep"]


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
    UNREACHABLE = "nobody there, 401, 403, or a request that cannot be sent"


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
        (Asked.DISCOVER_LATE, Answer.UNREACHABLE): _FAIL,
        (Asked.INITIALIZE, Answer.AGREED): Decision(NextStep.SPEAK, taken_back=_REFUSAL),
        (Asked.INITIALIZE, Answer.NAMES_STATELESS): _NAMED_BY_INITIALIZE,
        (Asked.INITIALIZE, Answer.NAMES_OTHERS): _FAIL,
        (Asked.INITIALIZE, Answer.REFUSED): Decision(NextStep.DISCOVER),
        (Asked.INITIALIZE, Answer.UNAVAILABLE): Decision(NextStep.REPEAT, times=2),
        (Asked.INITIALIZE, Answer.LATE): _FAIL,
        (Asked.INITIALIZE, Answer.LOST): _FAIL,
        (Asked.INITIALIZE, Answer.UNREACHABLE): _FAIL,
        (Asked.INITIALIZE_AFTER, Answer.AGREED): Decision(NextStep.SPEAK, taken_back=_REFUSAL),
        (Asked.INITIALIZE_AFTER, Answer.NAMES_STATELESS): _NAMED_BY_INITIALIZE,
        (Asked.INITIALIZE_AFTER, Answer.NAMES_OTHERS): _FAIL,
        # A gateway may have begun the session of its server when it passed our discovery on.
        (Asked.INITIALIZE_AFTER, Answer.REFUSED): Decision(NextStep.CONNECT_ANEW, taken_back=_REFUSAL),
        (Asked.INITIALIZE_AFTER, Answer.UNAVAILABLE): Decision(NextStep.REPEAT, times=2),
        (Asked.INITIALIZE_AFTER, Answer.LATE): _FAIL,
        (Asked.INITIALIZE_AFTER, Answer.LOST): _DIED,
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
        (Asked.INITIALIZE_BESIDE, Answer.UNREACHABLE): _FAIL,
    }
)
"""A pair that is missing here cannot come up: only discovery is given up on after `probe_timeout`."""
