"""The context of a trace in the ``_meta`` of requests: ``traceparent``, ``tracestate`` and ``baggage`` (SEP-414).

They have the forms of W3C Trace Context and W3C Baggage, whatever propagators the program has configured for its
other protocols. What a peer sends is bounded, and what is malformed is ignored: a request is never refused for it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

__all__ = ["Unsampled", "context_of", "is_sampled", "meta_of"]

# Trace Context, 3.3.1.1: a receiver takes at least 512 characters of tracestate.
LONGEST_TRACESTATE = 512
# Baggage, 3.3.2: 8192 bytes at least are to be passed on.
LONGEST_BAGGAGE = 8192
# The second part of a later version may be followed by more, which is ignored (Trace Context, 4.3).
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{0,512})?", re.ASCII)
# What does not fit is ignored here: the library would write a line with the text of the peer for each request.
_KEY = r"[a-z][a-z0-9_*/-]{0,240}(?:@[a-z][a-z0-9_*/-]{0,13})?"
_STATE = re.compile(rf"{_KEY}=[!-+\--<>-~]{{1,256}}(?:, ?{_KEY}=[!-+\--<>-~]{{1,256}}){{0,31}}", re.ASCII)
_ITEM = (
    r"[!#$&'*+.^_`|~0-9A-Za-z-]+=[!#-+\--:<-\[\]-~]*"
    r"(?:;[!#$&'*+.^_`|~0-9A-Za-z-]+(?:=[!#-+\--:<-\[\]-~]*)?)*"
)
_ITEMS = re.compile(rf"{_ITEM}(?:, ?{_ITEM})*", re.ASCII)
_BAGGAGE = W3CBaggagePropagator()
EMPTY = Context()
_UNSAMPLED = TraceFlags(TraceFlags.DEFAULT)
_NO_STATE = TraceState()
# The flag of ids that are random; older versions of the API have no name for it.
_RANDOM = 2
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
# The key of the span in a context: a context of one value is made in half the time that the API takes to set it.
(_SPAN,) = set_span_in_context(INVALID_SPAN, EMPTY)


def context_of(meta: Mapping[str, Any]) -> Context:
    """Returns the context that a request was sent in: empty if it has none that is well formed.

    Args:
        meta: The request's ``_meta``, which is the word of a peer.
    """
    traceparent = meta.get("traceparent")
    context = EMPTY
    if type(traceparent) is str:
        remote = _remote(traceparent, meta.get("tracestate"))
        if remote is not None:
            context = set_span_in_context(NonRecordingSpan(remote), EMPTY)
    carried = meta.get("baggage")
    if type(carried) is str and len(carried) <= LONGEST_BAGGAGE and _ITEMS.fullmatch(carried):
        context = _BAGGAGE.extract({"baggage": carried}, context)
    return context


def _remote(traceparent: str, tracestate: object) -> SpanContext | None:
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or not _is_valid(found):
        return None
    _, trace_id, span_id, flags, _ = found.groups()
    state = None
    if type(tracestate) is str and len(tracestate) <= LONGEST_TRACESTATE and _STATE.fullmatch(tracestate):
        state = TraceState.from_header([tracestate])
    return SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)


def _is_valid(traceparent: re.Match[str]) -> bool:
    version, trace_id, span_id, _, more = traceparent.groups()
    if version == "ff" or (version == "00" and more is not None):
        return False
    return trace_id != _NO_TRACE and span_id != _NO_SPAN


def is_sampled(meta: Mapping[str, Any]) -> bool | None:
    """Returns whether the trace that a request came with is sampled, ``None`` if it has none that is well formed."""
    traceparent = meta.get("traceparent")
    found = _TRACEPARENT.fullmatch(traceparent) if type(traceparent) is str else None
    if found is None or not _is_valid(found):
        return None
    return int(found[4], 16) & TraceFlags.SAMPLED != 0


class Unsampled(NonRecordingSpan):
    """The span of a call that is not sampled: it is recorded nowhere, and has ids from when somebody asks for them.

    Args:
        meta: The ``_meta`` of the request. The span belongs to the trace that this names, if it names one.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._meta = meta

    def __repr__(self) -> str:
        return f"<Unsampled {self.get_span_context()!r}>"

    def get_span_context(self) -> SpanContext:
        made: SpanContext | None = self.__dict__.get("made")
        if made is None:
            traceparent, caller = self._meta.get("traceparent"), None
            if type(traceparent) is str:
                caller = _remote(traceparent, self._meta.get("tracestate"))
            if caller is None:
                trace_id, flags, state = random.getrandbits(128), _UNSAMPLED, _NO_STATE
            else:
                # Trace Context, Level 2, 3.2.2.5: flags that nobody has defined are not passed on.
                flags = TraceFlags(caller.trace_flags & _RANDOM)
                trace_id, state = caller.trace_id, caller.trace_state
            made = SpanContext(trace_id, random.getrandbits(64), False, flags, state)
            # Two threads may ask at the same time: the first one's ids are those of both.
            made = self.__dict__.setdefault("made", made)
        return made

    def context(self) -> Context:
        """Returns the context in which the function runs: this span, and the baggage that came with the request."""
        carried = self._meta.get("baggage")
        if carried is None:
            return Context({_SPAN: self})
        return set_span_in_context(self, context_of({"baggage": carried}))


def meta_of(span: SpanContext, context: Context) -> dict[str, Any]:
    """Returns the members of ``_meta`` that carry a span, and the baggage of its context, to a peer."""
    meta: dict[str, Any] = {}
    if span.is_valid:
        meta["traceparent"] = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
        if span.trace_state:
            meta["tracestate"] = span.trace_state.to_header()
    if baggage.get_all(context):
        _BAGGAGE.inject(meta, context)
    return meta
