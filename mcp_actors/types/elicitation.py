"""Elicitation: a server asks the user of the client, by a form or by a web page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.records import Vocabulary, record

__all__ = [
    "ElicitAction",
    "ElicitFormParams",
    "ElicitParams",
    "ElicitResult",
    "ElicitUrlParams",
    "ElicitationCompleteParams",
    "fill_defaults",
]

ElicitAction = Literal["accept", "decline", "cancel"]
"""What a person did with a question: answered it, refused to, or closed it."""


@record(eq=False, repr=False)
class ElicitFormParams(Vocabulary):
    """Asks by a form. ``requested_schema`` is the plain JSON Schema of a flat object: see `form_schema`.

    A server must not ask for secrets this way (MCP 2025-11-25, Client Features, Elicitation).
    """

    method: ClassVar[Literal["elicitation/create"]] = "elicitation/create"
    mode: ClassVar[Literal["form"]] = "form"

    message: str
    requested_schema: dict[str, Any]
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ElicitUrlParams(Vocabulary):
    """Asks the user to visit ``url``.

    ``elicitation_id`` is required in the only revision with sessions that has this mode, and left out in others.
    """

    method: ClassVar[Literal["elicitation/create"]] = "elicitation/create"
    mode: ClassVar[Literal["url"]] = "url"

    message: str
    url: str
    elicitation_id: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


ElicitParams = ElicitFormParams | ElicitUrlParams
"""A question to a person: a form, or a page to visit."""


@record(eq=False, repr=False)
class ElicitResult(Vocabulary):
    """The reaction of the user. Only an accepted form has ``content``: strings, numbers, booleans, lists of strings."""

    action: ElicitAction
    content: dict[str, Any] | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ElicitationCompleteParams(Vocabulary):
    """Params of ``notifications/elicitation/complete``: the user has finished at the URL."""

    elicitation_id: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


def fill_defaults(requested_schema: Mapping[str, Any], content: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a new dict with ``content`` and the schema's defaults for members that it does not have (SEP-1034)."""
    filled = dict(content or {})
    properties = requested_schema.get("properties")
    if isinstance(properties, Mapping):
        for name, schema in properties.items():
            if name not in filled and isinstance(schema, Mapping) and "default" in schema:
                default = schema["default"]
                filled[name] = list(default) if isinstance(default, list) else default
    return filled
