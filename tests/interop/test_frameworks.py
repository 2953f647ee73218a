"""Frameworks for agents, unchanged, list and call the tools of our server; their models follow a script.

What counts is what such a model is given: the schemas as the framework has converted them, and the output of each call.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .installation import find_node, install_separately
from .servers import DRIVERS, Endpoint, Launch, Served

pytestmark = pytest.mark.frameworks

SERVER = Path(__file__).parent / "journey_server.py"
FRAMEWORKS = ("google-adk", "langchain", "openai-agents", "pydantic-ai", "vercel-ai")
LIMIT = 300.0  # seconds for one program; it takes six

JOURNEY = {"title": "East", "legs": [{"start": {"name": "Bern"}, "end": {"name": "Chur"}, "days": 2}]}
AS_TEXT = {
    "count": "3",
    "price": "1.5",
    "confirmed": "true",
    "names": '["a", "b"]',
    "place": '{"name": "Bern"}',
    "note": "4",
}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "nested": ("plan", {"journey": JOURNEY, "home": {"name": "Bern", "position": None}}),
    "nested, as text": ("plan", {"journey": json.dumps(JOURNEY), "home": '{"name": "Bern"}'}),
    "text": ("book", AS_TEXT),
    "no number": ("book", {**AS_TEXT, "count": "three"}),
    "blocks": ("show", {}),
    "list": ("numbers", {}),
    "number": ("count", {}),
    "failure": ("fail", {}),
}
PLACE = {"name", "country", "position", "position.latitude", "position.longitude"}
MEMBERS = {
    *("journey", "journey.title", "journey.legs", "home", "urgent"),
    *(f"journey.legs[].{name}" for name in ("start", "end", "by", "seat", "days")),
    *(
        f"{where}.{name}"
        for where in ("home", "journey.legs[].start", "journey.legs[].end")
        for name in PLACE
    ),
}
PLAN = {
    "title": "East",
    "days": 2,
    "places": [{"name": name, "position": None, "country": "CH"} for name in ("Bern", "Chur")],
}
BOOKED = "(3, 1.5, True, ['a', 'b'], 'Bern', 'CH', '4')"

Report = dict[str, Any]


def members(schema: Any, path: str = "") -> Iterator[str]:
    """The paths of all members that a schema shows to a model which reads nothing but these keywords."""
    for name, each in schema.get("properties", {}).items():
        yield f"{path}.{name}".removeprefix(".")
        yield from members(each, f"{path}.{name}".removeprefix("."))
    if "items" in schema:
        yield from members(schema["items"], f"{path}[]")
    for each in schema.get("anyOf", ()):
        yield from members(each, path)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "mcp_actors", "serve", str(SERVER), "--listen", "http://127.0.0.1:0/mcp"]
    served = Served(Launch(command, r"^serving .*:(\d+)/mcp$"))
    try:
        yield f"http://127.0.0.1:{served.port()}/mcp"
    finally:
        code = served.stop()
    assert (code, "Traceback" in served.output) == (0, False), served.output[-6000:]


def run(framework: str, endpoint: Endpoint) -> Report:
    environment = str(install_separately(framework))
    if framework == "vercel-ai":
        command = [str(find_node(Path(sys.executable))), str(DRIVERS / "vercel_agent.mjs"), environment]
    else:
        command = [environment, str(DRIVERS / "framework_agents.py"), framework]
    done = subprocess.run(
        [*command, *endpoint.arguments],
        input=json.dumps(list(CALLS.values())),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    report: Report = json.loads(done.stdout)
    report["outputs"] = dict(zip(CALLS, report["outputs"], strict=True))
    return report


@pytest.fixture(scope="module", params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reports(framework: str, address: str) -> dict[str, Report]:
    """What the framework found over each binding."""
    endpoints = [Endpoint("stdio", (sys.executable, str(SERVER))), Endpoint("http", (address,))]
    with ThreadPoolExecutor() as threads:
        found = threads.map(run, [framework] * 2, endpoints)
        return dict(zip(("stdio", "http"), found, strict=True))


@pytest.fixture(params=["stdio", "http"])
def report(request: pytest.FixtureRequest, reports: dict[str, Report]) -> Report:
    return reports[request.param]


def test_a_model_is_given_every_member_of_nested_classes(report: Report) -> None:
    for conversion, schemas in report["schemas"].items():
        assert set(schemas) == {tool for tool, _ in CALLS.values()}, conversion
        assert set(members(schemas["plan"])) == MEMBERS, conversion
        leg = schemas["plan"]["properties"]["journey"]["properties"]["legs"]["items"]["properties"]
        assert (leg["by"]["enum"], leg["seat"]["enum"]) == (["train", "boat"], ["first", "second"])
        written = json.dumps(schemas)
        assert not [each for each in ("$ref", "$defs", "definitions") if each in written], conversion


def test_nested_classes_are_taken_and_returned(framework: str, report: Report) -> None:
    for call in ("nested", "nested, as text"):
        output = report["outputs"][call]
        if framework == "pydantic-ai":
            assert output == PLAN
        else:
            assert json.dumps(json.dumps(PLAN, separators=(",", ":"))) in json.dumps(output)


def test_what_models_write_as_text_is_read(report: Report) -> None:
    assert BOOKED in json.dumps(report["outputs"]["text"])
    assert "count: expected integer, got string" in json.dumps(report["outputs"]["no number"])


def test_blocks_arrive_in_their_order(report: Report) -> None:
    written = json.dumps(report["outputs"]["blocks"])
    places = [written.find(each) for each in ("a block", "iVBORw0KGgo", "a text")]
    assert places == sorted(places)
    assert places[0] >= 0


def test_values_that_are_no_objects_arrive(framework: str, report: Report) -> None:
    listed, number = report["outputs"]["list"], report["outputs"]["number"]
    if framework == "pydantic-ai":
        assert (listed, number) == ([4, 5], 45)
        return
    assert '"text": "[4,5]"' in json.dumps(listed)
    assert '"text": "45"' in json.dumps(number)
    if framework in ("google-adk", "langchain"):
        assert '{"result": [4, 5]}' in json.dumps(listed)
        assert '{"result": 45}' in json.dumps(number)


def test_a_failure_arrives_with_its_text(framework: str, report: Report) -> None:
    output = report["outputs"]["failure"]
    assert "there is no train on Sundays" in json.dumps(output)
    if framework == "google-adk":
        assert output["isError"] is True
    if framework == "langchain":
        assert output["status"] == "error"
