"""Results that ask for input instead of answering (stateless revisions)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.elicitation import ElicitFormParams, ElicitResult, ElicitUrlParams
from mcp_actors.types.roots import ListRootsParams, ListRootsResult
from mcp_actors.types.sampling import CreateMessageParams, CreateMessageResult

__all__ = ["InputRequest", "InputRequiredResult", "InputResponse"]

InputRequest = ElicitFormParams | ElicitUrlParams | CreateMessageParams | ListRootsParams
"""One question. On the wire it is wrapped as ``{"method": ..., "params": ...}``."""

InputResponse = ElicitResult | CreateMessageResult | ListRootsResult


@attrs.define
class InputRequiredResult:
    """Answer the questions, then send the same request again with the answers and the untouched state.

    Has at least one of its two members. Without ``input_requests`` it means: come back with ``request_state``.
    """

    result_type: ClassVar[Literal["input_required"]] = "input_required"

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
