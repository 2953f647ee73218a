"""The holders of legacy sessions, in Redis: one key for each session."""

from __future__ import annotations

from itertools import islice

import trio

from mcp_actors.abc.shared import SessionPlace
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.redis.keys import Keys
from mcp_actors.shared.redis.lease import MAY_RETURN
from mcp_actors.shared.redis.link import RedisLink, Script

__all__ = ["SCRIPTS", "RedisSessionDirectory"]

# Seconds for which a session is known without being written again: longer than a node that died had kept events for its
# clients (`DEFAULT_MAX_AGE`), so that a client which comes back late is told that its session has ended.
KEPT = 900.0
# Times that a session is written again in those seconds.
RENEWALS = 3
# Sessions that one request is about.
BATCH = 500
# Sessions that have ended, and are not known to be taken out. Those beyond it end by themselves.
MAX_FORGOTTEN = 100_000
# Seconds before what could not be taken out is tried again.
PAUSE = 0.5

KEEP = Script("for i = 2, #ARGV, 2 do redis.call('SET', ARGV[i], ARGV[i + 1], 'PX', ARGV[1]) end")
FORGET = Script("for i = 1, #ARGV do redis.call('DEL', ARGV[i]) end")
# Session, what the keys of nodes begin with, those of `MAY_RETURN`. -1: the session or its node may be written again.
# The value begins with the address of a mailbox, which begins with the name of its node.
FIND = Script(
    MAY_RETURN + "local place = redis.call('GET', ARGV[1]) "
    "local alive = place and redis.call('EXISTS', ARGV[2] .. string.match(place, '^[^/]*')) "
    "if alive ~= 1 and may_return(ARGV[3], ARGV[4]) then return -1 end "
    "return place and {place, alive}"
)
SCRIPTS = (KEEP, FORGET, FIND)


class RedisSessionDirectory:
    """A `mcp_actors.abc.SessionDirectory` in Redis.

    Args:
        link: The connection.
        keys: The names of the keys.
        node: The name of this node.
    """

    spans_processes = True

    def __init__(self, link: RedisLink, keys: Keys, node: str) -> None:
        self._link = link
        self._keys = keys
        self._returning = keys.node(node), keys.returning
        self._held: dict[str, bytes] = {}
        self._forgotten: dict[str, None] = {}
        self._wake = trio.Event()
        self._is_lost = False

    def __repr__(self) -> str:
        return f"<RedisSessionDirectory {len(self._held)} held here>"

    async def register(self, session: str, owner: str, address: str) -> None:
        """See `mcp_actors.abc.SessionDirectory.register`."""
        key = self._keys.session(session)
        place = f"{address}\n{owner}".encode("utf-8", "surrogatepass")
        self._held[key] = place
        self._forgotten.pop(key, None)
        try:
            await self._link.run_script("sessions", KEEP, _milliseconds(), key, place)
        except BaseException:
            self.forget(session)
            raise

    async def find(self, session: str) -> SessionPlace | None:
        """See `mcp_actors.abc.SessionDirectory.find`.

        Raises:
            SharedStateUnavailable: The state cannot be reached, or nodes that it had forgotten may be coming back.
        """
        key = self._keys.session(session)
        found = await self._link.run_script("sessions", FIND, key, self._keys.node(""), *self._returning)
        if found == -1:
            raise SharedStateUnavailable("sessions", "redis had forgotten nodes, which are coming back")
        if found is None:
            return None
        address, _, owner = found[0].decode("utf-8", "surrogatepass").partition("\n")
        return SessionPlace(address, owner, found[1] == 1)

    def forget(self, session: str) -> None:
        """See `mcp_actors.abc.SessionDirectory.forget`."""
        key = self._keys.session(session)
        self._held.pop(key, None)
        if len(self._forgotten) < MAX_FORGOTTEN:
            self._forgotten[key] = None
        self._wake.set()

    def lost(self) -> None:
        """Has every session written again: Redis may have lost them."""
        self._is_lost = True
        self._wake.set()

    async def run(self) -> None:
        """Takes sessions out, and writes the others again, until it is cancelled."""
        due = trio.current_time() + KEPT / RENEWALS
        while True:
            with trio.move_on_at(due):
                await self._wake.wait()
            self._wake = trio.Event()
            try:
                await self._take_out()
                if self._is_lost or trio.current_time() >= due:
                    self._is_lost = False
                    await self._write_again()
                    due = trio.current_time() + KEPT / RENEWALS
            except SharedStateUnavailable:
                await trio.sleep(PAUSE)
                self._wake.set()

    async def _take_out(self) -> None:
        while self._forgotten:
            keys = list(islice(self._forgotten, BATCH))
            await self._link.run_script("sessions", FORGET, *keys)
            for key in keys:
                self._forgotten.pop(key, None)

    async def _write_again(self) -> None:
        held = list(self._held)
        try:
            for start in range(0, len(held), BATCH):
                # Those that ended while the others were written are not written any more.
                pairs = [(key, self._held[key]) for key in held[start : start + BATCH] if key in self._held]
                await self._link.run_script(
                    "sessions", KEEP, _milliseconds(), *(x for pair in pairs for x in pair)
                )
        except SharedStateUnavailable:
            self._is_lost = True
            raise

    async def end(self) -> None:
        """Takes all sessions out whose end is not known yet.

        Raises:
            SharedStateUnavailable: The state cannot be reached; they end by themselves.
        """
        await self._take_out()


def _milliseconds() -> int:
    return int(KEPT * 1000)
