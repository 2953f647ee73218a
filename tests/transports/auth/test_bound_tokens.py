"""Tokens that are bound to a key: each sending has a proof of its own (RFC 9449)."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client
from mcp_actors.auth import AuthorizationCode, OAuth
from mcp_actors.auth.effects import Fetched
from mcp_transports.http.client import HttpClientTransport
from tests.transports.http.scripted import URL, Asked, Script

from .issuer import Issuer, Person, Protected


class BindingIssuer(Issuer):
    """An authorization server whose tokens are bound."""

    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), "dpop_signing_alg_values_supported": ["ES256"]}

    def token(self, form: dict[str, str]) -> Fetched:
        answer = super().token(form)
        value = {**json.loads(answer.body), "token_type": "DPoP"}
        return Fetched(answer.status, answer.headers, json.dumps(value).encode())


class Binding(Protected):
    """A server that wants its newest nonce in each proof, and changes it when it is told to."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__(issuer)
        self.nonce = "nonce-1"
        self.proofs: list[dict[str, Any]] = []

    async def __call__(self, asked: Asked) -> httpx2.Response:
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        if scheme != "DPoP" or token not in self.issuer.valid:
            return httpx2.Response(401, headers={"www-authenticate": "DPoP"})
        claims = asked.headers["dpop"].split(".")[1]
        self.proofs.append(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))))
        if self.proofs[-1].get("nonce") != self.nonce:
            challenge = {"www-authenticate": 'DPoP error="use_dpop_nonce"', "dpop-nonce": self.nonce}
            return httpx2.Response(401, headers=challenge)
        response = await super().__call__(with_bearer(asked, token))
        response.headers["dpop-nonce"] = self.nonce
        return response


def with_bearer(asked: Asked, token: str) -> Asked:
    headers = {**asked.headers, "authorization": f"Bearer {token}"}
    return Asked(asked.method, asked.url, headers, asked.body, asked.at)


async def test_each_sending_has_a_new_proof_and_a_nonce_costs_no_login(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    issuer, person = BindingIssuer(), Person()
    monkeypatch.setattr("mcp_transports.auth.authorizer.Fetcher", lambda policy, url: issuer)
    server = Binding(issuer)
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        auth = OAuth(AuthorizationCode(browser=person))
        async with Client(HttpClientTransport(URL, client=http, auth=auth), era="modern") as client:
            await client.call_tool("echo")
            server.nonce = "nonce-2"
            await client.call_tool("echo")
            await client.call_tool("echo")
    assert person.logins == 1
    assert server.calls == 3
    assert len({proof["jti"] for proof in server.proofs}) == len(server.proofs)
    assert [proof.get("nonce") for proof in server.proofs] == [
        None,
        "nonce-1",
        "nonce-1",
        "nonce-1",
        "nonce-2",
        "nonce-2",
    ]
    assert {(proof["htm"], proof["htu"]) for proof in server.proofs} == {("POST", URL)}
