"""A server that is mounted in a FastAPI application, under the ASGI servers, and agents that use it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio
from interop.installation import Peers
from interop.servers import Endpoint, Served, free_port, reachable
from interop.test_official_clients import report_of, run, text_of

from mcp_actors import Client, McpError, Progress

from .conftest import PROGRAMS, Started
from .endings import answer, lost_call, until_state, value

PATIENCE = 120  # seconds; nothing here takes a fortieth of it on a machine that is not busy
ASGI_SERVERS = ["uvicorn", "hypercorn", "hypercorn-trio", "granian"]


async def until_it_answers(served: Served, port: int) -> None:
    async with httpx2.AsyncClient() as http:
        while served.process.poll() is None:
            try:
                assert (await http.get(f"http://127.0.0.1:{port}/plain")).json() == "plain"
                return
            except httpx2.TransportError:
                await trio.sleep(0.05)
    raise AssertionError(served.output)


@pytest.mark.parametrize("kind", ASGI_SERVERS)
async def test_a_mount_in_fastapi(started: Started, peers: Peers, kind: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/tools/mcp"
    with trio.fail_after(PATIENCE), started("mounted.py", kind, str(port)) as served:
        await until_it_answers(served, port)
        for number, era in enumerate(("modern", "legacy"), 1):
            async with Client(url, era=era, elicitation=answer) as client:
                told: list[Progress] = []
                await client.call_tool("steps", on_progress=told.append)
                assert [each.progress for each in told] == [1, 2, 3]
                assert (await client.call_tool("ask")).content[0].text == "accept {'name': 'Ada'}"
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.call_tool, "slow")
                    await until_state(client, running=number)
                    nursery.cancel_scope.cancel()
                await until_state(client, cancelled=number)
        async with Client(url) as client, Client(url) as other, trio.open_nursery() as nursery:
            nursery.start_soon(lost_call, client)
            await until_state(other, running=3)
            code = await trio.to_thread.run_sync(served.stop)
        assert code != -signal.SIGKILL, served.output  # it has ended by itself


async def test_agents_use_a_mounted_server(
    started: Started, peers: Peers, environment: dict[str, str]
) -> None:
    port = free_port()
    with trio.fail_after(PATIENCE), started("mounted.py", "uvicorn", str(port)) as served:
        await until_it_answers(served, port)
        command = [str(peers.worlds), str(PROGRAMS / "agents.py"), f"http://127.0.0.1:{port}/tools/mcp"]
        done = await trio.run_process(
            command, env=environment, capture_stdout=True, stderr=subprocess.STDOUT, check=False
        )
    assert done.returncode == 0, done.stdout.decode()
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["names"] == ["add", "ask", "end", "slow", "state", "steps"]
    assert json.loads(found["pydantic-ai"]) == {"add": 0, "steps": "all steps"}
    assert [each["text"] for each in found["langchain"]] == ["5"]


async def test_a_handler_that_calls_an_official_server(started: Started, peers: Peers) -> None:
    port = free_port()
    with trio.fail_after(PATIENCE), reachable(peers, "python", "http") as official:
        with started("mounted.py", "uvicorn", str(port), OTHER_SERVER=official.target) as served:
            await until_it_answers(served, port)
            await use_the_handler(f"http://127.0.0.1:{port}/forward", official)


async def use_the_handler(forward: str, official: Endpoint) -> None:
    """One request is answered; whoever makes the other leaves, and the official server sees its call cancelled."""
    async with httpx2.AsyncClient(timeout=PATIENCE) as http, Client(official.target) as watching:
        said = (await http.get(f"{forward}/test_simple_text")).json()
        assert said == "This is a simple text response for testing."
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(http.get, f"{forward}/sleep", params={"seconds": 600, "steps": 1}))
            while not (await value(watching, "activity"))["sleeping"]:  # noqa: ASYNC110 - in another process
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
        while await value(watching, "activity") != {"sleeping": 0, "slept": 0, "cancelled": 1}:  # noqa: ASYNC110
            await trio.sleep(0.02)


# -- WebSockets of uvicorn, with our client and with an official one -------------------------------------

PATIENCE_WEBSOCKETS = 60  # seconds; nothing here takes a tenth of it


@pytest.fixture
def served(started: Started) -> Iterator[Served]:
    with started("uvicorn_websocket.py") as made:
        yield made


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_our_client_calls_hears_and_cancels(served: Served, era: str) -> None:
    with trio.fail_after(PATIENCE_WEBSOCKETS):
        async with Client(f"ws://127.0.0.1:{served.port()}/ws", era=era) as client:  # type: ignore[arg-type]
            assert (await client.call_tool("test_simple_text")).content
            told: list[float] = []
            await client.call_tool(
                "test_tool_with_progress", on_progress=lambda report: told.append(report.progress)
            )
            assert told == sorted(told)
            assert told
            async with trio.open_nursery() as nursery:
                for _ in range(64):
                    nursery.start_soon(client.call_tool, "test_simple_text")


async def test_the_end_of_uvicorn_ends_the_connection(served: Served) -> None:
    with trio.fail_after(PATIENCE_WEBSOCKETS):
        async with Client(f"ws://127.0.0.1:{served.port()}/ws", era="legacy") as client:
            await client.call_tool("test_simple_text")
            served.process.send_signal(signal.SIGINT)
            assert await trio.to_thread.run_sync(served.stop) in (0, -signal.SIGINT, -signal.SIGTERM)
            with pytest.raises(McpError):
                await client.call_tool("test_simple_text")
    assert "Traceback" not in served.output


async def test_a_page_of_another_site_is_refused(served: Served) -> None:
    request = (
        "GET /ws HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with trio.fail_after(PATIENCE_WEBSOCKETS):
        async with await trio.open_tcp_stream("127.0.0.1", served.port()) as stream:
            await stream.send_all(request.encode())
            assert re.match(rb"HTTP/1.1 403 ", await stream.receive_some())


def test_the_official_client_uses_it(peers: Peers, served: Served) -> None:
    endpoint = Endpoint("ws", (f"ws://127.0.0.1:{served.port()}/ws",), served)
    report = report_of(run(peers, "typescript-sdk-legacy", endpoint), "typescript-sdk-legacy", served.output)
    assert report["server"]["name"] == "mcp-actors-everything"
    assert text_of(report["test_sampling"]) == "LLM response: I am the model"
    assert report["activity"]["cancelled"] == 1
    assert report["together"]
    assert report["closed"]


def test_thirty_routes_of_fastapi_become_tools_that_answer_alike(
    peers: Peers, environment: dict[str, str]
) -> None:
    """In process by `Server.from_asgi`, and by `Server.from_openapi` at a socket of uvicorn."""
    command = [str(peers.worlds), str(PROGRAMS / "thirty_routes.py")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["in process"] == found["over a socket"]
    assert len(found["in process"]) == 30
    assert found["lifespans"] == ["opened", "closed"] * 2
    answers = found["in process"]
    assert answers["with_bearer_bearer_get"] == "ann"
    assert answers["with_basic_basic_get"] == "ann/secret"
    assert answers["upload_upload_post"] == {"title": "t", "name": "a.txt", "size": 3}
    assert "it is there already" in answers["fails_fails_get"]


def test_thirty_routes_of_fastapi_beside_fastmcp(peers: Peers, environment: dict[str, str]) -> None:
    """Its answers are ours but for those that its argument names, its one header and its schemas of results prevent."""
    command = [str(peers.worlds), str(PROGRAMS / "thirty_routes.py")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    ours = json.loads(ended.stdout)["over a socket"]
    script = "import json, thirty_routes; print(json.dumps(thirty_routes.CALLS))"
    at_programs = {**environment, "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(PROGRAMS)])}
    calls = dict(
        json.loads(subprocess.check_output([peers.worlds, "-c", script], env=at_programs, timeout=120))
    )
    calls["replace_things__name__put"] = {"name__path": "n", "name": "bike"}
    calls["many_many_post"] = {"things": calls["many_many_post"]["body"]}
    calls["upload_upload_post"] = {"title": "t", "file": "abc"}
    port = free_port()
    serve = [peers.worlds, "-m", "uvicorn", "thirty_routes:app", "--port", str(port), "--log-level", "error"]
    with subprocess.Popen(serve, env=at_programs) as web:
        try:
            end = time.monotonic() + 120
            while not answers_at(f"http://127.0.0.1:{port}/text"):
                assert time.monotonic() < end
                time.sleep(0.2)
            given = json.dumps({"url": f"http://127.0.0.1:{port}", "calls": list(calls.items())})
            program = Path(__file__).parents[1] / "interop" / "peers" / "fastmcp_routes.py"
            done = subprocess.run(
                [peers.fastmcp, program],
                input=given,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        finally:
            web.kill()
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout[done.stdout.index('{"answers') :])["answers"]
    by_name = {"_".join(each for each in name.split("_") if each): value for name, value in theirs.items()}
    others = {name: value for name, value in by_name.items() if value != ours[name]}
    print(json.dumps({name: [ours[name], value] for name, value in others.items()}))
    assert others.keys() == {
        "upload_upload_post",  # a file is sent as a field of text
        "text_text_get",  # its client refuses text where the document has a schema
        "image_image_get",
        "with_basic_basic_get",
        "with_key_key_get",
        "fails_fails_get",  # the same words of the API, in another sentence
    }


def answers_at(url: str) -> bool:
    try:
        return httpx2.get(url).status_code == 200
    except httpx2.HTTPError:
        return False
