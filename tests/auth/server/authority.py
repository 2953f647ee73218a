"""An authorization server without a network, a clock that stands still, and requests of its clients."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import trio
from joserfc.jwk import ECKey, RSAKey

from mcp_actors.auth import AccessGuard, Denial, JwtVerifier, Principal, ResourceServer
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_actors.auth.jose import DpopKey, sign

ISSUER = "https://as.example/t1"
RESOURCE = "https://h.example/mcp"
METADATA = "https://as.example/.well-known/oauth-authorization-server/t1"
JWKS = "https://as.example/t1/jwks"
INTROSPECTION = "https://as.example/t1/introspect"
START = 1_800_000_000.0

EC_KEY = ECKey.generate_key("P-256", {"kid": "ec1", "use": "sig"})
RSA_KEY = RSAKey.generate_key(2048, {"kid": "rsa1"})
NEW_KEY = ECKey.generate_key("P-256", {"kid": "ec2"})
FOREIGN_KEY = ECKey.generate_key("P-256", {"kid": "ec1"})


class Clock:
    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


class Authority:
    """The documents of an authorization server, and the requests that it was sent.

    Args:
        issuer: Its issuer.
    """

    def __init__(self, issuer: str = ISSUER) -> None:
        self.keys: list[Any] = [EC_KEY, RSA_KEY]
        self.metadata: Any = {"issuer": issuer, "jwks_uri": JWKS, "introspection_endpoint": INTROSPECTION}
        self.down = False
        self.seconds = 0.0
        self.fetched: list[str] = []
        self.bodies: dict[str, bytes] = {}
        self.introspect: Callable[[Fetch], Fetched | FetchFailed] | None = None
        self._flights: dict[str, trio.Event] = {}
        self._answers: dict[str, Fetched | FetchFailed] = {}

    def count(self, url: str) -> int:
        return self.fetched.count(url)

    async def fetch(self, fetch: Fetch) -> Fetched | FetchFailed:
        """Joins what is fetched at one time, as the driver does."""
        if fetch.method != "GET" or not self.seconds:
            return self._answer(fetch)
        if fetch.url in self._flights:
            await self._flights[fetch.url].wait()
            return self._answers[fetch.url]
        done = self._flights[fetch.url] = trio.Event()
        try:
            await trio.sleep(self.seconds)
            self._answers[fetch.url] = self._answer(fetch)
        finally:
            del self._flights[fetch.url]
            done.set()
        return self._answers[fetch.url]

    def _answer(self, fetch: Fetch) -> Fetched | FetchFailed:
        self.fetched.append(fetch.url)
        if self.down:
            return FetchFailed("there is no connection")
        if fetch.url in self.bodies:
            return Fetched(200, (), self.bodies[fetch.url])
        if fetch.url == METADATA:
            return Fetched(200, (), json.dumps(self.metadata).encode())
        if fetch.url == JWKS:
            keys = [each if isinstance(each, dict) else each.as_dict(private=False) for each in self.keys]
            return Fetched(200, (), json.dumps({"keys": keys}).encode())
        if fetch.url == INTROSPECTION and self.introspect is not None:
            return self.introspect(fetch)
        return Fetched(404, (), b"")


def token(
    claims: dict[str, Any] | None = None, header: dict[str, Any] | None = None, key: Any = EC_KEY
) -> str:
    """Returns a good token, but for the claims and the header that are given; ``None`` leaves one out."""
    whole = {
        "iss": ISSUER,
        "aud": RESOURCE,
        "sub": "alice",
        "client_id": "c1",
        "scope": "read",
        "iat": START - 1,
        "exp": START + 600,
    } | (claims or {})
    head = {"alg": "ES256", "typ": "at+jwt", "kid": "ec1"} | (header or {})
    return sign(without_none(head), without_none(whole), key)


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def unsigned(claims: dict[str, Any], header: dict[str, Any], signature: bytes = b"\0") -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in parts)


class Request:
    """A request as the HTTP server hands it over.

    Args:
        headers: The headers, with underscores for hyphens.
    """

    def __init__(self, method: str = "POST", path: str = "/mcp", **headers: str) -> None:
        self.method = method
        self.path = path
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def bearer(text: str, **more: str) -> Request:
    return Request(authorization=f"Bearer {text}", **more)


class Listener:
    """A protected server with the settings that are given, its authorization server and their clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.authority = Authority()
        self.settings = ResourceServer(
            **{"resource": RESOURCE, "issuer": ISSUER, "verifier": JwtVerifier(), **settings}
        )
        self.guard = AccessGuard(self.settings, self.clock)

    async def ask(self, request: Any) -> Principal | Denial:
        found = self.guard.known(request)
        return await self.guard.check(request, self.authority.fetch) if found is None else found

    async def status(self, request: Any) -> int:
        found = await self.ask(request)
        return found.status if isinstance(found, Denial) else 200

    async def refuses(self, request: Any) -> str:
        """Returns the challenge that a request is refused with."""
        found = await self.ask(request)
        assert isinstance(found, Denial), found
        return "\n".join(value for name, value in found.headers if name == "WWW-Authenticate")


def bound_to(key: DpopKey) -> dict[str, Any]:
    return {"cnf": {"jkt": key.thumbprint}}
