"""Says what a gateway is and has: capabilities, instructions, and for a bridge the description of its one server.

An upstream that nobody has met yet may have anything, so everything is declared as long as there is one. The others are
known from their handshakes, and what was declared once stays declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import attrs

from mcp_actors._server.features import FeatureName
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.types import Implementation, ServerCapabilities

__all__ = [
    "LONGEST_INSTRUCTIONS",
    "LONGEST_MERGED",
    "features_of",
    "merged_instructions",
    "presented",
]

# Characters of the instructions of one upstream, and of all together: they are a part of every prompt of a model.
LONGEST_INSTRUCTIONS = 8_000
LONGEST_MERGED = 64_000
_FEATURES: tuple[FeatureName, ...] = get_args(FeatureName)


def features_of(actors: Iterable[UpstreamActor]) -> frozenset[str]:
    """Returns the features that any of the upstreams has, and all features while one of them is unknown."""
    found: set[str] = set()
    for actor in actors:
        if actor.met is None:
            return frozenset(_FEATURES)
        capabilities = actor.met.client._requests.negotiated.capabilities
        found.update(each for each in _FEATURES if getattr(capabilities, each) is not None)
    return frozenset(found)


def merged_instructions(own: str | None, actors: Sequence[UpstreamActor]) -> str | None:
    """Returns the gateway's own instructions and those of the upstreams that were met, each under its name."""
    parts = [] if own is None else [own]
    left = LONGEST_MERGED - len(own or "")
    for actor in actors:
        text = None if actor.met is None else actor.met.client._requests.negotiated.instructions
        if text:
            part = f"## {actor.settings.name}\n\n{_cut(text, LONGEST_INSTRUCTIONS)}"
            if len(part) > left:
                break
            left -= len(part) + 2
            parts.append(part)
    return "\n\n".join(parts) or None


def presented(actor: UpstreamActor) -> tuple[Implementation, ServerCapabilities, str | None] | None:
    """Returns how the server of an upstream has described itself, ``None`` before anybody has met it.

    Logging is declared in any case, because the gateway keeps the level of its own clients.
    """
    if actor.met is None:
        return None
    negotiated = actor.met.client._requests.negotiated
    capabilities = attrs.evolve(negotiated.capabilities, logging=negotiated.capabilities.logging or {})
    return negotiated.info, capabilities, negotiated.instructions


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
