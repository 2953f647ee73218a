"""Redis behind TLS, a failover of Sentinels and a lost server of a Cluster, under load, as their pages promise it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Server
from mcp_actors.abc import OpenState
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared import shared_state
from mcp_actors.shared.redis import RedisShared
from mcp_actors.shared.redis.address import slot_of
from mcp_transports.http.server import HttpServerTransport
from tests.redis_deployments import Deployment, cluster, one_behind_tls, watched_by_sentinels
from tests.shared.task_records import ROOMY, make_record

pytestmark = pytest.mark.peers

NAME = "shop"
NODES = 3
WORKERS = 4
TIMEOUT = 2.0
# Longer than a failover takes on a machine that does much else: no node is gone in it.
LEASE = 60.0
PATIENCE = 120.0
TURNS = int(os.environ.get("MCP_ACTORS_FAILOVERS", "1"))
"""Servers that are lost one after another; each second one is only stopped, and comes back when another is there."""
HEADERS = {"Accept": "application/json, text/event-stream"}
VERSION = "2025-11-25"


class Load:
    """Calls, events and tasks of three nodes, of which each goes by another node than the one that has it.

    What comes back is ``right``, ``refused`` with its reason, ``uncertain`` (a call that was sent, and says that it may
    have been done), ``lost`` (a task that was confirmed and is not there any more, or not as it was) or ``wrong``.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._number = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            nursery = await stack.enter_async_context(trio.open_nursery())
            bases: list[str] = []
            for _ in range(NODES):
                transport = HttpServerTransport("http://127.0.0.1:0/mcp")
                (base,) = await nursery.start(self._node().serve, transport)
                bases.append(base)
            shared = RedisShared(self._url, lease=LEASE, timeout=TIMEOUT)
            states = [await stack.enter_async_context(shared.open(NAME)) for _ in range(2)]
            http = await stack.enter_async_context(httpx2.AsyncClient(timeout=60))
            async with trio.open_nursery() as workers:
                for worker in range(WORKERS):
                    workers.start_soon(
                        self._calls, http, bases[worker % NODES], bases[(worker + 1) % NODES], f"c{worker}"
                    )
                    workers.start_soon(self._events, states[0], states[1], f"e{worker}")
                    workers.start_soon(self._tasks, states[0], states[1])
                yield
                workers.cancel_scope.cancel()
            nursery.cancel_scope.cancel()

    def _node(self) -> Server:
        server = Server(NAME, shared=RedisShared(self._url, lease=LEASE, timeout=TIMEOUT))

        @server.tool
        async def echo(text: str) -> str:
            return text

        return server

    def note(self, kind: str, outcome: str, about: object = "") -> None:
        self.counts[f"{kind} {outcome}"] += 1
        if outcome == "wrong":
            self.wrong.append(f"{kind}: {about}"[:500])

    async def _calls(self, http: httpx2.AsyncClient, own: str, other: str, worker: str) -> None:
        """Calls in one session, by another node than its own."""
        begun = await http.post(
            own,
            headers=HEADERS,
            json=request(
                0,
                "initialize",
                protocolVersion=VERSION,
                capabilities={},
                clientInfo={"name": worker, "version": "1"},
            ),
        )
        session = {"Mcp-Session-Id": begun.headers["mcp-session-id"], "MCP-Protocol-Version": VERSION}
        await http.post(
            own,
            headers={**HEADERS, **session},
            json={"jsonrpc": "2.0", "method": "notifications/initialized"},
        )
        number = 0
        while True:
            number += 1
            text = f"{worker}-{number}"
            asked = request(number, "tools/call", name="echo", arguments={"text": text})
            answer = await http.post(other, headers={**HEADERS, **session}, json=asked)
            body = body_of(answer)
            if answer.status_code == 200 and "result" in body:
                is_right = body["id"] == number and body["result"]["content"][0]["text"] == text
                self.note("calls", "right" if is_right else "wrong", body)
            else:
                # A session whose node is there is never said to be gone. What was sent to that node may have been done.
                error = body["error"]
                is_refused = answer.status_code in (502, 503) and "reason" in error.get("data", {})
                is_uncertain = answer.status_code == 502 and "may have been done" in error["message"]
                outcome = "refused" if is_refused else "uncertain" if is_uncertain else "wrong"
                self.note("calls", outcome, f"{answer.status_code} {body}")
            await trio.sleep(0.01)

    async def _events(self, own: OpenState, other: OpenState, session: str) -> None:
        """Streams that are replayed at another node: in whole, or not at all."""
        turn = 0
        while True:
            turn += 1
            ids: list[str] = []
            kept: list[bool] = []
            for number in range(20):
                data = b"%d" % number
                ids.append(own.events.append(session, f"s{turn}", data, kept.append))
                await trio.sleep(0.005)
            with trio.move_on_after(2 * TIMEOUT):
                while not kept:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            confirmed = sum(kept)
            try:
                replay = await other.events.after(session, ids[0])
            except SharedStateUnavailable:
                self.note("replays", "refused")
            else:
                if replay is None:
                    self.note("replays", "refused")
                else:
                    found = [(id, data) for id, data in replay.events]
                    whole = [(id, b"%d" % number) for number, id in enumerate(ids)][1:]
                    is_right = found == whole[: len(found)] and len(found) >= confirmed - 1
                    self.note("replays", "right" if is_right else "wrong", (confirmed, found))
            own.events.end(session, f"s{turn}")

    async def _tasks(self, own: OpenState, other: OpenState) -> None:
        """Tasks that are completed at one node and looked at by another."""
        while True:
            record = make_record(own.node)
            done = msgspec.structs.replace(record, state="completed", revision=1, outcome=record.id.encode())
            try:
                assert await own.tasks.create(record, ROOMY) is None
                is_replaced = await own.tasks.replace(done)
                found = (await other.tasks.get([record.id])).get(record.id)
            except SharedStateUnavailable:
                self.note("tasks", "refused")
            else:
                if is_replaced and found == done:
                    self.note("tasks", "right")
                else:
                    self.note("tasks", "lost" if found in (None, record) else "wrong", found)
            await trio.sleep(0.01)


