"""The dotted names of capabilities that the method tables use (`Method.requires`)."""

from __future__ import annotations

from mcp_actors.types import ServerCapabilities

__all__ = ["declared_names"]


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
