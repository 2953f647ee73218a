"""The vocabulary of the protocol: one attrs class for each kind of object, the same for every revision.

Attributes have the snake_case of the names in JSON (``_meta`` is ``meta``). ``None`` means absent. ``extra`` holds
received members that the class does not have; they are written back. Nothing here knows how JSON is read or written,
or which revision has which member.
"""

# A program uses few of these classes, and making one takes a quarter of a millisecond. So a module is loaded when one
# of its names is first asked for: `__getattr__` does it, and `__init__.pyi` tells type checkers what there is. In the
# engine, what every server or client loads writes ``t.Prompt`` (``from mcp_actors import types as t``), or the name as
# text in a table: a ``from mcp_actors.types import Prompt`` would load the module of prompts for everybody.

from __future__ import annotations

import importlib

__all__ = [
    "LOGGING_LEVELS",
    "UNSET",
    "Annotations",
    "Audio",
    "AudioContent",
    "BlobResourceContents",
    "BooleanSchema",
    "CacheScope",
    "CallToolParams",
    "CallToolResult",
    "CancelledParams",
    "ClientCapabilities",
    "CompleteParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "CompletionReference",
    "ContentBlock",
    "CreateMessageParams",
    "CreateMessageResult",
    "DiscoverResult",
    "ElicitAction",
    "ElicitFormParams",
    "ElicitParams",
    "ElicitResult",
    "ElicitUrlParams",
    "ElicitationCapability",
    "ElicitationCompleteParams",
    "EmbeddedResource",
    "EmptyResult",
    "EnumOption",
    "EnumSchema",
    "File",
    "GetPromptParams",
    "GetPromptResult",
    "Icon",
    "Image",
    "ImageContent",
    "Implementation",
    "IncludeContext",
    "InitializeParams",
    "InitializeResult",
    "InputRequest",
    "InputRequiredResult",
    "InputResponse",
    "LegacyTitledEnumSchema",
    "ListPromptsResult",
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ListRootsParams",
    "ListRootsResult",
    "ListToolsResult",
    "LoggingLevel",
    "LoggingMessageParams",
    "ModelHint",
    "ModelPreferences",
    "NotificationParams",
    "NumberSchema",
    "PaginatedParams",
    "PrimitiveSchema",
    "ProgressParams",
    "ProgressToken",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "PromptReference",
    "PromptsCapability",
    "ReadResourceParams",
    "ReadResourceResult",
    "RequestParams",
    "Resource",
    "ResourceContents",
    "ResourceLink",
    "ResourceTemplate",
    "ResourceTemplateReference",
    "ResourceUpdatedParams",
    "ResourcesCapability",
    "Role",
    "Root",
    "RootsCapability",
    "SamplingCapability",
    "SamplingContent",
    "SamplingMessage",
    "ServerCapabilities",
    "SetLevelParams",
    "StringSchema",
    "SubscribeParams",
    "SubscriptionFilter",
    "SubscriptionsAcknowledgedParams",
    "SubscriptionsListenParams",
    "SubscriptionsListenResult",
    "TextContent",
    "TextResourceContents",
    "TitledMultiSelectEnumSchema",
    "TitledSingleSelectEnumSchema",
    "Tool",
    "ToolAnnotations",
    "ToolChoice",
    "ToolExecution",
    "ToolResultContent",
    "ToolUseContent",
    "ToolsCapability",
    "Unset",
    "UnsubscribeParams",
    "UntitledMultiSelectEnumSchema",
    "UntitledSingleSelectEnumSchema",
    "fill_defaults",
    "form_schema",
    "validate_form_answer",
]

# The names of each module.
_NAMES = {
    "caching": ("CacheScope",),
    "capabilities": (
        "Implementation",
        "PromptsCapability",
        "ResourcesCapability",
        "ServerCapabilities",
        "ToolsCapability",
    ),
    "client_capabilities": (
        "ClientCapabilities",
        "ElicitationCapability",
        "RootsCapability",
        "SamplingCapability",
    ),
    "completion": (
        "CompleteParams",
        "CompleteResult",
        "Completion",
        "CompletionArgument",
        "CompletionContext",
        "CompletionReference",
        "PromptReference",
        "ResourceTemplateReference",
    ),
    "content": (
        "AudioContent",
        "ContentBlock",
        "EmbeddedResource",
        "ImageContent",
        "ResourceLink",
        "TextContent",
    ),
    "elicitation": (
        "ElicitAction",
        "ElicitFormParams",
        "ElicitParams",
        "ElicitResult",
        "ElicitUrlParams",
        "ElicitationCompleteParams",
        "fill_defaults",
    ),
    "form": (
        "BooleanSchema",
        "EnumOption",
        "EnumSchema",
        "LegacyTitledEnumSchema",
        "NumberSchema",
        "PrimitiveSchema",
        "StringSchema",
        "TitledMultiSelectEnumSchema",
        "TitledSingleSelectEnumSchema",
        "UntitledMultiSelectEnumSchema",
        "UntitledSingleSelectEnumSchema",
        "form_schema",
        "validate_form_answer",
    ),
    "icons": ("Icon",),
    "input_required": (
        "InputRequest",
        "InputRequiredResult",
        "InputResponse",
    ),
    "lifecycle": (
        "DiscoverResult",
        "InitializeResult",
    ),
    "logging": (
        "LOGGING_LEVELS",
        "LoggingLevel",
        "LoggingMessageParams",
        "SetLevelParams",
    ),
    "media": (
        "Audio",
        "File",
        "Image",
    ),
    "messages": (
        "CancelledParams",
        "EmptyResult",
        "InitializeParams",
        "NotificationParams",
        "PaginatedParams",
        "ProgressParams",
        "ProgressToken",
        "RequestParams",
    ),
    "prompts": (
        "GetPromptParams",
        "GetPromptResult",
        "ListPromptsResult",
        "Prompt",
        "PromptArgument",
        "PromptMessage",
    ),
    "resource_messages": (
        "ListResourceTemplatesResult",
        "ListResourcesResult",
        "ReadResourceParams",
        "ReadResourceResult",
        "ResourceTemplate",
        "ResourceUpdatedParams",
        "SubscribeParams",
        "UnsubscribeParams",
    ),
    "resources": (
        "Annotations",
        "BlobResourceContents",
        "Resource",
        "ResourceContents",
        "Role",
        "TextResourceContents",
    ),
    "roots": (
        "ListRootsParams",
        "ListRootsResult",
        "Root",
    ),
    "sampling": (
        "CreateMessageParams",
        "CreateMessageResult",
        "IncludeContext",
        "ModelHint",
        "ModelPreferences",
        "SamplingContent",
        "SamplingMessage",
        "ToolChoice",
        "ToolResultContent",
        "ToolUseContent",
    ),
    "subscriptions": (
        "SubscriptionFilter",
        "SubscriptionsAcknowledgedParams",
        "SubscriptionsListenParams",
        "SubscriptionsListenResult",
    ),
    "tools": (
        "CallToolParams",
        "CallToolResult",
        "ListToolsResult",
        "Tool",
        "ToolAnnotations",
        "ToolExecution",
    ),
    "unset": (
        "UNSET",
        "Unset",
    ),
}

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Loads the module that has ``name``, or is called so, when it is first asked for.

    Raises:
        AttributeError: There is no such name.
    """
    if name in _NAMES:
        # Importing it makes it an attribute.
        return importlib.import_module(f"{__name__}.{name}")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = importlib.import_module(f"{__name__}.{module}")
    globals().update((each, getattr(loaded, each)) for each in _NAMES[module])
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_MODULE_OF})
