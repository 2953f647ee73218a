"""An authorization server, a protected server and a person, without a network and in virtual time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import trio

from mcp_actors.auth.effects import Fetch, Fetched, RedirectAnswer
from mcp_actors.errors import LoginFailed
from tests.messages import discover_result, initialize_result, result
from tests.transports.http.scripted import Asked

__all__ = ["ISSUER", "RESOURCE", "Issuer", "Person", "Protected"]

ISSUER = "https://as.test"
RESOURCE = "http://mcp.test/mcp"
TEXT = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}


class Issuer:
    """Answers the requests of a machine of authorization; it stands in for the `Fetcher` of each server."""

    def __init__(self, *, scopes: Sequence[str] = ()) -> None:
        self.asked: list[Fetch] = []
        self.grants: Counter[str] = Counter()
        self.valid: set[str] = set()
        self.secrets: set[str] = set()
        self.scopes = list(scopes)
        self.lifetime: int | None = 3600
        self.seconds = 0.5
        """How long each request takes."""
        self.out_of_order = False
        self.before: Callable[[Fetch], None] = lambda fetch: None
        self._refresh_tokens: set[str] = set()

    async def fetch(self, request: Fetch) -> Fetched:
        self.asked.append(request)
        self.before(request)
        await trio.sleep(self.seconds)
        path = urlsplit(request.url).path
        if request.url.startswith("http://mcp.test/.well-known/oauth-protected-resource"):
            return _json(
                {"resource": RESOURCE, "authorization_servers": [ISSUER], "scopes_supported": self.scopes}
            )
        if path == "/.well-known/oauth-authorization-server":
            return _json(self.metadata())
        if path == "/register":
            return _json({**json.loads(request.body or b"{}"), "client_id": "registered"}, 201)
        if path == "/token":
            return self.token(dict(parse_qsl((request.body or b"").decode())))
        return Fetched(404, [], b"")

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token",
            "registration_endpoint": f"{ISSUER}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
        }

    def token(self, form: dict[str, str]) -> Fetched:
        if self.out_of_order:
            return _json({"error": "temporarily_unavailable"}, 503)
        grant = form["grant_type"]
        self.grants[grant] += 1
        if grant == "refresh_token":
            if form["refresh_token"] not in self._refresh_tokens:
                return _json({"error": "invalid_grant"}, 400)
            self._refresh_tokens.discard(form["refresh_token"])
        number = sum(self.grants.values())
        access, refresh = f"access-secret-{number}", f"refresh-secret-{number}"
        self.valid.add(access)
        self._refresh_tokens.add(refresh)
        self.secrets |= {access, refresh, *(form[name] for name in ("code", "code_verifier") if name in form)}
        answer = {"access_token": access, "token_type": "Bearer", "scope": form.get("scope", "")}
        if self.lifetime is not None:
            answer["expires_in"] = self.lifetime
        if grant != "client_credentials":
            answer["refresh_token"] = refresh
        return _json(answer)

    def revoke_all(self) -> None:
        self.valid.clear()


def _json(value: Any, status: int = 200) -> Fetched:
    return Fetched(status, [("content-type", "application/json")], json.dumps(value).encode())


class Person:
    """A `Browser`: somebody who takes ``seconds`` to log in, or refuses."""

    def __init__(self, seconds: float = 1.0, *, refuses: bool = False) -> None:
        self.seconds = seconds
        self.refuses = refuses
        self.logins = 0
        self.open = 0
        self.secrets: set[str] = set()

    @asynccontextmanager
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[Person]:
        self.open += 1
        try:
            await trio.lowlevel.checkpoint()
            yield self
        finally:
            self.open -= 1

    @property
    def uri(self) -> str:
        return "http://127.0.0.1:7/callback"

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        self.logins += 1
        await trio.sleep(self.seconds)
        if self.refuses:
            raise LoginFailed("the person closed the window")
        query = dict(parse_qsl(urlsplit(url).query))
        code = f"code-secret-{self.logins}"
        self.secrets |= {code, query["state"]}
        answer = [("code", code), ("state", query["state"]), ("iss", ISSUER)]
        assert accepts(answer)
        return answer


class Protected:
    """A server of both eras that demands a token of ``issuer``, and more scopes for some tools."""

    def __init__(self, issuer: Issuer, *, modern: bool = True) -> None:
        self.issuer = issuer
        self.modern = modern
        self.calls = 0
        self.refusals = 0
        self.is_open: set[str] = set()
        """Methods that need no token."""
        self.seconds = 0.0
        self.lacking: dict[str, str] = {}
        """By tool, the challenge of a 403."""

    async def __call__(self, asked: Asked) -> httpx2.Response:
        message = json.loads(asked.body) if asked.body else {}
        method = message.get("method", asked.method)
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        if method not in self.is_open and (scheme != "Bearer" or token not in self.issuer.valid):
            self.refusals += 1
            error = ', error="invalid_token"' if token else ""
            return httpx2.Response(401, headers={"www-authenticate": f'Bearer realm="mcp"{error}'})
        if asked.method != "POST":
            return httpx2.Response(405)
        if "id" not in message:
            return httpx2.Response(202)
        if method == "server/discover" and self.modern:
            return httpx2.Response(200, json=result(message, discover_result({"tools": {}})))
        if method == "initialize":
            answer = result(message, initialize_result("2025-11-25", {"tools": {}}))
            return httpx2.Response(200, json=answer, headers={"mcp-session-id": "s1"})
        if method == "server/discover":
            return httpx2.Response(404)
        lacking = self.lacking.get(message.get("params", {}).get("name", ""))
        if lacking is not None:
            return httpx2.Response(403, headers={"www-authenticate": lacking})
        self.calls += 1
        await trio.sleep(self.seconds)
        return httpx2.Response(200, json=result(message, TEXT))
