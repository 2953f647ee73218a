"""Approvals: a person agrees to one call, as it will run, and it runs once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Server, SyncContext
from mcp_actors.abc import SharedState
from mcp_actors.errors import NotApproved, SharedStateUnavailable
from mcp_actors.extensions import KEY as CALL_KEY
from mcp_actors.server import Limits
from mcp_actors.shared.memory import MemoryValueStore
from mcp_actors.shared.redis import RedisShared
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams
from tests.messages import modern_meta as meta
from tests.redis_server import RedisServer
from tests.server.asking import ALL, FORM, accept
from tests.server.asking import KEY as STATE_KEY

ERAS = ["2025-11-25", "2026-07-28"]
APPROVAL = "mcp-actors/approval"


class Disk:
    """A server that deletes files once that is approved."""

    def __init__(self, shared: Any = None, **options: Any) -> None:
        self.server = Server("disk", shared=shared, state_key=STATE_KEY, mask_errors=False, **options)
        self.deleted: list[str] = []
        self.files = 3

        async def count(path: str) -> dict[str, int]:
            return {"count": self.files}

        @self.server.tool(confirm="Delete {path} and {preview[count]} files?", preview=count)
        async def delete(path: str, force: bool = False) -> str:
            self.deleted.append(path)
            return f"deleted {path}"

        @self.server.tool(confirm="Move {path} to {to}?")
        async def move(path: str, ctx: Context, to: str = "the bin") -> str:
            self.deleted.append(path)
            name = await ctx.elicit("name please", FORM)
            assert name.content is not None
            return f"moved to {to}/{name.content['name']}"


class Person:
    """Answers what a client is asked, and notes it."""

    def __init__(self, action: Any = "accept") -> None:
        self.action = action
        self.asked: list[str] = []

    async def __call__(self, question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        self.asked.append(question.message)
        return ElicitResult(self.action, {"name": "x"} if question.message == "name please" else {})


@pytest.mark.parametrize("era", ERAS)
async def test_a_person_is_asked_what_will_run(era: str) -> None:
    disk, person = Disk(), Person()
    async with Client(disk.server, era=era, elicitation=person) as client:
        result = await client.call_tool("delete", {"path": "/tmp/a"})
        assert result.text == "deleted /tmp/a"
        assert (await client.call_tool("move", {"path": "b"})).text == "moved to the bin/x"
        assert (await client.call_tool("move", {"path": "b", "to": "c"})).text == "moved to c/x"
    questions = [each for each in person.asked if each != "name please"]
    assert questions == ["Delete /tmp/a and 3 files?", "Move b to the bin?", "Move b to c?"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("action", "text"),
    [("decline", "the person has declined it"), ("cancel", "closed the question without an answer")],
)
async def test_what_is_not_approved_does_not_run(action: str, text: str, era: str) -> None:
    disk = Disk()
    async with Client(disk.server, era=era, elicitation=Person(action)) as client:
        result = await client.call_tool("delete", {"path": "/tmp/a"})
    assert result.is_error
    assert text in result.text
    assert disk.deleted == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cannot_ask_runs_nothing(era: str) -> None:
    disk = Disk()
    async with Client(disk.server, era=era) as client:
        result = await client.call_tool("delete", {"path": "/tmp/a"})
    assert result.is_error
    assert "this client cannot ask one" in result.text
    assert disk.deleted == []


async def test_the_time_of_a_tool_is_not_that_of_its_person(autojump_clock: Any) -> None:
    server, done = Server("s"), list[str]()

    @server.tool(confirm="Sure?", timeout=1)
    async def quick() -> str:
        done.append("quick")
        return "done"

    async def slowly(question: Any) -> ElicitResult:
        await trio.sleep(50)
        return ElicitResult("accept", {})

    async with Client(server, era=ERAS[0], elicitation=slowly, timeout=100) as client:
        assert (await client.call_tool("quick")).text == "done"


async def test_nobody_waits_for_ever(autojump_clock: Any) -> None:
    disk = Disk(limits=Limits(ask_timeout=5))

    async def never(question: Any) -> ElicitResult:
        await trio.sleep_forever()
        raise AssertionError

    async with Client(disk.server, era=ERAS[0], elicitation=never, timeout=100) as client:
        result = await client.call_tool("delete", {"path": "a"})
    assert "nobody has approved it in time" in result.text
    assert disk.deleted == []


# -- what a hostile or unlucky client of the stateless revision sends ---------------------------------------------


async def call(
    peer: ScriptedPeer, id: int, arguments: dict[str, Any], tool: str = "delete", **retry: Any
) -> Any:
    params = {"name": tool, "arguments": arguments, "_meta": meta(ALL), **retry}
    answer = await peer.request(id, "tools/call", params)
    return answer.get("result") or answer["error"]


def approved(result: dict[str, Any], action: str = "accept") -> dict[str, Any]:
    assert list(result["inputRequests"]) == [APPROVAL]
    return {
        "requestState": result["requestState"],
        "inputResponses": {APPROVAL: {"action": action, "content": {}}},
    }


def text_of(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


async def test_an_approval_is_good_once() -> None:
    disk = Disk()
    async with raw_client(disk.server) as peer:
        retry = approved(await call(peer, 1, {"path": "a"}))
        assert text_of(await call(peer, 2, {"path": "a"}, **retry)) == "deleted a"
        again = await call(peer, 3, {"path": "a"}, **retry)
        assert again["isError"]
        assert "the approval was used already" in text_of(again)
    assert disk.deleted == ["a"]


async def test_two_at_the_same_time_run_once() -> None:
    disk = Disk()
    async with raw_client(disk.server) as peer:
        retry = approved(await call(peer, 1, {"path": "a"}))
        for id in (2, 3):
            params = {"name": "delete", "arguments": {"path": "a"}, "_meta": meta(ALL), **retry}
            await peer.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
        answers = [(await peer.receive())["result"] for _ in range(2)]
    assert sorted(bool(each.get("isError")) for each in answers) == [False, True]
    assert disk.deleted == ["a"]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_another_node_takes_it_and_only_one(kind: str, redis: RedisServer, tmp_path: Path) -> None:
    def shared() -> SharedState:
        return RedisShared(redis.url) if kind == "redis" else SqliteShared(tmp_path / "state.db")

    here, there = Disk(shared()), Disk(shared())
    async with raw_client(here.server) as one, raw_client(there.server) as two:
        retry = approved(await call(one, 1, {"path": "a"}))
        assert text_of(await call(two, 1, {"path": "a"}, **retry)) == "deleted a"
        assert "used already" in text_of(await call(one, 2, {"path": "a"}, **retry))
    assert (here.deleted, there.deleted) == ([], ["a"])


async def test_other_arguments_are_not_approved() -> None:
    disk = Disk()
    async with raw_client(disk.server) as peer:
        retry = approved(await call(peer, 1, {"path": "a"}))
        for arguments in ({"path": "b"}, {"path": "a", "force": True}, {}):
            refused = await call(peer, 2, arguments, **retry)
            assert refused["code"] == -32602
        assert (await call(peer, 3, {"path": "a"}, tool="move", **retry))["code"] == -32602
    assert disk.deleted == []


async def test_an_answer_without_a_question_approves_nothing() -> None:
    disk = Disk()
    forged = {"inputResponses": {APPROVAL: {"action": "accept", "content": {}}}}
    async with raw_client(disk.server) as peer:
        asked = await call(peer, 1, {"path": "a"}, **forged)
        assert asked["resultType"] == "input_required"
        # The state of another question of the same call is none either.
        moved = await call(peer, 2, {"path": "a"}, tool="move", **forged)
        assert list(moved["inputRequests"]) == [APPROVAL]
    assert disk.deleted == []


async def test_a_state_without_an_answer_asks_again() -> None:
    disk = Disk()
    async with raw_client(disk.server) as peer:
        asked = await call(peer, 1, {"path": "a"})
        again = await call(peer, 2, {"path": "a"}, requestState=asked["requestState"])
        assert text_of(await call(peer, 3, {"path": "a"}, **approved(again))) == "deleted a"
        # It is one question, which was asked twice.
        assert (await call(peer, 4, {"path": "a"}, **approved(asked)))["isError"]
    assert disk.deleted == ["a"]


async def test_an_approval_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, now = Disk(), time.time()
    async with raw_client(disk.server) as peer:
        retry = approved(await call(peer, 1, {"path": "a"}))
        monkeypatch.setattr(time, "time", lambda: now + 620)
        assert "nobody has approved it in time" in text_of(await call(peer, 2, {"path": "a"}, **retry))
    assert disk.deleted == []


async def test_what_would_happen_now_is_what_was_approved() -> None:
    disk = Disk()
    async with raw_client(disk.server) as peer:
        retry = approved(await call(peer, 1, {"path": "a"}))
        disk.files = 3000
        changed = await call(peer, 2, {"path": "a"}, **retry)
        assert "something else now than what was approved" in text_of(changed)
        disk.files = 3
        # Nothing was used up.
        assert text_of(await call(peer, 3, {"path": "a"}, **retry)) == "deleted a"
    assert disk.deleted == ["a"]


async def test_later_rounds_are_approved_once_each() -> None:
    disk = Disk()
    async with raw_client(disk.server) as peer:
        retry = approved(await call(peer, 1, {"path": "a"}, tool="move"))
        asked = await call(peer, 2, {"path": "a"}, tool="move", **retry)
        (key,) = asked["inputRequests"]
        named = {"requestState": asked["requestState"], "inputResponses": {key: accept("x")}}
        assert text_of(await call(peer, 3, {"path": "a"}, tool="move", **named)) == "moved to the bin/x"
        assert "used already" in text_of(await call(peer, 4, {"path": "a"}, tool="move", **named))
        assert "used already" in text_of(await call(peer, 5, {"path": "a"}, tool="move", **retry))


async def test_without_the_shared_state_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()

    def away(*arguments: Any) -> bool:
        raise SharedStateUnavailable("values", "away")

    async with raw_client(disk.server) as peer:
        retry = approved(await call(peer, 1, {"path": "a"}))
        monkeypatch.setattr(MemoryValueStore, "put", away)
        assert (await call(peer, 2, {"path": "a"}, **retry))["code"] == 503
    assert disk.deleted == []


async def test_a_value_cannot_write_the_question() -> None:
    disk, person = Disk(), Person("decline")
    async with Client(disk.server, elicitation=person) as client:
        await client.call_tool("delete", {"path": "a\n\nApproved by Ann.\u202e\x1b[2J{force}" + "x" * 9000})
    (asked,) = person.asked
    assert asked.startswith("Delete a Approved by Ann.??[2J{force}xxx")
    assert len(asked) < 600
    assert asked.isprintable()


@pytest.mark.parametrize("era", ERAS)
async def test_a_preview_is_of_what_a_call_leaves_out_too(era: str) -> None:
    """It would say nothing of what runs with a default of its own, and fail without one."""
    server, person, done = Server("s", mask_errors=False), Person(), list[Any]()

    def needs(path: Path) -> str:
        return f"all of {path.parent}"

    def has_its_own(path: Path = Path("/harmless")) -> str:
        return f"all of {path.parent}"

    @server.tool(confirm="{path}: {preview}", preview=needs)
    async def one(path: Path = Path("/home/ann")) -> None:
        done.append(path)

    @server.tool(confirm="{path}: {preview}", preview=has_its_own)
    async def two(path: Path = Path("/home/ann")) -> None:
        done.append(path)

    schema = {"type": "object", "properties": {"path": {"type": "string", "default": "/home/ann"}}}
    server.add_tool(
        lambda given: done.append(given),
        name="three",
        input_schema=schema,
        confirm="{path}: {preview}",
        preview=lambda path: f"all in {path}",
    )
    async with Client(server, era=era, elicitation=person) as client:
        for name in ("one", "two", "three"):
            assert not (await client.call_tool(name)).is_error
    assert person.asked == ["/home/ann: all of /home"] * 2 + ["/home/ann: all in /home/ann"]
    assert done == [Path("/home/ann"), Path("/home/ann"), {}]


# -- other kinds of calls and functions ----------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_plain_functions_and_raw_schemas_have_it(era: str) -> None:
    server, done, person = Server("s", mask_errors=False), list[Any](), Person()

    def size(path: str, ctx: SyncContext) -> str:
        return f"{len(path)} of {ctx.method}"

    @server.tool(confirm="Delete {path} ({preview})?", preview=size)
    def delete(path: str, ctx: SyncContext) -> str:
        done.append(path)
        return "done"

    @server.tool(confirm="Inline {path}?", inline=True)
    def inline(path: str) -> str:
        done.append(path)
        return "done"

    schema = {"type": "object", "properties": {"path": {"type": "string"}, "to": {"type": "string"}}}

    @server.tool(confirm="Raw {path} {to}?", input_schema=schema)
    async def raw(arguments: dict[str, Any]) -> str:
        done.append(arguments["path"])
        return "done"

    async with Client(server, era=era, elicitation=person) as client:
        for name in ("delete", "inline", "raw"):
            assert (await client.call_tool(name, {"path": "abc"})).text == "done"
    assert person.asked == ["Delete abc (3 of tools/call)?", "Inline abc?", "Raw abc -?"]
    assert done == ["abc"] * 3


async def test_a_task_is_approved() -> None:
    server, done, person = Server("s"), list[str](), Person()

    @server.tool(confirm="Build {what}?", task="required")
    async def build(what: str) -> str:
        done.append(what)
        return f"built {what}"

    async with Client(server, elicitation=person) as client:
        assert (await client.call_tool("build", {"what": "x"})).text == "built x"
    assert (person.asked, done) == (["Build x?"], ["x"])


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_with_a_key_is_approved_once(era: str) -> None:
    server, done, person = Server("s", state_key=STATE_KEY), list[str](), Person()

    @server.tool(confirm="Pay {cents}?", idempotent=timedelta(hours=1))
    async def pay(cents: int) -> str:
        done.append("pay")
        return "paid"

    async with Client(server, era=era, elicitation=person) as client:
        for _ in range(2):
            assert (await client.call_tool("pay", {"cents": 5}, key="a")).text == "paid"
    assert (person.asked, done) == (["Pay 5?"], ["pay"])


async def test_an_approved_answer_that_was_lost_comes_again_with_a_key() -> None:
    server, done = Server("s", state_key=STATE_KEY), list[str]()

    @server.tool(confirm="Pay {cents}?", idempotent=timedelta(hours=1))
    async def pay(cents: int) -> str:
        done.append("pay")
        return "paid"

    async with raw_client(server) as peer:

        async def keyed(id: int, **retry: Any) -> Any:
            keyed_meta = {**meta(ALL), CALL_KEY: "a"}
            params = {"name": "pay", "arguments": {"cents": 5}, "_meta": keyed_meta, **retry}
            return (await peer.request(id, "tools/call", params))["result"]

        retry = approved(await keyed(1))
        assert text_of(await keyed(2, **retry)) == "paid"
        assert text_of(await keyed(3, **retry)) == "paid"
    assert done == ["pay"]


async def test_a_mounted_tool_is_approved() -> None:
    disk, host, person = Disk(), Server("host"), Person()
    host.mount("disk", disk.server)
    async with Client(host, elicitation=person) as client:
        assert (await client.call_tool("disk_delete", {"path": "a"})).text == "deleted a"
    assert person.asked == ["Delete a and 3 files?"]


# -- how it is declared --------------------------------------------------------------------------------------------


def of_path(path: str) -> int:
    return len(path)


def of_preview(preview: str) -> str:
    return preview


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"confirm": "Delete {file}?"},
            "has {file}, which is neither a parameter of the tool, and there is no preview=",
        ),
        ({"confirm": "Delete {preview}?"}, "has {preview}"),
        ({"confirm": "Delete {path"}, "cannot be formatted"),
        ({"confirm": "Delete {}?"}, "has {}"),
        (
            {"confirm": "Delete {path}?", "preview": of_preview},
            "preview= takes 'preview', which the tool does not",
        ),
        ({"preview": of_path}, "which is not there"),
    ],
)
def test_a_question_of_the_wrong_form_is_refused(options: dict[str, Any], text: str) -> None:
    server = Server("s")

    def delete(path: str) -> None: ...

    with pytest.raises(ValueError, match=text.replace("{", r"\{").replace("}", r"\}")):
        server.add_tool(delete, **options)


def test_a_tool_has_no_parameter_of_the_name() -> None:
    with pytest.raises(ValueError, match="a parameter 'preview'"):
        Server("s").add_tool(of_preview, confirm="{preview}", preview=of_preview)


def test_each_reason_has_its_words() -> None:
    texts = {
        str(NotApproved(each))
        for each in ("declined", "dismissed", "expired", "changed", "used", "impossible")
    }
    assert len(texts) == 6
    assert all(each.startswith("not done") for each in texts)
