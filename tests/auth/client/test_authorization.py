"""The client's side of authorization: refresh, step-up, limits, and what is refused before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcp_actors.auth import AuthorizationCode, ClientCredentials, EnterpriseManaged, OAuth
from mcp_actors.auth.client.authorization import Answered, Authorization, SentRequest
from mcp_actors.auth.effects import Effect, Fetch, Fetched, FetchFailed, Lock, LogIn, SwapRecord
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationFailed,
    AuthorizationUnavailable,
    DiscoveryFailed,
    LoginFailed,
    LoginRequired,
    MetadataMismatch,
    RegistrationFailed,
    TokenRefused,
    TokenStoreFailed,
    UrlRefused,
)
from tests.auth.scripted import (
    ISSUER,
    REDIRECT,
    SERVER,
    WELL_KNOWN_SERVER,
    AuthServer,
    Caller,
    ProtectedServer,
    World,
    answer,
    scene,
)

TOKEN = f"{ISSUER}/token"


def again(world: World, server: ProtectedServer, settings: OAuth | None = None) -> Caller:
    """The same program after a restart."""
    return Caller(world, settings or OAuth(), server)


# -- expiry, restart and refresh -----------------------------------------------------------------------------------


def test_after_a_restart_the_token_is_used_without_any_request() -> None:
    world, _, server, caller = scene()
    assert caller.call() == 200
    fetched = len(world.fetches)
    assert again(world, server).call() == 200
    assert (len(world.fetches), len(world.logins)) == (fetched, 1)


def test_after_a_restart_an_expired_token_is_refreshed_at_its_token_endpoint() -> None:
    world, auth, server, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    world.now += 10_000
    auth.tokens.clear()
    fetched = len(world.fetches)
    assert again(world, server).call() == 200
    # One request and no discovery; the expired token was sent to nobody.
    assert [each.url for each in world.fetches[fetched:]] == [TOKEN]
    assert len(set(server.tokens[-1:]) & set(auth.tokens)) == 1
    assert len(world.logins) == 1


@pytest.mark.parametrize(
    ("lifetime", "after", "is_due"),
    [(3600, 3569, False), (3600, 3570, True), (20, 9, False), (20, 10, True), (None, 10**6, False)],
)
def test_a_token_is_refreshed_shortly_before_its_end(lifetime: Any, after: float, is_due: bool) -> None:
    world, auth, _, caller = scene()
    auth.gives_refresh, auth.expires_in = True, lifetime
    assert caller.call() == 200
    world.now += after
    assert caller.machine.refresh_due is is_due


def test_without_a_refresh_token_nothing_is_refreshed() -> None:
    world, _, _, caller = scene()
    assert caller.call() == 200
    world.now += 10_000
    assert not caller.machine.refresh_due


def test_a_401_leads_to_a_refresh_before_a_login() -> None:
    world, auth, _, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    auth.tokens.clear()
    assert caller.call() == 200
    assert len(world.logins) == 1
    refreshed = world.posts(TOKEN)[-1]
    assert refreshed["grant_type"] == "refresh_token"
    assert refreshed["resource"] == SERVER
    assert "scope" not in refreshed


def test_a_refresh_without_a_new_refresh_token_keeps_the_old_one() -> None:
    world, auth, _, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    auth.gives_refresh = False
    for _ in range(3):
        (kept,) = auth.refresh_tokens
        auth.tokens.clear()
        before = dict(auth.refresh_tokens)
        assert caller.call() == 200
        assert world.posts(TOKEN)[-1]["refresh_token"] == kept
        auth.refresh_tokens.update(before)
    assert len(world.logins) == 1


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_request", "made_up"])
def test_a_refused_refresh_token_is_dropped_and_leads_to_one_login(error: str) -> None:
    world, auth, _, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    auth.tokens.clear()
    auth.next = [answer({"error": error}, 400)]
    with capture_logs() as logs:
        assert caller.call() == 200
    assert len(world.logins) == 2
    assert [each["error"] for each in logs if each["log_level"] == "warning"] == [error]
    assert caller.call() == 200
    assert len(world.logins) == 2


@pytest.mark.parametrize(
    "outage", [answer({}, 500), answer({}, 503), answer({}, 429), FetchFailed("no route")]
)
@pytest.mark.parametrize("is_ahead", [True, False])
def test_an_outage_keeps_the_tokens_and_bothers_nobody(outage: Fetched | FetchFailed, is_ahead: bool) -> None:
    world, auth, server, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    world.now += 10_000 if is_ahead else 0
    auth.tokens.clear()
    auth.next = [outage]
    with pytest.raises(AuthorizationUnavailable):
        caller.call()
    assert len(world.logins) == 1
    assert again(world, server).call() == 200
    assert len(world.logins) == 1


def test_a_token_that_another_process_has_refreshed_is_taken() -> None:
    world, auth, server, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    other = again(world, server)
    auth.tokens.clear()
    assert other.call() == 200
    posts = len(world.posts(TOKEN))
    assert caller.call() == 200
    assert len(world.posts(TOKEN)) == posts
    assert caller.machine.token == other.machine.token


def test_a_renewal_takes_the_token_that_another_process_has_had() -> None:
    world, auth, server, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    other = again(world, server)
    world.now += 3590
    assert other.call() == 200
    posts = len(world.posts(TOKEN))
    assert caller.machine.refresh_due
    assert caller.call() == 200
    assert len(world.posts(TOKEN)) == posts
    assert caller.machine.token == other.machine.token


def test_who_loses_the_race_for_a_refresh_leaves_the_winners_tokens_alone() -> None:
    """Both have read the same refresh token: the lock of this store stops nobody."""
    world, auth, server, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    other = again(world, server)
    auth.tokens.clear()

    def overtake(effect: Effect) -> None:
        if isinstance(effect, Fetch) and effect.url == TOKEN:
            world.before = lambda effect: None
            locked, world.locked = world.locked, set()
            assert other.call() == 200
            world.locked = locked

    world.before = overtake
    assert caller.call() == 200
    assert caller.machine.token == other.machine.token
    assert len(world.logins) == 1
    assert again(world, server).machine.token == caller.machine.token


def test_the_lock_is_held_round_a_refresh_and_nothing_else() -> None:
    world, auth, _, caller = scene()
    auth.gives_refresh = True
    held: list[tuple[str, bool]] = []
    world.before = lambda effect: held.append((type(effect).__name__, bool(world.locked)))
    assert caller.call() == 200
    assert not any(is_held for _, is_held in held)
    auth.tokens.clear()
    held.clear()
    assert caller.call() == 200
    assert [name for name, is_held in held if is_held] == ["LoadRecord", "Fetch", "SwapRecord", "Unlock"]


def test_a_store_that_cannot_be_written_is_an_error_and_costs_no_token() -> None:
    world, auth, server, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    auth.tokens.clear()

    def full(effect: Effect) -> None:
        if isinstance(effect, SwapRecord):
            raise TokenStoreFailed("no space left")

    world.before = full
    with pytest.raises(TokenStoreFailed):
        caller.call()
    assert caller.call() == 200
    assert len(world.logins) == 1
    world.before = lambda effect: None
    auth.tokens.clear()
    assert caller.call() == 200
    assert len(world.logins) == 1
    assert again(world, server).machine.token == caller.machine.token


@pytest.mark.parametrize("damage", [{}, {"access_token": 7}, {"server": None}, {"client": {"client_id": []}}])
def test_a_damaged_record_leads_to_one_login(damage: dict[str, Any]) -> None:
    world, _, server, caller = scene()
    assert caller.call() == 200
    for key, record in list(world.store._records.items()):
        value = {**record.value, **damage} if damage else {"x": 1}
        world.run(iter_swap(key, record.generation, value))
    assert again(world, server).call() == 200
    assert again(world, server).call() == 200
    assert len(world.logins) == 2


def iter_swap(key: str, expected: int, value: dict[str, Any]) -> Any:
    return (yield SwapRecord(key, expected, value))


def test_accounts_and_clients_are_kept_apart() -> None:
    world, _, server, caller = scene()
    assert caller.call() == 200
    assert again(world, server, OAuth(account="work")).call() == 200
    assert again(world, server, OAuth(AuthorizationCode(client_id="mine"))).call() == 200
    assert [each["client_id"] for each in world.authorization_requests()] == [
        "as.example-client-1",
        "as.example-client-2",
        "mine",
    ]
    assert again(world, server).call() == again(world, server, OAuth(account="work")).call() == 200
    assert len(world.logins) == 3


# -- limits --------------------------------------------------------------------------------------------------------


def test_a_401_for_ever_is_final_and_remembered() -> None:
    world, _, server, caller = scene()
    server.refuses = lambda operation: Answered(401, server.challenge())
    for operation in ("initialize", "tools/list", "tools/list", "initialize"):
        with pytest.raises(AuthorizationFailed):
            caller.call(operation)
    assert len(world.logins) == 1
    assert len(server.tokens) == 2 + 3
    world.now += 61
    server.refuses = lambda operation: None
    assert caller.call() == 200


def test_an_authorization_server_that_issues_the_refused_token_again() -> None:
    grant = ClientCredentials(client_id="machine", client_secret="configured-secret")
    world, auth, server, caller = scene(OAuth(grant))
    auth.next = [answer({"access_token": "the-same-one", "token_type": "Bearer"}) for _ in range(9)]
    for _ in range(3):
        with pytest.raises(AuthorizationFailed):
            caller.call()
    assert len(world.posts(TOKEN)) == 1
    world.now += 61
    with pytest.raises(AuthorizationFailed):
        caller.call()
    assert len(world.posts(TOKEN)) == 2
    assert server.tokens == [None, *["the-same-one"] * 4]


def test_a_token_of_the_store_that_is_refused_too_is_refreshed() -> None:
    world, auth, server, caller = scene()
    auth.gives_refresh, auth.expires_in = True, None
    assert caller.call() == 200
    other = again(world, server)
    auth.tokens.clear()
    assert other.call() == 200
    auth.tokens.clear()
    assert caller.call() == 200
    assert len(world.logins) == 1
    assert len(server.tokens) == 2 + 2 + 3


@pytest.mark.parametrize(
    "scopes", [["a", "b"], [f"s{number}" for number in range(50)]], ids=["alternating", "endless"]
)
def test_scopes_for_ever_are_final_and_remembered(scopes: list[str]) -> None:
    world, _, server, caller = scene()
    asked = iter(scopes * 50)
    server.refuses = lambda operation: (
        Answered(403, server.challenge(scope=next(asked), error="insufficient_scope"))
        if server.tokens[-1] is not None
        else None
    )
    for operation in ("tools/list", "tools/call:a", "tools/list", "tools/call:b"):
        with pytest.raises(AuthorizationFailed):
            caller.call(operation)
    assert len(world.logins) <= 3


def test_operations_that_succeed_may_each_ask_for_more() -> None:
    world, _, server, caller = scene()
    for number in range(5):
        server.needed[f"tools/call:{number}"] = f"s{number}"
    for number in range(5):
        assert caller.call(f"tools/call:{number}") == 200
    assert world.authorization_requests()[-1]["scope"] == "s0 s1 s2 s3 s4"


def test_a_step_up_is_a_login_although_there_is_a_refresh_token() -> None:
    world, auth, server, caller = scene()
    auth.gives_refresh = True
    server.scope, server.needed["tools/call:w"] = "r", "w"
    assert caller.call() == caller.call("tools/call:w") == 200
    assert [each["grant_type"] for each in world.posts(TOKEN)] == ["authorization_code"] * 2
    auth.tokens.clear()
    auth.refresh_tokens.clear()
    # A later login asks for all of it again.
    assert caller.call() == 200
    assert world.authorization_requests()[-1]["scope"] == "r w"


def test_the_log_and_the_counts_say_why_somebody_logged_in_again() -> None:
    settings = OAuth()
    with capture_logs() as logs:
        world, auth, server, caller = scene(settings)
        auth.gives_refresh = True
        server.scope, server.needed = "a", {"tools/call:x": "x"}
        assert caller.call() == caller.call("tools/call:x") == 200
        auth.tokens.clear()
        assert caller.call() == 200
        auth.tokens.clear()
        auth.refresh_tokens.clear()
        assert caller.call() == 200
    found = settings.statistics()
    assert (found.granted, found.refreshed, found.step_ups, found.failures) == (3, 1, 1, 0)
    assert all(each.get("server", SERVER) == SERVER for each in logs)
    events = [each for each in logs if each["event"] != "the authorization server was found"]
    assert [(each["event"], each["log_level"]) for each in events] == [
        ("the server demands authorization", "info"),
        ("access was granted", "info"),
        ("more scopes are asked for", "info"),
        ("access was granted", "info"),
        ("the server demands authorization", "info"),
        ("the access token was refreshed", "info"),
        ("the server demands authorization", "info"),
        ("a refresh token was refused, and a new login is needed", "warning"),
        ("access was granted", "info"),
    ]
    first, granted, more, wider, ended, _, _, refused, _ = events
    assert (first["had_token"], first["scope"], ended["error"]) == (False, "'a'", "'invalid_token'")
    assert (granted["issuer"], granted["grant"], granted["granted"]) == (ISSUER, "AuthorizationCode", "'a'")
    assert (more["operation"], more["before"], more["scopes"]) == ("tools/call:x", "'a'", "'x'")
    assert (wider["granted"], refused["error"]) == ("'a x'", "invalid_grant")
    before = settings.statistics()
    auth.tokens.clear()
    auth.refresh_tokens.clear()
    world.person = lambda effect: [("state", "x"), ("error", "access_denied")]
    with pytest.raises(LoginFailed):
        caller.call()
    assert settings.statistics().failures == before.failures + 1


def test_a_step_up_of_another_process_is_taken() -> None:
    world, _, server, caller = scene()
    server.scope, server.needed["tools/call:w"] = "r", "w"
    assert caller.call() == 200
    other = again(world, server)
    assert other.call("tools/call:w") == 200
    assert caller.call("tools/call:w") == 200
    assert len(world.logins) == 2


def test_a_token_of_somebody_else_in_this_process_needs_no_flow() -> None:
    _, _, server, caller = scene()
    assert caller.call() == 200
    sent = SentRequest("POST", SERVER, "tools/list", "an old token")
    assert caller.machine.sends_again(sent, Answered(401, server.challenge()))
    mine = SentRequest("POST", SERVER, "tools/list", caller.machine.token)
    assert not caller.machine.sends_again(mine, Answered(401, server.challenge()))


# -- what is refused before anything is sent ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "resource",
    [
        "https://evil.example/mcp",
        "http://rs.example/mcp",
        "https://rs.example:8443/mcp",
        "https://rs.example/mcpx",
        "https://rs.example/mcp#x",
        "https://u@rs.example/mcp",
        "api://mine",
    ],
)
def test_the_metadata_of_another_resource(resource: str) -> None:
    world, _, server, caller = scene()
    server.document["resource"] = resource
    with pytest.raises(MetadataMismatch):
        caller.call()
    assert len(world.fetches) == 1
    assert not world.logins


def test_a_resource_that_the_user_named() -> None:
    world, _, server, caller = scene(OAuth(resource="api://mine"))
    server.document["resource"] = "api://mine"
    assert caller.call() == 200
    assert world.authorization_requests()[0]["resource"] == world.posts(TOKEN)[0]["resource"] == "api://mine"


@pytest.mark.parametrize("issuer", [f"{ISSUER}/", "https://attacker.example", "https://AS.example", None])
def test_poisoned_metadata(issuer: str | None) -> None:
    world, auth, _, caller = scene()
    auth.metadata["issuer"] = issuer
    with pytest.raises(MetadataMismatch):
        caller.call()
    assert len(world.fetches) == 2
    assert not world.logins


def test_an_issuer_that_the_user_trusts_is_used_as_its_metadata_has_it() -> None:
    world, auth, _, caller = scene(OAuth(trusted_issuers={ISSUER: f"{ISSUER}/"}))
    auth.metadata["issuer"] = auth.answer_iss = f"{ISSUER}/"
    assert caller.call() == 200
    assert len(world.logins) == 1


@pytest.mark.parametrize("methods", [None, [], ["plain"], "S256"])
def test_a_pkce_downgrade(methods: Any) -> None:
    world, _, _, caller = scene(code_challenge_methods_supported=methods)
    with pytest.raises(DiscoveryFailed, match="S256"):
        caller.call()
    assert not world.logins


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "http://as.example/authorize",
        "https://as/\n",
    ],
)
@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "registration_endpoint"])
def test_a_hostile_endpoint(name: str, url: str) -> None:
    world, _, _, caller = scene(**{name: url})
    with pytest.raises(UrlRefused):
        caller.call()
    assert not world.logins
    assert not [each for each in world.fetches if each.method == "POST"]


@pytest.mark.parametrize("url", ["http://evil.example/prm", "file:///prm", "https://u@rs.example/prm", ""])
def test_a_hostile_hint(url: str) -> None:
    world, _, server, caller = scene()
    server.hint = url
    with pytest.raises(UrlRefused):
        caller.call()
    assert not world.fetches


@pytest.mark.parametrize(
    "issuer", ["http://as.example", "javascript:x", "https://as.example?x", "https://u@as.example"]
)
def test_a_hostile_issuer(issuer: str) -> None:
    world, _, server, caller = scene()
    server.document["authorization_servers"] = [issuer]
    with pytest.raises(UrlRefused):
        caller.call()
    assert len(world.fetches) == 1


def test_a_url_that_the_driver_refuses() -> None:
    world, _, _, caller = scene()
    world.handlers[ISSUER] = lambda fetch: FetchFailed("169.254.169.254 is private", refused=True)
    with pytest.raises(UrlRefused, match="private"):
        caller.call()


def test_a_hint_that_leads_nowhere_is_an_error() -> None:
    world, _, server, caller = scene()
    server.hint = "https://rs.example/nothing"
    with pytest.raises(DiscoveryFailed, match="nothing"):
        caller.call()
    assert len(world.fetches) == 1


def test_nothing_is_sent_to_another_origin() -> None:
    _, _, _, caller = scene()
    assert caller.call() == 200
    assert caller.machine.headers("GET", SERVER + "/x")
    for url in ("https://evil.example/mcp", "http://rs.example/mcp", "https://rs.example:444/mcp", "x"):
        assert caller.machine.headers("GET", url) == []


# -- client ids ------------------------------------------------------------------------------------------------------


def test_several_authorization_servers() -> None:
    world, auth, server, _ = scene()
    second = AuthServer(world, "https://as2.example")
    server.document["authorization_servers"] = ["https://as0.example", auth.issuer, second.issuer]
    for settings, issuer in [
        (OAuth(choose_issuer=lambda issuers: issuers[2], account="a"), second),
        (OAuth(AuthorizationCode(client_id="c", issuer=ISSUER), account="b"), auth),
    ]:
        server.auth = issuer
        assert again(world, server, settings).call() == 200
        assert world.logins[-1].startswith(issuer.base)
    with pytest.raises(DiscoveryFailed, match="choose_issuer"):
        again(world, server, OAuth(choose_issuer=lambda issuers: "https://other.example")).call()


def test_a_stored_issuer_is_preferred_while_it_is_listed() -> None:
    world, auth, server, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    server.document["authorization_servers"] = ["https://as0.example", auth.issuer]
    auth.tokens.clear()
    assert caller.call() == 200
    assert len(world.logins) == 1


def test_a_configured_client_of_another_authorization_server_is_an_error() -> None:
    grant = AuthorizationCode(client_id="mine", issuer="https://old.example")
    world, _, _, caller = scene(OAuth(grant))
    with pytest.raises(RegistrationFailed, match=r"old\.example.*as\.example"):
        caller.call()
    assert not world.logins


@pytest.mark.parametrize("error", ["invalid_client", "unauthorized_client"])
def test_a_registration_that_was_forgotten_is_made_again_once(error: str) -> None:
    world, auth, _, caller = scene()
    assert caller.call() == 200
    auth.tokens.clear()
    auth.next = [answer({"error": error}, 401)]
    assert caller.call() == 200
    assert len(auth.clients) == 2
    auth.tokens.clear()
    auth.next = [answer({"error": error}, 401)] * 9
    with pytest.raises(TokenRefused):
        caller.call()
    assert len(auth.clients) == 3
    assert len(world.logins) == 5


def test_a_forgotten_registration_that_shows_at_the_refresh() -> None:
    world, auth, _, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    auth.tokens.clear()
    auth.next = [answer({"error": "invalid_client"}, 401)]
    assert caller.call() == 200
    assert len(auth.clients) == len(world.logins) == 2


def test_the_secret_of_a_configured_client_that_is_wrong_is_an_error_and_keeps_the_tokens() -> None:
    settings = OAuth(AuthorizationCode(client_id="mine", client_secret="SECRET-x"))
    world, auth, server, caller = scene(settings)
    auth.gives_refresh = True
    assert caller.call() == 200
    auth.tokens.clear()
    auth.next = [answer({"error": "invalid_client"}, 401)]
    with pytest.raises(TokenRefused, match="secret"):
        caller.call()
    assert len(world.logins) == 1
    assert again(world, server, settings).call() == 200
    assert len(world.logins) == 1


def test_a_login_that_times_out_forgets_the_registration_it_used() -> None:
    world, auth, _, caller = scene()
    assert caller.call() == 200
    auth.tokens.clear()
    person = world.person

    def nobody(effect: Any) -> Any:
        raise LoginFailed("nobody logged in within 300 s")

    world.person = nobody
    with pytest.raises(LoginFailed):
        caller.call()
    world.person = person
    assert caller.call() == 200
    assert len(auth.clients) == 2


def test_a_client_that_is_registered_anew_leaves_no_tokens_behind() -> None:
    world, auth, server, caller = scene()
    auth.gives_refresh = True
    assert caller.call() == 200
    auth.tokens.clear()
    auth.refresh_tokens.clear()
    world.redirects = ["http://127.0.0.1:9/callback"]
    assert caller.call() == 200
    assert len(auth.clients) == 2
    world.run(again(world, server).machine.log_out(forget_client=True))
    assert not world.store._records


def test_another_redirect_uri_is_registered() -> None:
    world, auth, _, caller = scene()
    assert caller.call() == 200
    auth.tokens.clear()
    world.redirects = ["http://127.0.0.1:9/callback", REDIRECT]
    assert caller.call() == 200
    assert len(auth.clients) == 1
    auth.tokens.clear()
    world.redirects = ["http://127.0.0.1:9/callback"]
    assert caller.call() == 200
    registered = [each["redirect_uris"] for each in auth.clients.values()]
    assert registered == [[REDIRECT], [*world.redirects, REDIRECT]]


def test_programs_with_other_redirect_uris_and_scopes_end_up_with_one_registration() -> None:
    world, auth, server, _ = scene()
    places = {"a": "http://127.0.0.1:9/callback", "b": "https://b.example/callback"}
    for _ in range(3):
        for scope, uri in places.items():
            auth.tokens.clear()
            world.redirects = [uri]
            assert again(world, server, OAuth(scopes=[scope])).call() == 200
    assert len(auth.clients) == 2
    assert list(auth.clients.values())[-1]["redirect_uris"] == [places["b"], places["a"]]
    assert len(world.logins) == 6


def test_where_the_redirect_uris_of_others_are_refused_the_own_one_is_registered() -> None:
    world, auth, server, _ = scene()
    register: Callable[[dict[str, Any]], Fetched] = auth.register
    auth.register = lambda document: (  # type: ignore[method-assign]
        register(document)
        if len(document["redirect_uris"]) == 1
        else answer({"error": "invalid_redirect_uri"}, 400)
    )
    for uri in ("http://127.0.0.1:9/callback", "https://b.example/callback"):
        auth.tokens.clear()
        world.redirects = [uri]
        assert again(world, server).call() == 200
    assert [len(each["redirect_uris"]) for each in auth.clients.values()] == [1, 1]


def test_the_login_of_another_program_costs_nobody_their_refresh_token() -> None:
    world, auth, server, first = scene()
    auth.gives_refresh = True
    assert first.call() == 200
    person = world.person

    def nobody(effect: Any) -> Any:
        raise LoginFailed("nobody logged in within 300 s")

    world.person, world.redirects = nobody, ["http://127.0.0.1:9/callback"]
    with pytest.raises(LoginFailed):
        world.run(again(world, server).machine.log_in())
    assert len(auth.clients) == 2
    world.person = person
    auth.tokens.clear()
    assert first.call() == again(world, server).call() == 200
    assert len(world.logins) == 2
    assert first.machine.tokens is not None
    assert first.machine.tokens.client.client_id == next(iter(auth.clients))


def test_the_application_type_is_adjusted_once() -> None:
    world, auth, _, caller = scene()
    register: Callable[[dict[str, Any]], Fetched] = auth.register
    auth.register = lambda document: (  # type: ignore[method-assign]
        register(document)
        if document["application_type"] == "web"
        else answer({"error": "invalid_redirect_uri"}, 400)
    )
    assert caller.call() == 200
    assert [each["application_type"] for each in world.posts(f"{ISSUER}/register")] == ["native", "web"]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (
            answer({"error": "invalid_client_metadata", "error_description": "bad \x1b[31m"}, 400),
            RegistrationFailed,
        ),
        (answer({"error": "access_denied"}, 403), RegistrationFailed),
        (answer({"client_id": 7}, 201), RegistrationFailed),
        (Fetched(200, [], b"<html>"), RegistrationFailed),
        (answer({}, 503), AuthorizationUnavailable),
        (FetchFailed("no route"), AuthorizationUnavailable),
        (FetchFailed("private", refused=True), UrlRefused),
    ],
)
def test_a_registration_that_is_refused(refusal: Any, error: type[AuthorizationError]) -> None:
    world, auth, _, caller = scene()
    auth.register = lambda document: refusal  # type: ignore[method-assign]
    with pytest.raises(error) as raised:
        caller.call()
    assert str(raised.value).isprintable()
    assert not world.logins


def test_an_authorization_server_that_registers_nobody() -> None:
    _, _, _, caller = scene(registration_endpoint=None)
    with pytest.raises(RegistrationFailed, match="client_id"):
        caller.call()


# -- machines --------------------------------------------------------------------------------------------------------


def test_a_machine_asks_again_when_its_token_ends() -> None:
    world, auth, _, caller = scene(
        OAuth(ClientCredentials(client_id="c", client_secret="SECRET-x"), scopes=["a"])
    )
    assert caller.call() == 200
    world.now += 3590
    assert caller.machine.refresh_due
    assert caller.call() == 200
    assert [each["scope"] for each in world.posts(TOKEN)] == ["a", "a"]
    auth.tokens.clear()
    assert caller.call() == 200
    assert not world.logins
    assert not any(isinstance(each, Lock) for each in world.effects)


@pytest.mark.parametrize("error", ["invalid_client", "unauthorized_client", "invalid_scope"])
def test_a_machine_that_is_refused_is_told_so(error: str) -> None:
    world, auth, _, caller = scene(OAuth(ClientCredentials(client_id="c", client_secret="SECRET-x")))
    auth.next = [answer({"error": error}, 400)] * 9
    with pytest.raises(TokenRefused) as refused:
        caller.call()
    assert refused.value.error == error
    assert len(world.posts(TOKEN)) == 1


def enterprise(world: World, tokens: list[str]) -> EnterpriseManaged:
    def idp(fetch: Fetch) -> Fetched:
        form = world.posts(fetch.url)[-1]
        if form["subject_token"].endswith("stale"):
            return answer({"error": "invalid_grant"}, 400)
        issued = "urn:ietf:params:oauth:token-type:id-jag"
        document = {"access_token": world.secret("id-jag"), "token_type": "N_A", "issued_token_type": issued}
        return answer(document)

    world.handlers["https://idp.example"] = idp
    return EnterpriseManaged(
        id_token=lambda: tokens.pop(0),
        idp_issuer="https://idp.example",
        idp_token_endpoint="https://idp.example/token",
        idp_client_id="idp-client",
        idp_client_secret="SECRET-idp",
        client_id="c",
    )


def test_a_stale_id_token_is_asked_for_anew_once() -> None:
    world, auth, server, _ = scene()
    settings = OAuth(enterprise(world, ["SECRET-stale", "SECRET-id-token"]))
    assert again(world, server, settings).call() == 200
    assert len(world.posts("https://idp.example/token")) == 2
    auth.tokens.clear()
    settings = OAuth(enterprise(world, ["SECRET-stale", "SECRET-stale", "SECRET-id-token"]), account="b")
    with pytest.raises(TokenRefused):
        again(world, server, settings).call()
    assert len(world.posts("https://idp.example/token")) == 4


def test_a_refused_assertion_of_the_identity_provider_is_made_anew_once() -> None:
    world, auth, server, _ = scene()
    settings = OAuth(enterprise(world, ["SECRET-id-token"] * 9))
    auth.next = [answer({"error": "invalid_grant"}, 400)]
    assert again(world, server, settings).call() == 200
    assertions = [each["assertion"] for each in world.posts(TOKEN)]
    assert len(set(assertions)) == len(assertions) == 2
    auth.next = [answer({"error": "invalid_grant"}, 400)] * 9
    with pytest.raises(TokenRefused):
        again(world, server, OAuth(enterprise(world, ["SECRET-id-token"] * 9), account="b")).call()
    assert len(world.posts(TOKEN)) == 4


def test_an_identity_provider_that_issues_something_else() -> None:
    world, _, server, _ = scene()
    settings = OAuth(enterprise(world, ["SECRET-id-token"]))
    world.handlers["https://idp.example"] = lambda fetch: answer(
        {"access_token": "x", "token_type": "Bearer"}
    )
    with pytest.raises(TokenRefused, match="another kind"):
        again(world, server, settings).call()
    assert not world.posts(TOKEN)


# -- login -----------------------------------------------------------------------------------------------
#
# Logout.


def test_a_login_beforehand() -> None:
    world, _, server, caller = scene()
    world.run(caller.machine.log_in())
    assert caller.call() == 200
    assert again(world, server).call() == 200
    assert len(world.logins) == 1


@pytest.mark.parametrize("forget_client", [True, False])
def test_a_logout_revokes_and_forgets(forget_client: bool) -> None:
    world, auth, server, caller = scene(revocation_endpoint=f"{ISSUER}/revoke")
    auth.gives_refresh = True
    assert caller.call() == 200
    (refresh,) = auth.refresh_tokens
    world.run(again(world, server).machine.log_out(forget_client=forget_client))
    assert world.posts(f"{ISSUER}/revoke")[0]["token"] == refresh
    assert not auth.refresh_tokens
    assert len(world.store._records) == (0 if forget_client else 1)
    auth.tokens.clear()
    assert again(world, server).call() == 200
    assert len(world.logins) == 2
    assert len(auth.clients) == (2 if forget_client else 1)


@pytest.mark.parametrize("outage", [answer({}, 500), FetchFailed("no route")])
def test_a_revocation_that_fails_stops_no_logout(outage: Fetched | FetchFailed) -> None:
    world, auth, _, caller = scene(revocation_endpoint="https://elsewhere.example/revoke")
    auth.gives_refresh = True
    assert caller.call() == 200
    world.handlers["https://elsewhere.example"] = lambda fetch: outage
    world.run(caller.machine.log_out())
    assert caller.machine.token is None
    world.run(caller.machine.log_out())


def test_a_failed_login_stores_nothing_and_the_next_call_works() -> None:
    world, auth, _, caller = scene()
    person = world.person

    def nobody(effect: Any) -> Any:
        raise LoginRequired("run this once: mcp-actors login")

    world.person = nobody
    with pytest.raises(LoginRequired):
        caller.call()
    assert not [key for key in world.store._records if "tokens" in key]
    world.person = person
    assert caller.call() == 200
    assert len(auth.clients) == 1


# -- proofs of possession ----------------------------------------------------------------------------------------------

ALGORITHMS = "dpop_signing_alg_values_supported"


def test_a_key_is_kept_with_the_tokens_and_dropped_at_logout() -> None:
    world, auth, server, caller = scene(dpop_signing_alg_values_supported=["ES256"])
    server.document[ALGORITHMS] = ["ES256"]
    auth.gives_refresh = True
    assert caller.call() == 200
    key = world.authorization_requests()[0]["dpop_jkt"]
    world.now += 10_000
    other = again(world, server)
    assert other.call() == 200
    assert len(world.logins) == 1
    world.run(other.machine.log_out())
    assert other.call() == 200
    assert world.authorization_requests()[-1]["dpop_jkt"] != key


def test_no_key_goes_to_another_authorization_server() -> None:
    world, _, server, caller = scene(dpop_signing_alg_values_supported=["ES256"])
    server.document[ALGORITHMS] = ["ES256"]
    assert caller.call() == 200
    second = AuthServer(world, "https://as2.example", dpop_signing_alg_values_supported=["ES256"])
    server.auth, server.document["authorization_servers"] = second, [second.issuer]
    assert caller.call() == 200
    first, last = (each["dpop_jkt"] for each in world.authorization_requests())
    assert first != last


@pytest.mark.parametrize(
    ("dpop", "supported", "listed", "scheme", "is_bound"),
    [
        (None, ["ES256"], ["ES256"], "Bearer", True),
        (None, ["ES256"], None, "Bearer", False),
        (None, ["ES256"], None, "DPoP", True),
        (None, ["none", "HS256"], ["ES256"], "Bearer", False),
        (None, ["ES256"], ["ES384"], "Bearer", False),
        (None, None, ["ES256"], "Bearer", False),
        (None, None, None, "Bearer", False),
        (None, None, None, "DPoP", True),
        (False, ["ES256"], ["ES256"], "Bearer", False),
        (True, None, None, "Bearer", True),
        (None, ["ES384", "Ed25519"], ["ES384"], "Bearer", True),
    ],
)
def test_tokens_are_bound_where_both_sides_can(
    dpop: bool | None, supported: Any, listed: Any, scheme: str, is_bound: bool
) -> None:
    """A server that says nothing of proofs may know plain tokens alone, whatever its authorization server can do."""
    world, _, server, caller = scene(OAuth(dpop=dpop), dpop_signing_alg_values_supported=supported)
    server.scheme = scheme
    if listed is not None:
        server.document[ALGORITHMS] = listed
    assert caller.call() == 200
    assert ("dpop_jkt" in world.authorization_requests()[0]) is is_bound
    assert bool(server.proofs) is is_bound


@pytest.mark.parametrize(("dpop", "algorithms"), [(False, ["ES256"]), (None, ["HS256"])])
def test_proofs_that_are_demanded_and_cannot_be_made(dpop: bool | None, algorithms: list[str]) -> None:
    world, _, server, caller = scene(OAuth(dpop=dpop), dpop_signing_alg_values_supported=algorithms)
    server.scheme = "DPoP"
    with pytest.raises(AuthorizationFailed, match="DPoP"):
        caller.call()
    assert not world.logins


def test_a_plain_token_is_refused_where_a_bound_one_is_demanded() -> None:
    _world, auth, server, caller = scene(OAuth(dpop=True), dpop_signing_alg_values_supported=["ES256"])
    auth.token_type = "Bearer"
    with pytest.raises(TokenRefused, match="dpop=True"):
        caller.call()
    assert caller.machine.token is None
    assert not any(server.tokens)


def test_a_plain_token_of_the_store_is_not_used_where_a_bound_one_is_demanded() -> None:
    world, _, server, caller = scene(dpop_signing_alg_values_supported=["ES256"])
    plain = again(world, server, OAuth(dpop=False))
    assert plain.call() == 200
    assert again(world, server, OAuth(dpop=True)).call() == 200
    assert len(world.logins) == len(server.proofs) + 1 == 2
    assert caller.machine.token is None


def test_a_nonce_for_ever_leads_to_no_login() -> None:
    world, _, server, caller = scene(dpop_signing_alg_values_supported=["ES256"])
    server.scheme = "DPoP"
    assert caller.call() == 200
    world.now += 100
    count = iter(range(1000))
    server.refuses = lambda operation: Answered(401, ['DPoP error="use_dpop_nonce"'], f"nonce-{next(count)}")
    before = len(server.tokens)
    with pytest.raises(AuthorizationFailed, match="nonce"):
        caller.call()
    assert len(server.tokens) == before + 2
    assert len(world.logins) == 1


def test_a_nonce_that_ends_while_a_person_logs_in_is_replaced_once() -> None:
    world, _, server, caller = scene(dpop_signing_alg_values_supported=["ES256"])
    server.scheme, server.nonce = "DPoP", "first"
    assert caller.call() == 200
    server.needed = {"tools/call:x": "x"}

    def rotate(effect: Effect) -> None:
        if isinstance(effect, LogIn):
            server.nonce = "third"

    server.nonce, world.before = "second", rotate
    sent = len(server.tokens)
    assert caller.call("tools/call:x") == 200
    # With the first nonce, the second one, and after the login with the second one and the third one.
    assert len(server.tokens) - sent == 4
    assert len(world.logins) == 2


def test_a_token_that_is_refused_after_its_nonce_is_refreshed_once() -> None:
    world, auth, server, caller = scene(dpop_signing_alg_values_supported=["ES256"])
    auth.gives_refresh = True
    server.scheme, server.nonce = "DPoP", "first"
    assert caller.call() == 200
    token = caller.machine.token
    nonce_asked = iter([Answered(401, ['DPoP error="use_dpop_nonce"'], "second")])
    server.refuses = lambda operation: (
        next(nonce_asked, Answered(401, server.challenge(error="invalid_token")))
        if server.tokens[-1] == token
        else None
    )
    assert caller.call() == 200
    assert len(world.logins) == 1
    server.refuses = lambda operation: Answered(401, server.challenge(error="invalid_token"))
    sent = len(server.tokens)
    with pytest.raises(AuthorizationFailed, match="issued for it just now"):
        caller.call()
    assert (len(server.tokens) - sent, len(world.logins)) == (2, 1)


def test_a_proof_that_is_refused_says_to_check_the_clock() -> None:
    world, _, server, caller = scene(dpop_signing_alg_values_supported=["ES256"])
    server.scheme = "DPoP"
    assert caller.call() == 200
    server.refuses = lambda operation: Answered(401, ['DPoP error="invalid_dpop_proof"'])
    with pytest.raises(AuthorizationFailed, match="clock"):
        caller.call()
    assert len(world.logins) == 1


def test_an_authorization_server_that_asks_for_a_nonce_for_ever() -> None:
    world, auth, server, caller = scene(dpop_signing_alg_values_supported=["ES256"])
    server.document[ALGORITHMS] = ["ES256"]
    auth.next = [answer({"error": "use_dpop_nonce"}, 400, dpop_nonce=f"n{number}") for number in range(9)]
    with pytest.raises(TokenRefused):
        caller.call()
    assert len(world.posts(TOKEN)) == 2


# -- anything at all ---------------------------------------------------------------------------------------------------

RESOURCE = {"resource": SERVER, "authorization_servers": [ISSUER]}
METADATA = {
    "issuer": ISSUER,
    "token_endpoint": TOKEN,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "registration_endpoint": f"{ISSUER}/register",
    "code_challenge_methods_supported": ["S256"],
}
DOCUMENTS: list[Any] = [
    RESOURCE,
    METADATA,
    {"issuer": ISSUER, "token_endpoint": TOKEN},
    {"client_id": "x"},
    {"error": "invalid_client"},
    {"error": "use_dpop_nonce"},
    {"access_token": 7},
    {"access_token": "a", "token_type": "Bearer"},
    {},
    [],
]
BODIES = st.sampled_from([json.dumps(each).encode() for each in DOCUMENTS]) | st.binary(max_size=20)
ANSWERS = st.builds(FetchFailed, st.just("x"), st.booleans()) | st.builds(
    Fetched,
    st.sampled_from([200, 200, 200, 201, 204, 302, 400, 401, 404, 429, 500, 502]),
    st.just([("content-type", "application/json"), ("dpop-nonce", "n")]) | st.just([]),
    BODIES,
)
LINES = st.lists(
    st.sampled_from(["Bearer", 'DPoP algs="ES256"', 'Bearer error="insufficient_scope", scope="a"'])
    | st.text(max_size=20),
    max_size=2,
)


@given(st.lists(ANSWERS, min_size=1, max_size=12), LINES, st.sampled_from([401, 403]))
def test_whatever_comes_there_is_a_typed_end(answers: list[Any], lines: list[str], status: int) -> None:
    world = World()
    machine = Authorization(OAuth(), SERVER, now=lambda: 0.0)
    world.person = lambda effect: [("state", "x")]
    given_answers = iter(answers)
    world._fetch = lambda fetch: next(given_answers, FetchFailed("nothing more"))  # type: ignore[method-assign]
    raised = ""
    try:
        world.run(machine.react(SentRequest("POST", SERVER, "x"), Answered(status, lines)))
    except AuthorizationError as error:
        raised = str(error)
    assert raised.isprintable()
    assert len(world.effects) < 40


def test_every_well_known_place_may_answer_anything() -> None:
    for status in (400, 401, 403, 404, 502):
        world, auth, server, _ = scene()
        auth.places = ["/.well-known/openid-configuration"]
        good = world.handlers[ISSUER]
        world.handlers[ISSUER] = lambda fetch, good=good, status=status: (
            answer({}, status) if fetch.url.endswith(WELL_KNOWN_SERVER) else good(fetch)
        )
        assert again(world, server).call() == 200
