"""What a client concludes from the answer to its probe; sans I/O."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import LATEST_MODERN, MODERN
from mcp_actors._eras.probe import newest_common, verdict_on_error, verdict_on_result, versions_for
from mcp_actors._eras.server_negotiation import VERSIONS
from mcp_actors.errors import HeaderMismatch, MissingCapability, RpcError, UnsupportedVersion

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
    era = verdict_on_result({"supportedVersions": supported}, VERSIONS)
    assert era is not None
    assert era.version == version
    assert verdict_on_error(UnsupportedVersion("2026-07-28", supported), VERSIONS, LATEST_MODERN) is era


@pytest.mark.parametrize(
    "result", [{}, {"supportedVersions": []}, {"supportedVersions": "2026-07-28"}, {"capabilities": {}}]
)
def test_a_result_without_versions_is_no_discovery(result: dict[str, Any]) -> None:
    assert verdict_on_result(result, VERSIONS) is None


def test_a_modern_server_without_a_common_version() -> None:
    with pytest.raises(UnsupportedVersion) as refused:
        verdict_on_result({"supportedVersions": ["2099-01-01"]}, VERSIONS)
    assert refused.value.supported == ["2099-01-01"]
    with pytest.raises(UnsupportedVersion):
        verdict_on_error(UnsupportedVersion("2026-07-28", ["2025-11-25"]), MODERN_ONLY, LATEST_MODERN)


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32603, -32700, -32002, -32001, 0, 404])
def test_any_error_of_another_kind_means_sessions(code: int) -> None:
    assert verdict_on_error(RpcError.from_wire(code, "no"), VERSIONS, LATEST_MODERN) is None


@pytest.mark.parametrize(
    "data", [None, {}, {"supported": None}, {"supported": []}, {"supported": [1, None]}, "x"]
)
def test_the_code_alone_names_no_version(data: Any) -> None:
    assert verdict_on_error(RpcError.from_wire(-32022, "no", data), VERSIONS, LATEST_MODERN) is None


def test_other_modern_errors_confirm_what_was_tried() -> None:
    for error in (HeaderMismatch("x"), MissingCapability({"sampling": {}})):
        assert verdict_on_error(error, VERSIONS, LATEST_MODERN) is LATEST_MODERN


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
