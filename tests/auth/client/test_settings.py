"""What users write: refused where it cannot be meant so, when it is written."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcp_actors.auth import (
    AuthorizationCode,
    BearerToken,
    ClientCredentials,
    EnterpriseManaged,
    OAuth,
    UrlPolicy,
    WorkloadIdentity,
)
from mcp_actors.auth.client.authorization import Answered
from mcp_actors.auth.client.registration import MAX_SCOPES, StepUps, read_scopes, scopes_to_ask_for, union
from mcp_actors.auth.effects import Fetch, Fetched, LogIn
from mcp_actors.errors import AuthorizationError, AuthorizationFailed, RegistrationFailed, TokenStoreFailed
from tests.auth.scripted import ISSUER, AuthServer, Caller, ProtectedServer, World, answer, scene

MANAGED: dict[str, Any] = {
    "id_token": lambda: "x",
    "idp_issuer": "https://idp",
    "idp_token_endpoint": "https://idp/token",
    "idp_client_id": "a",
    "client_id": "b",
}


@pytest.mark.parametrize(
    ("make", "arguments", "error"),
    [
        (AuthorizationCode, {"client_secret": "SECRET"}, ValueError),
        (AuthorizationCode, {"issuer": "https://as"}, ValueError),
        (AuthorizationCode, {"client_id": ""}, ValueError),
        (AuthorizationCode, {"client_id": 7}, TypeError),
        (AuthorizationCode, {"login_timeout": 0}, ValueError),
        (AuthorizationCode, {"login_timeout": float("nan")}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "http://localhost/c.json"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example/"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example/a/../c.json"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example/%2e/c.json"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example/c.json#x"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://u@c.example/c.json"}, ValueError),
        (ClientCredentials, {"client_id": "c"}, ValueError),
        (
            ClientCredentials,
            {"client_id": "c", "client_secret": "SECRET", "private_key": "SECRET"},
            ValueError,
        ),
        (ClientCredentials, {"client_id": "c", "private_key": b"SECRET"}, TypeError),
        (EnterpriseManaged, {**MANAGED, "id_token": "SECRET"}, TypeError),
        (EnterpriseManaged, {**MANAGED, "idp_token_endpoint": "http://idp/token"}, ValueError),
        (EnterpriseManaged, {**MANAGED, "idp_issuer": ""}, ValueError),
        (WorkloadIdentity, {"assertion": "SECRET"}, TypeError),
        (OAuth, {"grant": "SECRET"}, TypeError),
        (OAuth, {"grant": BearerToken("SECRET")}, TypeError),
        (OAuth, {"store": "SECRET"}, TypeError),
        (AuthorizationCode, {"browser": "SECRET"}, TypeError),
        (UrlPolicy, {"allowed_hosts": "idp.example"}, TypeError),
        (OAuth, {"scopes": "a b"}, TypeError),
        (OAuth, {"scopes": ["a b"]}, ValueError),
        (OAuth, {"scopes": [7]}, ValueError),
        (OAuth, {"dpop": "yes"}, TypeError),
        (OAuth, {"resource": "https://h/mcp#x"}, ValueError),
        (OAuth, {"resource": "a b"}, ValueError),
        (OAuth, {"account": ""}, ValueError),
        (OAuth, {"extra_params": {"state": "x"}}, ValueError),
        (OAuth, {"extra_params": {"redirect_uri": "x"}}, ValueError),
        (OAuth, {"extra_params": {"grant_type": "x"}}, ValueError),
        (OAuth, {"extra_params": {"code_verifier": "x"}}, ValueError),
        (OAuth, {"extra_params": {"a": 7}}, TypeError),
        (BearerToken, {"token": ""}, ValueError),
        (BearerToken, {"token": "SECRET and more"}, ValueError),
        (BearerToken, {"token": "SECRET\n"}, ValueError),
        (BearerToken, {"token": 7}, TypeError),
    ],
)
def test_what_cannot_be_meant_so_is_refused(
    make: Any, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        make(**arguments)
    assert "SECRET" not in str(refused.value)


def test_what_users_write() -> None:
    for settings in (
        OAuth(),
        OAuth(AuthorizationCode(client_id="c", client_secret="s", issuer="https://as")),
        OAuth(AuthorizationCode(client_metadata_url="https://c.example/client.json")),
        OAuth(scopes=["a"], resource="api://mine", dpop=True, extra_params={"audience": "x"}),
        OAuth(WorkloadIdentity(assertion=lambda audience: "x")),
    ):
        assert settings.extensions == {}
    assert BearerToken(lambda: "x")


def test_the_extensions_of_a_grant() -> None:
    assert OAuth(ClientCredentials(client_id="c", client_secret="s")).extensions == {
        "io.modelcontextprotocol/oauth-client-credentials": {}
    }
    assert OAuth(EnterpriseManaged(**MANAGED)).extensions == {
        "io.modelcontextprotocol/enterprise-managed-authorization": {}
    }


# -- Nothing secret is in a ``repr``, a log line or an exception, whatever happens -----------------------

Told = Callable[[World, AuthServer, ProtectedServer, Caller], None]


def all_goes_well(world: World, auth: AuthServer, server: ProtectedServer, caller: Caller) -> None:
    caller.call()


def a_token_is_refreshed(world: World, auth: AuthServer, server: ProtectedServer, caller: Caller) -> None:
    caller.call()
    auth.tokens.clear()
    caller.call()
    world.now += 10_000
    caller.call()


def a_step_up(world: World, auth: AuthServer, server: ProtectedServer, caller: Caller) -> None:
    server.needed["tools/call:t"] = "w"
    caller.call("tools/call:t")


def an_error_that_repeats_what_was_sent(
    world: World, auth: AuthServer, server: ProtectedServer, caller: Caller
) -> None:
    caller.call()
    auth.tokens.clear()
    said = " ".join(world.secrets)
    auth.next = [answer({"error": "invalid_grant", "error_description": said}, 400)] * 9
    caller.call()


def a_401_for_ever(world: World, auth: AuthServer, server: ProtectedServer, caller: Caller) -> None:
    server.refuses = lambda operation: Answered(401, server.challenge())
    caller.call()


def another_issuer_answers(world: World, auth: AuthServer, server: ProtectedServer, caller: Caller) -> None:
    auth.answer_iss = "https://evil.example"
    caller.call()


def a_login_that_is_refused(world: World, auth: AuthServer, server: ProtectedServer, caller: Caller) -> None:
    def refuse(effect: LogIn) -> Any:
        state = next(value for name, value in world.authorization_requests()[-1].items() if name == "state")
        return [("state", state), ("iss", auth.issuer), ("error", "access_denied")]

    world.person = refuse
    caller.call()


def a_store_that_fails(world: World, auth: AuthServer, server: ProtectedServer, caller: Caller) -> None:
    def fail(effect: Any) -> None:
        if type(effect).__name__ == "SwapRecord" and "tokens" in effect.key:
            raise TokenStoreFailed("full")

    world.before = fail
    caller.call()


def a_logout(world: World, auth: AuthServer, server: ProtectedServer, caller: Caller) -> None:
    caller.call()
    world.run(caller.machine.log_out())


def settings_of(kind: str, world_secrets: set[str]) -> OAuth:
    world_secrets.add("SECRET-of-the-settings")
    if kind == "person":
        return OAuth(AuthorizationCode(client_id="c", client_secret="SECRET-of-the-settings"))
    if kind == "machine":
        return OAuth(ClientCredentials(client_id="c", client_secret="SECRET-of-the-settings"))
    if kind == "workload":
        return OAuth(WorkloadIdentity(assertion=lambda audience: "SECRET-of-the-settings"))
    return OAuth()


@pytest.mark.parametrize(
    "story",
    [
        all_goes_well,
        a_token_is_refreshed,
        a_step_up,
        an_error_that_repeats_what_was_sent,
        a_401_for_ever,
        another_issuer_answers,
        a_login_that_is_refused,
        a_store_that_fails,
        a_logout,
    ],
)
@pytest.mark.parametrize("kind", ["registered", "person", "machine", "workload", "bound"])
def test_nothing_secret_is_shown(story: Told, kind: str) -> None:
    secrets: set[str] = set()
    algorithms = ["ES256"] if kind == "bound" else None
    methods = ["none", "client_secret_post"] if kind == "person" else ["none"]
    world, auth, server, caller = scene(
        settings_of(kind, secrets),
        dpop_signing_alg_values_supported=algorithms,
        token_endpoint_auth_methods_supported=methods,
        grant_types_supported=None,
        revocation_endpoint="https://as.example/revoke",
    )
    auth.gives_refresh = True
    shown: list[str] = []
    with capture_logs() as logs:
        try:
            story(world, auth, server, caller)
        except AuthorizationError as error:
            shown += [
                str(error),
                repr(error),
                repr(error.__dict__),
                "".join(traceback.format_exception(error)),
            ]
    shown += [repr(each) for each in logs]
    ours = [each for each in gc.get_objects() if str(type(each).__module__).startswith("mcp_actors.auth")]
    shown += [repr(each) for each in ours]
    for record in world.store._records.values():
        key = record.value.get("dpop_key")
        secrets |= set() if key is None else {key["d"]}
    secrets |= world.secrets
    assert len(secrets) > 1
    assert [type(each).__name__ for each in ours if type(each).__name__ == "Authorization"]
    assert not [(secret, text) for text in shown for secret in secrets if secret and secret in text]


# -- Scopes: which are asked for, and how often more are -------------------------------------------------


@pytest.mark.parametrize(
    ("challenge", "resource", "configured", "before", "server", "found"),
    [
        (None, (), (), (), None, ()),
        ("b a", ("x",), (), (), None, ("b", "a")),
        ("", ("x",), (), (), None, ()),
        (None, ("x", "y"), (), (), None, ("x", "y")),
        ("a", (), ("u", "a"), (), None, ("a", "u")),
        ("b", (), (), ("a", "b"), None, ("a", "b")),
        ("a", (), (), (), ("a", "offline_access"), ("a", "offline_access")),
        ("a", (), (), (), ("a",), ("a",)),
        (None, (), (), (), ("offline_access",), ()),
        ("offline_access", (), (), (), None, ("offline_access",)),
    ],
)
def test_scopes_that_are_asked_for(
    challenge: str | None,
    resource: tuple[str, ...],
    configured: tuple[str, ...],
    before: tuple[str, ...],
    server: tuple[str, ...] | None,
    found: tuple[str, ...],
) -> None:
    assert (
        scopes_to_ask_for(challenge, resource, configured, before=before, authorization_server=server)
        == found
    )


@given(st.text())
def test_what_is_read_can_be_sent(text: str) -> None:
    for scope in read_scopes(text):
        assert scope.isascii()
        assert scope.isprintable()
        assert not set(scope) & set(' "\\')


def test_scopes_are_bounded() -> None:
    assert len(read_scopes(" ".join(f"s{number}" for number in range(10_000)))) == MAX_SCOPES
    assert union(["a" * 1000, "b"]) == ("b",)
    assert read_scopes(7) == ()


def test_step_ups_are_counted_by_operation_and_in_vain_for_all() -> None:
    step_ups = StepUps()
    assert step_ups.begin("a")
    assert step_ups.begin("b")
    assert step_ups.begin("a")
    assert not step_ups.begin("a")
    assert not step_ups.begin("c")
    step_ups.succeeded("x")
    assert not step_ups.begin("c")
    step_ups.succeeded("b")
    assert step_ups.begin("c")


def test_step_ups_of_operations_without_end_take_bounded_memory() -> None:
    step_ups = StepUps()
    for number in range(10_000):
        assert step_ups.begin(str(number))
    assert len(step_ups._counts) <= 1024


# -- Texts of servers that are hostile: none of them gets into a log or the store as it came -------------

LONGEST = 1000


def is_harmless(text: str) -> bool:
    return text.isprintable() and len(text) <= LONGEST


@pytest.mark.parametrize(
    "challenge",
    [
        # Terminals take U+009B for the beginning of an escape sequence.
        'Bearer error="invalid_token\x9b2J", scope="\x1b]0;title\x07"',
        f'Bearer error="{"e" * 9000}", scope="{"s " * 9000}"',
        f'Bearer error="insufficient_scope", scope="{" ".join(f"scope:{n}" for n in range(3000))}"',
    ],
)
@pytest.mark.parametrize("status", [401, 403])
def test_a_challenge_is_logged_cut_and_without_what_a_terminal_obeys(challenge: str, status: int) -> None:
    _, _, server, caller = scene()
    assert caller.call() == 200
    server.refuses = lambda operation: Answered(status, [challenge])
    raised = ""
    with capture_logs() as logs:
        try:
            assert caller.call() == status
        except AuthorizationError as error:
            raised = str(error)
    values = [
        raised,
        *(value if isinstance(value, str) else repr(value) for each in logs for value in each.values()),
    ]
    assert [each for each in values if not is_harmless(each)] == []


def test_a_server_that_wants_ever_more_scopes_does_not_fill_the_message() -> None:
    _, _, server, caller = scene()
    assert caller.call() == 200
    refused = 0

    def refuse(operation: str) -> Answered:
        nonlocal refused
        refused += 1
        wanted = " ".join(f"{refused}:{number}:{'x' * 200}" for number in range(50))
        return Answered(403, [f'Bearer error="insufficient_scope", scope="{wanted}"'])

    server.refuses = refuse
    with pytest.raises(AuthorizationFailed) as failed:
        caller.call()
    assert is_harmless(str(failed.value))


@pytest.mark.parametrize("name", ["c\n  issuer: https://bank.example", "c\x9b2J", "\u202ec", "c" * 100_000])
def test_a_client_id_that_could_deceive_a_person_is_none(name: str) -> None:
    world, _, _, caller = scene()
    inner = world.handlers[ISSUER]

    def register(fetch: Fetch) -> Any:
        found = inner(fetch)
        if fetch.url.endswith("/register") and isinstance(found, Fetched):
            return answer({"client_id": name, "redirect_uris": []}, 201)
        return found

    world.handlers[ISSUER] = register
    with pytest.raises(RegistrationFailed):
        caller.call()
    assert world.logins == []
    # A later attempt registers anew.
    world.handlers[ISSUER] = inner
    assert caller.call() == 200
