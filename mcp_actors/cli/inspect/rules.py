"""The table of rules: what each demands, its place in the specification, and the check that judges a server by it.

A rule with two places is checked in both eras. Where the eras differ in strength or content there are two rules.
"""

from __future__ import annotations

from mcp_actors.cli.inspect import era_checks, http_checks, list_checks, message_checks
from mcp_actors.cli.inspect.inspected import Rule, first, latest, modern, second, third

__all__ = ["ACCESS_RULES", "HTTP_RULES", "MESSAGE_RULES", "RULES"]


# -- Every message. All but the first judge the whole inspection ---------------------------------------

MESSAGE_RULES = (
    Rule(
        name="bad-json",
        severity="warning",
        text="A message that is not JSON is refused by -32700, and the connection goes on.",
        check=message_checks.bad_json_refused,
        legacy=first("Overview", "Base Protocol (JSON-RPC 2.0, 5.1)"),
        modern=modern("Overview", "Error Codes (JSON-RPC 2.0, 5.1)"),
        disruptive=True,
    ),
    Rule(
        name="messages",
        severity="error",
        text="Each message is a request, a notification, a result or an error of JSON-RPC 2.0.",
        check=message_checks.message_shape,
        legacy=first("Messages", "Requests, Responses, Notifications"),
        modern=modern("Overview", "Messages"),
        last=True,
    ),
    Rule(
        name="errors",
        severity="error",
        text="The code of an error is an integer, and its message a string.",
        check=message_checks.error_shape,
        legacy=first("Messages", "Responses"),
        modern=modern("Overview", "Error Responses"),
        last=True,
    ),
    Rule(
        name="null-ids",
        severity="warning",
        text="An error about a request whose id could not be read has no id, rather than null.",
        check=message_checks.no_null_ids,
        legacy=first("Schema", "JSONRPCError"),
        modern=modern("Schema Reference", "JSONRPCErrorResponse"),
        last=True,
    ),
    Rule(
        name="only-messages",
        severity="error",
        text="A server writes nothing but messages.",
        check=message_checks.only_messages,
        legacy=first("Transports", "stdio"),
        modern=modern("stdio", "(introduction)"),
        last=True,
    ),
    Rule(
        name="no-requests",
        severity="error",
        text="A server without sessions sends no requests.",
        check=message_checks.no_questions,
        modern=modern("stdio; Streamable HTTP", "Receiving Messages"),
        last=True,
    ),
    Rule(
        name="result-type",
        severity="error",
        text="Each result has a resultType.",
        check=message_checks.typed_results,
        modern=modern("Overview", "Result Responses"),
        last=True,
    ),
    Rule(
        name="server-info",
        severity="warning",
        text="Each result says in its _meta which server sent it.",
        check=message_checks.described,
        modern=modern("Overview", "_meta"),
        last=True,
    ),
    Rule(
        name="caching-hints",
        severity="error",
        text="Results that can be cached have a ttlMs that is not negative, and a cacheScope.",
        check=message_checks.cached,
        modern=modern("Caching", "Cacheable Results"),
        last=True,
    ),
    Rule(
        name="foreign-codes",
        severity="error",
        text="No error has a code that the specification reserves and has not defined, or has withdrawn.",
        check=message_checks.foreign_codes,
        modern=modern("Overview", "Error Codes"),
        last=True,
    ),
    Rule(
        name="unwanted-logs",
        severity="error",
        text="No log messages are sent for a request that named no level.",
        check=message_checks.no_unwanted_logs,
        modern=modern("Logging", "Per-request log level"),
        last=True,
    ),
    Rule(
        name="media-types",
        severity="error",
        text="A request is answered with application/json or text/event-stream.",
        check=message_checks.media_types,
        legacy=second("Transports", "Sending Messages to the Server"),
        modern=modern("Streamable HTTP", "Sending Messages"),
        binding="http",
        last=True,
    ),
    Rule(
        name="streams-end",
        severity="warning",
        text="A stream of events ends after the response that it was for.",
        check=message_checks.events_stop,
        legacy=second("Transports", "Sending Messages to the Server"),
        modern=modern("Streamable HTTP", "Receiving Messages"),
        binding="http",
        last=True,
    ),
    Rule(
        name="unbuffered-streams",
        severity="warning",
        text="Streams of events have the header X-Accel-Buffering: no.",
        check=message_checks.unbuffered_streams,
        modern=modern("Streamable HTTP", "Receiving Messages"),
        binding="http",
        last=True,
    ),
    Rule(
        name="no-session-ids",
        severity="warning",
        text="A server without sessions gives out no session ids.",
        check=message_checks.session_ids,
        modern=modern("Streamable HTTP", "Earlier Streamable HTTP Revisions"),
        binding="http",
        last=True,
    ),
)


