"""The example authorization server over HTTP: its pages, hostile requests, and our own client and server with it."""

from __future__ import annotations

import html
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.auth import (
    AuthorizationCode,
    ClientCredentials,
    MemoryTokenStore,
    OAuth,
    ResourceServer,
)
from mcp_actors.auth.client.person_grant import code_challenge
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_actors.errors import AuthorizationFailed, LoginFailed, TokenRefused
from mcp_actors.examples.issuer.clients import machine_client
from mcp_actors.examples.issuer.http_face import COOKIE, MAX_BODY, MAX_DOCUMENT, issuer_transport
from mcp_actors.examples.issuer.issuer import Issuer
from mcp_transports.auth.browsers import LoopbackBrowser
from mcp_transports.http.server import HttpServerTransport
from tests.interop.servers import free_port

CALLBACK = "http://127.0.0.1:5000/callback"
NOTES = "http://127.0.0.1:8000/mcp"
DOCUMENT = "https://client.example/metadata.json"
VERIFIER = "v" * 43
LIMIT = 60.0  # seconds for a whole flow; it takes one
TICKET = re.compile(r'name="ticket" value="([A-Za-z0-9_-]+)"')


class Site:
    """A served issuer, what it fetched, and a browser that keeps cookies and follows no redirection."""

    def __init__(self, issuer: Issuer, browser: httpx2.AsyncClient) -> None:
        self.issuer = issuer
        self.browser = browser
        self.fetched: list[Fetch] = []
        self.documents: dict[str, Fetched | FetchFailed] = {}
        self.fetching: Callable[[], Any] = trio.lowlevel.checkpoint

    async def fetch(self, fetch: Fetch) -> Fetched | FetchFailed:
        self.fetched.append(fetch)
        await self.fetching()
        return self.documents.get(fetch.url, Fetched(404, [], b""))

    async def register(self, **changed: Any) -> str:
        wanted = {
            "client_name": "tests",
            "redirect_uris": [CALLBACK],
            "grant_types": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_method": "none",
            **changed,
        }
        answer = await self.browser.post("/register", json=wanted)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["client_id"])

    def login(self, client_id: str, **changed: str) -> str:
        values = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": CALLBACK,
            "code_challenge": code_challenge(VERIFIER),
            "code_challenge_method": "S256",
            "state": "s",
            "resource": NOTES,
            **changed,
        }
        return f"/authorize?{urlencode(values)}"

    async def page(self, client_id: str, **changed: str) -> httpx2.Response:
        answer = await self.browser.get(self.login(client_id, **changed))
        assert answer.status_code == 200, answer.text
        return answer

    async def decide(self, page: httpx2.Response, user: str = "ann", **headers: str) -> httpx2.Response:
        form = {"ticket": ticket_of(page), "user": user}
        return await self.browser.post("/consent", data=form, headers=headers)

    async def token(self, client_id: str, code: str) -> httpx2.Response:
        form = {
            "grant_type": "authorization_code",
            "client_id": client_id,
            "code": code,
            "redirect_uri": CALLBACK,
            "code_verifier": VERIFIER,
        }
        return await self.browser.post("/token", data=form)


def ticket_of(page: httpx2.Response) -> str:
    found = TICKET.search(page.text)
    assert found is not None, page.text
    return found[1]


@asynccontextmanager
async def serving(url: str = "", **settings: Any) -> AsyncIterator[Site]:
    url = url or f"http://127.0.0.1:{free_port()}"
    users = {"ann": ["mcp:read", "mcp:write"], "bob": ["mcp:read"]}
    machine = machine_client("machine", ["mcp:read"], secret="machine-secret")
    issuer = Issuer(url, users, **{"machines": [machine], **settings})
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as browser:
        site = Site(issuer, browser)
        async with trio.open_nursery() as nursery:
            server = Server("issuer")
            await nursery.start(server.serve, issuer_transport(issuer, site.fetch))
            with trio.fail_after(LIMIT):
                yield site
            nursery.cancel_scope.cancel()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as found:
        yield found


# -- Pages ----------------------------------------------------------------------------------------


async def test_a_login_by_hand(site: Site) -> None:
    client_id = await site.register()
    page = await site.page(client_id)
    answer = await site.decide(page)
    assert answer.status_code == 303
    location = urlsplit(answer.headers["location"])
    found = dict(parse_qsl(location.query))
    assert (location.path, found["state"], found["iss"]) == ("/callback", "s", site.issuer.url)
    token = await site.token(client_id, found["code"])
    assert token.json()["scope"] == "mcp:read mcp:write"
    assert token.headers["cache-control"] == "no-store"
    revoked = await site.browser.post(
        "/revoke", data={"client_id": client_id, "token": token.json()["refresh_token"]}
    )
    assert (revoked.status_code, revoked.json()) == (200, {})


