"""The differences between the revisions with sessions, in one table.

Each row has what a revision added, so every earlier revision lacks it. A member that the peer's revision lacks is left
out when it is written, and kept in ``extra`` when it is received. An object that cannot simply be left out is replaced:
a content block by a text block that describes it. A request that the revision cannot express is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mcp_actors._eras.legacy import downgrade

__all__ = ["CHANGES_BY_REVISION", "REVISIONS", "Revision", "absent_in", "downgraded_in"]

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Oldest first. They compare as text only among themselves."""

_STATELESS = "stateless"
"""Stands for all revisions without sessions. It sorts after every date."""


class Revision(msgspec.Struct, frozen=True, eq=False):
    """The additions of one revision.

    ``members`` has the added attributes by the name of their class. ``replacements`` has functions, by class too, that
    return the object to send to peers of earlier revisions.
    """

    since: str
    members: Mapping[str, str]
    replacements: Mapping[str, Callable[[Any], Any]] = msgspec.field(default_factory=dict)


CHANGES_BY_REVISION = (
    Revision(
        "2025-03-26",
        {
            "Tool": "annotations",
            "ProgressParams": "message",
            "ServerCapabilities": "completions",
        },
        {"AudioContent": downgrade.audio_as_text},
    ),
    Revision(
        "2025-06-18",
        {
            "Implementation": "title",
            "Tool": "title output_schema meta",
            "Prompt": "title meta",
            "PromptArgument": "title",
            "PromptReference": "title",
            "Resource": "title meta",
            "ResourceTemplate": "title meta",
            "TextResourceContents": "meta",
            "BlobResourceContents": "meta",
            "Root": "meta",
            "TextContent": "meta",
            "ImageContent": "meta",
            "AudioContent": "meta",
            "EmbeddedResource": "meta",
            "Annotations": "last_modified",
            "CallToolResult": "structured_content",
            "CompleteParams": "context",
            "ClientCapabilities": "elicitation",
        },
        {"ResourceLink": downgrade.link_as_text},
    ),
    Revision(
        "2025-11-25",
        {
            "Implementation": "description website_url icons",
            "Tool": "icons execution",
            "Prompt": "icons",
            "Resource": "icons",
            "ResourceTemplate": "icons",
            "SamplingCapability": "context tools",
            "ElicitationCapability": "form url",
            "ClientCapabilities": "tasks",
            "ServerCapabilities": "tasks",
            "ElicitFormParams": "mode",
            "CreateMessageParams": "tools tool_choice",
            "SamplingMessage": "meta",
        },
        {
            "CreateMessageParams": downgrade.one_block_a_message,
            "SamplingMessage": downgrade.message_in_one_block,
            "CreateMessageResult": downgrade.result_in_one_block,
            "ToolUseContent": downgrade.tool_use_as_text,
            "ToolResultContent": downgrade.tool_result_as_text,
            "ElicitFormParams": downgrade.form_with_plain_enums,
            "ElicitUrlParams": downgrade.refuse_url_elicitation,
            "ClientCapabilities": downgrade.no_forms_that_were_not_declared,
        },
    ),
    Revision(
        _STATELESS,
        {
            "CallToolParams": "input_responses request_state",
            "GetPromptParams": "input_responses request_state",
            "ReadResourceParams": "input_responses request_state",
            "EmptyResult": "result_type",
            "CallToolResult": "result_type",
            "GetPromptResult": "result_type",
            "CompleteResult": "result_type",
            "SubscriptionsListenResult": "result_type",
            "DiscoverResult": "result_type ttl_ms cache_scope",
            "ListToolsResult": "result_type ttl_ms cache_scope",
            "ListPromptsResult": "result_type ttl_ms cache_scope",
            "ListResourcesResult": "result_type ttl_ms cache_scope",
            "ListResourceTemplatesResult": "result_type ttl_ms cache_scope",
            "ReadResourceResult": "result_type ttl_ms cache_scope",
        },
        {
            "Tool": downgrade.tool_with_object_output,
            "CallToolResult": downgrade.object_output_only,
            "ToolResultContent": downgrade.object_output_only,
            "InputRequiredResult": downgrade.refuse_input_required,
        },
    ),
)


def absent_in(revision: str) -> dict[str, frozenset[str]]:
    """Returns the attributes that ``revision`` does not have, by class."""
    absent: dict[str, frozenset[str]] = {}
    for added in CHANGES_BY_REVISION:
        if added.since > revision:
            for cls, names in added.members.items():
                absent[cls] = absent.get(cls, frozenset()) | frozenset(names.split())
    return absent


def downgraded_in(revision: str) -> dict[str, Callable[[Any], Any]]:
    """Returns functions by class for the objects that ``revision`` does not have, which return a replacement.

    If several later revisions replace a class, the oldest of them decides.
    """
    replacements: dict[str, Callable[[Any], Any]] = {}
    for added in reversed(CHANGES_BY_REVISION):
        if added.since > revision:
            replacements.update(added.replacements)
    return replacements
