"""The official conformance suite, whole, over HTTP: our everything server, then our client.

Every scenario of both requirement sets, scored or not, of the revisions before them, and of the extensions: no failure,
no warning, nothing skipped that could be looked at, and something that succeeded.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from interop.installation import Peers
from interop.servers import Launch, Served

from mcp_actors import Client, InputRequired, RpcError
from tests.messages import accept

from .everything_client import GRANTS, SCENARIOS
from .scenarios import CLIENT, FIRST, LEGACY, MODERN, PLAYED, SECOND, SERVER, SKILLS, cases, is_played
from .suite import Outcome, Suite
from .user import User, connected

HERE = Path(__file__).parent
COUNTS = {
    "server": {FIRST: 1, SECOND: 27, LEGACY: 33, MODERN: 49},
    "client": {FIRST: 2, SECOND: 5, LEGACY: 25, MODERN: 39},
}

MUST_SUCCEED = {
    "server-sse-polling": {"server-sse-disconnect-resume"},
    "auth/offline-access-scope": {"sep-2207-client-metadata-grant-types"},
}
"""Checks that the suite lets pass as mere information where it can look at nothing. Here it can."""

# These members of results came with the next revision.
NOT_IN_SESSIONS = {"sep-2640-skills-list-cache-attributes", "sep-2640-skills-get-cache-attributes"}
MAY_BE_SKIPPED = {
    "http-standard-headers": {
        # There is no such message in this revision.
        "ClientMcpMethodHeader_initialize",
        "ClientMcpMethodHeader_notifications_initialized",
    }
}


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("leg", ["server", "client"])
def test_no_scenario_that_is_required_is_lost(suite: Suite, leg: str, revision: str) -> None:
    assert sorted(PLAYED[leg][revision]) == sorted(filter(is_played, suite.listed(revision)[leg]))


@pytest.mark.parametrize("leg", ["server", "client"])
def test_no_scenario_of_any_revision_is_lost(suite: Suite, leg: str) -> None:
    """Those of extensions need be played in one revision; the requirements put some of them into more."""
    listed = suite.all_listed()[leg]
    extensions = {name for name, revisions in listed.items() if revisions == {"extension"}}
    for revision, count in COUNTS[leg].items():
        played = PLAYED[leg][revision]
        assert len(played) == len(set(played)) == count
        wanted = {name for name, revisions in listed.items() if revision in revisions}
        assert set(played) - extensions == wanted
    assert set().union(*listed.values()) == {*COUNTS["server"], "extension"}
    everywhere = {*SKILLS[leg], *(scenario for names in PLAYED[leg].values() for scenario in names)}
    assert set(filter(is_played, listed)) == everywhere
    assert len(SKILLS["server"]) + len(SKILLS["client"]) == 7


def test_client_knows_every_scenario() -> None:
    """What it does not know it plays as the suite's default: too little for a scenario that wants more."""
    known = {scenario for _, scenario in cases(CLIENT) if not scenario.startswith("auth/")} | {
        *SKILLS["client"]
    }
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
    """All server scenarios of each revision, against one and the same process."""
    return {
        revision: suite.against_server(url, revision, is_required=revision in (LEGACY, MODERN))
        for revision in SERVER
    }


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
    assert outcome.succeeded >= MUST_SUCCEED.get(scenario, set())


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("scenario", SKILLS["server"])
def test_server_with_skills(suite: Suite, url: str, scenario: str, revision: str) -> None:
    outcome = suite.of_extension(url, scenario, revision)
    complaint = outcome.complaint(NOT_IN_SESSIONS if revision == LEGACY else ())
    assert not complaint, complaint


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("scenario", SKILLS["client"])
def test_client_with_skills(suite: Suite, scenario: str, revision: str) -> None:
    command = [sys.executable, str(HERE / "everything_client.py")]
    outcome = suite.against_client(command, scenario, revision)
    assert not outcome.complaint(), outcome.complaint()
    # It ends with the refusal of what it was handed, and not with anything else.
    is_refusal = "verify" in scenario
    assert ("SkillRefused" in outcome.written) == is_refusal, outcome.written


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


# -- Input-required results, round by round, as the conformance suite makes them: by hand ----------------


