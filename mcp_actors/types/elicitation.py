"""Elicitation: a server asks the person in front of the client, by a form or by a web page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

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


@attrs.define
class ElicitFormParams:
    """Asks by a form. ``requested_schema`` is a plain JSON Schema of a flat object: see `form_schema`.

    Never ask for a secret this way.
    """

    method: ClassVar[Literal["elicitation/create"]] = "elicitation/create"
    mode: ClassVar[Literal["form"]] = "form"

    message: str
    requested_schema: dict[str, Any]
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ElicitUrlParams:
    """Asks the person to visit ``url``.

    ``elicitation_id`` is for the one revision with sessions that knows this mode: needed there, left out elsewhere.
    """

    method: ClassVar[Literal["elicitation/create"]] = "elicitation/create"
    mode: ClassVar[Literal["url"]] = "url"

    message: str
    url: str
    elicitation_id: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


ElicitParams = ElicitFormParams | ElicitUrlParams


@attrs.define
class ElicitResult:
    """What the person did. Only an accepted form has ``content``: text, numbers, booleans or lists of text."""

    action: ElicitAction
    content: dict[str, Any] | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ElicitationCompleteParams:
    """What was asked for by url has been done."""

    elicitation_id: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


def fill_defaults(requested_schema: Mapping[str, Any], content: Mapping[str, Any] | None) -> dict[str, Any]:
    """The accepted ``content`` plus the schema's defaults for what it leaves out (SEP-1034), as a new dict."""
    filled = dict(content or {})
    properties = requested_schema.get("properties")
    if isinstance(properties, Mapping):
        for name, schema in properties.items():
            if name not in filled and isinstance(schema, Mapping) and "default" in schema:
                default = schema["default"]
                filled[name] = list(default) if isinstance(default, list) else default
    return filled
