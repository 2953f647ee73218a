"""Pages on which a person approves calls of tools, where the program that calls must not answer for its person.

::

    pages = ApprovalPages("https://mcp.example.org/approvals")
    server = Server("disk", extensions=[pages])

    @server.tool(confirm="Delete {path}?", confirm_by="page")
    async def delete(path: str) -> str: ...

    transport = HttpServerTransport("http://127.0.0.1:8000/mcp", routes={"/approvals": pages})

The client is asked to open a page of the server (MCP 2026-07-28, Elicitation, URL mode), which shows the question, and
two buttons. What the client says of the visit approves nothing. The address of the page has the id of the question,
which is unguessable; a program that opens it could still press the button, so ``person=`` finds out who looks at it.
"""

from __future__ import annotations

import html
import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec
import trio

from mcp_actors._server.approvals import APPROVAL_TIME, APPROVALS
from mcp_actors._server.server_extension import ServerExtension, Serving
from mcp_actors.abc import OpenState
from mcp_actors.errors import SharedStateUnavailable

__all__ = ["ApprovalPages"]

Decision = Literal["accept", "decline"]
Person = Callable[[Mapping[str, Any]], "str | Awaitable[str | None] | None"]

# Bytes of the longest form that is read; the page sends one word.
_LONGEST_FORM = 1024
_LONGEST_ID = 64
# Seconds between two looks at a question, at first and at last.
_FIRST_PAUSE, _LAST_PAUSE = 0.2, 1.0


class _ShownQuestion(msgspec.Struct, frozen=True):
    """A question as the shared state has it."""

    message: str
    subject: str | None
    """Who has to answer it: the caller, if that is authenticated."""
    decision: Decision | None = None


class ApprovalPages(ServerExtension):
    """Shows a person what a call would do, and takes the answer: an ASGI application, and an extension of its server.

    It is mounted at a route of the server, or in any other ASGI application in the same process; where several
    processes serve, at each of them, with the same shared state.

    Args:
        url: The address of the page, as a person's browser reaches it.
        person: ``f(scope)``, sync or async, is given the ASGI scope of each request for the page, and returns the
            subject of the person who made it, as a login of yours knows it, or ``None`` for nobody. It has to be the
            subject of the caller's principal. Without it whoever has the address may answer.

    Raises:
        ValueError: The address is none of HTTP.
    """

    def __init__(self, url: str, *, person: Person | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(
                f"url={url!r}: write the address of the page, such as https://example.org/approvals"
            )
        super().__init__(APPROVALS)
        self._url = url
        self._origin = f"{parts.scheme}://{parts.netloc}".lower()
        self._person = person
        self._states: list[OpenState] = []
        self.serving(self._serve)

    @asynccontextmanager
    async def _serve(self, serving: Serving) -> Any:
        self._states.append(serving.shared)
        try:
            yield
        finally:
            self._states.remove(serving.shared)

    # -- for the call --------------------------------------------------------------------------------------------------

    def address(self, id: str) -> str:
        """Returns the address at which a question is shown."""
        return f"{self._url}?id={id}"

    async def open(self, id: str, message: str, subject: str | None) -> None:
        """Shows a question from now on, for `APPROVAL_TIME` seconds; raises `SharedStateUnavailable`."""
        data = msgspec.json.encode(_ShownQuestion(message, subject))
        await self._states[0].values.replace(_place(id), None, data, APPROVAL_TIME)

    async def decision(self, id: str, seconds: float) -> Decision | None:
        """Returns what the person has decided, ``None`` after so many seconds; raises `SharedStateUnavailable`."""
        pause = _FIRST_PAUSE
        with trio.move_on_after(seconds):
            while True:
                _, question = await self._question(id)
                if question is None or question.decision is not None:
                    return None if question is None else question.decision
                await trio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE)
        return None

    async def _question(self, id: str) -> tuple[bytes | None, _ShownQuestion | None]:
        data = await self._states[0].values.load(_place(id))
        return data, None if data is None else msgspec.json.decode(data, type=_ShownQuestion)

    # -- for the browser -----------------------------------------------------------------------------------------------

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answers one request of a browser (ASGI)."""
        if scope["type"] != "http":
            return
        status, body = await self._answer(scope, receive)
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", _POLICY.encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body.encode()}
        )

    async def _answer(self, scope: Mapping[str, Any], receive: Any) -> tuple[int, str]:
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, _page("This page is for reading and answering.")
        ids = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=10).get("id", [""])
        try:
            data, question = (None, None)
            if self._states and 0 < len(ids[0]) <= _LONGEST_ID:
                data, question = await self._question(ids[0])
            if question is None or data is None:
                return 404, _page("There is no such question, or its time is over.")
            if self._person is not None:
                found = self._person(scope)
                who = await found if inspect.isawaitable(found) else found
                if (
                    who is None
                    or question.subject is None
                    or not secrets.compare_digest(who.encode(), question.subject.encode())
                ):
                    return 403, _page(
                        "This question is for somebody else: log in as the person who asked for it."
                    )
            if scope["method"] != "POST":
                return 200, _page(question.message, question.decision, asks=question.decision is None)
            return await self._taken(ids[0], data, question, scope, receive)
        except SharedStateUnavailable:
            return 503, _page("The answer cannot be taken now: try again.")

    async def _taken(
        self, id: str, data: bytes, question: _ShownQuestion, scope: Mapping[str, Any], receive: Any
    ) -> tuple[int, str]:
        headers = {name.lower(): value for name, value in scope["headers"]}
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        # Another site must not press the button (CSRF). Browsers send it with each form that is posted.
        if origin != self._origin:
            return 403, _page("The answer did not come from this page.")
        action = parse_qs((await _body(receive)).decode("latin-1"), max_num_fields=10).get("action", [""])[0]
        if action not in ("accept", "decline"):
            return 400, _page("The answer is neither yes nor no.")
        if question.decision is None:
            decided = msgspec.structs.replace(question, decision=action)
            # The later of two answers changes nothing.
            await self._states[0].values.replace(
                _place(id), data, msgspec.json.encode(decided), APPROVAL_TIME
            )
            _, now = await self._question(id)
            question = now or decided
        return 200, _page(question.message, question.decision)


def _place(id: str) -> str:
    return f"question {id}"


async def _body(receive: Any) -> bytes:
    body: bytes = b""
    while len(body) <= _LONGEST_FORM:
        event = await receive()
        if event["type"] != "http.request":
            return b""
        body += event.get("body", b"")
        if not event.get("more_body", False):
            return body
    return b""


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem;color-scheme:light dark}"
    "blockquote{font-size:1.2em;margin:1.5rem 0;padding:.5rem 1rem;border-left:4px solid;overflow-wrap:anywhere}"
    "button{font:inherit;padding:.6rem 1.6rem;margin-right:1rem}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
_DECIDED = {"accept": "Approved. You can close this page.", "decline": "Declined. You can close this page."}


def _page(message: str, decision: str | None = None, *, asks: bool = False) -> str:
    tag = "blockquote" if asks or decision else "p"
    quoted = f"<{tag}>{html.escape(message)}</{tag}>"
    form = (
        '<form method="post"><button name="action" value="accept">Approve</button>'
        '<button name="action" value="decline">Decline</button></form>'
        if asks
        else ""
    )
    said = f"<p>{_DECIDED[decision]}</p>" if decision else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Approval</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style><h1>Approval</h1>{quoted}{form}{said}</html>"
    )
