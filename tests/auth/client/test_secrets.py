"""Nothing secret is in a ``repr``, a log line or an exception, whatever happens."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from mcp_actors.auth import AuthorizationCode, ClientCredentials, OAuth, WorkloadIdentity
from mcp_actors.auth.client.authorization import Answered
from mcp_actors.auth.effects import LogIn
from mcp_actors.errors import AuthorizationError, TokenStoreFailed
from tests.auth.scripted import AuthServer, Caller, ProtectedServer, World, answer, scene

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
