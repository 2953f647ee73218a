"""A conversation by single HTTP requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from mcp_actors._eras.era import Era
from mcp_actors._wire.codec import encode_value
from mcp_actors.abc import HttpAnswer, HttpEvent, HttpRequests
from mcp_actors.cli.inspect.conversation import (
    Enough,
    Headers,
    Malformed,
    Record,
    ServerAnswer,
    is_id,
    is_reply,
    notification_message,
    read_messages,
    request_message,
    same_id,
    shown,
)
from mcp_actors.errors import AuthorizationError, ConnectFailed, McpError

__all__ = ["SESSION_HEADER", "VERSION_HEADER", "HttpConversation"]

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
# Seconds that a stream of events has to end after the response that it was for.
LINGER = 1.0
# Bytes that are kept of a body that answers no request, such as metadata.
MAX_BODY = 64 * 1024


class HttpConversation:
    """A conversation by single HTTP requests.

    Args:
        requests: Makes the requests.
        era: The revision that is spoken.
        record: Takes all answers.
    """

    is_http = True

    def __init__(self, requests: HttpRequests, era: Era, record: Record) -> None:
        self.era = era
        self.requests = requests
        self.session: str | None = None
        self.initialized = era.asks_by_retry
        """Whether the revision is agreed on, so that its header is sent."""
        self._record = record

    def __repr__(self) -> str:
        return f"<HttpConversation in {self.era.version}{', in a session' if self.session else ''}>"

    @property
    def has_ended(self) -> bool:
        """See `Conversation.has_ended`: each request has a response of its own."""
        return False

    def headers(self, method: str | None, params: Mapping[str, Any]) -> dict[str, str]:
        """Returns the headers that the revision wants of a POST, or with ``None`` of a GET or DELETE."""
        found = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if method is None:
            found = {"accept": "text/event-stream"}
        if method is not None and self.era.client.mirrored is not None:
            found.update(self.era.client.mirrored(self.era.version, method, params))
        elif self.initialized and self.era.mirrors_version:
            found[VERSION_HEADER] = self.era.version
        if self.session is not None:
            found[SESSION_HEADER] = self.session
        return found

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: int | str | None = None,
        meta: Mapping[str, Any] | None = None,
        headers: Headers | None = None,
        enough: Enough | None = None,
        keep: bool = True,
    ) -> ServerAnswer:
        """See `Conversation.ask`."""
        own = self._record.next_id() if id is None else id
        message = request_message(self.era, own, method, params, meta)
        return await self.post(
            encode_value(message),
            method,
            (own,),
            _replaced(self.headers(method, params or {}), headers),
            enough=enough,
            meta=message.get("params", {}).get("_meta", {}),
            keep=keep,
        )

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> ServerAnswer:
        """See `Conversation.notify`."""
        data = encode_value(notification_message(self.era, method, params))
        return await self.post(data, method, (), self.headers(method, params or {}))

    async def send(self, data: bytes, wait_for: tuple[int | str, ...] = ()) -> ServerAnswer:
        """See `Conversation.send`."""
        return await self.post(data, "", wait_for, self.headers("ping", {}))

    async def post(
        self,
        data: bytes,
        method: str,
        ids: tuple[int | str, ...],
        headers: Mapping[str, str],
        *,
        enough: Enough | None = None,
        meta: Mapping[str, Any] | None = None,
        keep: bool = True,
    ) -> ServerAnswer:
        """Posts a body with exactly these headers."""
        left = set(ids)

        def ends(event: HttpEvent) -> bool:
            for message in read_messages(event.data) if event.data else ():
                if isinstance(message, Malformed):
                    continue
                if is_reply(message) and is_id(message.get("id")):
                    left.discard(message["id"])
                if enough is not None and enough(message):
                    return True
            return not left

        return await self.exchange("POST", headers, data, method, ids, ends, meta=meta or {}, keep=keep)

    async def exchange(
        self,
        verb: str,
        headers: Mapping[str, str],
        body: bytes | None,
        method: str = "",
        ids: tuple[int | str, ...] = (),
        enough: Callable[[HttpEvent], bool] | None = None,
        *,
        path: str | None = None,
        meta: Mapping[str, Any] | None = None,
        keep: bool = True,
    ) -> ServerAnswer:
        """Makes one HTTP request and reads the messages of its response.

        Raises:
            ConnectFailed: The server cannot be reached, and never was.
        """
        start, bounds = trio.current_time(), self._record.bounds
        # A GET opens a stream that may rightly stay silent.
        waits = bool(method) and verb != "GET"
        patience = bounds.answer_time if waits else min(bounds.raw_time, bounds.answer_time)
        response: HttpAnswer | None = None
        gone: str | None = None
        try:
            response = await self.requests.request(
                verb,
                headers,
                body,
                timeout=patience,
                path=path,
                enough=enough,
                linger=LINGER,
            )
            if response is None:
                gone = f"no answer within {patience:g} s"
            self._record.was_reached = True
        except AuthorizationError:
            raise
        except McpError as error:
            if isinstance(error, ConnectFailed) and not self._record.was_reached:
                raise
            gone = shown(str(error))
        return self._record.add(
            _http_answer(response, self.era.name, method, ids, gone, trio.current_time() - start, meta or {}),
            keep=keep,
        )


def _replaced(headers: dict[str, str], others: Headers | None) -> dict[str, str]:
    for name, value in (others or {}).items():
        headers.pop(name, None)
        if value is not None:
            headers[name] = value
    return headers


def _http_answer(
    response: HttpAnswer | None,
    era: str,
    method: str,
    ids: tuple[int | str, ...],
    gone: str | None,
    seconds: float,
    meta: Mapping[str, Any],
) -> ServerAnswer:
    id = ids[0] if ids else None
    if response is None:
        return ServerAnswer(era=era, method=method, id=id, gone=gone, seconds=seconds, asked=meta)
    streamed = bool(response.events) or response.headers.get("content-type", "").lower().startswith(
        "text/event-stream"
    )
    is_json = response.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    frames = [each.data for each in response.events if each.data and each.name == "message"]
    if not streamed and response.body and is_json:
        frames = [response.body]
    read = [message for data in frames for message in read_messages(data)]
    messages = [each for each in read if not isinstance(each, Malformed)]
    mine = [each for each in messages if is_reply(each) and same_id(each.get("id"), id)]
    # An error about a request that could not be read has no id; the response says whose it is.
    nameless = [each for each in messages if "error" in each and each.get("id") is None]
    return ServerAnswer(
        era=era,
        method=method,
        id=id,
        messages=tuple(messages),
        malformed=tuple(each for each in read if isinstance(each, Malformed)),
        reply=next(iter([*mine, *nameless]), None),
        seconds=seconds,
        size=len(response.body) + sum(len(each.data) for each in response.events),
        status=response.status,
        headers=response.headers,
        body=b"" if ids else response.body[:MAX_BODY],
        streamed=streamed,
        ended=response.ended,
        asked=meta,
    )
