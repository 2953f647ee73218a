"""Skills behind a gateway (SEP-2640): each upstream's in a folder of its own, and their files as they are."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors import Client, ResourceNotFound, RpcError, Server
from mcp_actors.client import Event
from mcp_actors.errors import InsufficientScope, UpstreamMisbehaved
from mcp_actors.gateway import Gateway, Upstream
from tests.server.test_visibility import client_of

SKILLS = "io.modelcontextprotocol/skills"
EACH_ERA = pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])


def manifest(name: str, description: str = "Does it") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n"


def shop(text: str, *more: str) -> Server:
    server = Server(text)
    server.add_skill({"SKILL.md": manifest("refunds", text), "a/b c.md": text})
    for name in more:
        server.add_skill({"SKILL.md": manifest(name)})
    return server


def upstream(name: str, target: Any, **settings: Any) -> Upstream:
    return Upstream(name=name, target=target, **settings)


async def listed(client: Client) -> list[str]:
    return [skill.uri async for skill in client.skills()]


@pytest.mark.parametrize("upstream_era", ["legacy", "modern"])
@EACH_ERA
async def test_skills_of_two_servers_are_kept_apart(era: str, upstream_era: str) -> None:
    one, two = shop("one"), shop("two", "zoo")
    gateway = Gateway(
        [
            upstream("a", one, era=upstream_era),
            upstream("b", two, era=upstream_era),
            upstream("c", Server("plain")),
        ]
    )
    async with Client(gateway, era=era) as client:
        assert (client.server_capabilities.extensions or {})[SKILLS] == {"directoryRead": True}
        skills = [skill async for skill in client.skills()]
        assert [(each.uri, each.description) for each in skills] == [
            ("skill://a/refunds/SKILL.md", "one"),
            ("skill://b/refunds/SKILL.md", "two"),
            ("skill://b/zoo/SKILL.md", "Does it"),
        ]
        assert [each.uri async for each in client.resources()] == [each.uri for each in skills]
        for skill in skills[:2]:
            assert await client.load_skill(skill) == manifest("refunds", skill.description)
            assert await client.read_skill_file(skill, "a/b c.md") == skill.description.encode()
            assert await client.get_skill(skill.uri) == skill
            assert [each.uri async for each in client.directory(f"{skill.root}/a")] == [
                f"{skill.root}/a/b%20c.md"
            ]
            read = await client.read_resource(skill.uri)
            assert [each.uri for each in read.contents] == [skill.uri]


@EACH_ERA
async def test_what_no_server_has_is_not_found(era: str) -> None:
    gateway = Gateway([upstream("a", shop("one")), upstream("b", shop("two"))])
    async with Client(gateway, era=era) as client:
        for uri in ("skill://a/nothing/SKILL.md", "skill://nothing/SKILL.md", "skill://c/refunds/SKILL.md"):
            with pytest.raises(ResourceNotFound) as missing:
                await client.read_resource(uri)
            assert missing.value.uri == uri
            with pytest.raises(RpcError, match="no skill is served") as caught:
                await client.get_skill(uri)
            assert caught.value.code == -32602
        for uri in ("skill://a", "skill://a/refunds/SKILL.md", "skill://b/refunds/nothing"):
            with pytest.raises(RpcError, match="director") as caught:
                await anext(client.directory(uri))
            assert caught.value.code == -32602


async def test_a_uri_that_stands_in_a_text_of_a_server_is_found() -> None:
    gateway = Gateway([upstream("a", shop("one")), upstream("b", shop("two", "zoo"))])
    async with Client(gateway) as client:
        skill = await client.get_skill("skill://zoo/SKILL.md")
        assert skill.uri == "skill://zoo/SKILL.md"
        assert await client.load_skill(skill) == manifest("zoo")
        assert (await client.get_skill("skill://refunds/SKILL.md")).description == "one"


@EACH_ERA
async def test_a_server_without_a_prefix_keeps_its_uris(era: str) -> None:
    server = shop("one")
    gateways = (
        Gateway([upstream("a", server, prefix=""), upstream("b", shop("two"))]),
        Gateway([upstream("bridge", server, prefix="")], presents=True),
    )
    for gateway in gateways:
        async with Client(gateway, era=era) as client:
            assert (client.server_capabilities.extensions or {})[SKILLS] == {"directoryRead": True}
            skills = [skill async for skill in client.skills()]
            assert skills[0].uri == "skill://refunds/SKILL.md"
            assert await client.read_skill_file(skills[0], "a/b c.md") == b"one"
            assert await client.get_skill(skills[0].uri) == skills[0]
            children = [each.uri async for each in client.directory("skill://refunds")]
            assert children == ["skill://refunds/SKILL.md", "skill://refunds/a"]


@EACH_ERA
async def test_a_gateway_without_skills_declares_none(era: str) -> None:
    async with Client(Gateway([upstream("a", Server("plain"))]), era=era) as client:
        assert SKILLS not in (client.server_capabilities.extensions or {})


async def test_a_server_that_was_never_met_may_have_skills() -> None:
    gateway = Gateway([upstream("a", shop("one"), lazy=True)])
    async with Client(gateway) as client:
        assert (client.server_capabilities.extensions or {})[SKILLS] == {}
        assert (await client.get_skill("skill://a/refunds/SKILL.md")).description == "one"


async def test_folders_can_be_read_where_all_servers_can() -> None:
    other = Server("other", extensions={SKILLS: {}}, capabilities=["resources"])

    async def nothing(params: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"skills": []}

    other.method("skills/list")(nothing)
    async with Client(Gateway([upstream("a", shop("one")), upstream("b", other)])) as client:
        assert (client.server_capabilities.extensions or {})[SKILLS] == {}
        with pytest.raises(RpcError, match="no directory"):
            await client.request("resources/directory/read", {"uri": "skill://b/x"})


async def test_patterns_and_rules_say_which_skills_are_there() -> None:
    def visible(principal: Any, upstream: str, kind: str, name: str) -> bool:
        return (kind, name) != ("resources", "skill://ruled/SKILL.md")

    server = shop("one", "excluded", "ruled")
    settings = {"exclude": ["skill://excluded/*"]}
    gateway = Gateway([upstream("a", server, **settings)], visible=visible)
    async with Client(gateway) as client:
        assert await listed(client) == ["skill://a/refunds/SKILL.md"]
        for name in ("excluded", "ruled"):
            with pytest.raises(RpcError, match="no skill"):
                await client.get_skill(f"skill://a/{name}/SKILL.md")
            with pytest.raises(ResourceNotFound):
                await client.read_resource(f"skill://a/{name}/SKILL.md")


@EACH_ERA
async def test_scopes_of_a_server_are_needed_for_its_skills(era: str) -> None:
    gateway = Gateway([upstream("a", shop("one"), scopes=["skills"]), upstream("b", shop("two"))])
    async with client_of(gateway, "somebody", era) as client:
        assert await listed(client) == ["skill://b/refunds/SKILL.md"]
        for ask in (client.get_skill, client.read_resource):
            with pytest.raises(InsufficientScope):
                await ask("skill://a/refunds/SKILL.md")


@EACH_ERA
async def test_changes_are_passed_on(era: str) -> None:
    server = shop("one")
    gateway = Gateway([upstream("a", server)])
    uri = "skill://a/refunds/SKILL.md"
    async with Client(gateway, era=era) as client, client.listen(resources=True, uris=(uri,)) as listener:
        assert await listed(client) == [uri]
        server.resource_updated("skill://refunds/SKILL.md")
        assert await anext(listener) == Event("resource_updated", uri)
        server.add_skill({"SKILL.md": manifest("second")})
        assert await anext(listener) == Event("resources", None)
        assert await listed(client) == [uri, "skill://a/second/SKILL.md"]


async def test_a_gateway_behind_a_gateway_puts_its_folder_before() -> None:
    inner = Gateway([upstream("a", shop("one"))])
    async with Client(Gateway([upstream("outer", inner)])) as client:
        (skill,) = [each async for each in client.skills()]
        assert skill.uri == "skill://outer/a/refunds/SKILL.md"
        assert await client.read_skill_file(skill, "a/b c.md") == b"one"


async def test_an_answer_that_is_no_skill_is_that_of_the_server() -> None:
    server = Server("s", extensions={SKILLS: {}}, capabilities=["resources"])

    async def get(params: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"skill": {"uri": params["uri"]}}

    async def some(params: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"skills": [{"uri": "skill://x/SKILL.md"}, 7]}

    server.method("skills/get")(get)
    server.method("skills/list")(some)
    async with Client(Gateway([upstream("a", server)])) as client:
        assert await listed(client) == []
        with pytest.raises(RpcError) as caught:
            await client.get_skill("skill://a/x/SKILL.md")
        assert caught.value.code == UpstreamMisbehaved.CODE
