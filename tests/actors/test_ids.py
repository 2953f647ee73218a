"""Request ids: one that is in flight is not taken twice."""

from __future__ import annotations

import trio

from tests.messages import BATCHING

from .peers import Serves, arrived, call, faulty_pair, legacy_client, modern_call, request
from .witness import Witness


async def test_an_id_in_flight_is_not_taken_twice() -> None:
    witness = Witness()
    async with legacy_client(witness.server) as peer:
        await peer.send(call(1, "nap", seconds=5))
        for again in (
            call(1, "echo", text="other"),
            modern_call(1, "echo", text="other"),
            request(1, "ping"),
        ):
            await peer.send(again)
            [refusal] = await arrived(peer)
            assert (refusal["id"], refusal["error"]["code"]) == (1, -32600)
        await peer.send(call("1", "echo", text="another type, another id"))
        [other] = await arrived(peer)
        assert other["id"] == "1"
        [answer] = await arrived(peer, within=10)
        assert answer["result"]["content"][0]["text"] == "slept"
        assert "result" in await peer.request(1, "ping")


async def test_ids_doubled_within_one_batch() -> None:
    witness = Witness()
    channel, peer = faulty_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(channel))
        await peer.initialize(BATCHING)
        await peer.send([call(1, "nap", seconds=1), call(1, "nap", seconds=1), request("p", "ping"), 5])
        batch = await peer.receive()
        codes = sorted((str(each.get("id")), each.get("error", {}).get("code", 0)) for each in batch)
        assert codes == [("1", -32600), ("1", 0), ("None", -32600), ("p", 0)]
        nursery.cancel_scope.cancel()
