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
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)

__all__ = ["context_of", "meta_of", "unrecorded"]

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
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    state = None
    if type(tracestate) is str and len(tracestate) <= LONGEST_TRACESTATE and _STATE.fullmatch(tracestate):
        state = TraceState.from_header([tracestate])
    remote = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)
    return remote if remote.is_valid else None


def unrecorded(parent: Context, share: float) -> NonRecordingSpan | None:
    """Returns a span that is recorded nowhere, ``None`` for a call that may be sampled.

    Args:
        parent: The context that the call came with. Where it has a trace, that one's flag decides.
        share: The share of the other calls that may be sampled.
    """
    caller = get_current_span(parent).get_span_context() if parent else None
    if caller is not None and caller.is_valid:
        if caller.trace_flags & TraceFlags.SAMPLED:
            return None
        # Trace Context, Level 2, 3.2.2.5: flags that nobody has defined are not passed on.
        flags = TraceFlags(caller.trace_flags & _RANDOM)
        trace_id, state = caller.trace_id, caller.trace_state
    elif random.random() < share:
        return None
    else:
        trace_id, flags, state = random.getrandbits(128), _UNSAMPLED, _NO_STATE
    return NonRecordingSpan(SpanContext(trace_id, random.getrandbits(64), False, flags, state))


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