# -- HTTP, and servers that ask for authorization ------------------------------------------------------

HTTP_RULES = (
    Rule(
        name="foreign-origin",
        severity="error",
        text="A request with an Origin that is not valid is refused with 403.",
        check=http_checks.foreign_origin,
        legacy=latest("Transports", "Security Warning"),
        modern=modern("Streamable HTTP", "Security & Endpoint"),
        binding="http",
    ),
    Rule(
        name="visible-session-id",
        severity="error",
        text="A session id has visible ASCII characters only.",
        check=http_checks.visible_session_id,
        legacy=second("Transports", "Session Management"),
        binding="http",
    ),
    Rule(
        name="session-needed",
        severity="warning",
        text="A server that requires a session id refuses a request without one with 400.",
        check=http_checks.session_needed,
        legacy=second("Transports", "Session Management"),
        binding="http",
    ),
    Rule(
        name="ended-session",
        severity="error",
        text="A request of a session that has ended is answered with 404.",
        check=http_checks.ended_sessions,
        legacy=second("Transports", "Session Management"),
        binding="http",
    ),
    Rule(
        name="wrong-version-header",
        severity="error",
        text="An MCP-Protocol-Version that is invalid or not supported is answered with 400.",
        check=http_checks.wrong_version,
        legacy=third("Transports", "Protocol Version Header"),
        binding="http",
    ),
    Rule(
        name="get-in-session",
        severity="error",
        text="A GET is answered with a stream of events or with 405.",
        check=http_checks.get_of_sessions,
        legacy=second("Transports", "Listening for Messages from the Server"),
        binding="http",
    ),
    Rule(
        name="get-without-session",
        severity="warning",
        text="A server without sessions answers GET and DELETE with 405.",
        check=http_checks.get_without_sessions,
        modern=modern("Streamable HTTP", "Earlier Streamable HTTP Revisions"),
        binding="http",
    ),
    Rule(
        name="version-header",
        severity="error",
        text="An MCP-Protocol-Version that differs from the body is refused with 400 and -32020.",
        check=http_checks.version_header,
        modern=modern("Streamable HTTP", "Protocol Version Header"),
        binding="http",
    ),
    Rule(
        name="missing-version-header",
        severity="error",
        text="A request without MCP-Protocol-Version is refused with 400 and -32020.",
        check=http_checks.missing_version_header,
        modern=modern("Streamable HTTP", "Server Validation"),
        binding="http",
    ),
    Rule(
        name="method-header",
        severity="error",
        text="An Mcp-Method that is missing or differs from the body is refused with 400 and -32020.",
        check=http_checks.method_header,
        modern=modern("Streamable HTTP", "Server Validation"),
        binding="http",
    ),
    Rule(
        name="name-header",
        severity="error",
        text="An Mcp-Name that is missing or differs from the body is refused with 400 and -32020.",
        check=http_checks.name_header,
        modern=modern("Streamable HTTP", "Server Validation"),
        binding="http",
    ),
)

ACCESS_RULES = (
    Rule(
        name="refused-by-401",
        severity="error",
        text="A request without the authorization that it needs is refused with 401.",
        check=http_checks.refuses_by_401,
        modern=modern("Authorization", "Error Handling"),
        access=True,
    ),
    Rule(
        name="wrong-token",
        severity="error",
        text="A token that is invalid is refused with 401.",
        check=http_checks.wrong_token,
        modern=modern("Authorization", "Token Handling"),
        access=True,
    ),
    # Only servers with the authorization of the specification must do that, and HTTP servers should have it.
    Rule(
        name="resource-metadata",
        severity="warning",
        text="The metadata of the protected resource can be had, and name at least one authorization server.",
        check=http_checks.describes_itself,
        modern=modern("Authorization Server Discovery", "Authorization Server Location"),
        access=True,
    ),
)


# -- The two eras, and what both offer -----------------------------------------------------------------

