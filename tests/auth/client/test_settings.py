"""What users write: refused where it cannot be meant so, when it is written."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors.auth import (
    AuthorizationCode,
    BearerToken,
    ClientCredentials,
    EnterpriseManaged,
    OAuth,
    UrlPolicy,
    WorkloadIdentity,
)

MANAGED: dict[str, Any] = {
    "id_token": lambda: "x",
    "idp_issuer": "https://idp",
    "idp_token_endpoint": "https://idp/token",
    "idp_client_id": "a",
    "client_id": "b",
}


@pytest.mark.parametrize(
    ("make", "arguments", "error"),
    [
        (AuthorizationCode, {"client_secret": "SECRET"}, ValueError),
        (AuthorizationCode, {"issuer": "https://as"}, ValueError),
        (AuthorizationCode, {"client_id": ""}, ValueError),
        (AuthorizationCode, {"client_id": 7}, TypeError),
        (AuthorizationCode, {"login_timeout": 0}, ValueError),
        (AuthorizationCode, {"login_timeout": float("nan")}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "http://localhost/c.json"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example/"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example/a/../c.json"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example/%2e/c.json"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://c.example/c.json#x"}, ValueError),
        (AuthorizationCode, {"client_metadata_url": "https://u@c.example/c.json"}, ValueError),
        (ClientCredentials, {"client_id": "c"}, ValueError),
        (
            ClientCredentials,
            {"client_id": "c", "client_secret": "SECRET", "private_key": "SECRET"},
            ValueError,
        ),
        (ClientCredentials, {"client_id": "c", "private_key": b"SECRET"}, TypeError),
        (EnterpriseManaged, {**MANAGED, "id_token": "SECRET"}, TypeError),
        (EnterpriseManaged, {**MANAGED, "idp_token_endpoint": "http://idp/token"}, ValueError),
        (EnterpriseManaged, {**MANAGED, "idp_issuer": ""}, ValueError),
        (WorkloadIdentity, {"assertion": "SECRET"}, TypeError),
        (OAuth, {"grant": "SECRET"}, TypeError),
        (OAuth, {"grant": BearerToken("SECRET")}, TypeError),
        (OAuth, {"store": "SECRET"}, TypeError),
        (AuthorizationCode, {"browser": "SECRET"}, TypeError),
        (UrlPolicy, {"allowed_hosts": "idp.example"}, TypeError),
        (OAuth, {"scopes": "a b"}, TypeError),
        (OAuth, {"scopes": ["a b"]}, ValueError),
        (OAuth, {"scopes": [7]}, ValueError),
        (OAuth, {"dpop": "yes"}, TypeError),
        (OAuth, {"resource": "https://h/mcp#x"}, ValueError),
        (OAuth, {"resource": "a b"}, ValueError),
        (OAuth, {"account": ""}, ValueError),
        (OAuth, {"extra_params": {"state": "x"}}, ValueError),
        (OAuth, {"extra_params": {"redirect_uri": "x"}}, ValueError),
        (OAuth, {"extra_params": {"grant_type": "x"}}, ValueError),
        (OAuth, {"extra_params": {"code_verifier": "x"}}, ValueError),
        (OAuth, {"extra_params": {"a": 7}}, TypeError),
        (BearerToken, {"token": ""}, ValueError),
        (BearerToken, {"token": "SECRET and more"}, ValueError),
        (BearerToken, {"token": "SECRET\n"}, ValueError),
        (BearerToken, {"token": 7}, TypeError),
    ],
)
def test_what_cannot_be_meant_so_is_refused(
    make: Any, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        make(**arguments)
    assert "SECRET" not in str(refused.value)


def test_what_users_write() -> None:
    for settings in (
        OAuth(),
        OAuth(AuthorizationCode(client_id="c", client_secret="s", issuer="https://as")),
        OAuth(AuthorizationCode(client_metadata_url="https://c.example/client.json")),
        OAuth(scopes=["a"], resource="api://mine", dpop=True, extra_params={"audience": "x"}),
        OAuth(WorkloadIdentity(assertion=lambda audience: "x")),
    ):
        assert settings.extensions == {}
    assert BearerToken(lambda: "x")


def test_the_extensions_of_a_grant() -> None:
    assert OAuth(ClientCredentials(client_id="c", client_secret="s")).extensions == {
        "io.modelcontextprotocol/oauth-client-credentials": {}
    }
    assert OAuth(EnterpriseManaged(**MANAGED)).extensions == {
        "io.modelcontextprotocol/enterprise-managed-authorization": {}
    }