def request(id: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def body_of(answer: httpx2.Response) -> dict[str, Any]:
    lines = [line[5:] for line in answer.text.splitlines() if line.startswith("data:")]
    body: dict[str, Any] = json.loads(next((each for each in lines if each.strip()), answer.text))
    return body


async def off_loop(fn: Callable[..., Any], *args: Any) -> Any:
    return await trio.to_thread.run_sync(lambda: fn(*args))


async def lose(load: Load, deployment: Deployment, turn: int, owner: Callable[[], int]) -> None:
    """Loses the server that has the keys, and waits until another has taken its place and the load goes on."""
    lost = await off_loop(owner)
    await off_loop(deployment.pause if turn % 2 else deployment.kill, lost)

    def has_another() -> bool:
        return owner() not in (lost, 0)

    await off_loop(deployment.until, has_another, "no other server takes over")
    before = load.counts.copy()
    kinds = "calls", "replays", "tasks"
    with trio.fail_after(PATIENCE):
        while any(load.counts[f"{kind} right"] < before[f"{kind} right"] + 50 for kind in kinds):  # noqa: ASYNC110
            await trio.sleep(0.05)
    await off_loop(deployment.go_on if turn % 2 else deployment.start_again, lost)

    def is_back() -> bool:
        said = deployment.ask(lost, "INFO", "replication")
        return "role:slave" in said and "master_link_status:up" in said

    if turn + 1 < TURNS:
        await off_loop(deployment.until, is_back, "the server that was lost does not come back")


async def under_load(deployment: Deployment, owner: Callable[[], int]) -> Load:
    load = Load(deployment.url)
    with capture_logs() as logs:
        async with load.running():
            with trio.fail_after(PATIENCE):
                while load.counts["calls right"] < 50:  # noqa: ASYNC110
                    await trio.sleep(0.05)
            for turn in range(TURNS):
                try:
                    await lose(load, deployment, turn, owner)
                finally:
                    print(
                        f"{type(deployment).__name__}, {turn + 1} lost: {dict(sorted(load.counts.items()))}"
                    )
                    print("\n".join(load.wrong))
    assert load.wrong == []
    assert load.counts["calls refused"] > 0
    assert [each for each in logs if each["log_level"] == "error"] == []
    return load


# Its result depends on how long the machine holds up the nodes, so it is run on purpose, on a quiet one.
STRESS = pytest.mark.skipif("MCP_ACTORS_FAILOVERS" not in os.environ, reason="set MCP_ACTORS_FAILOVERS=1")


@STRESS
async def test_answers_during_a_failover_of_sentinels() -> None:
    with watched_by_sentinels() as deployment:
        await under_load(deployment, deployment.primary)


@STRESS
async def test_answers_while_a_server_of_a_cluster_is_lost() -> None:
    slot = slot_of(f"{{mcp:{NAME}}}:")
    with cluster() as deployment:
        await under_load(deployment, lambda: deployment.owner(slot))


# -- addresses -----------------------------------------------------------------------------------------


async def test_tls_with_a_certificate_of_its_own_and_a_password_of_a_file() -> None:
    with one_behind_tls() as deployment:
        async with shared_state(deployment.url).open(NAME) as state:
            assert await state.replays.first_use(b"x", 60)
        for without, says in (
            ("ssl_ca_certs=", "ssl_ca_certs=PATH"),
            ("password_file=", "password_file=PATH"),
        ):
            parts = deployment.url.partition("?")
            options = "&".join(each for each in parts[2].split("&") if not each.startswith(without))
            with pytest.raises(SharedStateUnavailable) as refused:
                async with shared_state(f"{parts[0]}?{options}").open(NAME):
                    raise AssertionError("it is open")
            assert says in refused.value.cause
