from __future__ import annotations

import pytest

from .issuer import Issuer


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Issuer:
    """The authorization server that every `Authorizer` of the test asks."""
    issuer = Issuer()
    monkeypatch.setattr("mcp_transports.auth.authorizer.Fetcher", lambda policy, url: issuer)
    return issuer
