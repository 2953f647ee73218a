"""The table of rules: what each demands, its place in the specification, and the check that judges a server by it.

A rule with two places is checked in both eras. Where the eras differ in strength or content there are two rules.
"""

from __future__ import annotations

from mcp_actors.inspection._checks import calls, lists, requests, sessions, stateless
from mcp_actors.inspection.http_rules import ACCESS_RULES, HTTP_RULES
from mcp_actors.inspection.message_rules import MESSAGE_RULES
from mcp_actors.inspection.rule import Rule, first, latest, modern, second, third

__all__ = ["RULES"]

_HANDSHAKE = (
    Rule(
        name="initialize-result",
        severity="error",
        text="The result of initialize has a protocolVersion, capabilities, and the name and version of the server.",
        check=sessions.initialize_result,
        legacy=first("Lifecycle", "Initialization"),
    ),
    Rule(
        name="same-version",
        severity="error",
        text="A version that the server supports is answered with the same version.",
        check=sessions.same_version,
        legacy=first("Lifecycle", "Version Negotiation"),
    ),
    Rule(
        name="unknown-version",
        severity="error",
        text="A version that the server does not support is answered with one that it supports.",
        check=sessions.unknown_version,
        legacy=first("Lifecycle", "Version Negotiation"),
    ),
    Rule(
        name="empty-ping",
        severity="error",
        text="A ping is answered with an empty result.",
        check=sessions.empty_ping,
        legacy=first("Ping", "Behavior Requirements"),
    ),
    Rule(
        name="discover",
        severity="error",
        text="server/discover is answered with the supported versions and the capabilities.",
        check=stateless.discovers,
        modern=modern("Discovery", "DiscoverResult"),
    ),
    Rule(
        name="unsupported-version",
        severity="error",
        text="A version that is not supported is refused by -32022 (HTTP 400), with the versions that are.",
        check=stateless.unsupported_version,
        modern=modern("Versioning and Compatibility", "Protocol Version Negotiation"),
    ),
    Rule(
        name="required-capabilities",
        severity="error",
        text="A request without clientCapabilities in its _meta is refused by -32602 (HTTP 400).",
        check=stateless.needs_capabilities,
        modern=modern("Overview", "_meta"),
    ),
    Rule(
        name="required-version",
        severity="error",
        text="A request without protocolVersion in its _meta is refused by -32602 (HTTP 400).",
        check=stateless.needs_version,
        modern=modern("Overview", "_meta"),
        # Over a channel nothing else says that the request is not one of the revisions with sessions.
        binding="http",
    ),
    Rule(
        name="optional-client-info",
        severity="error",
        text="A request without clientInfo in its _meta is served.",
        check=stateless.nameless_clients,
        modern=modern("Overview", "_meta"),
    ),
    Rule(
        name="refusal-names-versions",
        severity="warning",
        text="A server without sessions names the versions that it supports where it refuses initialize.",
        check=stateless.names_its_versions,
        modern=modern(
            "Versioning and Compatibility", "Backward Compatibility with Initialization-Based Versions"
        ),
    ),
)

_REQUESTS = (
    Rule(
        name="same-id",
        severity="error",
        text="A response has the id of its request.",
        check=requests.ids_kept,
        legacy=first("Messages", "Responses"),
        modern=modern("Overview", "Responses"),
    ),
    Rule(
        name="unknown-method",
        severity="error",
        text="A method that does not exist is refused by -32601.",
        check=requests.unknown_method,
        legacy=first("Overview", "Base Protocol (JSON-RPC 2.0, 5.1)"),
        modern=modern("Overview", "Error Codes; Streamable HTTP, Protocol Version Header: HTTP 404"),
    ),
    Rule(
        name="no-answer-to-notifications",
        severity="error",
        text="A notification is not answered; over HTTP it is accepted with 202 and no body.",
        check=requests.notifications_unanswered,
        legacy=second("Overview", "Notifications; Transports, Sending Messages to the Server"),
        modern=modern("Overview", "Notifications; Streamable HTTP, Sending Messages"),
    ),
    Rule(
        name="batches",
        severity="error",
        text="Batches are received, in the one revision that has them.",
        check=sessions.batches,
        legacy=second("Overview", "Batching"),
    ),
    Rule(
        name="unknown-resource",
        severity="error",
        text="A resource that does not exist is refused by -32602, and never answered with empty contents.",
        check=requests.unknown_resource,
        modern=modern("Resources", "Error Handling"),
    ),
    Rule(
        name="unknown-resource-in-session",
        severity="warning",
        text="A resource that does not exist is refused by -32002.",
        check=requests.unknown_resource,
        legacy=first("Resources", "Error Handling"),
    ),
    Rule(
        name="unknown-prompt",
        severity="warning",
        text="A prompt that does not exist is refused by -32602.",
        check=requests.unknown_prompt,
        legacy=first("Prompts", "Error Handling"),
        modern=modern("Prompts", "Error Handling"),
    ),
    Rule(
        name="unknown-cursor",
        severity="warning",
        text="A cursor that is not valid is refused by -32602.",
        check=lists.unknown_cursor,
        legacy=first("Pagination", "Error Handling"),
        modern=modern("Pagination", "Error Handling"),
    ),
    Rule(
        name="unknown-log-level",
        severity="warning",
        text="A log level that does not exist is refused by -32602.",
        check=requests.wrong_log_level,
        legacy=first("Logging", "Error Handling"),
        modern=modern("Logging", "Error Handling"),
    ),
    Rule(
        name="subscription-acknowledged",
        severity="error",
        text="The first message of a subscription acknowledges it, and has its id.",
        check=stateless.acknowledged_first,
        modern=modern("Subscriptions", "Acknowledgment"),
    ),
)