async def test_no_page_has_a_script_or_may_be_framed_or_kept(site: Site) -> None:
    client_id = await site.register()
    for path in ("/", site.login(client_id), site.login("nobody")):
        page = await site.browser.get(path)
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "frame-ancestors 'none'; base-uri 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        assert not re.search(r"<script|javascript:|\son\w+=|<link|<img|https?://[^<]*\.(js|css)", page.text)
        assert "For this machine only" in page.text


async def test_what_a_client_says_of_itself_is_text(site: Site) -> None:
    name = "<script>alert(1)</script>\"'&"
    page = await site.page(await site.register(client_name=name))
    assert name not in page.text
    assert html.escape(name) in page.text
    assert "its name is not checked" in page.text


@pytest.mark.parametrize(
    ("redirect_uri", "source"),
    [
        ("http://127.0.0.1:5000/callback", "http://127.0.0.1:5000"),
        ("https://app.example:444/callback", "https://app.example:444"),
        ("http://[::1]:5000/callback", "http:"),
        ("com.example.app:/callback", "com.example.app:"),
    ],
)
async def test_the_form_may_lead_to_the_client_and_nowhere_else(
    site: Site, redirect_uri: str, source: str
) -> None:
    client_id = await site.register(redirect_uris=[redirect_uri])
    page = await site.page(client_id, redirect_uri=redirect_uri)
    assert f"form-action 'self' {source};" in page.headers["content-security-policy"]


async def test_a_wrong_redirect_uri_is_a_page_and_no_redirection(site: Site) -> None:
    client_id = await site.register()
    for changed in ({"redirect_uri": "https://evil.example/"}, {"client_id": "nobody"}):
        answer = await site.browser.get(site.login(**{"client_id": client_id, **changed}))
        assert (answer.status_code, answer.headers.get("location")) == (400, None)
        assert "evil" not in answer.text
    refused = await site.browser.get(site.login(client_id, scope="admin"))
    assert refused.status_code == 302
    assert refused.headers["location"].startswith(f"{CALLBACK}?error=invalid_scope")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_a_login_is_a_get(site: Site, method: str) -> None:
    assert (await site.browser.request(method, "/authorize")).status_code == 405


# -- Other pages that would answer for the person -------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:6274"},
        {"origin": "http://localhost:6274"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
async def test_no_other_page_answers_for_the_person(site: Site, headers: dict[str, str]) -> None:
    client_id = await site.register()
    page = await site.page(client_id)
    assert (await site.decide(page, **headers)).status_code == 403
    own = {"origin": site.issuer.url, "sec-fetch-site": "same-origin"}
    assert (await site.decide(page, **own)).status_code == 303


async def test_a_page_that_was_read_elsewhere_is_worth_nothing_in_this_browser(site: Site) -> None:
    client_id = await site.register()
    await site.page(client_id)
    async with httpx2.AsyncClient(base_url=site.issuer.url, trust_env=False) as other:
        foreign = await other.get(site.login(client_id))
    assert (await site.decide(foreign)).status_code == 400
    site.browser.cookies.clear()
    assert (await site.decide(foreign)).status_code == 400


async def test_two_logins_in_one_browser_are_both_answered(site: Site) -> None:
    client_id = await site.register()
    first, second = [await site.page(client_id, state=each) for each in ("1", "2")]
    assert "HttpOnly; SameSite=Lax" in first.headers["set-cookie"]
    assert len(site.browser.cookies) == 1
    for page, state in ((first, "1"), (second, "2")):
        assert f"state={state}" in (await site.decide(page)).headers["location"]


async def test_a_cookie_of_another_form_is_not_taken(site: Site) -> None:
    client_id = await site.register()
    site.browser.cookies.set(COOKIE, "chosen-by-somebody-else")
    answer = await site.page(client_id)
    assert "chosen" not in answer.headers["set-cookie"]


@pytest.mark.parametrize("path", ["/", "/jwks", "/token", "/consent"])
async def test_names_of_others_lead_nowhere(site: Site, path: str) -> None:
    for headers in ({"host": "evil.example"}, {"host": f"evil.example:{urlsplit(site.issuer.url).port}"}):
        assert (await site.browser.get(path, headers=headers)).status_code in (403, 405)
        assert (await site.browser.post(path, headers=headers)).status_code in (403, 405)


# -- Documents, registration and tokens -----------------------------------------------------------


@pytest.mark.parametrize("name", ["oauth-authorization-server", "openid-configuration"])
async def test_the_metadata_is_where_clients_look(site: Site, name: str) -> None:
    answer = await site.browser.get(f"/.well-known/{name}")
    assert answer.json() == site.issuer.metadata()
    assert (await site.browser.get(urlsplit(answer.json()["jwks_uri"]).path)).json() == site.issuer.jwks()


async def test_it_serves_no_mcp(site: Site) -> None:
    answer = await site.browser.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert answer.status_code == 404
    for path in ("/sse", "/elsewhere"):
        assert (await site.browser.get(path)).status_code == 404


async def test_a_registration_has_a_bound(site: Site) -> None:
    # Its head says enough: the body is not waited for.
    place = urlsplit(site.issuer.url)
    head = f"POST /register HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
    async with await trio.open_tcp_stream("127.0.0.1", place.port or 0) as stream:
        await stream.send_all(head.encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 413 ")
    long = {"redirect_uris": [CALLBACK], "client_name": "x" * (MAX_BODY - 200)}
    registered = await site.browser.post("/register", json=long)
    assert (registered.status_code, len(registered.json()["client_name"])) == (201, 100)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain", b'{"redirect_uris": ["http://127.0.0.1/"]}'),
        ("application/x-www-form-urlencoded", b'{"redirect_uris": ["http://127.0.0.1/"]}'),
        ("application/json", b"not json"),
        ("application/json", b"[" * 50_000),
        ("application/json", b"\xff"),
    ],
)
async def test_a_registration_is_json(site: Site, content_type: str, body: bytes) -> None:
    # A page of another origin could send the first two without a preflight.
    answer = await site.browser.post("/register", content=body, headers={"content-type": content_type})
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_client_metadata")


