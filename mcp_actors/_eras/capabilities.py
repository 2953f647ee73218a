"""The dotted names under which the method tables ask for a capability (`Method.requires`)."""

from __future__ import annotations

from mcp_actors.types import ServerCapabilities

__all__ = ["declared_names"]


def declared_names(capabilities: ServerCapabilities) -> frozenset[str]:
    """The dotted names that the method tables ask for, of what is declared."""
    names = {
        name
        for name in ("tools", "prompts", "resources", "completions", "logging")
        if getattr(capabilities, name) is not None
    }
    if capabilities.resources is not None and capabilities.resources.subscribe:
        names.add("resources.subscribe")
    return frozenset(names)
