"""The official conformance suite, whole, over HTTP: our everything server, then our client.

Every scenario of both requirement sets but authorization and tasks, scored or not: no failure, no warning, and
something that succeeded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.servers import Launch, Served

from .everything_client import SCENARIOS
from .scenarios import CLIENT, LEGACY, MODERN, PLAYED, SERVER, cases, is_played
from .suite import Outcome, Suite

HERE = Path(__file__).parent
COUNTS = {("server", LEGACY): 33, ("server", MODERN): 40, ("client", LEGACY): 5, ("client", MODERN): 8}

NOT_ONLY_TOLD: dict[str, set[str]] = {
    "server-sse-polling": {"server-sse-disconnect-resume"},
    "server-session-lifecycle": {
        "server-session-initialized-accepted",
        "server-session-delete-accepted",
        "server-session-terminated-returns-404",
    },
}
"""Checks that the suite lets pass as information, or skips, for servers without the feature. Ours has it."""


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("leg", ["server", "client"])
def test_no_scenario_is_lost(suite: Suite, leg: str, revision: str) -> None:
    played = PLAYED[leg][revision]
    assert sorted(played) == sorted(filter(is_played, suite.listed(revision)[leg]))
    assert len(played) == len(set(played)) == COUNTS[leg, revision]


def test_client_knows_every_scenario() -> None:
    """What it does not know it plays as the suite's default: too little for a scenario that wants more."""
    assert set(SCENARIOS) == {scenario for _, scenario in cases(CLIENT)}


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


@pytest.mark.parametrize(("revision", "scenario"), cases(SERVER))
def test_server(played: dict[str, dict[str, Outcome]], revision: str, scenario: str) -> None:
    outcome = played[revision][scenario]
    assert not outcome.complaint(), outcome.complaint()
    succeeded = {check["id"] for check in outcome.with_status("SUCCESS")}
    assert succeeded >= NOT_ONLY_TOLD.get(scenario, set())


@pytest.mark.parametrize(("revision", "scenario"), cases(CLIENT))
def test_client(suite: Suite, revision: str, scenario: str) -> None:
    command = [sys.executable, str(HERE / "everything_client.py")]
    outcome = suite.against_client(command, scenario, revision)
    assert not outcome.complaint(), outcome.complaint()


def check(status: str) -> dict[str, str]:
    return {"id": status.lower(), "description": f"a check that is {status}", "status": status}


@pytest.mark.parametrize(
    ("statuses", "exit_code", "complaint"),
    [
        (["SUCCESS"], 0, ""),
        (["SUCCESS", "INFO", "SKIPPED"], None, ""),
        (["SUCCESS", "FAILURE"], 0, "FAILURE failure: a check that is FAILURE"),
        (["SUCCESS", "WARNING"], 0, "WARNING warning: a check that is WARNING"),
        (["SUCCESS", "PENDING"], 0, "PENDING pending: a check that is PENDING"),
        (["INFO", "SKIPPED"], 0, "no check succeeded"),
        ([], 0, "no check succeeded"),
        (["SUCCESS"], 1, "exit code 1"),
    ],
)
def test_verdict_is_strict(statuses: list[str], exit_code: int | None, complaint: str) -> None:
    outcome = Outcome("some-scenario", [check(status) for status in statuses], "what was printed", exit_code)
    assert complaint in outcome.complaint()
    assert bool(outcome.complaint()) == bool(complaint)
    if complaint:
        assert outcome.complaint().startswith("some-scenario\n")
        assert outcome.complaint().endswith("what was printed")
