"""The capabilities that a client declares: what its handlers can do, and what the user declares of them."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mcp_actors._client.options import ClientOptions
from mcp_actors.types import (
    ClientCapabilities,
    ElicitationCapability,
    Root,
    RootsCapability,
    SamplingCapability,
)

__all__ = ["as_roots", "declared_capabilities", "declared_in_requests"]


def declared_capabilities(options: ClientOptions) -> ClientCapabilities:
    """Returns what is declared to servers: what follows from the handlers, replaced by what ``capabilities`` has.

    Raises:
        ValueError: ``capabilities`` declares what there is no handler for.
    """
    given = options.capabilities or ClientCapabilities()
    implied = ClientCapabilities(
        sampling=SamplingCapability(tools={} if options.sampling_tools else None)
        if options.sampling
        else None,
        elicitation=ElicitationCapability(form={}, url={}) if options.elicitation else None,
        roots=RootsCapability(list_changed=True) if options.roots is not None else None,
    )
    for name in ("sampling", "elicitation", "roots"):
        if getattr(given, name) is not None and getattr(implied, name) is None:
            raise ValueError(
                f"capabilities declares {name}, but there is nothing to answer with: give {name}= too"
            )
    for each in options.in_use:
        implied = attrs.evolve(implied, **each.core)
    if settings := options.settings:
        # SEP-2133; SEP-1046, SEP-990: also which ways of access beyond those of the specification a client uses.
        implied.extensions = settings
        if given.extensions is not None:
            given = attrs.evolve(given, extensions={**implied.extensions, **given.extensions})
    members = {field.name: getattr(given, field.name) for field in attrs.fields(ClientCapabilities)}
    declared = attrs.evolve(implied, **{name: value for name, value in members.items() if value is not None})
    if options.sampling_tools and declared.sampling is not None and declared.sampling.tools is None:
        declared.sampling = attrs.evolve(declared.sampling, tools={})
    return declared


def declared_in_requests(capabilities: ClientCapabilities, options: ClientOptions) -> ClientCapabilities:
    """Returns what each stateless request declares: tasks by their extension, and never by the core of sessions."""
    declared = dict(capabilities.extensions or {})
    if options.tasks is not None and options.tasks.results:
        declared.setdefault(options.tasks.id, {})
    return attrs.evolve(capabilities, tasks=None, extensions=declared or None)


def as_roots(roots: Iterable[Root | str]) -> list[Root]:
    """Returns the roots with URIs in the form of the protocol. MCP 2026-07-28, Roots, Root.

    Raises:
        ValueError: One is no ``file://`` URI.
    """
    listed = [each if isinstance(each, Root) else Root(each) for each in roots]
    for root in listed:
        # The scheme of a URI is the same in capitals (RFC 3986 section 3.1).
        if root.uri[:7].lower() != "file://":
            raise ValueError(
                f"a root must be a file:// URI, and {root.uri!r} is none: pathlib.Path(…).as_uri() makes one"
            )
    return listed
