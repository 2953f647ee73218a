"""Shared state in Redis, for a server that is many processes on many machines. It needs the extra ``redis``.

It is for Redis 7, or what speaks its protocol such as Valkey: one server, the primary that Sentinels name, or a
Cluster, where all keys of a server are in one slot. A node has three connections, each of which is made again when it
is lost, to the server that has the keys then:

- one for requests, which are pipelined, and whose scripts are each one atomic step;
- one for the events of streams, which may be long and must not hold up the others;
- one that waits, with one ``XREAD``, for what other nodes publish and for messages to this one.

All keys begin with ``PREFIX:SERVER:``, in a Cluster with ``{PREFIX:SERVER}:``; ids of sessions and tasks are in them
as digests.

====================== ============================================================== ==============================
key                    content                                                        ends
====================== ============================================================== ==============================
``node:NODE``          the lease of a node, which it renews three times in its length after a lease without renewal
``ended:NODE``         the mark of a node that has said that it ends                  after an hour
``bus``                stream: what nodes published, about the last 10,000 entries    an hour after the last entry
``mail:NODE``          stream: messages to a node, at most 64 MiB                     when read, or after an hour
``session:SESSION``    mailbox and owner of a session                                 15 minutes after its node
``events:SESSION``     stream: the events of a session, bounded as in memory          10 minutes after the last event
``heads:SESSION``      the last id of each of its open streams                        the same, or with its node
``returning``          the mark that a node has found its lease missing               half a lease after that
``used:NAME``          a name that was used                                           after its time
``value:KEY``          a value, such as that of a user                                after its time
see `.stored_tasks`    tasks                                                          after their time
====================== ============================================================== ==============================

**Outages.** Each wait ends after the timeout, with `~mcp_actors.errors.SharedStateUnavailable`; while Redis is known to
be away, at once. A request that was not answered is never sent again by itself, unless it does no harm twice: events
have ids of their own, and changes may be heard twice. It may still be carried out, even later. An event that cannot be
kept within the timeout breaks its stream: it is sent without an id, and nothing of that stream is replayed any more.

**Loss.** When Redis has forgotten everything, each node finds its lease missing when it renews it next, or at once if
the connection was lost; then it writes its sessions and the heads of its streams again, and its subscribers learn
that they missed changes. Until the first of them has noticed, and for half a lease from then on, a session or node that
is not there raises `~mcp_actors.errors.SharedStateUnavailable`, because it may be written again; so it is when Redis
stood still for longer than a lease, and all leases have ended. Tasks, events and used names are lost. Redis answers
before it has written to disk or to a replica: what it confirmed in its last moments may be lost with it, as its own
settings say.

**Another process of Redis**, after a restart or a failover, may lack what the one before confirmed in its last moments.
A node that is connected to another one than before marks it as ``returning``, and writes again what it has as after a
loss. While the mark is there, nothing is replayed either; after that, a stream from which an event is missing is not.

**Partitions.** A node that does not reach Redis for a lease is gone for the others: they answer 404 for its sessions,
and its tasks are abandoned. It goes on serving what needs nothing of Redis; when it is back it has its lease and its
sessions again. A task that another node has taken over stays there, as only one of two changes of a task is kept. After
an outage, no node takes over tasks before all have had the time of a lease to come back.
"""

from __future__ import annotations

try:
    from mcp_actors.shared.redis.bus import MAX_MESSAGE
    from mcp_actors.shared.redis.state import RedisShared, RedisState
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("mcp_actors."):
        raise
    message = "shared state in Redis needs a client of it: pip install 'coredis>=6.9,<7'"
    raise ModuleNotFoundError(message, name=error.name) from error

__all__ = ["MAX_MESSAGE", "RedisShared", "RedisState"]

from_url = RedisShared
