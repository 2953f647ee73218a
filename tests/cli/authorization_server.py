"""An authorization server and an MCP server that it protects, on one port of this machine, in threads of the tests.

Everybody who asks is logged in: what a person does at a consent page is following the redirection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs

__all__ = ["Issued", "protected_server"]


@attrs.define
class Issued:
    """The two servers: what they were asked, what they issued, and what they do the next time."""

    origin: str
    expires_in: int = 3600
    client_secret: str | None = None
    """Set: the only client is ``registered-client``, which has this secret, and none can be registered."""
    denies: bool = False
    refuses_refresh: bool = False
    needed_scope: str = ""
    """The scope that a token needs for a call."""
    name: str = "issuer"
    """The path of the authorization server: another one is another issuer."""
    clients: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    codes: dict[str, dict[str, str]] = attrs.field(factory=dict)
    access_tokens: dict[str, str] = attrs.field(factory=dict)
    """Each with its scopes."""
    refresh_tokens: set[str] = attrs.field(factory=set)
    revoked: list[str] = attrs.field(factory=list)
    authorizations: list[dict[str, str]] = attrs.field(factory=list)
    grants: list[str] = attrs.field(factory=list)

    @property
    def issuer(self) -> str:
        return f"{self.origin}/{self.name}"

    @property
    def resource(self) -> str:
        return f"{self.origin}/mcp"

    @property
    def secrets(self) -> set[str]:
        """Everything that must be shown nowhere."""
        held = filter(None, [self.client_secret])
        return {*self.access_tokens, *self.refresh_tokens, *self.codes, *held}

    def metadata(self) -> dict[str, Any]:
        method = "none" if self.client_secret is None else "client_secret_basic"
        registration = (
            {"registration_endpoint": f"{self.issuer}/register"} if self.client_secret is None else {}
        )
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": [method],
            "authorization_response_iss_parameter_supported": True,
            **registration,
        }

    def protected_resource(self) -> dict[str, Any]:
        return {
            "resource": self.resource,
            "authorization_servers": [self.issuer],
            "scopes_supported": ["mcp:read"],
        }

    def register(self, asked: dict[str, Any]) -> dict[str, Any]:
        client_id = f"client-{len(self.clients) + 1}"
        self.clients[client_id] = asked
        return {**asked, "client_id": client_id}

    def authorize(self, asked: dict[str, str]) -> str:
        """Returns the URL that the browser is sent to."""
        self.authorizations.append(asked)
        answer = {"state": asked["state"], "iss": self.issuer}
        if self.denies:
            answer["error"] = "access_denied"
        else:
            answer["code"] = f"code-{secrets.token_hex(8)}"
            self.codes[answer["code"]] = asked
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def token(self, form: dict[str, str], authorization: str | None) -> tuple[int, dict[str, Any]]:
        grant = form.get("grant_type", "")
        self.grants.append(grant)
        if self.client_secret is not None:
            pair = base64.b64encode(f"registered-client:{self.client_secret}".encode()).decode()
            if authorization != f"Basic {pair}":
                return 401, {"error": "invalid_client"}
        if grant == "authorization_code":
            asked = self.codes.pop(form["code"], {})
            challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest())
            if challenge.rstrip(b"=").decode() != asked.get("code_challenge"):
                return 400, {"error": "invalid_grant"}
            return 200, self.tokens(asked.get("scope", ""))
        if (
            grant == "refresh_token"
            and form["refresh_token"] in self.refresh_tokens
            and not self.refuses_refresh
        ):
            self.refresh_tokens.discard(form["refresh_token"])
            return 200, self.tokens("mcp:read")
        return 400, {"error": "invalid_grant"}

    def tokens(self, scope: str) -> dict[str, Any]:
        parts = ({"alg": "none", "typ": "at+jwt"}, {"sub": "ada", "iss": self.issuer})
        encoded = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts
        ]
        access = ".".join([*encoded, secrets.token_hex(8)])
        refresh = f"refresh-{secrets.token_hex(8)}"
        self.access_tokens[access] = scope
        self.refresh_tokens.add(refresh)
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": self.expires_in,
            "refresh_token": refresh,
            "scope": scope,
        }


class _Exchange(BaseHTTPRequestHandler):
    issued: Issued

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        match parts.path.replace(f"/{self.issued.name}", "/issuer"):
            case "/.well-known/oauth-authorization-server/issuer":
                self.answer(200, self.issued.metadata())
            case "/.well-known/oauth-protected-resource/mcp":
                self.answer(200, self.issued.protected_resource())
            case "/issuer/authorize":
                self.answer(302, {}, Location=self.issued.authorize(dict(parse_qsl(parts.query))))
            case _:
                self.answer(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        match self.path.replace(f"/{self.issued.name}", "/issuer"):
            case "/issuer/register" if self.issued.client_secret is None:
                self.answer(201, self.issued.register(json.loads(body)))
            case "/issuer/token":
                form = dict(parse_qsl(body.decode()))
                self.answer(*self.issued.token(form, self.headers["authorization"]))
            case "/issuer/revoke":
                self.issued.revoked.append(dict(parse_qsl(body.decode()))["token"])
                self.answer(200, {})
            case "/mcp":
                self.mcp(json.loads(body))
            case _:
                self.answer(404, {})

    def mcp(self, message: dict[str, Any]) -> None:
        scheme, _, token = (self.headers["authorization"] or "").partition(" ")
        if scheme.lower() != "bearer" or token not in self.issued.access_tokens:
            document = f"{self.issued.origin}/.well-known/oauth-protected-resource/mcp"
            self.answer(401, {}, **{"WWW-Authenticate": f'Bearer resource_metadata="{document}"'})
            return
        if self.issued.needed_scope not in ("", *self.issued.access_tokens[token].split()):
            lacking = f'Bearer error="insufficient_scope", scope="{self.issued.needed_scope}"'
            self.answer(403, {}, **{"WWW-Authenticate": lacking})
            return
        results: dict[str, dict[str, Any]] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "protected", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "hello", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "hello"}]},
        }
        if "id" not in message:
            self.answer(202, {})
        elif message["method"] in results:
            result = results[message["method"]]
            self.answer(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})
        else:
            error = {"code": -32601, "message": "Method not found"}
            self.answer(200, {"jsonrpc": "2.0", "id": message["id"], "error": error})

    def answer(self, status: int, value: dict[str, Any], **headers: str) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, each in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, each)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        pass


@contextmanager
def protected_server() -> Iterator[Issued]:
    """Serves both for the length of the block."""
    exchange = type("_ExchangeOfOne", (_Exchange,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), exchange) as server:
        exchange.issued = Issued(f"http://127.0.0.1:{server.server_address[1]}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield exchange.issued
        finally:
            server.shutdown()
            thread.join()
