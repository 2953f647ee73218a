"""Pages for approvals: what the program of a person says of the visit approves nothing."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
import trio.testing

from mcp_actors import Client, Server
from mcp_actors.errors import LocalProtocolError, SharedStateUnavailable
from mcp_actors.extensions import ApprovalPages
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.shared.memory import MemoryValueStore
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams
from mcp_transports.http.server import HttpServerTransport
from tests.server.asking import KEY as STATE_KEY
from tests.server.test_access import Authenticating

ERAS = ["2025-11-25", "2026-07-28"]
ADDRESS = "https://mcp.example.org/approvals"
ORIGIN = "https://mcp.example.org"


class Page:
    """A browser at the pages, without a network."""

    def __init__(self, pages: ApprovalPages) -> None:
        self.pages = pages
        self.headers: dict[str, str] = {}

    async def request(
        self, method: str, url: str, body: bytes = b"", origin: str | None = ORIGIN
    ) -> tuple[int, str]:
        headers = [] if origin is None else [(b"origin", origin.encode())]
        scope = {
            "type": "http",
            "method": method,
            "query_string": urlsplit(url).query.encode(),
            "headers": headers,
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(event: Any) -> None:
            sent.append(event)

        await self.pages(scope, receive, send)
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], sent[1]["body"].decode()

    async def read(self, url: str) -> str:
        status, text = await self.request("GET", url)
        assert status == 200
        return text

    async def press(self, url: str, action: str, origin: str | None = ORIGIN) -> int:
        status, _ = await self.request("POST", url, f"action={action}".encode(), origin)
        return status


class Disk:
    def __init__(self, **options: Any) -> None:
        self.pages = ApprovalPages(ADDRESS, **options)
        self.page = Page(self.pages)
        self.server = Server("disk", state_key=STATE_KEY, extensions=[self.pages], mask_errors=False)
        self.deleted: list[str] = []
        self.asked: list[ElicitUrlParams] = []

        @self.server.tool(confirm="Delete {path}?", confirm_by="page")
        async def delete(path: str) -> str:
            self.deleted.append(path)
            return f"deleted {path}"

    async def opens(self, question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        """A program that says that its person has opened the page."""
        assert isinstance(question, ElicitUrlParams)
        self.asked.append(question)
        return ElicitResult("accept")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_person_decides_on_the_page(action: str, era: str, autojump_clock: Any) -> None:
    disk = Disk()

    async def person(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        result = await disk.opens(question)
        url = disk.asked[-1].url
        assert url.startswith(f"{ADDRESS}?id=")
        assert "<blockquote>Delete a&lt;b&gt;?</blockquote>" in await disk.page.read(url)
        assert await disk.page.press(url, action) == 200
        text = await disk.page.read(url)
        assert ("Approved." in text) == (action == "accept")
        assert "<button" not in text
        return result

    async with Client(disk.server, era=era, elicitation=person) as client:
        result = await client.call_tool("delete", {"path": "a<b>"})
    if action == "accept":
        assert (result.text, disk.deleted) == ("deleted a<b>", ["a<b>"])
    else:
        assert "the person has declined it" in result.text
        assert disk.deleted == []


@pytest.mark.parametrize("era", ERAS)
async def test_what_a_program_says_approves_nothing(era: str, autojump_clock: Any) -> None:
    disk = Disk()
    async with Client(disk.server, era=era, elicitation=disk.opens, timeout=1e4) as client:
        if era == ERAS[0]:
            assert (
                "nobody has approved it in time"
                in (await client.call_tool("delete", {"path": "a"}, cap=1e4)).text
            )
        else:
            # Each round waits for a while, and then the person is asked to open the same page.
            with pytest.raises(Exception, match="still asks for input"):
                await client.call_tool("delete", {"path": "a"}, cap=1e4)
            assert len({each.url for each in disk.asked}) == 1
    assert disk.deleted == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_person_takes_time(era: str, autojump_clock: Any) -> None:
    disk = Disk()
    async with Client(disk.server, era=era, elicitation=disk.opens, timeout=1e4) as client:
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                assert (await client.call_tool("delete", {"path": "a"}, cap=1e4)).text == "deleted a"

            nursery.start_soon(call)
            await trio.sleep(50)
            assert disk.deleted == []
            assert await disk.page.press(disk.asked[0].url, "accept") == 200
    assert disk.deleted == ["a"]


async def question_of(disk: Disk, nursery: trio.Nursery, client: Client) -> str:
    nursery.start_soon(partial(client.call_tool, "delete", {"path": "a"}, cap=1e4))
    await trio.testing.wait_all_tasks_blocked()
    return disk.asked[0].url


async def test_only_the_page_itself_answers(autojump_clock: Any) -> None:
    disk = Disk()
    async with Client(disk.server, era=ERAS[0], elicitation=disk.opens, timeout=1e4) as client:
        async with trio.open_nursery() as nursery:
            url = await question_of(disk, nursery, client)
            for origin in (
                None,
                "null",
                "https://evil.example",
                "http://mcp.example.org",
                ORIGIN + ".evil.example",
            ):
                assert await disk.page.press(url, "accept", origin) == 403
            assert (await disk.page.request("GET", url))[0] == 200
            assert (await disk.page.request("HEAD", url)) == (200, "")
            assert (await disk.page.request("DELETE", url))[0] == 405
            for body in (b"", b"action=yes", b"action=accept" + b"x" * 2000, b"\xff\xfe"):
                assert (await disk.page.request("POST", url, body))[0] == 400
            for other in (
                f"{ADDRESS}?id=",
                ADDRESS,
                f"{ADDRESS}?id={'x' * 22}",
                f"{ADDRESS}?id={'x' * 9999}",
            ):
                assert (await disk.page.request("GET", other))[0] == 404
                assert await disk.page.press(other, "accept") == 404
            assert disk.deleted == []
            # The first answer counts.
            assert await disk.page.press(url, "decline") == 200
            assert await disk.page.press(url, "accept") == 200
            assert "Declined." in await disk.page.read(url)
    assert disk.deleted == []


async def test_the_page_gives_nothing_away(autojump_clock: Any) -> None:
    disk = Disk()
    async with Client(disk.server, era=ERAS[0], elicitation=disk.opens, timeout=1e4) as client:
        async with trio.open_nursery() as nursery:
            url = await question_of(disk, nursery, client)
            text = await disk.page.read(url)
            assert not re.search(r"<script|http|id=", text)
            assert disk.page.headers["cache-control"] == "no-store"
            assert "frame-ancestors 'none'" in disk.page.headers["content-security-policy"]
            assert disk.page.headers["referrer-policy"] == "no-referrer"
            nursery.cancel_scope.cancel()


async def test_the_question_is_for_its_caller(autojump_clock: Any) -> None:
    looking: list[str | None] = ["bob"]

    async def person(scope: Mapping[str, Any]) -> str | None:
        return looking[0]

    disk = Disk(person=person)
    transport = Authenticating(Principal("ann"))
    async with trio.open_nursery() as nursery:
        await nursery.start(disk.server.serve, transport)
        async with Client(transport, elicitation=disk.opens, timeout=1e4) as client:
            async with trio.open_nursery() as calls:
                url = await question_of(disk, calls, client)
                for who in ("bob", None, "", "Ann"):
                    looking[0] = who
                    status, text = await disk.page.request("GET", url)
                    assert status == 403
                    assert "Delete" not in text
                    assert await disk.page.press(url, "accept") == 403
                looking[0] = "ann"
                assert await disk.page.press(url, "accept") == 200
        nursery.cancel_scope.cancel()
    assert disk.deleted == ["a"]


async def test_without_a_caller_nobody_is_the_right_person(autojump_clock: Any) -> None:
    disk = Disk(person=lambda scope: "ann")
    async with Client(disk.server, era=ERAS[0], elicitation=disk.opens, timeout=1e4) as client:
        async with trio.open_nursery() as nursery:
            url = await question_of(disk, nursery, client)
            assert await disk.page.press(url, "accept") == 403
            nursery.cancel_scope.cancel()
    assert disk.deleted == []


async def test_a_shared_state_that_is_away_is_said(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()

    def away(*arguments: Any) -> None:
        raise SharedStateUnavailable("values", "away")

    async with Client(disk.server, era=ERAS[0], elicitation=disk.opens, timeout=1e4) as client:
        async with trio.open_nursery() as nursery:
            url = await question_of(disk, nursery, client)
            monkeypatch.setattr(MemoryValueStore, "found", away)
            assert (await disk.page.request("GET", url))[0] == 503
            monkeypatch.undo()
            nursery.cancel_scope.cancel()


async def test_a_gateway_has_pages_too(autojump_clock: Any) -> None:
    disk = Disk()
    plain, pages = Server("plain"), ApprovalPages(ADDRESS)
    done: list[str] = []

    @plain.tool
    async def remove() -> str:
        done.append("removed")
        return "removed"

    gateway = Gateway(
        [Upstream(name="x", target=plain, confirm=["*"], confirm_by="page")], extensions=[pages]
    )

    async def person(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        result = await disk.opens(question)
        await Page(pages).press(disk.asked[-1].url, "accept")
        return result

    async with Client(gateway, elicitation=person) as client:
        assert (await client.call_tool("x_remove")).text == "removed"
    assert done == ["removed"]


async def test_over_a_real_route() -> None:
    disk = Disk()
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", routes={"/approvals": disk.pages})
    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(disk.server.serve, transport)
        port = urlsplit(str(where)).port
        assert port is not None

        async def person(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
            result = await disk.opens(question)
            path = disk.asked[-1].url.removeprefix(ORIGIN)
            head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n"
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(head.encode())
                answer = b"".join([each async for each in stream]).decode()
            assert answer.startswith("HTTP/1.1 200")
            assert "Delete a?" in html.unescape(answer)
            await disk.page.press(disk.asked[-1].url, "accept")
            return result

        async with Client(str(where), elicitation=person) as client:
            assert (await client.call_tool("delete", {"path": "a"}, cap=1e4)).text == "deleted a"
        nursery.cancel_scope.cancel()


def test_a_server_without_pages_says_so() -> None:
    with pytest.raises(LocalProtocolError, match=r"write Server\(extensions=\[ApprovalPages"):
        Server("s").add_tool(lambda: None, name="x", confirm="Sure?", confirm_by="page")


@pytest.mark.parametrize(
    "url", ["example.org/x", "ftp://example.org", "https://", "https://example.org/a?b=1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="write the address of the page"):
        ApprovalPages(url)


def test_a_way_to_ask_is_a_form_or_a_page() -> None:
    with pytest.raises(ValueError, match='write "form" or "page"'):
        Server("s").add_tool(lambda: None, name="x", confirm="Sure?", confirm_by="mail")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="confirm_by"):
        Upstream(name="x", target=Server("s"), confirm_by="mail")  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="extension"):
        Server("s", extensions=[ApprovalPages(ADDRESS), ApprovalPages(ADDRESS)])
