"""What the answers to a client's handshake are, as the table of decisions sees them; sans I/O."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors._eras.client_negotiation import (
    Answer,
    discoverable,
    newest_common,
    read_discovery,
    read_initialize,
    versions_for,
)
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import MODERN
from mcp_actors._eras.server_negotiation import VERSIONS
from mcp_actors.errors import (
    ConnectFailed,
    ConnectionLost,
    HeaderMismatch,
    LocalProtocolError,
    McpError,
    MissingCapability,
    RemoteProtocolError,
    RpcError,
    Unavailable,
    UnsupportedVersion,
)
from mcp_actors.types import DiscoverResult, ServerCapabilities

MODERN_ONLY = tuple(MODERN)


@pytest.mark.parametrize(
    ("supported", "version"),
    [
        (["2026-07-28"], "2026-07-28"),
        (["2026-07-28", "2025-11-25"], "2026-07-28"),
        (["2025-11-25", "2026-07-28"], "2026-07-28"),
        (["2099-01-01", "2026-07-28"], "2026-07-28"),
        (["2025-06-18", "2024-11-05"], "2025-06-18"),
    ],
)
def test_the_newest_common_version_wins(supported: list[str], version: str) -> None:
    """Whatever the order they are listed in; versions that nobody here knows are passed over, never compared."""
    stateless = version in MODERN
    answer, era = read_discovery({"supportedVersions": supported}, VERSIONS)
    assert era is not None
    assert era.version == version
    assert answer is (Answer.AGREED if stateless else Answer.NAMES_SESSIONS)
    refused = read_discovery(UnsupportedVersion("2026-07-28", supported), VERSIONS)
    assert refused == (Answer.NAMES_STATELESS if stateless else Answer.NAMES_SESSIONS, era)


@pytest.mark.parametrize(
    "result", [{}, {"supportedVersions": []}, {"supportedVersions": "2026-07-28"}, {"capabilities": {}}]
)
def test_a_result_without_versions_is_no_discovery(result: dict[str, Any]) -> None:
    assert read_discovery(result, VERSIONS) == (Answer.REFUSED, None)


def test_a_modern_server_without_a_common_version() -> None:
    others = (Answer.NAMES_OTHERS, None)
    assert read_discovery({"supportedVersions": ["2099-01-01"]}, VERSIONS) == others
    assert read_discovery(UnsupportedVersion("2026-07-28", ["2025-11-25"]), MODERN_ONLY) == others


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32603, -32700, -32002, -32001, 0, 404])
def test_any_error_of_another_kind_is_a_refusal(code: int) -> None:
    assert read_discovery(RpcError.from_wire(code, "no"), VERSIONS) == (Answer.REFUSED, None)
    assert read_initialize(RpcError.from_wire(code, "no"), VERSIONS) == (Answer.REFUSED, None)


@pytest.mark.parametrize(
    "data", [None, {}, {"supported": None}, {"supported": []}, {"supported": [1, None]}, "x"]
)
def test_the_code_alone_names_no_version(data: Any) -> None:
    assert read_discovery(RpcError.from_wire(-32022, "no", data), VERSIONS) == (Answer.REFUSED, None)


@pytest.mark.parametrize("code", [-32022, -32600, -32602])
def test_a_refused_initialize_names_versions_in_an_error_of_any_code(code: int) -> None:
    named = RpcError.from_wire(code, "no", {"supported": ["2025-11-25", "2026-07-28"]})
    assert read_initialize(named, VERSIONS) == (Answer.NAMES_STATELESS, MODERN["2026-07-28"])
    assert read_initialize(named, tuple(LEGACY)) == (Answer.NAMES_OTHERS, None)
    other = RpcError.from_wire(code, "no", {"supported": ["2025-03-26"]})
    assert read_initialize(other, VERSIONS) == (Answer.NAMES_OTHERS, None)


def test_other_modern_errors_are_those_of_a_stateless_server() -> None:
    for error in (HeaderMismatch("x"), MissingCapability({"sampling": {}})):
        assert read_discovery(error, VERSIONS) == (Answer.STATELESS_ERROR, None)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (Unavailable("503"), Answer.UNAVAILABLE),
        (ConnectionLost("reset"), Answer.UNAVAILABLE),
        (RemoteProtocolError("404"), Answer.REFUSED),
        (ConnectFailed("nobody"), Answer.UNREACHABLE),
        (LocalProtocolError("a header"), Answer.UNREACHABLE),
    ],
)
def test_failures_of_the_transport(error: McpError, answer: Answer) -> None:
    assert read_discovery(error, VERSIONS) == read_initialize(error, VERSIONS) == (answer, None)


@pytest.mark.parametrize("version", ["2099-01-01", "2026-07-28", None, 5, ["2025-11-25"]])
def test_an_initialize_with_a_version_that_no_session_has(version: Any) -> None:
    assert read_initialize({"protocolVersion": version}, VERSIONS) == (Answer.NAMES_OTHERS, None)


def test_what_may_be_asked_of_the_era() -> None:
    assert versions_for("auto") == VERSIONS
    assert versions_for("legacy") == tuple(LEGACY)
    assert versions_for("modern") == MODERN_ONLY
    assert versions_for("2025-03-26") == ("2025-03-26",)
    with pytest.raises(ValueError, match="2025-11-25"):
        versions_for("2023-01-01")


def test_versions_are_equal_or_not_and_nothing_else() -> None:
    assert newest_common(VERSIONS, ["2025-11-26", "2026-07-29", 5, None]) is None
    assert newest_common(VERSIONS, "2025-11-25") is None
    assert newest_common(VERSIONS, ["2024-11-05"]) == "2024-11-05"


def test_what_a_prior_discovery_must_name() -> None:
    prior = DiscoverResult(["2025-11-25", "2026-07-28"], ServerCapabilities())
    assert discoverable(VERSIONS, prior) == "2026-07-28"
    with pytest.raises(ValueError, match="2025-11-25, 2026-07-28"):
        discoverable(tuple(LEGACY), prior)
    with pytest.raises(ValueError, match="nothing"):
        discoverable(VERSIONS, DiscoverResult([], ServerCapabilities()))
