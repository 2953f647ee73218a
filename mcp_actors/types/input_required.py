"""Results that ask for input instead of answering (SEP-2322, revisions without sessions)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.elicitation import ElicitFormParams, ElicitResult, ElicitUrlParams
from mcp_actors.types.roots import ListRootsParams, ListRootsResult
from mcp_actors.types.sampling import CreateMessageParams, CreateMessageResult
from mcp_actors.types.vocabulary import Vocabulary

__all__ = ["InputRequest", "InputRequiredResult", "InputResponse"]

InputRequest = ElicitFormParams | ElicitUrlParams | CreateMessageParams | ListRootsParams
"""One question. In JSON it is the object ``{"method": ..., "params": ...}``."""

InputResponse = ElicitResult | CreateMessageResult | ListRootsResult


@attrs.define(eq=False, repr=False)
class InputRequiredResult(Vocabulary):
    """Asks the client to send the same request again, with answers to the questions and the unchanged state.

    At least one of the two members is present. Without ``input_requests`` the client only sends ``request_state``.
    """

    result_type: ClassVar[Literal["input_required"]] = "input_required"

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
