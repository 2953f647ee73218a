"""A protected listener and its authorization server, both over real sockets: keys, floods, proofs of possession."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
from joserfc.jwk import ECKey

from mcp_actors.auth import JwtVerifier, ResourceServer
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_actors.auth.jose import DpopKey, sign
from mcp_transports.auth.guarding import MAX_FETCHES, PATIENCE, JoinedFetches
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from tests.transports.http.protected import RESOURCE, protected_site
from tests.transports.http.raw import serving
from tests.transports.http.site import Site, modern, text


@pytest.fixture(autouse=True)
def fetches_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sockets are real, and a machine may be busy."""
    for timeout in ("CONNECT_TIMEOUT", "FETCH_TIMEOUT"):
        monkeypatch.setattr(f"mcp_transports.auth.fetcher.{timeout}", 60.0)


MESSAGE, HEADERS = modern(1, "add", a=1, b=2)
MIRROR = "/.well-known/oauth-authorization-server"


class Authority:
    """An authorization server that shows its metadata and its keys, and counts who asks for them."""

    def __init__(self) -> None:
        self.key = ECKey.generate_key("P-256", {"kid": "k1", "use": "sig"})
        self.issuer = ""
        self.asked: Counter[str] = Counter()
        self.down = False
        self.keys_at = ""
        """Where the keys are, if not here."""

    def __call__(self, request: Request, response: Response) -> None:
        self.asked[request.path] += 1
        documents: dict[str, Any] = {
            MIRROR: {"issuer": self.issuer, "jwks_uri": self.keys_at or f"{self.issuer}/keys"},
            "/keys": {"keys": [self.key.as_dict(private=False)]},
        }
        found = documents.get(request.path)
        if self.down or found is None:
            response.answer(500 if self.down else 404, b"no", content_type="text/plain")
        else:
            response.answer(200, json.dumps(found).encode(), content_type="application/json")

    def token(self, kid: str = "k1", **claims: Any) -> str:
        now = int(time.time())
        whole = {"iss": self.issuer, "aud": RESOURCE, "sub": "ann", "client_id": "app", "scope": "mcp:use"}
        header = {"alg": "ES256", "typ": "at+jwt", "kid": kid}
        return sign(header, {**whole, "iat": now, "exp": now + 600, **claims}, self.key)


@asynccontextmanager
async def both(**settings: Any) -> AsyncIterator[tuple[Authority, Site]]:
    authority = Authority()
    async with serving(authority) as served:
        authority.issuer = f"http://127.0.0.1:{served.port}"
        protected = ResourceServer(
            **{
                "resource": RESOURCE,
                "issuer": authority.issuer,
                "scopes": ["mcp:use"],
                "verifier": JwtVerifier(),
                **settings,
            }
        )
        async with protected_site(auth=protected) as at:
            yield authority, at


async def called(at: Site, authorization: str, **more: str) -> httpx2.Response:
    return await at.post(MESSAGE, **HEADERS, authorization=authorization, **more)


@pytest.mark.parametrize(("others", "status"), [([], 200), (["https://login.example.com"], 503)])
async def test_keys_of_several_issuers_are_in_the_network_of_none(others: list[str], status: int) -> None:
    async with both() as (authority, _), serving(authority) as elsewhere:
        authority.keys_at = f"http://127.0.0.1:{elsewhere.port}/keys"
        settings = ResourceServer(
            resource=RESOURCE, issuer=[authority.issuer, *others], scopes=["mcp:use"], verifier=JwtVerifier()
        )
        async with protected_site(auth=settings) as at:
            assert (await called(at, f"Bearer {authority.token()}")).status_code == status


async def test_keys_are_fetched_once_for_everybody() -> None:
    async with both() as (authority, at):
        statuses = []

        async def ask(number: int) -> None:
            token = authority.token(sub=f"user{number}")
            statuses.append((await called(at, f"Bearer {token}")).status_code)

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(ask, number)
        assert statuses == [200] * 30
        assert authority.asked == {MIRROR: 1, "/keys": 1}


async def test_a_flood_of_unknown_keys_is_one_more_fetch_at_most() -> None:
    async with both() as (authority, at):
        assert (await called(at, f"Bearer {authority.token()}")).status_code == 200
        statuses = []

        async def ask(number: int) -> None:
            token = authority.token(kid=f"unknown{number}")
            statuses.append((await called(at, f"Bearer {token}")).status_code)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, number)
        assert statuses == [401] * 50
        assert authority.asked["/keys"] <= 2


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "https://mcp.example.org/mcp2"},
        {"aud": ["https://other.example.org"]},
        {"iss": "https://as.example.org"},
        {"exp": 1},
        {"nbf": 4_000_000_000},
    ],
)
async def test_a_token_for_somebody_else_is_invalid(claims: dict[str, Any]) -> None:
    async with both() as (authority, at):
        refused = await called(at, f"Bearer {authority.token(**claims)}")
        assert refused.status_code == 401
        assert 'error="invalid_token"' in refused.headers["www-authenticate"]


async def test_while_the_keys_cannot_be_had_nobody_is_told_that_a_token_is_bad() -> None:
    async with both(mirror_metadata=True) as (authority, at):
        authority.down = True
        mirror = at.url.removesuffix("/mcp") + MIRROR
        for response in (await called(at, f"Bearer {authority.token()}"), await at.http.get(mirror)):
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert "www-authenticate" not in response.headers


