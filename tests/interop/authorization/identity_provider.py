"""A small identity provider of an enterprise: it turns an ID token into an assertion for a server (SEP-990).

It has what neither of the real authorization servers can do, token exchange, and nothing else.
"""

from __future__ import annotations

import json
import secrets
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

__all__ = ["CLIENT", "IdentityProvider", "Signer"]

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
CLIENT = ("mcp-client", "identity-secret")
"""The id and the secret of the client that may exchange."""


class Signer:
    """A key that vouches for somebody, in the name of an issuer."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self._key = ECKey.generate_key("P-256")

    @property
    def public_jwk(self) -> dict[str, Any]:
        return dict(self._key.as_dict(private=False))

    @property
    def private_pem(self) -> str:
        return self._key.as_pem(private=True).decode()

    @property
    def public_pem(self) -> str:
        return self._key.as_pem(private=False).decode()

    def sign(
        self, audience: str, subject: str, *, typ: str = "JWT", lifetime: int = 60, **claims: Any
    ) -> str:
        now = int(time.time())
        standard = {"iss": self.issuer, "aud": audience, "sub": subject, "iat": now, "exp": now + lifetime}
        return jwt.encode(
            {"alg": "ES256", "typ": typ}, {**standard, "jti": secrets.token_hex(16), **claims}, self._key
        )

    def read(self, token: str, audience: str) -> dict[str, Any]:
        """Returns the claims. Raises `JoseError`, or `ValueError` for what is no token."""
        decoded = jwt.decode(token, self._key, algorithms=["ES256"])
        registry = jwt.JWTClaimsRegistry(
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
        )
        registry.validate(decoded.claims)
        return dict(decoded.claims)


class IdentityProvider:
    """The provider, at a port of this machine. ``exchanged`` has the parameters of each exchange that it granted."""

    def __init__(self, url: str) -> None:
        self.signer = Signer(url)
        self.token_endpoint = f"{url}/token"
        self.exchanged: list[dict[str, str]] = []
        self.refused: list[str] = []

    @classmethod
    @contextmanager
    def serving(cls) -> Iterator[IdentityProvider]:
        """Serves until the end of the ``with``."""

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                status, answer = provider.answer(self.path, self.headers.get("authorization"), body)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            provider = cls(f"http://127.0.0.1:{server.server_port}")
            thread = Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield provider
            finally:
                server.shutdown()
                thread.join()

    def id_token(self, *, lifetime: int = 60) -> str:
        """What a person has after a single sign-on."""
        return self.signer.sign(CLIENT[0], "alice", lifetime=lifetime)

    def answer(self, path: str, authorization: str | None, body: str) -> tuple[int, dict[str, Any]]:
        sent = dict(parse_qsl(body))
        basic = "Basic " + b64encode(":".join(CLIENT).encode()).decode()
        posted = (sent.get("client_id"), sent.get("client_secret"))
        if authorization != basic and posted != CLIENT:
            return self._refuse(401, "invalid_client")
        wanted = {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "subject_token_type": ID_TOKEN,
        }
        if path != "/token" or any(sent.get(name) != value for name, value in wanted.items()):
            return self._refuse(400, "invalid_request")
        if "audience" not in sent or "resource" not in sent:
            return self._refuse(400, "invalid_request")
        try:
            person = self.signer.read(sent["subject_token"], CLIENT[0])
        except (JoseError, ValueError):
            return self._refuse(400, "invalid_grant")
        self.exchanged.append(sent)
        claims = {
            "client_id": "enterprise",
            "resource": sent["resource"],
            "scope": sent.get("scope", "mcp:read"),
        }
        assertion = self.signer.sign(sent["audience"], person["sub"], typ="oauth-id-jag+jwt", **claims)
        issued = {
            "issued_token_type": ID_JAG,
            "token_type": "N_A",
            "expires_in": 60,
            "scope": claims["scope"],
        }
        return 200, {"access_token": assertion, **issued}

    def _refuse(self, status: int, error: str) -> tuple[int, dict[str, Any]]:
        self.refused.append(error)
        return status, {"error": error}