async def ask(client: Client, name: str, method: str = "tools/call", **members: Any) -> dict[str, Any]:
    """One request, with the answers and the state that a retry carries."""
    arguments: dict[str, Any] = {"arguments": {}} if method == "tools/call" else {}
    return dict(await client.request(method, {"name": name, **arguments, **members}))


@asynccontextmanager
async def by_hand(**options: Any) -> AsyncIterator[Client]:
    user = User()
    async with connected("modern", user, answer_input=False, **options) as client:
        yield client


@attrs.frozen
class Question:
    """An input-required result."""

    requests: dict[str, Any]
    state: str


async def question(client: Client, name: str, method: str = "tools/call", **members: Any) -> Question:
    """One request that is answered with questions, and with the marker that says so."""
    result = await ask(client, name, method, **members)
    assert result["resultType"] == "input_required"
    return Question(result["inputRequests"], result["requestState"])


SAMPLED = {
    "role": "assistant",
    "content": {"type": "text", "text": "Hi"},
    "model": "fake-1",
    "stopReason": "endTurn",
}


async def test_one_round() -> None:
    name = "test_input_required_result_elicitation"
    async with by_hand() as client:
        first = await question(client, name)
        assert list(first.requests) == ["user_name"]
        result = await ask(
            client, name, inputResponses={"user_name": accept(name="Alice")}, requestState=first.state
        )
        assert result["content"] == [{"type": "text", "text": "Hello, Alice!"}]


async def test_wrong_and_extra_answers() -> None:
    name = "test_input_required_result_elicitation"
    async with by_hand() as client:
        again = await question(client, name, inputResponses={"wrong_key": accept(data="wrong")})
        assert list(again.requests) == ["user_name"]
        answers = {"user_name": accept(name="Alice"), "extra": accept(data="ignored")}
        result = await ask(client, name, inputResponses=answers, requestState=again.state)
        assert result["content"][0]["text"] == "Hello, Alice!"


@pytest.mark.parametrize("responses", [{"user_name": 12345}, {"user_name": None}, None, 7])
async def test_invalid_answers_never_complete(responses: Any) -> None:
    """They are refused, or asked for again."""
    name = "test_input_required_result_elicitation"
    async with by_hand() as client:
        first = await question(client, name)
        keys, code = ["user_name"], -32602
        try:
            again = await question(client, name, inputResponses=responses, requestState=first.state)
            keys = list(again.requests)
        except RpcError as error:
            code = error.code
        assert (keys, code) == (["user_name"], -32602)


async def test_many_rounds() -> None:
    name = "test_input_required_result_multi_round"
    async with by_hand() as client:
        first = await question(client, name)
        assert list(first.requests) == ["step1"]
        answers = {"step1": accept(name="Alice")}
        second = await question(client, name, inputResponses=answers, requestState=first.state)
        assert list(second.requests) == ["step2"]
        assert second.state != first.state
        answers = {"step2": accept(color="blue")}
        result = await ask(client, name, inputResponses=answers, requestState=second.state)
        assert result["content"][0]["text"] == "Alice likes blue"


async def test_three_questions_at_once() -> None:
    name = "test_input_required_result_multiple_inputs"
    async with by_hand() as client:
        first = await question(client, name)
        assert set(first.requests) == {"user_name", "greeting", "client_roots"}
        assert isinstance(first.state, str)
        answers = {"user_name": accept(name="Alice"), "greeting": SAMPLED, "client_roots": {"roots": []}}
        result = await ask(client, name, inputResponses=answers, requestState=first.state)
        assert result["content"][0]["text"] == "Name: Alice; Greeting: Hi; Roots: 0"


async def test_tampered_state() -> None:
    name = "test_input_required_result_tampered_state"
    async with by_hand() as client:
        first = await question(client, name)
        with pytest.raises(RpcError) as caught:
            await ask(
                client,
                name,
                inputResponses={"confirm": accept(ok=True)},
                requestState=f"{first.state}-TAMPERED",
            )
        assert caught.value.code == -32602


async def test_state_belongs_to_its_call() -> None:
    async with by_hand() as client:
        first = await question(client, "test_input_required_result_tampered_state")
        with pytest.raises(RpcError) as caught:
            await ask(
                client,
                "test_input_required_result_request_state",
                inputResponses={"confirm": accept(ok=True)},
                requestState=first.state,
            )
        assert caught.value.code == -32602


