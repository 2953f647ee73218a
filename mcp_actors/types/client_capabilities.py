"""The capabilities of clients."""

from __future__ import annotations

from typing import Any

import attrs

from mcp_actors.types.vocabulary import Vocabulary

__all__ = [
    "ClientCapabilities",
    "ElicitationCapability",
    "RootsCapability",
    "SamplingCapability",
]


@attrs.define(eq=False, repr=False)
class RootsCapability(Vocabulary):
    """The client answers ``roots/list``; with ``list_changed`` it also notifies the server of changes."""

    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class SamplingCapability(Vocabulary):
    """The client answers ``sampling/createMessage``. A member that is ``{}`` means that the feature is supported."""

    context: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ElicitationCapability(Vocabulary):
    """The client answers ``elicitation/create``. Without any member it supports forms only."""

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ClientCapabilities(Vocabulary):
    """The capabilities of a client. A member that is present is declared, even if it is empty.

    ``extensions`` maps the identifier of an extension to its settings; ``tasks`` is passed on unchanged.
    """

    experimental: dict[str, Any] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    tasks: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