_HANDSHAKE = (
    Rule(
        name="initialize-result",
        severity="error",
        text="The result of initialize has a protocolVersion, capabilities, and the name and version of the server.",
        check=era_checks.initialize_result,
        legacy=first("Lifecycle", "Initialization"),
    ),
    Rule(
        name="same-version",
        severity="error",
        text="A version that the server supports is answered with the same version.",
        check=era_checks.same_version,
        legacy=first("Lifecycle", "Version Negotiation"),
    ),
    Rule(
        name="unknown-version",
        severity="error",
        text="A version that the server does not support is answered with one that it supports.",
        check=era_checks.unknown_version,
        legacy=first("Lifecycle", "Version Negotiation"),
    ),
    Rule(
        name="empty-ping",
        severity="error",
        text="A ping is answered with an empty result.",
        check=era_checks.empty_ping,
        legacy=first("Ping", "Behavior Requirements"),
    ),
    Rule(
        name="discover",
        severity="error",
        text="server/discover is answered with the supported versions and the capabilities.",
        check=era_checks.discovers,
        modern=modern("Discovery", "DiscoverResult"),
    ),
    Rule(
        name="unsupported-version",
        severity="error",
        text="A version that is not supported is refused by -32022 (HTTP 400), with the versions that are.",
        check=era_checks.unsupported_version,
        modern=modern("Versioning and Compatibility", "Protocol Version Negotiation"),
    ),
    Rule(
        name="required-capabilities",
        severity="error",
        text="A request without clientCapabilities in its _meta is refused by -32602 (HTTP 400).",
        check=era_checks.needs_capabilities,
        modern=modern("Overview", "_meta"),
    ),
    Rule(
        name="required-version",
        severity="error",
        text="A request without protocolVersion in its _meta is refused by -32602 (HTTP 400).",
        check=era_checks.needs_version,
        modern=modern("Overview", "_meta"),
        # Over a channel nothing else says that the request is not one of the revisions with sessions.
        binding="http",
    ),
    Rule(
        name="optional-client-info",
        severity="error",
        text="A request without clientInfo in its _meta is served.",
        check=era_checks.nameless_clients,
        modern=modern("Overview", "_meta"),
    ),
    Rule(
        name="refusal-names-versions",
        severity="warning",
        text="A server without sessions names the versions that it supports where it refuses initialize.",
        check=era_checks.names_its_versions,
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
        check=message_checks.ids_kept,
        legacy=first("Messages", "Responses"),
        modern=modern("Overview", "Responses"),
    ),
    Rule(
        name="unknown-method",
        severity="error",
        text="A method that does not exist is refused by -32601.",
        check=message_checks.unknown_method,
        legacy=first("Overview", "Base Protocol (JSON-RPC 2.0, 5.1)"),
        modern=modern("Overview", "Error Codes; Streamable HTTP, Protocol Version Header: HTTP 404"),
    ),
    Rule(
        name="no-answer-to-notifications",
        severity="error",
        text="A notification is not answered; over HTTP it is accepted with 202 and no body.",
        check=message_checks.notifications_unanswered,
        legacy=second("Overview", "Notifications; Transports, Sending Messages to the Server"),
        modern=modern("Overview", "Notifications; Streamable HTTP, Sending Messages"),
    ),
    Rule(
        name="batches",
        # No client sends them: the revision before has none, and the one after has taken them out again.
        severity="note",
        text="Batches are received, in the one revision that has them.",
        check=era_checks.batches,
        legacy=second("Overview", "Batching"),
    ),
    Rule(
        name="unknown-resource",
        severity="error",
        text="A resource that does not exist is refused by -32602, and never answered with empty contents.",
        check=message_checks.unknown_resource,
        modern=modern("Resources", "Error Handling"),
    ),
    Rule(
        name="unknown-resource-in-session",
        severity="warning",
        text="A resource that does not exist is refused by -32002.",
        check=message_checks.unknown_resource,
        legacy=first("Resources", "Error Handling"),
    ),
    Rule(
        name="unknown-prompt",
        severity="warning",
        text="A prompt that does not exist is refused by -32602.",
        check=message_checks.unknown_prompt,
        legacy=first("Prompts", "Error Handling"),
        modern=modern("Prompts", "Error Handling"),
    ),
    Rule(
        name="unknown-cursor",
        severity="warning",
        text="A cursor that is not valid is refused by -32602.",
        check=list_checks.unknown_cursor,
        legacy=first("Pagination", "Error Handling"),
        modern=modern("Pagination", "Error Handling"),
    ),
    Rule(
        name="unknown-log-level",
        severity="warning",
        text="A log level that does not exist is refused by -32602.",
        check=message_checks.wrong_log_level,
        legacy=first("Logging", "Error Handling"),
        modern=modern("Logging", "Error Handling"),
    ),
    Rule(
        name="subscription-acknowledged",
        severity="error",
        text="The first message of a subscription acknowledges it, and has its id.",
        check=era_checks.acknowledged_first,
        modern=modern("Subscriptions", "Acknowledgment"),
    ),
)