@pytest.mark.parametrize("path", ["/token", "/revoke", "/consent"])
async def test_a_form_is_a_form(site: Site, path: str) -> None:
    answer = await site.browser.post(path, json={"grant_type": "authorization_code"})
    assert answer.status_code == 400
    twice = await site.browser.post(
        path,
        content="client_id=a&client_id=b&ticket=a&ticket=b",
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert twice.status_code == 400


async def test_a_client_that_proves_nothing_is_challenged_for_the_header(site: Site) -> None:
    form = {"grant_type": "client_credentials", "resource": NOTES}
    answer = await site.browser.post("/token", data=form, auth=("machine", "wrong"))
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")
    assert answer.headers["www-authenticate"].startswith("Basic ")
    good = await site.browser.post("/token", data=form, auth=("machine", "machine-secret"))
    assert good.json()["scope"] == "mcp:read"


async def test_two_proofs_are_none(site: Site) -> None:
    form = {"grant_type": "client_credentials", "resource": NOTES}
    headers = [("dpop", "a.b.c"), ("dpop", "a.b.c")]
    answer = await site.browser.post("/token", data=form, auth=("machine", "machine-secret"), headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_dpop_proof")


# -- Documents of clients -------------------------------------------------------------------------


async def test_a_document_is_fetched_once_and_within_bounds(site: Site) -> None:
    document = {"client_id": DOCUMENT, "client_name": "documented", "redirect_uris": [CALLBACK]}
    site.documents[DOCUMENT] = Fetched(200, [], json.dumps(document).encode())
    page = await site.page(DOCUMENT)
    assert f"Its document is at {DOCUMENT}" in page.text
    code = dict(parse_qsl(urlsplit((await site.decide(page)).headers["location"]).query))["code"]
    assert (await site.token(DOCUMENT, code)).json()["token_type"] == "Bearer"
    (fetch,) = site.fetched
    assert (fetch.method, fetch.url, fetch.redirects, fetch.max_bytes) == ("GET", DOCUMENT, 0, MAX_DOCUMENT)


@pytest.mark.parametrize(
    ("fetched", "why"),
    [
        (FetchFailed("it leads to a private address", refused=True), "it leads to a private address"),
        (Fetched(302, [("location", "https://evil.example/")], b""), "its host answers 302"),
        (Fetched(200, [], b"<html>"), "it is not a JSON object"),
    ],
)
async def test_a_document_that_is_none_is_said_to_the_person(
    site: Site, fetched: Fetched | FetchFailed, why: str
) -> None:
    site.documents[DOCUMENT] = fetched
    for _ in range(3):
        answer = await site.browser.get(site.login(DOCUMENT))
        assert (answer.status_code, why in answer.text) == (400, True)
    assert len(site.fetched) == 1


async def test_documents_that_do_not_come_hold_up_nobody_else(site: Site) -> None:
    waiting, most = 0, 0
    full, release = trio.Event(), trio.Event()

    async def slow() -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        if waiting == 4:
            full.set()
        await release.wait()
        waiting -= 1

    site.fetching = slow
    client_id = await site.register()
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(site.browser.get, site.login(f"https://client.example/{number}"))
        await full.wait()
        assert (await site.decide(await site.page(client_id))).status_code == 303
        release.set()
    assert (most, len(site.fetched)) == (4, 20)


# -- Our own client and server --------------------------------------------------------------------


class Person:
    """Chooses a name on the page of each login, as in a browser."""

    def __init__(self, name: str = "ann") -> None:
        self.name = name
        self.logins = 0

    async def open(self, url: str) -> None:
        self.logins += 1
        async with httpx2.AsyncClient(trust_env=False) as browser:
            page = await browser.get(url)
            form = {"ticket": ticket_of(page), "user": self.name}
            answer = await browser.post(str(page.url.copy_with(path="/consent", query=None)), data=form)
            await browser.get(answer.headers["location"])

    def auth(self, **settings: Any) -> OAuth:
        grant = AuthorizationCode(browser=LoopbackBrowser(open=self.open))
        return OAuth(grant, **{"store": MemoryTokenStore(), **settings})


@asynccontextmanager
async def notes(issuer: str, *, at: str = "", **settings: Any) -> AsyncIterator[str]:
    """The URL of a server that takes the tokens of an issuer."""
    server = Server("notes")

    @server.tool(scopes=["mcp:write"])
    async def note(ctx: Context) -> str:
        return f"noted for {ctx.principal}"

    @server.tool
    async def whoami(ctx: Context) -> str:
        return str(ctx.principal)

    url = at or f"http://127.0.0.1:{free_port()}/mcp"
    auth = ResourceServer(resource=url, issuer=issuer, scopes=["mcp:read"], **settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, HttpServerTransport(url, auth=auth))
        yield url
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("dpop", ["no", "allowed", "required"])
async def test_a_person_logs_in_and_steps_up(site: Site, era: str, dpop: str) -> None:
    person = Person()
    async with notes(site.issuer.url, dpop=dpop) as url:
        async with Client(url, era=era, auth=person.auth()) as client:
            assert (await client.call_tool("whoami")).text == "ann"
            assert person.logins == 1
            assert (await client.call_tool("note")).text == "noted for ann"
            assert person.logins == 2


async def test_a_person_without_the_scope_is_not_let_in(site: Site) -> None:
    person = Person("bob")
    async with notes(site.issuer.url) as url:
        async with Client(url, auth=person.auth()) as client:
            assert (await client.call_tool("whoami")).text == "bob"
            with pytest.raises(AuthorizationFailed, match="mcp:write"):
                await client.call_tool("note")


async def test_a_person_who_refuses_is_a_failed_login(site: Site) -> None:
    async with notes(site.issuer.url) as url:
        with pytest.raises(LoginFailed, match="access_denied"):
            async with Client(url, auth=Person("eve").auth()):
                pytest.fail("nobody was let in")


async def test_a_machine_has_access_of_its_own(site: Site) -> None:
    grant = ClientCredentials(client_id="machine", client_secret="machine-secret")
    async with notes(site.issuer.url) as url, Client(url, auth=OAuth(grant)) as client:
        assert (await client.call_tool("whoami")).text == "machine"
    wrong = ClientCredentials(client_id="machine", client_secret="wrong")
    async with notes(site.issuer.url) as url:
        with pytest.raises(TokenRefused, match="invalid_client"):
            async with Client(url, auth=OAuth(wrong)):
                pytest.fail("nobody was let in")


@pytest.mark.parametrize("dpop", [None, True])
async def test_a_login_is_renewed_without_the_person(dpop: bool | None) -> None:
    lines: list[str] = []
    person = Person()
    store = MemoryTokenStore()
    async with serving(report=lines.append) as site, notes(site.issuer.url, dpop="allowed") as url:
        for _ in range(3):
            async with Client(url, auth=person.auth(store=store, dpop=dpop)) as client:
                assert (await client.call_tool("whoami")).text == "ann"
            for key, record in list(store._records.items()):
                if "renew_at" in record.value:
                    await store.swap(key, record.generation, {**record.value, "renew_at": 0.0})
    assert person.logins == 1
    assert sum(line.startswith("a token for ann") for line in lines) == 3


async def test_after_a_restart_a_client_registers_again_by_itself() -> None:
    person, store = Person(), MemoryTokenStore()
    issuer, resource = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}/mcp"
    for _ in range(2):
        async with serving(issuer), notes(issuer, at=resource) as url:
            async with Client(url, auth=person.auth(store=store)) as client:
                assert (await client.call_tool("whoami")).text == "ann"
    assert person.logins == 2


async def test_a_token_for_one_server_is_not_taken_by_another(site: Site) -> None:
    client_id = await site.register()
    answer = await site.decide(
        await site.page(client_id, resource=f"http://127.0.0.1:1/{secrets.token_hex(4)}")
    )
    code = dict(parse_qsl(urlsplit(answer.headers["location"]).query))["code"]
    token = (await site.token(client_id, code)).json()["access_token"]
    async with notes(site.issuer.url) as url:
        asked = await site.browser.post(url, json={}, headers={"authorization": f"Bearer {token}"})
    assert asked.status_code == 401
    assert "invalid_token" in asked.headers["www-authenticate"]
