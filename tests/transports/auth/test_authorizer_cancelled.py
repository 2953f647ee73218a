"""Who needs access is cancelled, at any step of a whole login with a port, a file and requests."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
import trio

from mcp_actors.auth import AuthorizationCode, OAuth
from mcp_transports.auth import FileTokenStore, LoopbackBrowser
from mcp_transports.auth.authorizer import Answered, Authorizer, SentRequest

from .issuer import ISSUER, RESOURCE, Issuer

PATIENCE = 30
REFUSED = Answered(401, ["Bearer"])


@pytest.mark.parametrize("has_follower", [False, True])
async def test_cancelled_at_any_step_others_go_on_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_follower: bool
) -> None:
    issuer, uris = Issuer(), []
    issuer.seconds = 0.0
    monkeypatch.setattr("mcp_transports.auth.authorizer.Fetcher", lambda policy, url: issuer)

    async def visit(url: str) -> None:
        query = dict(parse_qsl(urlsplit(url).query))
        uri = urlsplit(query["redirect_uri"])
        uris.append(uri)
        answer = urlencode({"code": "code", "state": query["state"], "iss": ISSUER})
        async with await trio.open_tcp_stream("127.0.0.1", uri.port or 0) as stream:
            await stream.send_all(f"GET {uri.path}?{answer} HTTP/1.1\r\nhost: {uri.netloc}\r\n\r\n".encode())
            await stream.receive_some()

    async def react(auth: OAuth) -> bool:
        async with trio.open_nursery() as nursery:
            authorizer = Authorizer(auth, RESOURCE, nursery)
            await authorizer.prepare()
            again = await authorizer.react(SentRequest("POST", RESOURCE, "tools/list"), REFUSED)
            assert authorizer.token in issuer.valid
            authorizer.close()
        return again

    cancelled = 0
    for ticks in range(0, 150, 6):
        path = tmp_path / str(ticks) / "tokens.json"
        grant = AuthorizationCode(browser=LoopbackBrowser(open=visit))
        auth, done = OAuth(grant, store=FileTokenStore(path)), []

        async def follow(auth: OAuth = auth, done: list[bool] = done) -> None:
            done.append(await react(auth))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:

                    async def cancel(scope: trio.CancelScope = scope, ticks: int = ticks) -> None:
                        for _ in range(ticks):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel)
                    if has_follower:
                        nursery.start_soon(follow)
                    await react(auth)
                cancelled += scope.cancelled_caught
            assert done == [True] * has_follower
            for uri in uris:
                with socket.socket() as probe:
                    assert probe.connect_ex(("127.0.0.1", uri.port or 0)) != 0
            if path.exists():
                assert json.loads(path.read_bytes())["version"] == 1
            assert not list(path.parent.glob("*.new"))
            assert await react(OAuth(grant, store=FileTokenStore(path)))
    assert cancelled
