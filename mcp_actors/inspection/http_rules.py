"""The rules about HTTP, and about servers that ask for authorization; a part of the table in `rules`."""

from __future__ import annotations

from mcp_actors.inspection._checks import access, http
from mcp_actors.inspection.rule import Rule, latest, modern, second, third

__all__ = ["ACCESS_RULES", "HTTP_RULES"]

HTTP_RULES = (
    Rule(
        name="foreign-origin",
        severity="error",
        text="A request with an Origin that is not valid is refused with 403.",
        check=http.foreign_origin,
        legacy=latest("Transports", "Security Warning"),
        modern=modern("Streamable HTTP", "Security & Endpoint"),
        binding="http",
    ),
    Rule(
        name="visible-session-id",
        severity="error",
        text="A session id has visible ASCII characters only.",
        check=http.visible_session_id,
        legacy=second("Transports", "Session Management"),
        binding="http",
    ),
    Rule(
        name="session-needed",
        severity="warning",
        text="A server that requires a session id refuses a request without one with 400.",
        check=http.session_needed,
        legacy=second("Transports", "Session Management"),
        binding="http",
    ),
    Rule(
        name="ended-session",
        severity="error",
        text="A request of a session that has ended is answered with 404.",
        check=http.ended_sessions,
        legacy=second("Transports", "Session Management"),
        binding="http",
    ),
    Rule(
        name="wrong-version-header",
        severity="error",
        text="An MCP-Protocol-Version that is invalid or not supported is answered with 400.",
        check=http.wrong_version,
        legacy=third("Transports", "Protocol Version Header"),
        binding="http",
    ),
    Rule(
        name="get-in-session",
        severity="error",
        text="A GET is answered with a stream of events or with 405.",
        check=http.get_of_sessions,
        legacy=second("Transports", "Listening for Messages from the Server"),
        binding="http",
    ),
    Rule(
        name="get-without-session",
        severity="warning",
        text="A server without sessions answers GET and DELETE with 405.",
        check=http.get_without_sessions,
        modern=modern("Streamable HTTP", "Earlier Streamable HTTP Revisions"),
        binding="http",
    ),
    Rule(
        name="version-header",
        severity="error",
        text="An MCP-Protocol-Version that differs from the body is refused with 400 and -32020.",
        check=http.version_header,
        modern=modern("Streamable HTTP", "Protocol Version Header"),
        binding="http",
    ),
    Rule(
        name="missing-version-header",
        severity="error",
        text="A request without MCP-Protocol-Version is refused with 400 and -32020.",
        check=http.missing_version_header,
        modern=modern("Streamable HTTP", "Server Validation"),
        binding="http",
    ),
    Rule(
        name="method-header",
        severity="error",
        text="An Mcp-Method that is missing or differs from the body is refused with 400 and -32020.",
        check=http.method_header,
        modern=modern("Streamable HTTP", "Server Validation"),
        binding="http",
    ),
    Rule(
        name="name-header",
        severity="error",
        text="An Mcp-Name that is missing or differs from the body is refused with 400 and -32020.",
        check=http.name_header,
        modern=modern("Streamable HTTP", "Server Validation"),
        binding="http",
    ),
)

ACCESS_RULES = (
    Rule(
        name="refused-by-401",
        severity="error",
        text="A request without the authorization that it needs is refused with 401.",
        check=access.refuses_by_401,
        modern=modern("Authorization", "Error Handling"),
        access=True,
    ),
    Rule(
        name="wrong-token",
        severity="error",
        text="A token that is invalid is refused with 401.",
        check=access.wrong_token,
        modern=modern("Authorization", "Token Handling"),
        access=True,
    ),
    # Only servers with the authorization of the specification must do that, and HTTP servers should have it.
    Rule(
        name="resource-metadata",
        severity="warning",
        text="The metadata of the protected resource can be had, and name at least one authorization server.",
        check=access.describes_itself,
        modern=modern("Authorization Server Discovery", "Authorization Server Location"),
        access=True,
    ),
)
