"""Skills of a server (SEP-2640): what is served of a folder and of the program, to whom, and what is refused."""

from __future__ import annotations

import base64
import os
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Client, Context, ResourceNotFound, RpcError, Server
from mcp_actors._server import skills as module
from mcp_actors._wire.skill_format import digest_of
from mcp_actors.client import Event
from mcp_actors.errors import InsufficientScope, LocalProtocolError
from mcp_actors.extensions import ServerExtension
from mcp_actors.gateway import Gateway
from mcp_actors.server import Caller, Component
from tests.server.test_visibility import client_of

SKILLS = "io.modelcontextprotocol/skills"
EACH_ERA = pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
PNG = b"\x89PNG\r\n\xff"


def manifest(name: str, description: str = "Does it", more: str = "") -> str:
    return f"---\nname: {name}\ndescription: {description}\n{more}---\n\nDo it.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two skills, one of which has a third one in it, and what is no part of any."""
    root = tmp_path / "skills"
    for path, content in {
        "acme/refunds/SKILL.md": manifest(
            "refunds", more="license: MIT\nmetadata:\n  version: '2'\n"
        ).encode(),
        "acme/refunds/examples/email.md": b"Dear\r\n",
        "acme/refunds/assets/logo.png": PNG,
        "acme/refunds/.git/config": b"secret",
        "acme/refunds/scripts/__pycache__/x.pyc": b"x",
        "outer/SKILL.md": manifest("outer").encode(),
        "outer/parts/inner/SKILL.md": manifest("inner", "Inside").encode(),
        "outer/parts/inner/a.txt": b"a",
        "outer/templates/SKILL.md": b"---\nname: YOUR-NAME\n---\n",
        "notes.txt": b"no part of a skill",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


async def listed(client: Client) -> list[str]:
    return [skill.uri async for skill in client.skills()]


async def children(client: Client, uri: str) -> list[str]:
    return [f"{each.uri} {each.mime_type}" async for each in client.directory(uri)]


@EACH_ERA
async def test_the_skills_of_a_folder_are_listed_with_all_their_files(folder: Path, era: str) -> None:
    server = Server("s", page_size=2)
    server.add_skills(folder)
    async with Client(server, era=era) as client:
        assert client.server_capabilities.extensions == {SKILLS: {"directoryRead": True}}
        assert client.server_capabilities.resources is not None
        found = {skill.uri: skill async for skill in client.skills()}
        assert list(found) == [
            "skill://acme/refunds/SKILL.md",
            "skill://outer/SKILL.md",
            "skill://outer/parts/inner/SKILL.md",
        ]
        refunds = found["skill://acme/refunds/SKILL.md"]
        assert refunds.frontmatter == {
            "name": "refunds",
            "description": "Does it",
            "license": "MIT",
            "metadata": {"version": "2"},
        }
        assert [(each.uri, each.size, each.digest) for each in refunds.resources] == [  # type: ignore[union-attr]
            (f"{refunds.root}/{path}", len(content), digest_of(content))
            for path in ("SKILL.md", "assets/logo.png", "examples/email.md")
            for content in ((folder / "acme/refunds" / path).read_bytes(),)
        ]
        # A skill in a skill is a skill of its own, and its files are files of both.
        uris = {each.uri for each in found["skill://outer/SKILL.md"].resources}  # type: ignore[union-attr]
        inner = {each.uri for each in found["skill://outer/parts/inner/SKILL.md"].resources}  # type: ignore[union-attr]
        assert inner == {"skill://outer/parts/inner/SKILL.md", "skill://outer/parts/inner/a.txt"}
        assert uris == {"skill://outer/SKILL.md", "skill://outer/templates/SKILL.md", *inner}


@EACH_ERA
async def test_files_are_resources_as_they_are(folder: Path, era: str) -> None:
    server = Server("s")
    server.add_skills(folder)
    async with Client(server, era=era) as client:
        resources = {each.uri: each async for each in client.resources()}
        assert list(resources) == await listed(client)
        shown = resources["skill://outer/parts/inner/SKILL.md"]
        assert (shown.name, shown.description, shown.mime_type) == ("inner", "Inside", "text/markdown")
        text = await client.read_resource("skill://acme/refunds/examples/email.md")
        assert text.to_bytes() == b"Dear\r\n"
        assert text.contents[0].mime_type == "text/markdown"
        picture = (await client.read_resource("skill://acme/refunds/assets/logo.png")).contents[0]
        assert base64.b64decode(picture.blob) == PNG  # type: ignore[union-attr]
        for uri in (
            "skill://acme/refunds/.git/config",
            "skill://acme/refunds/nothing",
            "skill://acme/refunds",
            "skill://acme/refunds/../../notes.txt",
            "skill://acme/refunds/%2e%2e/%2e%2e/notes.txt",
            "skill://notes.txt",
            "skill:///etc/passwd",
        ):
            with pytest.raises(ResourceNotFound):
                await client.read_resource(uri)


@EACH_ERA
async def test_one_entry_and_one_folder_are_asked_for_by_their_uris(folder: Path, era: str) -> None:
    server = Server("s", page_size=2)
    server.add_skills(folder)
    async with Client(server, era=era) as client:
        skill = await client.get_skill("skill://outer/parts/inner/SKILL.md")
        assert skill == [each async for each in client.skills()][2]
        for uri in (
            "skill://acme/refunds",
            "skill://outer/templates/SKILL.md",
            "skill://nothing/SKILL.md",
            "x",
        ):
            with pytest.raises(RpcError, match="no skill is served at") as caught:
                await client.get_skill(uri)
            assert caught.value.code == -32602
        assert await children(client, "skill://acme/refunds") == [
            "skill://acme/refunds/SKILL.md text/markdown",
            "skill://acme/refunds/assets inode/directory",
            "skill://acme/refunds/examples inode/directory",
        ]
        assert await children(client, "skill://outer/parts") == ["skill://outer/parts/inner inode/directory"]
        for uri in (
            "skill://acme/refunds/SKILL.md",
            "skill://acme/refunds/",
            "skill://nothing",
            "skill://acme",
        ):
            with pytest.raises(RpcError, match="is not a directory") as caught:
                await children(client, uri)
            assert caught.value.code == -32602


async def test_results_have_what_the_revision_asks_for(folder: Path) -> None:
    server = Server("s")
    server.add_skills(folder)
    async with Client(server, era="modern") as client:
        for method, params in (
            ("skills/list", {}),
            ("skills/get", {"uri": "skill://outer/SKILL.md"}),
            # The official TypeScript client asks for these members here, too.
            ("resources/directory/read", {"uri": "skill://outer"}),
        ):
            result = await client.request(method, params)
            assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")
        for params in ({}, {"uri": 7}, {"uri": "x" * 10_000}):
            with pytest.raises(RpcError) as caught:
                await client.request("skills/get", params)
            assert caught.value.code == -32602
        with pytest.raises(RpcError, match="cursor"):
            await client.request("skills/list", {"cursor": "no cursor"})


async def test_a_page_has_a_bounded_number_of_bytes_and_an_entry_is_on_one_page() -> None:
    server = Server("s")
    names = [f"s{number}" for number in range(10)]
    for name in names:
        server.add_skill({"SKILL.md": manifest(name), **{f"{'f' * 700}{each}": "" for each in range(500)}})
    pages: list[list[str]] = []
    async with Client(server) as client:
        cursor: dict[str, str] | None = {}
        while cursor is not None:
            result = await client.request("skills/list", cursor)
            assert len(str(result)) < 1.2 * 1024 * 1024
            pages.append([each["frontmatter"]["name"] for each in result["skills"]])
            cursor = {"cursor": result["nextCursor"]} if "nextCursor" in result else None
    assert [*chain(*pages)] == names
    assert [len(each) for each in pages] == [2] * 5


async def test_a_folder_may_be_a_skill_itself(folder: Path) -> None:
    server = Server("s")
    server.add_skills(str(folder / "outer"))
    async with Client(server) as client:
        assert await listed(client) == ["skill://outer/SKILL.md", "skill://outer/parts/inner/SKILL.md"]


@EACH_ERA
async def test_a_skill_that_the_program_has_made(era: str) -> None:
    async def today(ctx: Context[Any]) -> str:
        return f"sold: {ctx.method}"

    server = Server("s")
    server.add_skill({"SKILL.md": manifest("daily"), "data/today.txt": today}, folder="reports")
    server.add_skill({"SKILL.md": manifest("static").encode(), "a.bin": PNG})
    async with Client(server, era=era) as client:
        daily, static = [skill async for skill in client.skills()]
        assert daily.resources == "dynamic"
        assert len(static.resources) == 2
        read = await client.read_resource("skill://reports/daily/data/today.txt")
        assert read.text == "sold: resources/read"
        assert await children(client, daily.root) == [
            "skill://reports/daily/SKILL.md text/markdown",
            "skill://reports/daily/data inode/directory",
        ]


def test_what_is_no_skill_of_the_program_is_refused() -> None:
    server = Server("s")
    good = {"SKILL.md": manifest("good")}
    for files, kind, said in (
        ({}, ValueError, "SKILL.md"),
        ({"SKILL.md": lambda: ""}, ValueError, "text"),
        ({"SKILL.md": "no frontmatter"}, ValueError, "frontmatter"),
        ({**good, "../x": ""}, ValueError, "path"),
        ({**good, "/x": ""}, ValueError, "path"),
        ({**good, "a/nul": ""}, ValueError, "name"),
        ({**good, "a": "", "a/b": ""}, ValueError, "a file and a folder"),
        ({**good, "a": 7}, TypeError, "int"),
        ({**good, 7: ""}, TypeError, "path"),
        ({**good, "a": lambda name: name}, TypeError, "name"),
        ({**good, "a" * 1100: ""}, ValueError, "characters"),
        ({**good, **{f"{number}": "" for number in range(512)}}, ValueError, "513 files"),
        ({**good, "a": b"x" * (16 * 1024 * 1024)}, ValueError, "bytes"),
        ({"SKILL.md": manifest("good", more="x: 1e400\n")}, ValueError, "JSON"),
        ({"SKILL.md": manifest("good", more="metadata: {version: 1.0}\n")}, ValueError, 'write "1.0"'),
        ({"SKILL.md": manifest("good", more="metadata: []\n")}, ValueError, "mapping"),
        ({"SKILL.md": manifest("good", more=f"compatibility: {'c' * 501}\n")}, ValueError, "compatibility"),
    ):
        with pytest.raises(kind, match=said):
            server.add_skill(files)  # type: ignore[arg-type]
    for place in ("..", "/x", "a//b"):
        with pytest.raises(ValueError, match="path"):
            server.add_skill(good, folder=place)
    with pytest.raises(TypeError, match="no option name"):
        server.add_skill(good, name="x")  # type: ignore[call-arg]
    server.add_skill(good)
    with pytest.raises(LocalProtocolError, match="already a skill"):
        server.add_skill(good)
    with pytest.raises(TypeError, match="gateway"):
        Gateway([]).add_skill(good)


def test_what_cannot_be_served_of_a_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("s")
    with pytest.raises(LocalProtocolError, match="no folder of skills"):
        server.add_skills(folder / "nothing")
    (folder / "empty").mkdir()
    with pytest.raises(LocalProtocolError, match=r"has a SKILL\.md"):
        server.add_skills(folder / "empty")
    wrong = folder / "wrong" / "SKILL.md"
    wrong.parent.mkdir()
    wrong.write_text(manifest("right"))
    with pytest.raises(LocalProtocolError, match=r"wrong/SKILL\.md.*called 'wrong', and not 'right'"):
        server.add_skills(folder)
    wrong.write_text("nothing")
    with pytest.raises(LocalProtocolError, match="frontmatter"):
        server.add_skills(folder)
    wrong.unlink()
    monkeypatch.setattr(module, "DEEPEST", 2)
    with pytest.raises(LocalProtocolError, match="2 folders deep"):
        server.add_skills(folder)
    monkeypatch.undo()
    monkeypatch.setattr(module, "MOST_SKILLS", 2)
    with pytest.raises(LocalProtocolError, match="3 skills of"):
        server.add_skills(folder)
    monkeypatch.undo()
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    with pytest.raises(LocalProtocolError, match="100 bytes"):
        server.add_skills(folder)
    monkeypatch.undo()
    server.add_skills(folder)
    with pytest.raises(LocalProtocolError, match="already a skill"):
        server.add_skills(folder)


@pytest.mark.skipif(
    os.name == "nt", reason="links need a right on Windows, and there are no pipes among files"
)
@pytest.mark.parametrize("what", ["link to a file", "link to a folder", "pipe", "hostile name"])
def test_a_folder_leads_nowhere_else(folder: Path, what: str) -> None:
    secret = folder.parent / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    at = folder / "outer" / "x"
    if what == "link to a file":
        at.symlink_to(secret / "key")
    elif what == "link to a folder":
        at.symlink_to(secret)
    elif what == "pipe":
        os.mkfifo(at)
    else:
        (at.parent / "a\\..\\key").write_text("")
    with pytest.raises(LocalProtocolError, match=r"is a link|neither a file|no name of a file"):
        Server("s").add_skills(folder)


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes among files, and links need a right")
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_a_file_that_has_become_something_else_is_not_followed(folder: Path, what: str) -> None:
    file = folder / "outer" / "parts" / "inner" / "a.txt"
    file.unlink()
    if what == "link":
        file.symlink_to(folder / "notes.txt")
    else:
        os.mkfifo(file)
    with pytest.raises(LocalProtocolError, match=r"cannot be read|not a file"):
        module._content(folder, "outer/parts/inner/a.txt")


async def test_changes_of_a_folder_are_noticed_and_clients_are_notified(
    folder: Path, mock_clock: trio.testing.MockClock
) -> None:
    server = Server("s")
    server.add_skills(folder, reload=True)
    changes: list[Event] = []
    async with Client(server, on_change=lambda kind, uri: changes.append(Event(kind, uri))) as client:
        email, logo = "skill://acme/refunds/examples/email.md", "skill://acme/refunds/assets/logo.png"
        async with client.listen(resources=True, uris=(email, logo)) as listener:
            former = await client.get_skill("skill://acme/refunds/SKILL.md")
            (folder / "acme/refunds/examples/email.md").write_text("Hello")
            assert await client.get_skill("skill://acme/refunds/SKILL.md") == former
            mock_clock.jump(1)
            changed = await client.get_skill("skill://acme/refunds/SKILL.md")
            assert changed != former
            assert await client.read_skill_file(changed, "examples/email.md") == b"Hello"
            seen = {await anext(listener), await anext(listener)}
            assert seen == {Event("resources", None), Event("resource_updated", email)}
            # What is wrong now stays as it was, and is said once.
            (folder / "acme/refunds/SKILL.md").write_text("nothing")
            with capture_logs() as lines:
                for _ in range(2):
                    mock_clock.jump(1)
                    assert await client.get_skill("skill://acme/refunds/SKILL.md") == changed
            assert [each["event"] for each in lines] == ["a folder of skills is not read again"]
            (folder / "acme/refunds/SKILL.md").unlink()
            mock_clock.jump(1)
            assert await listed(client) == ["skill://outer/SKILL.md", "skill://outer/parts/inner/SKILL.md"]
            with pytest.raises(ResourceNotFound):
                await client.read_resource(logo)


def test_a_folder_is_looked_at_by_the_clock_of_each_run(folder: Path) -> None:
    server = Server("s")
    server.add_skills(folder, reload=True)

    async def names(after: float) -> set[str]:
        clock.jump(after)
        async with Client(server) as client:
            return {skill.name async for skill in client.skills()}

    clock = trio.testing.MockClock()
    assert trio.run(names, 1000.0, clock=clock) == {"refunds", "outer", "inner"}
    (folder / "acme/refunds/SKILL.md").unlink()
    # The clocks of two runs have nothing in common.
    clock = trio.testing.MockClock()
    assert trio.run(names, 0.0, clock=clock) == {"outer", "inner"}


async def test_without_reload_a_folder_stays_as_it_was_read(
    folder: Path, mock_clock: trio.testing.MockClock
) -> None:
    server = Server("s")
    server.add_skills(folder)
    async with Client(server) as client:
        skill = await client.get_skill("skill://acme/refunds/SKILL.md")
        (folder / "acme/refunds/examples/email.md").write_text("Hello")
        mock_clock.jump(10)
        assert await client.read_skill_file(skill, "examples/email.md") == b"Dear\r\n"


async def test_skills_come_and_go_while_the_server_serves() -> None:
    server = Server("s")
    server.add_skill({"SKILL.md": manifest("first")})
    async with Client(server) as client, client.listen(resources=True) as listener:
        server.add_skill({"SKILL.md": manifest("second"), "in/third/SKILL.md": manifest("third")})
        assert await anext(listener) == Event("resources", None)
        assert len(await listed(client)) == 3
        server.remove_skill("skill://second/SKILL.md")
        assert await anext(listener) == Event("resources", None)
        assert await listed(client) == ["skill://first/SKILL.md"]
        with pytest.raises(LocalProtocolError, match="no skill"):
            server.remove_skill("skill://second/SKILL.md")
    with pytest.raises(LocalProtocolError, match="no skill"):
        Server("t").remove_skill("skill://second/SKILL.md")


async def test_the_first_skills_are_there_before_a_server_serves() -> None:
    server = Server("s")
    async with Client(server):
        with pytest.raises(LocalProtocolError, match="while it serves"):
            server.add_skill({"SKILL.md": manifest("first")})


def test_the_extension_is_declared_once() -> None:
    for server in (
        Server("s", extensions={SKILLS: {}}),
        Server("s", extensions=[ServerExtension(SKILLS)]),
    ):
        with pytest.raises(LocalProtocolError, match="offered already"):
            server.add_skill({"SKILL.md": manifest("first")})
    server = Server("s")
    server.add_skill({"SKILL.md": manifest("first")})
    with pytest.raises(LocalProtocolError, match="offered already"):
        server.add_extension(ServerExtension(SKILLS))


# -- who sees what ---------------------------------------------------------------------------------------------------


def only_staff(caller: Caller, component: Component) -> bool:
    return caller.principal is not None and caller.principal.subject == "staff"


@EACH_ERA
@pytest.mark.parametrize("mounted", [False, True])
async def test_a_skill_is_seen_with_its_files(mounted: bool, era: str) -> None:
    inner = Server("s")
    inner.add_skill({"SKILL.md": manifest("open")})
    inner.add_skill({"SKILL.md": manifest("hidden"), "a/b": ""}, visible=only_staff)
    inner.add_skill({"SKILL.md": manifest("scoped"), "a/b": ""}, scopes=["skills"])
    inner.add_skill({"SKILL.md": manifest("usual"), "a/b": ""}, scopes=["some"])
    server = inner
    if mounted:
        server = Server("host")
        server.mount("m", inner)
    for subject, seen in (("somebody", {"open", "usual"}), ("staff", {"open", "usual", "hidden"})):
        async with client_of(server, subject, era) as client:
            assert {skill.name async for skill in client.skills()} == seen
            assert {each.name async for each in client.resources()} == seen
            for name in ("open", "usual", "hidden", "scoped"):
                uri = f"skill://{name}/SKILL.md"
                if name in seen:
                    assert (await client.get_skill(uri)).name == name
                    assert await children(client, f"skill://{name}")
                else:
                    with pytest.raises(RpcError) as caught:
                        await client.get_skill(uri)
                    is_scoped = name == "scoped"
                    assert isinstance(caught.value, InsufficientScope) == is_scoped
                    assert is_scoped or caught.value.message == f"no skill is served at {uri}"
                    with pytest.raises(RpcError, match="is not a directory"):
                        await children(client, f"skill://{name}")


async def test_a_switch_hides_a_skill_and_shows_it_again() -> None:
    server = Server("s")
    server.add_skill({"SKILL.md": manifest("a")}, tags=["draft"])
    server.add_skill({"SKILL.md": manifest("b")})
    async with Client(server) as client:
        server.hide(tags=["draft"])
        assert await listed(client) == ["skill://b/SKILL.md"]
        with pytest.raises(RpcError, match="no skill"):
            await client.get_skill("skill://a/SKILL.md")
        server.show(tags=["draft"])
        assert await listed(client) == ["skill://a/SKILL.md", "skill://b/SKILL.md"]


async def test_a_resource_that_is_registered_has_its_uri_before_a_skill() -> None:
    server = Server("s")
    server.add_skill({"SKILL.md": manifest("a")})
    server.add_skill({"SKILL.md": manifest("b")})
    server.add_resource("skill://a/SKILL.md", lambda: "another", name="a")
    async with Client(server) as client:
        assert await listed(client) == ["skill://b/SKILL.md"]
        assert (await client.read_resource("skill://a/SKILL.md")).text == "another"


@EACH_ERA
async def test_a_host_has_the_skills_of_all_that_is_mounted_in_it(era: str) -> None:
    host, one, two, plain = (Server(name) for name in ("host", "one", "two", "plain"))
    one.add_skill({"SKILL.md": manifest("a", "of one"), "f": "1"})
    two.add_skill({"SKILL.md": manifest("a", "of two"), "f": "2"})
    two.add_skill({"SKILL.md": manifest("b")})
    two.add_skill({"SKILL.md": manifest("c")})
    host.mount("one", one)
    host.mount("two", two, exclude=["skill://c/*"])
    outer = Server("outer")
    outer.mount("host", host)
    outer.mount("plain", plain)
    async with Client(outer, era=era) as client:
        skills = [skill async for skill in client.skills()]
        assert [(each.name, each.description) for each in skills] == [("a", "of one"), ("b", "Does it")]
        assert await client.read_skill_file(skills[0], "f") == b"1"
        with pytest.raises(RpcError, match="no skill"):
            await client.get_skill("skill://c/SKILL.md")
        host.unmount("one")
        assert (await client.get_skill("skill://a/SKILL.md")).description == "of two"
        # The host of a server that gets its first skills offers some already.
        plain.add_skill({"SKILL.md": manifest("z")})
        assert {skill.name async for skill in client.skills()} == {"a", "b", "z"}


async def test_a_server_that_serves_takes_no_first_skills_with_a_mount() -> None:
    host, one = Server("host"), Server("one")
    one.add_skill({"SKILL.md": manifest("a")})
    async with Client(host):
        with pytest.raises(LocalProtocolError, match="first ones while it serves"):
            host.mount("one", one)
