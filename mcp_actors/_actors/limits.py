"""Every bound of the engine, named, with its default and the reason for it."""

from __future__ import annotations

import attrs

from mcp_actors._record import ValueRecord

__all__ = ["Limits"]

MIB = 1024 * 1024


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Limits(ValueRecord):
    """Bounds of one connection and, where the name says so, of one server: frames, calls, seconds."""

    max_in_flight: int = 1024
    """Calls that run at once on one connection: more than any honest peer keeps open."""

    max_waiting: int = 1024
    """Calls that may wait for one of those places; the next one is refused with `Overloaded`."""

    max_wait: float = 30.0
    """How long a call may wait for its place before it is refused."""

    server_max_in_flight: int = 10_000
    """Calls that run at once on all connections of one server; each costs about 10 KiB."""

    in_flight_bytes: int = 256 * MIB
    """Bytes of params of the calls in flight of one principal or, without one, of one address: sixteen of the longest.
    Those with less than 16 KiB are not weighed: their number is limited. Over it a call is refused: `Overloaded`."""

    server_in_flight_bytes: int = 1024 * MIB
    """The same for all clients."""

    kept_bytes: int = 64 * MIB
    """What all sessions of one principal or address, and its open ``subscriptions/listen``, make the server remember:
    the description of the client, at most 128 KiB a session, and the URIs that are subscribed to."""

    server_kept_bytes: int = 256 * MIB
    """The same for all clients."""

    idle_tasks: int = 64
    """Tasks that one connection keeps for calls to come, each of some 4 KiB; a quiet connection never made them."""

    outbox: int = 1024
    """Frames queued for the peer; a sender waits when it is full. An answer to each call that may be in flight: when
    all of them answer in one turn, none waits for the writer."""

    progress_queue: int = 16_384
    """Progress reports that wait for a slow callback; beyond it the oldest are dropped and counted."""

    beat: float = 15.0
    """Silence after which a server reports progress itself for a call that was made with a progress token: a quarter of
    the minute after which other clients give up, and half of our own clients' 30 s. 0 switches this off."""

    stall_timeout: float = 30.0
    """How long a full outbox may stay full without one write getting through; then the connection counts as broken."""

    cache_bytes: int = 16 * MIB
    """Bytes of answers that a client keeps because the server said how long they are good for; the oldest go first."""

    drain_grace: float = 5.0
    """How long calls in flight may go on after the server was told to stop."""

    end_grace: float = 0.8
    """How long calls in flight may go on after the peer has ended its input, if ``drain_grace`` is not shorter: with
    ``close_timeout`` inside of the 2 s after which the official clients signal a server over stdio."""

    close_timeout: float = 1.0
    """How long closing may take to write what is queued."""

    ask_timeout: float = 600.0
    """How long a question to the client may take: a person may have to read it."""
