"""The official Python SDK's client logs in to a server, calls it, and prints one JSON report.

Usage: python_client.py legacy|auto SETTINGS URL

Runs in an environment of its own that has the package ``mcp`` and nothing of ours. SETTINGS is JSON: ``tools`` to call
one after the other, ``grant`` (``code``, ``secret`` or ``key``), ``client_id``, ``client_secret``, ``private_key``,
``metadata_url``, and ``expire`` for forgetting, between two calls, that the access token is still good.
"""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

LIMIT = 130.0  # seconds for the whole run
REDIRECT = "http://127.0.0.1:8765/callback"  # nobody listens there: redirects are followed by hand


class Storage:
    """Everything that the SDK keeps, and how often it got tokens."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self.tokens: OAuthToken | None = None
        self.client = client
        self.received: list[OAuthToken] = []

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens
        self.received.append(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]+)">')
BUTTON = re.compile(r'<button name="([^"]+)" value="([^"]+)"')


class Person:
    """Opens the login page and goes wherever it leads, until it leads back to the client.

    Of a page with a form the first button is pressed.
    """

    def __init__(self) -> None:
        self.logins = 0
        self._answer: dict[str, str] = {}

    async def open(self, url: str) -> None:
        self.logins += 1
        async with httpx2.AsyncClient() as browser:
            while not url.startswith(REDIRECT):
                response = await browser.get(url)
                if button := BUTTON.search(response.text):
                    form = dict([*HIDDEN.findall(response.text), button.groups()])
                    url = urljoin(url, re.search(r'<form method="post" action="([^"]+)">', response.text)[1])
                    response = await browser.post(url, data=form)
                assert response.has_redirect_location, (response.status_code, response.text[:1000])
                url = urljoin(url, response.headers["location"])
        self._answer = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}

    async def answer(self) -> AuthorizationCodeResult:
        answer = self._answer
        return AuthorizationCodeResult(code=answer["code"], state=answer.get("state"), iss=answer.get("iss"))


def provider(settings: dict[str, Any], url: str, storage: Storage, person: Person) -> OAuthClientProvider:
    if settings["grant"] == "secret":
        return ClientCredentialsOAuthProvider(
            url, storage, settings["client_id"], settings["client_secret"], "client_secret_basic"
        )
    if settings["grant"] == "key":
        signed = SignedJWTParameters(
            issuer=settings["client_id"],
            subject=settings["client_id"],
            signing_algorithm="ES256",
            signing_key=settings["private_key"],
        )
        return PrivateKeyJWTOAuthProvider(
            url, storage, settings["client_id"], signed.create_assertion_provider()
        )
    metadata = OAuthClientMetadata(
        client_name="official-python", redirect_uris=[REDIRECT], application_type="native"
    )
    return OAuthClientProvider(
        url, metadata, storage, person.open, person.answer, client_metadata_url=settings.get("metadata_url")
    )


async def main(mode: str, settings_text: str, url: str) -> dict[str, Any]:
    settings = {"grant": "code", "tools": ["whoami"], **json.loads(settings_text)}
    registered = None
    if settings["grant"] == "code" and "client_id" in settings:
        registered = OAuthClientInformationFull(
            client_id=settings["client_id"],
            client_secret=settings["client_secret"],
            redirect_uris=[REDIRECT],
            token_endpoint_auth_method="client_secret_basic",
        )
    storage, person = Storage(registered), Person()
    auth = provider(settings, url, storage, person)
    report: dict[str, Any] = {"calls": []}
    with anyio.fail_after(LIMIT):
        async with create_mcp_http_client(auth=auth) as http:
            async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
                report["version"] = client.protocol_version
                for tool in settings["tools"]:
                    if tool == "expire":
                        auth.context.token_expiry_time = time.time() - 1
                        continue
                    try:
                        result = await client.call_tool(tool, {})
                        report["calls"].append([tool, result.content[0].text])
                    except MCPError as error:
                        report["calls"].append([tool, {"error": error.message}])
    assert storage.client is not None or settings["grant"] != "code"
    report["client_id"] = storage.client.client_id if storage.client else settings["client_id"]
    report["logins"] = person.logins
    report["tokens"] = len(storage.received)
    return report


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the SDK warns about every feature that the newest revision deprecates
    print(json.dumps(anyio.run(main, *sys.argv[1:])))
