"""The official conformance suite, whole, over HTTP: our everything server, then our client.

Every scenario of both requirement sets, scored or not, and those of authorization in the revision that had it
first: no failure, no warning, and something that succeeded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.servers import Launch, Served

from .everything_client import GRANTS, SCENARIOS
from .scenarios import CLIENT, LEGACY, MODERN, PLAYED, SERVER, cases, is_played
from .suite import Outcome, Suite

HERE = Path(__file__).parent
COUNTS = {("server", LEGACY): 33, ("server", MODERN): 49, ("client", LEGACY): 25, ("client", MODERN): 39}

MUST_SUCCEED = {"server-sse-polling": {"server-sse-disconnect-resume"}}
"""Checks that the suite lets pass as mere information for servers without the feature. Ours has it."""

MAY_BE_SKIPPED = {
    "http-standard-headers": {
        # There is no such message in this revision.
        "ClientMcpMethodHeader_initialize",
        "ClientMcpMethodHeader_notifications_initialized",
    }
}


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("leg", ["server", "client"])
def test_no_scenario_is_lost(suite: Suite, leg: str, revision: str) -> None:
    played = PLAYED[leg][revision]
    assert sorted(played) == sorted(filter(is_played, suite.listed(revision)[leg]))
    assert len(played) == len(set(played)) == COUNTS[leg, revision]


def test_client_knows_every_scenario() -> None:
    """What it does not know it plays as the suite's default: too little for a scenario that wants more."""
    known = {scenario for _, scenario in cases(CLIENT) if not scenario.startswith("auth/")}
    assert set(SCENARIOS) == known
    assert set(GRANTS) <= {scenario for _, scenario in cases(CLIENT)}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Our everything server, a process of its own, as a user would start it."""
    target = str(HERE / "everything_server.py")
    command = [sys.executable, "-m", "mcp_actors", "serve", target, "--listen", "http://127.0.0.1:0/mcp"]
    served = Served(Launch(command, r"^serving .*:(\d+)/mcp$"))
    try:
        yield f"http://127.0.0.1:{served.port()}/mcp"
    finally:
        code = served.stop()
    assert (code, "Traceback" in served.output) == (0, False), served.output


@pytest.fixture(scope="module")
def played(suite: Suite, url: str) -> dict[str, dict[str, Outcome]]:
    """All server scenarios of both revisions, against one and the same process."""
    return {revision: suite.against_server(url, revision) for revision in SERVER}


@pytest.mark.long
@pytest.mark.parametrize(("revision", "scenario"), cases(SERVER))
def test_server(played: dict[str, dict[str, Outcome]], revision: str, scenario: str) -> None:
    outcome = played[revision][scenario]
    assert not outcome.complaint(), outcome.complaint()
    assert outcome.succeeded >= MUST_SUCCEED.get(scenario, set())


@pytest.mark.parametrize(("revision", "scenario"), cases(CLIENT))
def test_client(suite: Suite, revision: str, scenario: str) -> None:
    command = [sys.executable, str(HERE / "everything_client.py")]
    outcome = suite.against_client(command, scenario, revision)
    complaint = outcome.complaint(MAY_BE_SKIPPED.get(scenario, ()))
    assert not complaint, complaint


def check(status: str) -> dict[str, str]:
    return {"id": status, "name": status, "description": f"a check that is {status}", "status": status}


VALID = {**check("SUCCESS"), "id": "wire-schema-valid"}


@pytest.mark.parametrize(
    ("checks", "exit_code", "complaint"),
    [
        ([VALID, check("SUCCESS")], 0, ""),
        ([check("SUCCESS"), check("INFO")], None, ""),
        ([check("SUCCESS"), check("FAILURE")], 0, "FAILURE FAILURE: a check that is FAILURE"),
        ([check("SUCCESS"), check("WARNING")], 0, "WARNING WARNING: a check that is WARNING"),
        ([check("SUCCESS"), check("SKIPPED")], 0, "SKIPPED SKIPPED: a check that is SKIPPED"),
        ([check("SUCCESS"), check("PENDING")], 0, "PENDING PENDING: a check that is PENDING"),
        ([VALID, check("INFO")], 0, "no check succeeded"),
        ([], 0, "no check succeeded"),
        ([check("SUCCESS")], 1, "exit code 1"),
    ],
)
def test_verdict_is_strict(checks: list[dict[str, str]], exit_code: int | None, complaint: str) -> None:
    outcome = Outcome("some-scenario", checks, "what was printed", exit_code)
    assert complaint in outcome.complaint()
    assert bool(outcome.complaint()) == bool(complaint)
    if complaint:
        assert outcome.complaint().startswith("some-scenario\n")
        assert outcome.complaint().endswith("what was printed")


def test_verdict_excuses_what_is_named() -> None:
    outcome = Outcome("some-scenario", [check("SUCCESS"), check("SKIPPED"), check("WARNING")])
    assert "SKIPPED" not in outcome.complaint(may_be_skipped={"SKIPPED", "WARNING"})
    assert "WARNING" in outcome.complaint(may_be_skipped={"SKIPPED", "WARNING"})
