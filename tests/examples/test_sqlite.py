"""The SQLite server, through a client: what it answers, what it refuses, and that a query can be stopped."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, ResourceNotFound
from mcp_actors.examples.sqlite import server
from mcp_actors.testing import connected_pair
from mcp_actors.types import ResourceTemplateReference

from .processes import children

pytestmark = pytest.mark.slow

NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers) "


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop & co #1?.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            """
            CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
            CREATE TABLE "odd/name" (photo BLOB);
            CREATE INDEX customer_by_name ON customer (name);
            CREATE VIEW customer_names AS SELECT name FROM customer;
            CREATE TABLE bill (customer INTEGER REFERENCES customer (id));
            CREATE VIRTUAL TABLE place USING rtree (id, low, high);
            INSERT INTO place VALUES (1, 2, 3);
            """
        )
        connection.executemany("INSERT INTO customer (name) VALUES (?)", [(f"name {n}",) for n in range(250)])
        connection.execute("INSERT INTO \"odd/name\" VALUES (x'00ff')")
        connection.commit()
    return path


@asynccontextmanager
async def serving(*args: str) -> AsyncIterator[Client]:
    with trio.fail_after(20):
        async with connected_pair(server(*args)) as client:
            yield client


async def query(client: Client, sql: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool("query", {"sql": sql, **arguments})
    assert not result.is_error, result.content
    structured = result.structured_content
    assert isinstance(structured, dict)
    return structured


async def refused(client: Client, sql: str, **arguments: Any) -> str:
    result = await client.call_tool("query", {"sql": sql, **arguments})
    assert result.is_error, result.structured_content
    return result.text


def content(file: Path) -> bytes:
    return file.read_bytes()


async def test_a_query_gives_columns_and_typed_rows(file: Path) -> None:
    async with serving(str(file)) as client:
        answer = await query(
            client, "SELECT 1 AS a, 2.5 AS b, 'x' AS a, NULL, 9e999, photo FROM \"odd/name\""
        )
    assert answer["columns"] == ["a", "b", "a", "NULL", "9e999", "photo"]
    assert answer["rows"] == [[1, 2.5, "x", None, "inf", {"base64": "AP8="}]]
    assert answer["truncated"] is False


async def test_values_by_position_and_by_name(file: Path) -> None:
    async with serving(str(file)) as client:
        listed = await query(client, "SELECT ?, ?", parameters=[1, None])
        named = await query(client, "SELECT :a, :b", parameters={"a": "x", "b": 0.5})
        missing = await refused(client, "SELECT ?")
        too_large = await refused(client, "SELECT ?", parameters=[2**70])
    assert listed["rows"] == [[1, None]]
    assert named["rows"] == [["x", 0.5]]
    assert "bindings" in missing
    assert "too large" in too_large


async def test_rows_are_bounded_and_the_answer_says_so(file: Path) -> None:
    async with serving(str(file)) as client:
        cut = await query(client, "SELECT id FROM customer ORDER BY id", max_rows=249)
        whole = await query(client, "SELECT id FROM customer ORDER BY id", max_rows=250)
        invalid = await client.call_tool("query", {"sql": "SELECT 1", "max_rows": 0})
    assert [row[0] for row in cut["rows"]] == list(range(1, 250))
    assert cut["truncated"] is True
    assert len(whole["rows"]) == 250
    assert whole["truncated"] is False
    assert invalid.is_error


async def test_bytes_are_bounded_too(file: Path) -> None:
    async with serving(str(file)) as client:
        answer = await query(client, NUMBERS + "SELECT printf('%100000d', n) FROM numbers", max_rows=10_000)
        single = await query(client, "SELECT zeroblob(2000000)")
        absurd = await refused(client, "SELECT zeroblob(900000000)")
    assert 1 <= len(answer["rows"]) <= 10
    assert answer["truncated"] is True
    assert single["rows"] == []
    assert single["truncated"] is True
    assert "too big" in absurd


async def test_progress_counts_the_rows(file: Path) -> None:
    heard: list[tuple[float, float | None]] = []
    async with serving(str(file)) as client:
        await client.call_tool(
            "query",
            {"sql": "SELECT id FROM customer", "max_rows": 500},
            on_progress=lambda p: heard.append((p.progress, p.total)),
        )
    assert [done for done, _ in heard if done == int(done)] == [100, 200, 250]
    assert {total for _, total in heard} == {500}


HOSTILE = {
    "several statements": "SELECT 1; DROP TABLE customer",
    "attach": "ATTACH '{other}' AS other",
    "vacuum into": "VACUUM INTO '{other}'",
    "switch the guard off": "PRAGMA query_only = OFF",
    "change the file format": "PRAGMA journal_mode = WAL",
    "edit the schema": "PRAGMA writable_schema = ON",
    "choose a directory": "PRAGMA temp_store_directory = '/tmp'",
    "load a library": "SELECT load_extension('{other}')",
    "read an address": "SELECT fts3_tokenizer('simple')",
    "a null character": "SELECT 1\0; DROP TABLE customer",
    "nonsense": "SELEKT",
}


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("sql", HOSTILE.values(), ids=HOSTILE)
async def test_what_reaches_past_the_file_is_refused(
    file: Path, tmp_path: Path, sql: str, writable: bool
) -> None:
    other = tmp_path / "other.db"
    async with serving(str(file), *(["--write"] if writable else [])) as client:
        assert await refused(client, sql.format(other=other))
        left = await query(client, "SELECT count(*) FROM customer")
    assert left["rows"] == [[250]]
    assert not other.exists()


WRITES = (
    "INSERT INTO customer (name) VALUES ('x')",
    "DELETE FROM customer",
    "DROP TABLE customer",
    "CREATE TABLE another (a)",
    "VACUUM",
    "WITH gone AS (SELECT 1) DELETE FROM customer",
)


@pytest.mark.parametrize("sql", WRITES)
async def test_nothing_is_written_unless_allowed(file: Path, sql: str) -> None:
    before = content(file)
    async with serving(str(file)) as client:
        assert "readonly" in await refused(client, sql)
    assert content(file) == before


async def test_writing_when_allowed(file: Path) -> None:
    async with serving(str(file), "--write") as client:
        written = await query(client, "UPDATE customer SET name = 'x' WHERE id <= 3")
        returned = await query(client, "INSERT INTO customer (name) VALUES ('y') RETURNING id")
        orphan = await refused(client, "INSERT INTO bill VALUES (4711)")
        await query(client, "BEGIN")
        await query(client, "VACUUM")
        seen = await query(client, "SELECT count(*) FROM customer WHERE name IN ('x', 'y')")
    assert written["changes"] == 3
    assert returned["rows"] == [[251]]
    assert "FOREIGN KEY" in orphan
    assert seen["rows"] == [[4]]


async def test_tables_of_modules_that_prepare_writes_can_be_read(file: Path) -> None:
    async with serving(str(file)) as client:
        answer = await query(client, "SELECT * FROM place")
    assert answer["rows"] == [[1, 2.0, 3.0]]


ENDLESS = {
    "no row ever": NUMBERS + "SELECT count(*) FROM numbers",
    "a sort that never begins": NUMBERS + "SELECT n FROM numbers ORDER BY n",
    "a join": "SELECT count(*) FROM customer a, customer b, customer c, customer d",
    "rows that are never enough": NUMBERS + "SELECT n FROM numbers WHERE n < 0",
}


@pytest.mark.parametrize("sql", ENDLESS.values(), ids=ENDLESS)
async def test_a_cancelled_query_is_interrupted(file: Path, sql: str) -> None:
    async with serving(str(file)) as client:
        heard = trio.Event()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await client.call_tool("query", {"sql": sql}, on_progress=lambda p: heard.set())

            nursery.start_soon(ask)
            await heard.wait()  # a sign of life, though no row came
            nursery.cancel_scope.cancel()
        # a thread that still worked would hold its place; with eight of them, nothing would be answered any more
        for _ in range(9):
            with trio.move_on_after(0.01):
                await client.call_tool("query", {"sql": sql})
        answer = await query(client, "SELECT 'alive'")
    assert answer["rows"] == [["alive"]]


async def test_a_query_is_stopped_after_its_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_actors.examples.sqlite.MAX_SECONDS", 0.05)
    async with serving(str(file)) as client:
        assert "stopped after 0.05 s" in await refused(client, ENDLESS["no row ever"])


async def test_what_a_cancelled_query_wrote_is_rolled_back(file: Path) -> None:
    async with serving(str(file), "--write") as client:
        heard = trio.Event()
        fill = "INSERT INTO customer (name) " + NUMBERS + "SELECT n FROM numbers"
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await client.call_tool("query", {"sql": fill}, on_progress=lambda p: heard.set())

            nursery.start_soon(ask)
            await heard.wait()
            nursery.cancel_scope.cancel()
        # the lock is free again only when the statement has been undone
        while (result := await client.call_tool("query", {"sql": "DELETE FROM bill"})).is_error:
            assert "locked" in result.text
        left = await query(client, "SELECT count(*) FROM customer")
    assert left["rows"] == [[250]]


async def test_tables_and_their_schemas(file: Path) -> None:
    async with serving(str(file)) as client:
        listed = await client.call_tool("list_tables")
        resources = [resource async for resource in client.resources()]
        schema = await client.read_resource("db://schema/customer")
        odd = await client.read_resource("db://schema/odd%2Fname")
        with pytest.raises(ResourceNotFound):
            await client.read_resource("db://schema/nothing")
        completion = await client.complete(ResourceTemplateReference("db://schema/{table}"), "table", "CUST")
    tables = {table["name"]: table for table in listed.structured_content["tables"]}
    assert tables["customer"] == {"name": "customer", "kind": "table", "columns": ["id", "name"]}
    assert tables["customer_names"]["kind"] == "view"
    assert {"db://tables", "db://schema/customer", "db://schema/odd%2Fname"} <= {
        each.uri for each in resources
    }
    assert schema.contents[0].text.startswith("CREATE TABLE customer (")
    assert "CREATE INDEX customer_by_name" in schema.contents[0].text
    assert 'CREATE TABLE "odd/name"' in odd.contents[0].text
    assert completion.values == ["customer", "customer_names"]


async def test_a_broken_view_does_not_hide_the_other_tables(file: Path) -> None:
    async with serving(str(file), "--write") as client:
        await query(client, "DROP TABLE bill")
        await query(client, "DROP TABLE customer")
        listed = await client.call_tool("list_tables")
    tables = {table["name"]: table["columns"] for table in listed.structured_content["tables"]}
    assert tables["customer_names"] == []
    assert tables["odd/name"] == ["photo"]


def _missing(path: Path) -> None:
    path.unlink()


def _no_database(path: Path) -> None:
    path.write_text("name,age\n" * 10)


@pytest.mark.parametrize(
    ("spoil", "words"), [(_missing, "there is no database file"), (_no_database, "is not an SQLite database")]
)
def test_a_file_that_is_no_database(file: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(file)
    with pytest.raises(ValueError, match=words):
        server(str(file))


@pytest.mark.parametrize("args", [(), ("a.db", "b.db"), ("--wriet", "a.db"), ("--write",)])
def test_arguments_that_make_no_sense(args: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="usage: mcp-actors serve"):
        server(*args)


# A function of SQLite is one step: nothing inside it looks whether the call was cancelled.
UNINTERRUPTIBLE = {
    "printf": "SELECT printf('%.*c', 2000000000, 'x')",
    "instr": "SELECT instr(printf('%30000000s', 'a'), printf('%15000000s', 'b'))",
}


@pytest.mark.parametrize("queries", [8, 80])
@pytest.mark.parametrize("sql", UNINTERRUPTIBLE.values(), ids=UNINTERRUPTIBLE)
async def test_cancelled_queries_hold_up_nobody(file: Path, sql: str, queries: int) -> None:
    before = children()
    async with serving(str(file)) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(queries):
                nursery.start_soon(client.call_tool, "query", {"sql": sql})
            while not children() > before:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        answer = await query(client, "SELECT 'alive'")
        assert answer["rows"] == [["alive"]]
    assert children() == before


async def test_a_list_of_tables_does_not_wait_for_queries(file: Path) -> None:
    async with serving(str(file)) as client, trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(client.call_tool, "query", {"sql": UNINTERRUPTIBLE["instr"]})
        await trio.testing.wait_all_tasks_blocked()
        listed = await client.call_tool("list_tables")
        nursery.cancel_scope.cancel()
    assert listed.structured_content["truncated"] is False


async def test_large_values_are_held_by_a_few_processes_only(file: Path) -> None:
    before = children()
    most = 0
    answers: list[dict[str, Any]] = []
    async with serving(str(file)) as client, trio.open_nursery() as nursery:

        async def ask() -> None:
            answers.append(await query(client, "SELECT hex(zeroblob(15000000))"))
            if len(answers) == 20:
                nursery.cancel_scope.cancel()

        for _ in range(20):
            nursery.start_soon(ask)
        while True:
            most = max(most, len(children() - before))
            await trio.lowlevel.checkpoint()
    assert [(answer["rows"], answer["truncated"]) for answer in answers] == [([], True)] * 20
    assert 1 <= most <= 4


async def test_a_query_that_needs_too_much_memory_is_told_so(file: Path) -> None:
    columns = ", ".join(["hex(zeroblob(15000000))"] * 40)
    async with serving(str(file)) as client:
        assert "needs more than 512 MiB of memory" in await refused(client, f"SELECT {columns}")
        answer = await query(client, "SELECT 'alive'")
    assert answer["rows"] == [["alive"]]


async def test_a_process_that_the_system_ends_is_an_error_of_its_query(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(str(file)) as client:
        with monkeypatch.context() as patch:
            patch.setattr("mcp_actors.examples.sqlite.guard.__file__", "/dev/null")
            assert "without an answer" in await refused(client, "SELECT 1")
        assert (await query(client, "SELECT 1"))["rows"] == [[1]]


async def test_a_large_schema_is_cut_and_the_answer_says_so(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for number in range(30):
            names = ", ".join(f"{'c' * 1_000}{n}" for n in range(50))
            connection.execute(f"CREATE TABLE wide{number} ({names})")
            connection.execute(f"CREATE VIEW customer{number} AS SELECT '{'x' * 10}' FROM customer")
        for number in range(25):
            connection.execute(f"CREATE INDEX i{number} ON customer (name) WHERE name > '{'x' * 50_000}'")
    async with serving(str(file)) as client:
        listed = await client.call_tool("list_tables")
        schema = await client.read_resource("db://schema/customer")
    assert listed.structured_content["truncated"] is True
    assert len(listed.structured_content["tables"]) < 60
    assert len(schema.contents[0].text) < 1_000_100
    assert schema.contents[0].text.endswith("-- cut here: the rest is more than 1000000 bytes")
