"""The scenarios of the official suite that this project plays; a test compares them with the suite's own list.

They are written down here, so that each is a test with a name before anything is installed.
"""

from __future__ import annotations

__all__ = [
    "CLIENT",
    "FIRST",
    "LEGACY",
    "MODERN",
    "PLAYED",
    "SECOND",
    "SERVER",
    "SKILLS",
    "cases",
    "is_played",
]

FIRST, SECOND, LEGACY, MODERN = "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"


def _names(text: str) -> list[str]:
    return text.split()


# No requirements are published for the first two revisions that the suite knows: of these it has fewer scenarios.
_SERVER_OF_ALL = """
    completion-complete
    prompts-get-embedded-resource prompts-get-simple prompts-get-with-args prompts-get-with-image prompts-list
    resources-list resources-read-binary resources-read-text resources-templates-read
    tools-call-audio tools-call-embedded-resource tools-call-error tools-call-image tools-call-mixed-content
    tools-call-simple-text tools-call-with-progress tools-list
"""
_SERVER_OF_SESSIONS = """
    logging-set-level ping resources-subscribe resources-unsubscribe server-initialize server-session-lifecycle
    tools-call-elicitation tools-call-sampling tools-call-with-logging
"""
_SERVER_OF_BOTH = f"""{_SERVER_OF_ALL}
    dns-rebinding-protection json-schema-2020-12 server-sse-multiple-streams
"""
SERVER = {
    FIRST: ["server-session-lifecycle"],
    SECOND: _names(_SERVER_OF_ALL + _SERVER_OF_SESSIONS),
    LEGACY: _names(
        f"""{_SERVER_OF_BOTH} {_SERVER_OF_SESSIONS}
        elicitation-sep1034-defaults elicitation-sep1330-enums server-sse-polling
    """
    ),
    MODERN: _names(
        f"""{_SERVER_OF_BOTH}
        caching http-custom-header-server-validation http-header-validation
        input-required-result-basic-elicitation input-required-result-basic-list-roots
        input-required-result-basic-sampling input-required-result-capability-check
        input-required-result-ignore-extra-params input-required-result-missing-input-response
        input-required-result-multi-round input-required-result-multiple-input-requests
        input-required-result-non-tool-request input-required-result-request-state
        input-required-result-result-type input-required-result-tampered-state
        input-required-result-unsupported-methods input-required-result-validate-input
        sep-2164-resource-not-found server-stateless
        tasks-capability-negotiation tasks-dispatch-and-envelope tasks-lifecycle tasks-mrtr-composition
        tasks-mrtr-input tasks-request-headers tasks-request-state-removal tasks-required-task-error
        tasks-wire-fields
    """
    ),
}
_AUTHORIZATION_OF_BOTH = """
    auth/basic-cimd auth/metadata-default auth/metadata-var1 auth/metadata-var2 auth/metadata-var3
    auth/pre-registration
    auth/scope-from-scopes-supported auth/scope-from-www-authenticate auth/scope-omitted-when-undefined
    auth/scope-retry-limit auth/scope-step-up
    auth/token-endpoint-auth-basic auth/token-endpoint-auth-none auth/token-endpoint-auth-post
    auth/client-credentials-basic auth/client-credentials-jwt auth/dpop auth/dpop-nonce
    auth/enterprise-managed-authorization auth/wif-jwt-bearer
"""
CLIENT = {
    FIRST: _names(
        """
        auth/2025-03-26-oauth-endpoint-fallback auth/2025-03-26-oauth-metadata-backcompat
    """
    ),
    SECOND: _names(
        """
        auth/token-endpoint-auth-basic auth/token-endpoint-auth-none auth/token-endpoint-auth-post
        initialize tools_call
    """
    ),
    LEGACY: _names(
        f"""{_AUTHORIZATION_OF_BOTH}
        elicitation-sep1034-client-defaults initialize json-schema-2020-12-preservation sse-retry tools_call
    """
    ),
    MODERN: _names(
        f"""{_AUTHORIZATION_OF_BOTH}
        auth/authorization-server-migration auth/metadata-issuer-mismatch auth/resource-mismatch
        auth/iss-normalized auth/iss-not-advertised auth/iss-supported auth/iss-supported-missing
        auth/iss-unexpected auth/iss-wrong-issuer
        auth/offline-access-not-supported auth/offline-access-scope
        http-custom-headers http-invalid-tool-headers http-standard-headers json-schema-2020-12-preservation
        json-schema-ref-no-deref request-metadata sep-2322-client-request-state tools_call
    """
    ),
}
PLAYED = {"server": SERVER, "client": CLIENT}
# No revision requires them: they belong to an extension, which is written for the last revision and is served in both.
SKILLS = {
    "server": _names("sep-2640-skills-directory sep-2640-skills-enumeration sep-2640-skills-manifest"),
    "client": _names(
        """
        sep-2640-client-no-prefetch sep-2640-client-verify-digest sep-2640-client-verify-frontmatter
        sep-2640-client-verify-size
    """
    ),
}


def is_played(scenario: str) -> bool:
    """Everything is played, scored or not, but the one scenario that the suite itself always skips."""
    return scenario != "tasks-status-notifications"


def cases(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(revision, scenario) for revision, names in table.items() for scenario in sorted(names)]