async def test_the_metadata_of_the_issuer_is_shown_too() -> None:
    async with both(mirror_metadata=True) as (authority, at):
        found = await at.http.get(at.url.removesuffix("/mcp") + MIRROR)
        assert found.status_code == 200
        assert found.json()["issuer"] == authority.issuer
        assert found.headers["access-control-allow-origin"] == "*"
        assert (await at.http.post(at.url.removesuffix("/mcp") + MIRROR)).status_code == 405


async def test_proofs_are_for_the_public_url_and_for_one_request() -> None:
    async with both(dpop="required", dpop_nonces=True) as (authority, at):
        key, other = DpopKey.generate(), DpopKey.generate()
        token = authority.token(cnf={"jkt": key.thumbprint})

        async def ask(proof: str, scheme: str = "DPoP") -> httpx2.Response:
            message, headers = modern(1, "sees")
            headers |= {"authorization": f"{scheme} {token}", "dpop": proof}
            return await at.post(message, **headers)

        def proof(nonce: str | None = None, url: str = RESOURCE, by: DpopKey = key) -> str:
            return by.proof("POST", url, now=time.time(), nonce=nonce, token=token)

        wanted = await ask(proof())
        assert wanted.status_code == 401
        assert 'error="use_dpop_nonce"' in wanted.headers["www-authenticate"]
        nonce = wanted.headers["dpop-nonce"]
        good = proof(nonce)
        served = await ask(good)
        assert served.status_code == 200
        seen = json.loads(text(served.json()))
        assert {"authorization", "dpop"} & set(seen["headers"]) == set()
        for bad, error in (
            (good, "invalid_dpop_proof"),
            (proof(nonce, url=at.url), "invalid_dpop_proof"),
            (proof(nonce, by=other), "invalid_dpop_proof"),
        ):
            refused = await ask(bad)
            assert refused.status_code == 401
            assert f'error="{error}"' in refused.headers["www-authenticate"]
        as_bearer = await ask(proof(nonce), scheme="Bearer")
        assert as_bearer.status_code == 401
        assert as_bearer.headers["www-authenticate"].startswith('DPoP error="invalid_token"')


# -- Fetches of many tasks for one document --------------------------------------------------------------

KEYS = Fetch("GET", "https://as.example.org/keys", [("accept", "application/json")])


class Network:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Fetch] = []
        self.running = 0
        self.go = trio.Event()

    async def fetch(self, fetch: Fetch) -> Fetched | FetchFailed:
        self.asked.append(fetch)
        self.running += 1
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return Fetched(200, [], str(len(self.asked)).encode())


async def test_many_who_want_the_same_document_fetch_it_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    answers = []

    async def ask() -> None:
        answers.append(await joined(KEYS))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        network.go.set()
    assert len(network.asked) == 1
    assert answers == [Fetched(200, [], b"1")] * 50
    # Nothing is remembered: the next one asks anew.
    assert await joined(KEYS) == Fetched(200, [], b"2")


async def test_questions_about_one_token_are_one(autojump_clock: trio.testing.MockClock) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    answers: dict[bytes, set[bytes]] = {b"token=a": set(), b"token=b": set()}

    async def ask(body: bytes) -> None:
        answer = await joined(Fetch("POST", KEYS.url, KEYS.headers, body))
        assert isinstance(answer, Fetched)
        answers[body].add(answer.body)

    async with trio.open_nursery() as nursery:
        for _ in range(1_000):
            nursery.start_soon(ask, b"token=a")
        nursery.start_soon(ask, b"token=b")
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(each.body or b"" for each in network.asked) == sorted(answers)
        network.go.set()
    # Everybody who asked about a token has the answer of its question.
    assert [len(each) for each in answers.values()] == [1, 1]
    assert repr(joined) == "<JoinedFetches 0 in flight>"


async def test_if_the_one_that_fetches_is_cancelled_another_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    first = trio.CancelScope()
    answers = []

    async def leader() -> None:
        with first:
            await joined(KEYS)

    async def ask() -> None:
        answers.append(await joined(KEYS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(10):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert (len(network.asked), network.running) == (2, 1)
        network.go.set()
    assert answers == [Fetched(200, [], b"2")] * 10
    assert repr(joined) == "<JoinedFetches 0 in flight>"


@pytest.mark.parametrize(
    "other",
    [
        Fetch("GET", "https://as.example.org/other", KEYS.headers),
        Fetch("GET", KEYS.url, [("accept", "text/plain")]),
        Fetch("POST", KEYS.url, KEYS.headers),
        Fetch("GET", KEYS.url, KEYS.headers, b"token=a"),
    ],
)
async def test_what_differs_is_not_joined(other: Fetch, autojump_clock: trio.testing.MockClock) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    async with trio.open_nursery() as nursery:
        for fetch in (KEYS, other):
            nursery.start_soon(joined, fetch)
        await trio.testing.wait_all_tasks_blocked()
        assert len(network.asked) == 2
        assert KEYS in network.asked
        assert other in network.asked
        network.go.set()


async def test_a_flood_of_tokens_is_some_requests_at_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    answers = []

    async def ask(number: int) -> None:
        answers.append(await joined(Fetch("POST", KEYS.url, (), b"token=%d" % number)))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(ask, number)
        await trio.testing.wait_all_tasks_blocked()
        assert network.running == MAX_FETCHES
    assert trio.current_time() - began == PATIENCE
    assert all(isinstance(each, FetchFailed) and not each.refused for each in answers)
    assert len(answers) == 200
