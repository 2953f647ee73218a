"""Says what a gateway is and has: capabilities, instructions, and for a bridge the description of its one server.

An upstream that nobody has met yet may have anything, so everything is declared as long as there is one. The others are
known from their handshakes, and what was declared once stays declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

import attrs

from mcp_actors._server.features import FeatureName, Features
from mcp_actors.gateway.upstream.actor import UpstreamActor
from mcp_actors.tasks import TASKS
from mcp_actors.types import Implementation, ServerCapabilities

__all__ = [
    "LONGEST_INSTRUCTIONS",
    "LONGEST_MERGED",
    "described",
    "merged_instructions",
    "presented",
    "without_tasks",
]

# Characters of the instructions of one upstream, and of all together: they are a part of every prompt of a model.
LONGEST_INSTRUCTIONS = 8_000
LONGEST_MERGED = 64_000
_FEATURES: tuple[FeatureName, ...] = get_args(FeatureName)


def described(
    whole: ServerCapabilities, own: Features, declared: set[str], actors: Iterable[UpstreamActor]
) -> ServerCapabilities:
    """Returns the part of the capabilities that is really there: at the gateway itself or at any of its upstreams.

    Args:
        whole: All that can be declared.
        own: The features of the gateway itself.
        declared: What was declared before, and stays so; it is added to.
        actors: The upstreams.
    """
    declared.update(name for name in ("tools", "prompts", "resources") if len(getattr(own, name)))
    if len(own.completions) or len(own.prompts) or own.resources.has_templates:
        declared.add("completions")
    shown = set(declared)
    for actor in actors:
        if actor.met is None:
            shown.update(_FEATURES)
        else:
            capabilities = actor.met.client._requests.negotiated.capabilities
            found = {each for each in _FEATURES if getattr(capabilities, each) is not None}
            declared |= found
            shown |= found
    absent: dict[str, Any] = {each: None for each in _FEATURES if each not in shown}
    return attrs.evolve(whole, **absent)


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


def presented(
    actor: UpstreamActor, own: ServerCapabilities
) -> tuple[Implementation, ServerCapabilities, str | None] | None:
    """Returns how the server of an upstream has described itself, ``None`` before anybody has met it.

    Two things are the gateway's own: it keeps the log level of its clients, so that logging is declared in any case,
    and it has the tasks of a server that has any in the dialect of each client.

    Args:
        actor: The upstream.
        own: What the gateway itself would declare.
    """
    if actor.met is None:
        return None
    negotiated = actor.met.client._requests.negotiated
    declared = negotiated.capabilities
    extensions = dict(declared.extensions or {})
    has_tasks = extensions.pop(TASKS, None) is not None or declared.tasks is not None
    if has_tasks:
        extensions[TASKS] = (own.extensions or {}).get(TASKS, {})
    capabilities = attrs.evolve(
        declared,
        logging=declared.logging or {},
        tasks=own.tasks if has_tasks else None,
        extensions=extensions or None,
    )
    return negotiated.info, capabilities, negotiated.instructions


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def without_tasks(capabilities: ServerCapabilities) -> ServerCapabilities:
    """Returns the capabilities without those that are about tasks, in either dialect."""
    extensions = {id: each for id, each in (capabilities.extensions or {}).items() if id != TASKS}
    return attrs.evolve(capabilities, tasks=None, extensions=extensions or None)