_LISTS = (
    Rule(
        name="declared-lists",
        severity="error",
        text="What a server declares can be listed.",
        check=list_checks.declared_lists_work,
        modern=modern("Tools, Resources, Prompts", "Capabilities"),
    ),
    Rule(
        name="declared-lists-in-session",
        severity="warning",
        text="What a server declares can be listed.",
        check=list_checks.declared_lists_work,
        legacy=first("Lifecycle", "Capability Negotiation"),
    ),
    Rule(
        name="undeclared-lists",
        severity="error",
        text="A server that has tools, resources or prompts declares them.",
        check=list_checks.nothing_undeclared,
        legacy=first("Tools, Resources, Prompts", "Capabilities"),
        modern=modern("Tools, Resources, Prompts", "Capabilities"),
    ),
    Rule(
        name="tools",
        severity="error",
        text="Each tool has a name, and an inputSchema that is an object of the type object.",
        check=list_checks.tool_shapes,
        legacy=first("Schema", "Tool"),
        modern=modern("Schema Reference", "Tool"),
    ),
    Rule(
        name="tool-schemas",
        severity="error",
        text="The schemas of tools are valid in the dialect that they name, or in 2020-12.",
        check=list_checks.tool_schemas,
        legacy=latest("Overview", "JSON Schema Usage, Schema Validation"),
        modern=modern("Overview", "JSON Schema Usage, Schema Validation"),
    ),
    Rule(
        name="tool-names",
        severity="warning",
        text="The name of a tool has 1 to 128 letters, digits, _, - and ., and is unique.",
        check=list_checks.tool_names,
        legacy=latest("Tools", "Tool Names"),
        modern=modern("Tools", "Tool Names"),
    ),
    Rule(
        name="tool-order",
        severity="warning",
        text="Tools come in the same order each time.",
        check=list_checks.deterministic,
        modern=modern("Tools", "Capabilities"),
    ),
    Rule(
        name="header-annotations",
        severity="error",
        text="An x-mcp-header names a header, is unique, and belongs to a string, an integer or a boolean.",
        check=list_checks.mirrored_annotations,
        modern=modern("Tools", "x-mcp-header"),
    ),
    Rule(
        name="resources",
        severity="error",
        text="Each resource has a URI and a name, each template a URI template and a name.",
        check=list_checks.resource_shapes,
        legacy=first("Schema", "Resource, ResourceTemplate"),
        modern=modern("Schema Reference", "Resource, ResourceTemplate"),
    ),
    Rule(
        name="prompts",
        severity="error",
        text="Each prompt has a name, and so have its arguments.",
        check=list_checks.prompt_shapes,
        legacy=first("Schema", "Prompt, PromptArgument"),
        modern=modern("Schema Reference", "Prompt, PromptArgument"),
    ),
    Rule(
        name="one-cache-scope",
        severity="error",
        text="All pages of a list have the same cacheScope.",
        check=list_checks.one_scope,
        modern=modern("Caching", "Interaction with Pagination"),
    ),
    Rule(
        name="extension-ids",
        severity="error",
        text="The id of an extension has a prefix, and its settings are an object.",
        check=list_checks.extension_names,
        modern=modern("Versioning and Compatibility", "Extension Negotiation"),
    ),
)

_CALLS = (
    Rule(
        name="unknown-tool",
        severity="warning",
        text="A call of a tool that does not exist is refused by an error of the protocol.",
        check=message_checks.unknown_tool,
        legacy=first("Tools", "Error Handling"),
        modern=modern("Tools", "Error Handling"),
        calls=True,
    ),
    Rule(
        name="content",
        severity="error",
        text="The result of a tool has content, of blocks that exist.",
        check=message_checks.content_blocks,
        legacy=first("Schema", "CallToolResult"),
        modern=modern("Schema Reference", "CallToolResult"),
        calls=True,
    ),
    Rule(
        name="structured-content",
        severity="error",
        text="A tool with an outputSchema gives structured content that conforms to it.",
        check=message_checks.structured_results,
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
