"""What each revision with sessions lacks, in one table, and how the rest is told to peers of that revision.

A rung names the revision that brought something; every revision before it lacks it. Members are left out when written
and kept in ``extra`` when they arrive. What cannot simply be left out is retold: a block becomes a text block that says
what it was, a question that cannot be put is refused here rather than misunderstood there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from mcp_actors import types as t
from mcp_actors._eras.legacy import downgrade

__all__ = ["LADDER", "REVISIONS", "Revision", "absent_in", "downgraded_in"]

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Oldest first. They compare as text only among themselves."""

_STATELESS = "stateless"
"""Stands for every later revision: what only they have, no revision with sessions has. Sorts after every date."""


@attrs.frozen(eq=False)
class Revision:
    """What revision ``since`` brought: attributes by class, and how its forms are told to the revisions before it."""

    since: str
    members: Mapping[type, str]
    retold: Mapping[type, Callable[[Any], Any]] = attrs.field(factory=dict)


LADDER = (
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
    """The attributes that ``revision`` lacks, by class."""
    lacking: dict[type, frozenset[str]] = {}
    for rung in LADDER:
        if rung.since > revision:
            for cls, names in rung.members.items():
                lacking[cls] = lacking.get(cls, frozenset()) | frozenset(names.split())
    return lacking


def downgraded_in(revision: str) -> dict[type, Callable[[Any], Any]]:
    """What is written instead of objects that ``revision`` cannot carry, by class; the oldest missing rung decides."""
    instead: dict[type, Callable[[Any], Any]] = {}
    for rung in reversed(LADDER):
        if rung.since > revision:
            instead.update(rung.retold)
    return instead
