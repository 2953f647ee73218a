"""The lists of all upstreams in one `serve`: kept until they change, read once for all who need them, and merged.

A list is good until its server says that it has changed. One whose server does not say so is asked for again after the
time that the server promises, or after `LEAST_AGE` seconds. An upstream delays a list of the gateway by no more than
`Upstream.wait` seconds, and only once: from then on it is left out until it has answered. Many clients list once, so
whoever gets a list without it is told so in a log message. Its list goes on being read meanwhile, and clients are
notified of a change when it has come. A first handshake is delayed by `HANDSHAKE_WAIT` seconds at most: clients give up
on those sooner. That of a bridge waits as long as a list, because it has nothing to say before its server is there.

Changes that upstreams report are published on the gateway's bus no faster than clients can make use of them
(`ChangeDelivery`): an upstream that reports changes without a pause would make every client list again and again. So
what says the same is put together: a list has changed at most once in `LIST_PAUSE` seconds, and each resource once in
`PAUSE`. The first report of a change waits for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from mcp_actors._eras.era import Event, EventKind
from mcp_actors._server.names import LONGEST_NAME, NameTable, is_advised
from mcp_actors._server.peer_session import is_wanted
from mcp_actors.errors import CallTimeout, McpError, RpcError, UpstreamUnavailable
from mcp_actors.gateway.connections import GatewayCircle, UpstreamConnection
from mcp_actors.gateway.listing import LEAST_AGE, LIST_KINDS, ListKind, UpstreamListing, read_listing
from mcp_actors.gateway.names import NameClaims
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.server import Context
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable, without_paths
from mcp_actors.supervision.task_kinds import UPSTREAM_LIST, UPSTREAM_WAIT

__all__ = [
    "HANDSHAKE_WAIT",
    "LIST_PAUSE",
    "MOST_PENDING",
    "PAUSE",
    "ChangeDelivery",
    "ListedRow",
    "UpstreamLists",
]

# Seconds between two rounds of reports.
PAUSE = 0.1
# Seconds between two reports of one list.
LIST_PAUSE = 1.0
# Resources that wait to be reported, beyond those that are subscribed to themselves.
MOST_PENDING = 4096
# Seconds for which an upstream may delay the first handshake of a client. Frameworks for agents give up after 5 s
# (openai-agents, pydantic-ai, google-adk), in which the process of the gateway has to start too.
HANDSHAKE_WAIT = 3.0
# Seconds for which a call waits for the list that has its name, if only telemetry needs that.
LEARN_WAIT = 1.0
# Upstreams that a log message to a client names, and characters of a name there.
_MOST_NAMED = 10
_SHOWN = 100
# The serials of an upstream's entries in the pages of a merged list. Those of the gateway's own come before.
_SERIALS = 1 << 41


@attrs.frozen
class ListedRow:
    """A line of a merged list; see `mcp_actors._server.registry`."""

    key: str
    serial: int
    entry: Any
    own: str
    """Its name at the upstream, or its URI."""


@attrs.define(eq=False)
class _Reading:
    """A list that is being read, for all who wait for it."""

    done: trio.Event = attrs.field(factory=trio.Event)
    overtaken: bool = False
    """Whether the list has changed since it was asked for."""
    failure: McpError | None = None


@attrs.define(eq=False)
class _KeptList:
    """One list of one connection."""

    connection: UpstreamConnection
    kind: ListKind
    listing: UpstreamListing | None = None
    good_until: float = -math.inf
    reading: _Reading | None = None

    @property
    def is_good(self) -> bool:
        """Whether the list that was read need not be read again."""
        now = trio.current_time()
        if self.good_until == math.inf and not _is_followed(self.connection, self.kind):
            # The stream on which its changes are reported was given up meanwhile.
            return self.listing is not None and now < self.listing.read_at + LEAST_AGE
        return now < self.good_until


class UpstreamLists:
    """The lists of the upstreams of one `serve`, and the names that they have in the gateway.

    Args:
        tables: The names of each upstream, in the order in which the upstreams were given.
        nursery: Owns the tasks that read.
        changes: Takes the lists that are different now.
        wait: Seconds for which an upstream that says nothing else itself may delay a list.
        circle: Says which requests and entries have come back to the gateway.
    """

    def __init__(
        self,
        tables: Mapping[str, NameTable],
        nursery: trio.Nursery,
        changes: ChangeDelivery,
        wait: float,
        circle: GatewayCircle,
    ) -> None:
        self.tables = tables
        self.claims = {name: NameClaims(kind.what) for name, kind in LIST_KINDS.items()}
        self.known: dict[tuple[str, str], UpstreamListing] = {}
        """The list of each upstream that was read last, over whichever connection; kept while the upstream is away.

        Over a connection of one caller a server may list what no other caller should see: see `newest`.
        """
        self._nursery = nursery
        self._changes = changes
        self._kept: dict[UpstreamConnection, dict[str, _KeptList]] = {}
        self._wait = wait
        self._circle = circle
        # The connections to gateways of which it is being found out whether a list is a different one.
        self._comparing: set[tuple[UpstreamConnection, EventKind]] = set()
        # Upstreams that are not waited for until they have answered, by what waits.
        self._late: dict[str, set[str]] = {"list": set(), "handshake": set()}
        # Lists, by upstream and kind, that were left out or replaced by a former one, which was logged.
        self._missing: set[tuple[str, str]] = set()
        # Upstreams that have lost a connection since the last one was made: their lists may be different ones now.
        self._lost: set[str] = set()
        # Lists that were read for telemetry alone, or whose reading for that has failed.
        self._learned: set[tuple[str, str]] = set()
        # Lists of which it was logged that some clients refuse their names.
        self._warned: set[tuple[str, str]] = set()
        # The lines of each list that is in use, with the version of the claims by which they were made.
        self._rows: dict[UpstreamListing, tuple[int, tuple[ListedRow, ...]]] = {}

    def __repr__(self) -> str:
        return f"<UpstreamLists connections={len(self._kept)} missing={len(self._missing)}>"

    # -- what happens to connections -----------------------------------------------------------------------------------

    def connected(self, actor: UpstreamActor) -> None:
        """A connection was made: what was left out of lists before can be listed now."""
        name = actor.settings.name
        for late in self._late.values():
            late.discard(name)
        stale: set[EventKind] = {
            kind.event
            for kind in LIST_KINDS.values()
            if name in self._lost or (name, kind.name) in self._missing
        }
        self._lost.discard(name)
        for each in stale:
            self._changes.put(each)

    def closed(self, actor: UpstreamActor, connection: UpstreamConnection, *, lost: bool) -> None:
        """A connection has ended. What was known last is kept, so that no name gets another meaning meanwhile."""
        if lost:
            self._lost.add(actor.settings.name)
        for name, kept in self._kept.pop(connection, {}).items():
            if kept.listing is not None:
                self._dropped(name, kept.listing)

    def forget(self, name: str) -> None:
        """An upstream was taken out, or another one is in its place: its names are free. Its connections are closed."""
        for kind in LIST_KINDS:
            known = self.known.pop((name, kind), None)
            if known is not None:
                self._dropped(kind, known)
            self._missing.discard((name, kind))
            self._warned.discard((name, kind))
            self._learned.discard((name, kind))
        for late in self._late.values():
            late.discard(name)
        self._lost.discard(name)

    def reordered(self) -> None:
        """The upstreams are in another order: the lines of lists are made again, with other serials."""
        self._rows.clear()

    def changed(self, actor: UpstreamActor, connection: UpstreamConnection, kind: EventKind) -> None:
        """A list of a connection is not what it was."""
        kept = self._kept.get(connection, {})
        for name, each in kept.items():
            if LIST_KINDS[name].event == kind:
                each.good_until = -math.inf
                if each.reading is not None:
                    each.reading.overtaken = True
        if connection.server.gateway is None:
            self._changes.put(kind)
        elif (connection, kind) not in self._comparing:
            self._comparing.add((connection, kind))
            start(
                self._nursery,
                UPSTREAM_LIST,
                self._compare,
                actor,
                connection,
                kind,
                about=actor.settings.name,
            )

    async def _compare(self, actor: UpstreamActor, connection: UpstreamConnection, event: EventKind) -> None:
        """Publishes a change at a gateway if what was read of it is different now.

        A change at one of two gateways that are upstreams of each other is a change at the other one, and so on: if
        each was published as it is reported, they would report it to each other for ever.
        """
        kinds = [each for each in LIST_KINDS.values() if each.event == event]
        try:
            while stale := [each for each in kinds if self._is_stale(connection, each)]:
                for kind in stale:
                    if await self._is_different(actor, connection, kind):
                        self._changes.put(event)
                await trio.sleep(LIST_PAUSE)
        finally:
            self._comparing.discard((connection, event))

    def _is_stale(self, connection: UpstreamConnection, kind: ListKind) -> bool:
        """Whether a list that was read over a connection has changed. One that was never read was shown to no one."""
        kept = self._kept.get(connection, {}).get(kind.name)
        return kept is not None and kept.listing is not None and kept.good_until == -math.inf

    async def _is_different(
        self, actor: UpstreamActor, connection: UpstreamConnection, kind: ListKind
    ) -> bool:
        former = self._kept[connection][kind.name].listing
        try:
            listing = await self._read(actor, connection, kind, {})
        except McpError as error:
            log.debug(
                "a list of a gateway cannot be compared", upstream=actor.settings.name, error=str(error)
            )
            return True
        return former is None or not _is_same(former, listing)

    # -- lists ---------------------------------------------------------------------------------------------------------

    async def of_all(
        self, ctx: Context[Any], kind: ListKind, actors: Iterable[UpstreamActor]
    ) -> dict[str, UpstreamListing]:
        """Returns a list of each upstream that has it for a caller, by the upstream's name, in the given order.

        Cancelled, the lists that are being read are read all the same.
        """
        actors = list(actors)
        found: dict[str, UpstreamListing | None] = {}
        waiting: list[UpstreamActor] = []
        for actor in actors:
            kept = self._kept_for(actor, ctx, kind)
            if kept is not None and kept.listing is not None and kept.is_good:
                found[actor.settings.name] = kept.listing
            else:
                waiting.append(actor)
        if waiting:
            asked = waiting
            if self._circle.has_come_back(ctx.call.invocation.meta):
                asked = [each for each in waiting if not self._is_read_of_gateway(each, ctx, kind)]
            async with trio.open_nursery() as nursery:
                for actor in asked:
                    name = actor.settings.name
                    start(nursery, UPSTREAM_WAIT, self._obtain, actor, ctx, kind, found, about=name)
            missing = [each for each in waiting if each.settings.name not in found]
            for actor in missing:
                self._without(actor, ctx, kind, found)
            await _say_what_is_missing(
                ctx, kind, [each for each in missing if each.settings.name not in found]
            )
        for actor in actors:
            listing = found.get(actor.settings.name)
            if listing is not None and not listing.uses:
                # It was replaced while another one was waited for, and has lost its names already.
                found[actor.settings.name] = self.newest(actor, ctx, kind)
        ordered = ((each.settings.name, found.get(each.settings.name)) for each in actors)
        return {name: listing for name, listing in ordered if listing is not None}

    def newest(self, actor: UpstreamActor, ctx: Context[Any], kind: ListKind) -> UpstreamListing | None:
        """Returns the list of an upstream that a caller may know and that was read last, ``None`` without one.

        It is that of the caller's own connection. Only where all callers have the same is it any other connection's.
        """
        kept = self._kept_for(actor, ctx, kind)
        if kept is not None and kept.listing is not None:
            return kept.listing
        return self.known.get((actor.settings.name, kind.name)) if actor.is_shared else None

    def claim(self, kind: ListKind, listings: Mapping[str, UpstreamListing]) -> None:
        """Gives the names in lists to their upstreams, unless another upstream already has them."""
        for name, listing in listings.items():
            self.rows(kind, name, listing)

    def rows(self, kind: ListKind, upstream: str, listing: UpstreamListing) -> tuple[ListedRow, ...]:
        """Returns the lines that an upstream has in the merged list."""
        claims = self.claims[kind.name]
        made = self._rows.get(listing)
        if made is not None and made[0] == claims.version:
            return made[1]
        rows: list[ListedRow] = []
        serial = (list(self.tables).index(upstream) + 1) * _SERIALS
        for own, entry in listing.entries.items():
            serial += 1
            name = self.outside(kind, upstream, own)
            if name is None:
                continue
            if name not in listing.held:
                # A list whose connection has ended is kept nowhere: its names would never be released.
                if not listing.uses or not claims.claim(name, upstream, own):
                    continue
                listing.held.add(name)
            is_same = name == own and (kind.name != "tools" or entry.app_uri is None)
            shown = entry if is_same else kind.renamed(entry, name, self.table(kind, upstream))
            rows.append(ListedRow(name, serial, shown, own))
        self._warn_of_names(kind, upstream, rows)
        made = (claims.version, tuple(rows))
        if listing.uses:
            self._rows[listing] = made
        return made[1]

    def is_listed(self, kind: ListKind, name: str) -> bool:
        """Whether an upstream has listed what the gateway calls ``name``, if perhaps only the gateway has read that."""
        if name in self.claims[kind.name].owners:
            return True
        for (upstream, of), listing in self.known.items():
            if of == kind.name and self.table(kind, upstream).own(name) in listing.entries:
                return True
        return False

    def outside(self, kind: ListKind, upstream: str, own: str) -> str | None:
        """Returns the name or URI that something has in the gateway, ``None`` if it is not offered."""
        table = self.table(kind, upstream)
        if kind.key == "name":
            return table.outside(own)
        return table.outside_uri(own)

    def table(self, kind: ListKind, upstream: str) -> NameTable:
        """Returns the names that an upstream has for the entries of one kind of list."""
        table = self.tables[upstream]
        return table.tools if kind.name == "tools" else table

    async def learn(self, ctx: Context[Any], kind: ListKind, actor: UpstreamActor) -> None:
        """Reads a list that was never read, so that telemetry knows the names in it before a call of one has ended.

        It delays that call by `LEARN_WAIT` seconds at most, and only the first one; the list is read to its end.
        """
        key = actor.settings.name, kind.name
        if key in self.known or key in self._learned:
            return
        self._learned.add(key)
        with trio.move_on_after(LEARN_WAIT):
            try:
                async with actor.borrowed(ctx) as connection:
                    await self._read(actor, connection, kind, ctx.call.invocation.meta)
            except McpError as error:
                log.debug("the names of an upstream are not known", upstream=key[0], error=str(error))

    # -- upstreams that are slow ---------------------------------------------------------------------------------------

    def is_late(self, actor: UpstreamActor) -> bool:
        """Whether an upstream has used up the time that it may delay handshakes, so that it is not waited for."""
        return actor.settings.name in self._late["handshake"]

    async def meet(self, actor: UpstreamActor, ctx: Context[Any], most: float) -> None:
        """Connects to an upstream for a caller, for ``most`` seconds at most. What fails is in the log."""
        with self._delayed_by(actor, "handshake", most):
            async with actor.borrowed(ctx):
                pass

    @contextmanager
    def _delayed_by(self, actor: UpstreamActor, what: str, most: float) -> Iterator[None]:
        """Ends the block when an upstream has used up the time that it may delay others, or fails.

        Args:
            actor: The upstream.
            what: Waits for it, a ``"list"`` or a ``"handshake"``.
            most: Seconds that this may wait, whatever the settings say.
        """
        name, late = actor.settings.name, self._late[what]
        wait = self._wait if actor.settings.wait is None else actor.settings.wait
        with trio.move_on_after(0 if name in late else min(wait, most)) as scope:
            try:
                yield
            except McpError as error:
                log.debug("an upstream is not waited for", upstream=name, error=str(error))
        if scope.cancelled_caught:
            late.add(name)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _kept_for(self, actor: UpstreamActor, ctx: Context[Any], kind: ListKind) -> _KeptList | None:
        connection = actor.open_connection(ctx)
        return None if connection is None else self._kept.get(connection, {}).get(kind.name)

    def _is_read_of_gateway(self, actor: UpstreamActor, ctx: Context[Any], kind: ListKind) -> bool:
        """Whether a list is being read of a gateway, which may be waiting for the list that a caller has asked for."""
        kept = self._kept_for(actor, ctx, kind)
        is_gateway = actor.met is not None and actor.met.server.gateway is not None
        return is_gateway and kept is not None and kept.reading is not None

    def _without(
        self,
        actor: UpstreamActor,
        ctx: Context[Any],
        kind: ListKind,
        found: dict[str, UpstreamListing | None],
    ) -> None:
        """The list of an upstream did not come: the one before it is used while there is a connection."""
        name = actor.settings.name
        kept = self._kept_for(actor, ctx, kind)
        if kept is not None and kept.listing is not None:
            found[name] = kept.listing
        if (name, kind.name) not in self._missing:
            self._missing.add((name, kind.name))
            # Of one that cannot be connected to the log has more already.
            level = log.debug if actor.health.is_away else log.warning
            level(
                "a list of the gateway is not complete: an upstream does not answer",
                upstream=name,
                list=kind.name,
                former=name in found,
            )

    async def _obtain(
        self,
        actor: UpstreamActor,
        ctx: Context[Any],
        kind: ListKind,
        found: dict[str, UpstreamListing | None],
    ) -> None:
        with self._delayed_by(actor, "list", math.inf):
            async with actor.borrowed(ctx) as connection:
                meta = ctx.call.invocation.meta
                found[actor.settings.name] = await self._read(actor, connection, kind, meta)

    async def _read(
        self, actor: UpstreamActor, connection: UpstreamConnection, kind: ListKind, meta: Mapping[str, Any]
    ) -> UpstreamListing:
        kept = self._kept.setdefault(connection, {}).setdefault(kind.name, _KeptList(connection, kind))
        # Of a list that has changed while it was read a second one is read; after that, what there is has to do.
        for _ in range(2):
            reading = kept.reading
            if reading is None:
                if kept.listing is not None and kept.is_good:
                    return kept.listing
                reading = kept.reading = _Reading()
                name = actor.settings.name
                arguments = actor, connection, kind, kept, meta
                start(self._nursery, UPSTREAM_LIST, self._fetch, *arguments, about=name)
            await reading.done.wait()
            if reading.failure is not None:
                raise reading.failure
            if not reading.overtaken:
                break
        assert kept.listing is not None
        return kept.listing

    async def _fetch(
        self,
        actor: UpstreamActor,
        connection: UpstreamConnection,
        kind: ListKind,
        kept: _KeptList,
        meta: Mapping[str, Any],
    ) -> None:
        name, reading = actor.settings.name, kept.reading
        assert reading is not None
        reading.failure = UpstreamUnavailable(name, "its list cannot be read")
        try:
            listing = await read_listing(connection, kind, actor.settings, self._circle, meta)
        except McpError as error:
            if isinstance(error, CallTimeout):
                actor.timed_out(connection)
            elif isinstance(error, RpcError):
                actor.answered(connection)
            log.warning(
                "a list of an upstream cannot be read",
                upstream=name,
                list=kind.name,
                error=without_paths(str(error)),
            )
        else:
            reading.failure = None
            actor.answered(connection)
            if connection in self._kept:
                self._keep(name, connection, kind, kept, listing)
            else:
                # The connection has ended meanwhile.
                kept.listing = listing
        finally:
            kept.reading = None
            reading.done.set()

    def _keep(
        self,
        upstream: str,
        connection: UpstreamConnection,
        kind: ListKind,
        kept: _KeptList,
        listing: UpstreamListing,
    ) -> None:
        """Puts a list in the place of an older one. A name that both have stays claimed without a gap."""
        claims = self.claims[kind.name]
        former, known = kept.listing, self.known.get((upstream, kind.name))
        listing.uses = 2
        kept.listing = self.known[upstream, kind.name] = listing
        for own in listing.entries:
            name = self.outside(kind, upstream, own)
            held = (each is not None and name in each.held for each in (former, known))
            if name is not None and any(held) and claims.claim(name, upstream, own):
                listing.held.add(name)
        for each in (former, known):
            if each is not None:
                self._dropped(kind.name, each)
        now = listing.read_at
        if listing.ttl_ms:
            kept.good_until = now + listing.ttl_ms / 1000
        else:
            kept.good_until = math.inf if _is_followed(connection, kind) else now + LEAST_AGE
        if kept.reading is not None and kept.reading.overtaken:
            kept.good_until = -math.inf
        self._late["list"].discard(upstream)
        if (upstream, kind.name) in self._missing:
            self._missing.discard((upstream, kind.name))
            log.info("a list of the gateway is complete again", upstream=upstream, list=kind.name)
            if former is None or not _is_same(former, listing):
                self._changes.put(kind.event)

    def _dropped(self, kind: str, listing: UpstreamListing) -> None:
        """Takes note that a list is in use at one place less; after the last one its names are released."""
        listing.uses -= 1
        if not listing.uses:
            self._rows.pop(listing, None)
            for name in listing.held:
                self.claims[kind].release(name)
            listing.held.clear()

    def _warn_of_names(self, kind: ListKind, upstream: str, rows: Iterable[ListedRow]) -> None:
        if kind.key != "name" or (upstream, kind.name) in self._warned:
            return
        refused = [each.key for each in rows if not is_advised(each.key)]
        if refused:
            self._warned.add((upstream, kind.name))
            log.warning(
                f"some clients refuse names like this: use 1 to {LONGEST_NAME} of A-Z a-z 0-9 _ -",
                upstream=upstream,
                list=kind.name,
                name=printable(refused[0], 2 * LONGEST_NAME),
                names=len(refused),
            )


def _is_followed(connection: UpstreamConnection, kind: ListKind) -> bool:
    """Whether a server reports changes of a list: it says so, and can be heard. No server says that of skills."""
    if kind.extension is not None:
        return False
    negotiated = connection.server.negotiated
    if not connection.client._subscriptions.receives_changes(negotiated):
        return False
    declared = getattr(negotiated.capabilities, kind.capability)
    return declared is None or bool(declared.list_changed)


async def _say_what_is_missing(ctx: Context[Any], kind: ListKind, actors: list[UpstreamActor]) -> None:
    """Sends the client one log message about all upstreams that are not in the list it is about to get."""
    if actors and is_wanted("warning", ctx.log_level):
        names = ", ".join(printable(each.settings.name, _SHOWN) for each in actors[:_MOST_NAMED])
        more = f" and {len(actors) - _MOST_NAMED} more" if len(actors) > _MOST_NAMED else ""
        verb = "does" if len(actors) == 1 else "do"
        text = f"the list of {kind.name} is not complete: {names}{more} {verb} not answer yet; "
        await ctx.call.notify(
            "notifications/message",
            {
                "level": "warning",
                "logger": "gateway",
                "data": f"{text}a notification follows when it is",
            },
        )


def _is_same(former: UpstreamListing, listing: UpstreamListing) -> bool:
    return list(former.entries.items()) == list(listing.entries.items())


class ChangeDelivery:
    """The changes of all upstreams that were not published yet.

    Args:
        publish: Publishes one change: `EventBus.publish`.
    """

    def __init__(self, publish: Callable[[EventKind, str | None], None]) -> None:
        self._publish = publish
        self._pending: dict[Event, None] = {}
        self._not_before: dict[EventKind, float] = {}
        self._parked = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<ChangeDelivery {len(self._pending)} pending>"

    @property
    def is_full(self) -> bool:
        """Whether no more resources are taken one by one."""
        return len(self._pending) >= MOST_PENDING

    def put(self, kind: EventKind, uri: str | None = None) -> None:
        """Takes a change; never waits."""
        self._pending[Event(kind, uri)] = None
        self._parked.unpark()

    async def run(self) -> None:
        """Publishes what is put. Never returns."""
        while True:
            while not self._pending:
                await self._parked.park()
            now = trio.current_time()
            for event in list(self._pending):
                if event.uri is None:
                    if now < self._not_before.get(event.kind, now):
                        continue
                    self._not_before[event.kind] = now + LIST_PAUSE
                del self._pending[event]
                self._publish(event.kind, event.uri)
            await trio.sleep(PAUSE)
