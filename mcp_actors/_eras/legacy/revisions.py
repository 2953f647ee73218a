"""The differences between the revisions with sessions, in one table.

Each row has what a revision added, so every earlier revision lacks it. A member that the peer's revision lacks is left
out when it is written, and kept in ``extra`` when it is received. An object that cannot simply be left out is replaced:
a content block by a text block that describes it. A request that the revision cannot express is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mcp_actors import types as t
from mcp_actors._eras.legacy import downgrade

__all__ = ["CHANGES_BY_REVISION", "REVISIONS", "Revision", "absent_in", "downgraded_in"]

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Oldest first. They compare as text only among themselves."""

_STATELESS = "stateless"
"""Stands for all revisions without sessions. It sorts after every date."""


class Revision(msgspec.Struct, frozen=True, eq=False):
    """The additions of one revision.

    ``members`` has the added attributes by class. ``replacements`` has functions by class that return the object to
    send to peers of earlier revisions.
    """

    since: str
    members: Mapping[type, str]
    replacements: Mapping[type, Callable[[Any], Any]] = msgspec.field(default_factory=dict)


CHANGES_BY_REVISION = (
    Revision(
        "2025-03-26",
        {
            t.Tool: "annotations",
            t.ProgressParams: "message",
            t.ServerCapabilities: "completions",
        },
        {t.AudioContent: downgrade.audio_as_text},
    ),
    Revision(
        "2025-06-18",
        {
            t.Implementation: "title",
            t.Tool: "title output_schema meta",
            t.Prompt: "title meta",
            t.PromptArgument: "title",
            t.PromptReference: "title",
            t.Resource: "title meta",
            t.ResourceTemplate: "title meta",
            t.TextResourceContents: "meta",
            t.BlobResourceContents: "meta",
            t.Root: "meta",
            t.TextContent: "meta",
            t.ImageContent: "meta",
            t.AudioContent: "meta",
            t.EmbeddedResource: "meta",
            t.Annotations: "last_modified",
            t.CallToolResult: "structured_content",
            t.CompleteParams: "context",
            t.ClientCapabilities: "elicitation",
        },
        {t.ResourceLink: downgrade.link_as_text},
    ),
    Revision(
        "2025-11-25",
        {
            t.Implementation: "description website_url icons",
            t.Tool: "icons execution",
            t.Prompt: "icons",
            t.Resource: "icons",
            t.ResourceTemplate: "icons",
            t.SamplingCapability: "context tools",
            t.ElicitationCapability: "form url",
            t.ClientCapabilities: "tasks",
            t.ServerCapabilities: "tasks",
            t.ElicitFormParams: "mode",
            t.CreateMessageParams: "tools tool_choice",
            t.SamplingMessage: "meta",
        },
        {
            t.CreateMessageParams: downgrade.one_block_a_message,
            t.SamplingMessage: downgrade.message_in_one_block,
            t.CreateMessageResult: downgrade.result_in_one_block,
            t.ToolUseContent: downgrade.tool_use_as_text,
            t.ToolResultContent: downgrade.tool_result_as_text,
            t.ElicitFormParams: downgrade.form_with_plain_enums,
            t.ElicitUrlParams: downgrade.refuse_url_elicitation,
            t.ClientCapabilities: downgrade.no_forms_that_were_not_declared,
        },
    ),
    Revision(
        _STATELESS,
        {
            t.CallToolParams: "input_responses request_state",
            t.GetPromptParams: "input_responses request_state",
            t.ReadResourceParams: "input_responses request_state",
            t.EmptyResult: "result_type",
            t.CallToolResult: "result_type",
            t.GetPromptResult: "result_type",
            t.CompleteResult: "result_type",
            t.SubscriptionsListenResult: "result_type",
            t.DiscoverResult: "result_type ttl_ms cache_scope",
            t.ListToolsResult: "result_type ttl_ms cache_scope",
            t.ListPromptsResult: "result_type ttl_ms cache_scope",
            t.ListResourcesResult: "result_type ttl_ms cache_scope",
            t.ListResourceTemplatesResult: "result_type ttl_ms cache_scope",
            t.ReadResourceResult: "result_type ttl_ms cache_scope",
        },
        {
            t.Tool: downgrade.tool_with_object_output,
            t.CallToolResult: downgrade.object_output_only,
            t.ToolResultContent: downgrade.object_output_only,
            t.InputRequiredResult: downgrade.refuse_input_required,
        },
    ),
)


def absent_in(revision: str) -> dict[type, frozenset[str]]:
    """Returns the attributes that ``revision`` does not have, by class."""
    absent: dict[type, frozenset[str]] = {}
    for added in CHANGES_BY_REVISION:
        if added.since > revision:
            for cls, names in added.members.items():
                absent[cls] = absent.get(cls, frozenset()) | frozenset(names.split())
    return absent


def downgraded_in(revision: str) -> dict[type, Callable[[Any], Any]]:
    """Returns functions by class for the objects that ``revision`` does not have, which return a replacement.

    If several later revisions replace a class, the oldest of them decides.
    """
    replacements: dict[type, Callable[[Any], Any]] = {}
    for added in reversed(CHANGES_BY_REVISION):
        if added.since > revision:
            replacements.update(added.replacements)
    return replacements
