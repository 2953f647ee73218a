"""Official clients reach official servers of the other era through a gateway, and see what they see without it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .installation import Peers
from .servers import Endpoint, Launch, Served, reachable
from .test_official_clients import report_of, run

PROGRAM = Path(__file__).parent / "gateway_program.py"
ROWS = [
    # An official client, an official server, and the era in which the gateway speaks with it.
    ("python-legacy", "python", "modern"),
    ("typescript-client-legacy", "python", "modern"),
    ("python-legacy", "typescript", "modern"),
    ("typescript-client-auto", "typescript", "legacy"),
]
# The eras differ in these on the official servers themselves: a server has subscriptions, levels or the title of a form
# in one of its eras only, and a gateway answers what only some of its servers have with nothing.
OF_THE_ERA = {
    "asked",
    "capabilities",
    "complete_prompt",
    "complete_template",
    "honored",
    "notified",
    "progress",
    "set_level",
    "subscribe",
    "unsubscribe",
}


@pytest.mark.parametrize(("client", "server", "era"), ROWS)
def test_a_client_sees_the_server_of_the_other_era(peers: Peers, client: str, server: str, era: str) -> None:
    with reachable(peers, server, "stdio") as there, ThreadPoolExecutor() as threads:
        command = (sys.executable, str(PROGRAM), era, "stdio:", there.target)
        # Each has a server of its own, and waits for most of its time.
        runs = [threads.submit(run, peers, client, each) for each in (there, Endpoint("stdio", command))]
        direct, through = (report_of(done.result(), client, done.result().stderr) for done in runs)
    assert {name for name in direct if direct[name] != through.get(name)} <= OF_THE_ERA
    # The official client may lose a last report that comes with the answer.
    reports = zip(direct["progress"], through["progress"], strict=False)
    assert [one for one, other in reports if one != other] == []
    assert [method for method, _ in through["asked"]] == [method for method, _ in direct["asked"]]
    if server == "python":
        # The other one has no tools that ask.
        assert "I am the model" in str(through["test_sampling"])


# These differ between any two of these runs too: one process counts the calls of all, and each hop has sessions and
# streams of its own.
OF_THE_HOP = {"activity", "session", "test_reconnection"}


def test_clients_of_sessions_see_a_stateless_server_over_http(peers: Peers) -> None:
    """One bridge stands between them all, and speaks the other era with the server."""
    with reachable(peers, "python", "http") as there:
        command = [sys.executable, "-m", "mcp_actors", "bridge", "--era", "modern", there.target]
        bridge = Served(Launch([*command, "http://127.0.0.1:0/mcp"], r"^serving .*:(\d+)/mcp$"))
        try:
            endpoint = Endpoint("http", (f"http://127.0.0.1:{bridge.port()}/mcp",))
            for client in ("python-legacy", "typescript-client-legacy"):
                done = run(peers, client, there)
                direct = report_of(done, client, done.stderr)
                done = run(peers, client, endpoint)
                through = report_of(done, client, done.stderr)
                differing = {name for name in direct if direct[name] != through.get(name)}
                assert differing <= OF_THE_ERA | OF_THE_HOP
                assert through["activity"]["cancelled"] == direct["activity"]["cancelled"] + 1
                assert "I am the model" in str(through["test_sampling"])
                assert through["together"]
        finally:
            code = bridge.stop()
    assert (code, "Traceback" in bridge.output) == (0, False), bridge.output
