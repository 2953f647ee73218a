"""The questions that a server may ask a client, the capabilities that they need, and their answers.

=======================  ===========================  =========================================================
question                 method                       the client must have declared
=======================  ===========================  =========================================================
`ElicitFormParams`       ``elicitation/create``       ``elicitation``: with ``form``, or empty, which means form
`ElicitUrlParams`        ``elicitation/create``       ``elicitation.url``
`CreateMessageParams`    ``sampling/createMessage``   ``sampling``, with ``sampling.tools`` for tools and
                                                      ``sampling.context`` for ``includeContext``
`ListRootsParams`        ``roots/list``               ``roots``
=======================  ===========================  =========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_actors import types as t
from mcp_actors._eras.era import Era, structured
from mcp_actors._eras.vocabulary import named
from mcp_actors.errors import INVALID_PARAMS, LocalProtocolError, RemoteProtocolError, RpcError

__all__ = ["flat_form", "input_required", "missing_capability", "read_answer", "read_recorded"]

_FIELD_TYPES = frozenset({"string", "number", "integer", "boolean", "array"})

_ANSWERS = {
    "elicitation/create": "ElicitResult",
    "sampling/createMessage": "CreateMessageResult",
    "roots/list": "ListRootsResult",
}


def missing_capability(
    question: t.InputRequest, declared: Mapping[str, Any], era: Era
) -> dict[str, Any] | None:
    """Returns the capability that the client did not declare, in the form of the error's data, or ``None``."""
    if question.method not in era.client_methods:
        # To declare what the agreed revision does not have means nothing.
        declared = {}
    if isinstance(question, t.CreateMessageParams):
        sampling = declared.get("sampling")
        if not isinstance(sampling, Mapping):
            return {"sampling": {}}
        if (question.tools is not None or question.tool_choice is not None) and "tools" not in sampling:
            return {"sampling": {"tools": {}}}
        wants_context = question.include_context not in (None, "none")
        if wants_context and era.declares_sampling_context and "context" not in sampling:
            return {"sampling": {"context": {}}}
        return None
    if isinstance(question, t.ListRootsParams):
        return None if isinstance(declared.get("roots"), Mapping) else {"roots": {}}
    elicitation = declared.get("elicitation")
    if isinstance(question, t.ElicitUrlParams):
        return (
            None
            if isinstance(elicitation, Mapping) and "url" in elicitation
            else {"elicitation": {"url": {}}}
        )
    if not isinstance(elicitation, Mapping) or ("url" in elicitation and "form" not in elicitation):
        return {"elicitation": {"form": {}}}
    return None


def flat_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Schema of an object as forms have it: one level, and instead of null a member may be absent.

    Raises `LocalProtocolError` for what no form can ask for.
    """
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        raise LocalProtocolError("the schema of a form must be that of an object")
    return {**schema, "properties": {name: _field(name, each) for name, each in properties.items()}}


def _field(name: str, schema: Any) -> dict[str, Any]:
    field = dict(schema) if isinstance(schema, Mapping) else {}
    forms = [form for form in field.get("anyOf", ()) if form != {"type": "null"}]
    if len(forms) == 1:
        del field["anyOf"]
        field |= forms[0]
        if field.get("default", "") is None:
            del field["default"]
    items = field.get("items", {})
    if field.get("type") not in _FIELD_TYPES or (
        field["type"] == "array" and not ("enum" in items or "anyOf" in items)
    ):
        raise LocalProtocolError(
            f"{name!r} is neither text nor a number nor yes or no nor a choice: no form can ask for it"
        )
    return field


def read_answer(question: t.InputRequest, raw: Any, era: Era) -> t.InputResponse:
    """The typed answer. Raises `RemoteProtocolError` when it is not what was asked for."""
    try:
        answer: t.InputResponse = structured(era, raw, named(_ANSWERS[question.method]))
    except RpcError as error:
        raise RemoteProtocolError(
            f"the client's answer to {question.method} is malformed: {error.message}"
        ) from None
    if (
        isinstance(question, t.ElicitFormParams)
        and isinstance(answer, t.ElicitResult)
        and answer.action == "accept"
    ):
        problems = t.validate_form_answer(question.requested_schema, answer.content or {})
        if problems:
            raise RemoteProtocolError(f"the client's answer does not fit the form: {'; '.join(problems)}")
    if isinstance(answer, t.ListRootsResult):
        for root in answer.roots:
            # MCP 2025-11-25, Roots, Data Types. The scheme of a URI is the same in capitals (RFC 3986 section 3.1).
            if root.uri[:7].lower() != "file://":
                raise RemoteProtocolError(f"the client's root {root.uri[:200]!r} is no file:// URI")
    return answer


def read_recorded(
    question: t.InputRequest, key: str, recorded: Mapping[str, Any], era: Era
) -> t.InputResponse | None:
    """The answer among those that a retry carried, ``None`` if there is none. A malformed one is -32602."""
    if key not in recorded:
        return None
    try:
        return read_answer(question, recorded[key], era)
    except RemoteProtocolError as error:
        raise RpcError(INVALID_PARAMS, f"inputResponses[{key!r}]: {error}") from None


def input_required(questions: Mapping[str, t.InputRequest], state: str, era: Era) -> dict[str, Any]:
    """The result that asks; its requests carry neither id nor ``_meta``."""
    requests = {
        key: {"method": each.method, "params": era.unstructure(each)} for key, each in questions.items()
    }
    return {"resultType": "input_required", "inputRequests": requests, "requestState": state}