async def test_only_declared_capabilities_are_asked_for() -> None:
    async with by_hand(elicitation=None) as client:
        first = await question(client, "test_input_required_result_capabilities")
        assert list(first.requests) == ["sample_input"]


async def test_prompts_ask_too() -> None:
    name = "test_input_required_result_prompt"
    async with by_hand() as client:
        first = await question(client, name, "prompts/get")
        answers = {"user_context": accept(context="chess")}
        result = await ask(client, name, "prompts/get", inputResponses=answers, requestState=first.state)
        assert result["messages"][0]["content"]["text"] == "Prompt with context: chess"


async def test_lists_never_ask() -> None:
    async with by_hand() as client:
        for method in ("tools/list", "prompts/list", "resources/list"):
            assert (await client.request(method))["resultType"] == "complete"


async def test_a_client_that_does_not_answer_raises_the_question() -> None:
    async with by_hand() as client:
        with pytest.raises(InputRequired) as caught:
            await client.call_tool("test_input_required_result_elicitation")
    assert list(caught.value.requests) == ["user_name"]
    assert caught.value.state


# -- The official suite plays against our everything server with a bridge in between ---------------------
#
# Which speaks the other era with it.
#
# A scenario that passes without the bridge passes through it, but for the few that look at what is one hop's own.
# ``MCP_BRIDGE_CONFORMANCE=all`` plays the stateless revision at a server of sessions too, which takes half a minute.

ROWS = [(LEGACY, "modern")]
if os.environ.get("MCP_BRIDGE_CONFORMANCE") == "all":
    ROWS += [(LEGACY, "legacy"), (MODERN, "modern"), (MODERN, "legacy")]
CANNOT_BE: dict[tuple[str, str], set[str]] = {
    # A server that closes the stream of a call does so on its own hop: the bridge comes back for the answer itself.
    (LEGACY, "modern"): {"server-sse-polling"},
    (LEGACY, "legacy"): {"server-sse-polling"},
    (MODERN, "modern"): set(),
    (MODERN, "legacy"): {
        # A request has no name that its server has chosen, and these look for that name.
        "input-required-result-basic-elicitation",
        "input-required-result-ignore-extra-params",
        # The server asks for one thing after the other, where it could ask for all at once in the other era.
        "input-required-result-multiple-input-requests",
        "tasks-mrtr-input",
        # The call is a task from the beginning, for a server with sessions makes it one before it asks.
        "tasks-mrtr-composition",
        # SEP-2663 wants the error where a server cannot answer without a task: the bridge runs the task and waits.
        "tasks-required-task-error",
    },
}


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    command = [sys.executable, "-m", "mcp_actors", *arguments]
    program = Served(Launch(command, r"^serving .*:(\d+)/mcp$"))
    try:
        yield f"http://127.0.0.1:{program.port()}/mcp"
    finally:
        code = program.stop()
    assert (code, "Traceback" in program.output) == (0, False), program.output


@pytest.mark.parametrize(("revision", "era"), ROWS)
def test_what_passes_without_a_bridge_passes_through_it(
    peers: Peers, tmp_path: Path, revision: str, era: str
) -> None:
    anywhere = "http://127.0.0.1:0/mcp"
    with (
        served("serve", str(HERE / "everything_server.py"), "--listen", anywhere) as server,
        served("bridge", "--era", era, server, anywhere) as bridge,
    ):
        outcomes = Suite(peers, tmp_path).against_server(bridge, revision)
    assert set(outcomes) >= set(SERVER[revision])
    complaints = {name: outcomes[name].complaint() for name in SERVER[revision]}
    failed = {name for name, complaint in complaints.items() if complaint}
    assert failed == CANNOT_BE[revision, era], "\n".join(complaints[name] for name in sorted(failed))


def test_skills_pass_through_a_gateway(suite: Suite, url: str, tmp_path: Path) -> None:
    """Which puts them into a folder of the upstream."""
    configuration = tmp_path / "servers.json"
    configuration.write_text(json.dumps({"mcpServers": {"shop": {"url": url}}}))
    with served("gateway", str(configuration), "--listen", "http://127.0.0.1:0/mcp") as gateway:
        outcomes = [suite.of_extension(gateway, each, MODERN) for each in SKILLS["server"]]
    assert [each.complaint() for each in outcomes] == [""] * 3
