"""What goes wrong, and what each era's client is told about it: never more than it may know."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
import trio
from msgspec import Meta

from mcp_actors import Client, ResourceNotFound, RpcError, Server, ToolError
from mcp_actors.testing import raw_client

from .peers import EVERY, MODERN, ask, begin, call, fail, scripted


class Secret(Exception):
    """Its text must not reach anybody."""


MASKED = "{}: failed; the server's operator finds the reason under the reference [0-9a-f]{{8}}"


def make_server(mask_errors: bool | None = None) -> Server:
    server = Server("s", mask_errors=mask_errors)

    @server.tool
    async def book(city: str, days: Annotated[int, Meta(ge=1, le=14)] = 3) -> str:
        """Books."""
        return city * days

    @server.tool
    async def crash() -> str:
        """Crashes."""
        raise Secret("the password is swordfish")

    @server.tool
    async def refuse() -> str:
        """Fails in a way the model may know."""
        raise ToolError("no rooms left")

    @server.tool
    async def numbered() -> str:
        """Fails in a way of its own."""
        raise RpcError(1234, "mine", {"a": 1})

    @server.tool
    async def unspeakable() -> object:
        """Returns what JSON cannot say."""
        return {"socket": object()}

    @server.tool
    async def not_a_number() -> float:
        """Returns what JSON cannot say."""
        return float("nan")

    @server.tool(inline=True)
    def crash_inline() -> str:
        """Crashes on the spot."""
        raise Secret("the password is swordfish")

    server.add_resource("x://crash", crash, name="crash")
    server.add_resource(
        "x://{name}", lambda name: (_ for _ in ()).throw(ResourceNotFound(f"x://{name}")), name="n"
    )
    server.add_prompt(crash, name="crash")

    @server.prompt
    async def greet(name: str) -> str:
        """Greets."""
        return name

    return server


@pytest.mark.parametrize("version", EVERY)
class TestEachRevision:
    async def test_params_of_the_wrong_form(self, version: str) -> None:
        """One row for each method; every wrong form of its params stands with the method in ``server/``."""
        rows: list[tuple[str, Any]] = [
            ("tools/call", {"name": "unknown"}),
            ("resources/read", {}),
            ("prompts/get", {"name": "greet"}),
            ("tools/list", {"cursor": "nonsense"}),
            ("completion/complete", {"ref": {"type": "ref/prompt", "name": "greet"}}),
        ]
        if version != MODERN:
            rows += [
                ("logging/setLevel", {}),
                ("logging/setLevel", {"level": "loud"}),
                ("logging/setLevel", {"level": []}),
            ]
            rows += [("resources/subscribe", {}), ("resources/subscribe", {"uri": 1})]
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            for id, (method, params) in enumerate(rows):
                error = (await ask(peer, version, f"r{id}", method, params))["error"]
                assert error["code"] == -32602, (method, params)

    async def test_wrong_arguments_reach_the_model_and_name_the_argument(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            rows: list[tuple[dict[str, Any], str]] = [
                ({}, "city"),
                ({"city": "x", "days": 0}, "days"),
                ({"city": "x", "day": 3}, "day"),
            ]
            for id, (arguments, culprit) in enumerate(rows):
                result = (await call(peer, version, f"r{id}", "book", **arguments))["result"]
                assert result["isError"] is True
                assert culprit in result["content"][0]["text"], arguments
                assert "structuredContent" not in result

    @pytest.mark.parametrize("name", ["crash", "crash_inline", "unspeakable", "not_a_number"])
    async def test_a_crash_that_is_masked_names_the_tool_alone(self, version: str, name: str) -> None:
        async with raw_client(make_server(mask_errors=True)) as peer:
            await begin(peer, version)
            result = (await call(peer, version, 1, name))["result"]
            assert result["isError"] is True
            [block] = result["content"]
            assert re.fullmatch(MASKED.format(name), block["text"])
            assert "result" in await call(peer, version, 2, "book", city="x")  # the session lives

    async def test_a_crash_elsewhere_that_is_masked_names_what_was_asked_for(self, version: str) -> None:
        async with raw_client(make_server(mask_errors=True)) as peer:
            await begin(peer, version)
            for method, params in (
                ("resources/read", {"uri": "x://crash"}),
                ("prompts/get", {"name": "crash"}),
            ):
                error = (await ask(peer, version, method, method, params))["error"]
                assert error["code"] == -32603
                assert re.fullmatch(MASKED.format("(resource x://crash|prompt crash)"), error["message"])

    async def test_failures_on_purpose(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            result = (await call(peer, version, 1, "refuse"))["result"]
            assert result["isError"] is True
            assert result["content"] == [{"type": "text", "text": "no rooms left"}]
            error = (await call(peer, version, 2, "numbered"))["error"]
            assert error == {"code": 1234, "message": "mine", "data": {"a": 1}}

    async def test_a_resource_that_is_not_there(self, version: str) -> None:
        code = -32602 if version == MODERN else -32002
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            for id, uri in enumerate(("y://unknown", "x://gone")):
                error = (await ask(peer, version, id, "resources/read", {"uri": uri}))["error"]
                assert error["code"] == code
                assert error["data"] == {"uri": uri}
            if version != MODERN:
                error = (await ask(peer, version, 9, "resources/subscribe", {"uri": "y://unknown"}))["error"]
                assert (error["code"], error["data"]) == (-32002, {"uri": "y://unknown"})

    async def test_the_client_has_one_exception_for_it(self, version: str) -> None:
        async with Client(make_server(), era=version) as client:
            with pytest.raises(ResourceNotFound) as missing:
                await client.read_resource("y://unknown")
            assert missing.value.data == {"uri": "y://unknown"}

    @pytest.mark.parametrize(
        "method", ["acme/unknown", "tasks/get", "tasks/list", "notifications/initialized"]
    )
    async def test_unknown_methods(self, version: str, method: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            assert (await ask(peer, version, 1, method))["error"]["code"] == -32601


@pytest.mark.parametrize("code", [-32002, -32602])
@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_a_client_takes_either_code_for_not_found(version: str, code: int) -> None:
    async with scripted(version) as (client, peer):
        found: list[BaseException] = []

        async def read() -> None:
            with pytest.raises(ResourceNotFound) as missing:
                await client.read_resource("x://a")
            found.append(missing.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await fail(peer, await peer.receive(), code, {"uri": "x://a"})
        assert len(found) == 1


async def test_other_invalid_params_are_no_missing_resource() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(RpcError) as refused:
                await client.read_resource("x://a")
            assert not isinstance(refused.value, ResourceNotFound)

        nursery.start_soon(read)
        await fail(peer, await peer.receive(), -32602, {"uri": "x://other"})


@pytest.mark.parametrize("version", EVERY)
async def test_a_tool_error_raised_in_the_tools_own_nursery_reaches_the_model(version: str) -> None:
    server = Server("s")

    async def fails() -> None:
        raise ToolError("no rooms left")

    @server.tool
    async def book() -> str:
        """Works in parallel."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            await trio.sleep_forever()
        return ""

    async with Client(server, era=version) as client:
        result = await client.call_tool("book")
    assert result.is_error
    assert [block.text for block in result.content] == ["no rooms left"]  # type: ignore[union-attr]


async def test_what_a_failing_handler_had_in_its_hands_is_not_written_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server("s")

    @server.tool
    async def crash() -> str:
        """Crashes."""
        password = "swordfish".upper()
        raise RuntimeError(len(password))

    async with Client(server) as client:
        assert (await client.call_tool("crash")).is_error
    assert "SWORDFISH" not in capsys.readouterr().err