_LISTS = (
    Rule(
        name="declared-lists",
        severity="error",
        text="What a server declares can be listed.",
        check=lists.declared_lists_work,
        modern=modern("Tools, Resources, Prompts", "Capabilities"),
    ),
    Rule(
        name="declared-lists-in-session",
        severity="warning",
        text="What a server declares can be listed.",
        check=lists.declared_lists_work,
        legacy=first("Lifecycle", "Capability Negotiation"),
    ),
    Rule(
        name="undeclared-lists",
        severity="error",
        text="A server that has tools, resources or prompts declares them.",
        check=lists.nothing_undeclared,
        legacy=first("Tools, Resources, Prompts", "Capabilities"),
        modern=modern("Tools, Resources, Prompts", "Capabilities"),
    ),
    Rule(
        name="tools",
        severity="error",
        text="Each tool has a name, and an inputSchema that is an object of the type object.",
        check=lists.tool_shapes,
        legacy=first("Schema", "Tool"),
        modern=modern("Schema Reference", "Tool"),
    ),
    Rule(
        name="tool-schemas",
        severity="error",
        text="The schemas of tools are valid in the dialect that they name, or in 2020-12.",
        check=lists.tool_schemas,
        legacy=latest("Overview", "JSON Schema Usage, Schema Validation"),
        modern=modern("Overview", "JSON Schema Usage, Schema Validation"),
    ),
    Rule(
        name="tool-names",
        severity="warning",
        text="The name of a tool has 1 to 128 letters, digits, _, - and ., and is unique.",
        check=lists.tool_names,
        legacy=latest("Tools", "Tool Names"),
        modern=modern("Tools", "Tool Names"),
    ),
    Rule(
        name="tool-order",
        severity="warning",
        text="Tools come in the same order each time.",
        check=lists.deterministic,
        modern=modern("Tools", "Capabilities"),
    ),
    Rule(
        name="header-annotations",
        severity="error",
        text="An x-mcp-header names a header, is unique, and stands at a string, an integer or a boolean.",
        check=lists.mirrored_annotations,
        modern=modern("Tools", "x-mcp-header"),
    ),
    Rule(
        name="resources",
        severity="error",
        text="Each resource has a URI and a name, each template a URI template and a name.",
        check=lists.resource_shapes,
        legacy=first("Schema", "Resource, ResourceTemplate"),
        modern=modern("Schema Reference", "Resource, ResourceTemplate"),
    ),
    Rule(
        name="prompts",
        severity="error",
        text="Each prompt has a name, and so have its arguments.",
        check=lists.prompt_shapes,
        legacy=first("Schema", "Prompt, PromptArgument"),
        modern=modern("Schema Reference", "Prompt, PromptArgument"),
    ),
    Rule(
        name="one-cache-scope",
        severity="error",
        text="All pages of a list have the same cacheScope.",
        check=lists.one_scope,
        modern=modern("Caching", "Interaction with Pagination"),
    ),
    Rule(
        name="extension-ids",
        severity="error",
        text="The id of an extension has a prefix, and its settings are an object.",
        check=lists.extension_names,
        modern=modern("Versioning and Compatibility", "Extension Negotiation"),
    ),
)

_CALLS = (
    Rule(
        name="unknown-tool",
        severity="warning",
        text="A call of a tool that does not exist is refused by an error of the protocol.",
        check=calls.unknown_tool,
        legacy=first("Tools", "Error Handling"),
        modern=modern("Tools", "Error Handling"),
        calls=True,
    ),
    Rule(
        name="content",
        severity="error",
        text="The result of a tool has content, of blocks that exist.",
        check=calls.content_blocks,
        legacy=first("Schema", "CallToolResult"),
        modern=modern("Schema Reference", "CallToolResult"),
        calls=True,
    ),
    Rule(
        name="structured-content",
        severity="error",
        text="A tool with an outputSchema gives structured content that conforms to it.",
        check=calls.structured_results,
        legacy=third("Tools", "Output Schema"),
        modern=modern("Tools", "Output Schema"),
        calls=True,
    ),
)

RULES: tuple[Rule, ...] = (
    *_HANDSHAKE,
    *_REQUESTS,
    *_LISTS,
    *_CALLS,
    *HTTP_RULES,
    *ACCESS_RULES,
    *MESSAGE_RULES,
)
"""Every rule, in the order in which they are checked and reported; those that judge all answers come last."""
