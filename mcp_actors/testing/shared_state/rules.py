"""The rules of `mcp_actors.abc.shared` that the kit checks, in the words in which a breach is reported."""

from __future__ import annotations

__all__ = [
    "ABANDONED",
    "BOUNDS",
    "CANCELLED",
    "COALESCED",
    "COMPARED",
    "CREATED",
    "DESCRIBED",
    "ENDED_STREAM",
    "EVENT_IDS",
    "EXPIRED",
    "FLUSHED",
    "FORGOTTEN",
    "FORGOTTEN_EVENTS",
    "FOUND",
    "KEPT",
    "LAST_VALUE",
    "MAILBOXES",
    "MESSAGES",
    "MISSED",
    "NAMES_APART",
    "NODE_GONE",
    "NODE_NAMES",
    "OPENED",
    "PAGES",
    "PUBLISHED",
    "REACHED",
    "REPLAYED",
    "SURVIVES",
    "UNAVAILABLE",
    "UNKNOWN_EVENTS",
    "UNSUBSCRIBED",
    "USED_ONCE",
]

# -- nodes
DESCRIBED = "an open state has a node, five roles, and each role says whether it spans processes"
NODE_NAMES = "the name of a node is new each time, and no other node ever has it"
NAMES_APART = "servers of different names share nothing"
NODE_GONE = (
    "a node that ends, or that was not heard of for the length of its lease, is gone, and no other node is"
)
OPENED = "open raises SharedStateUnavailable, within its bound, if the state cannot be reached"
UNAVAILABLE = (
    "every method that waits is bounded in time and raises SharedStateUnavailable when the state cannot be reached; "
    "the others neither wait nor raise"
)
REACHED = (
    "outages end by themselves: the node comes back under the same name, with its sessions and mailboxes"
)
FLUSHED = "a state that lost everything tells no node something wrong, and works again"
CANCELLED = "cancelling a method may leave its effect done or not done, and never half done"

# -- sessions
FOUND = "a registered session is found at every node, as it was registered, and an unknown one is not"
FORGOTTEN = (
    "a session that was forgotten is soon found by nobody, also when it was forgotten during an outage"
)

# -- events
EVENT_IDS = "the id of an event is visible ASCII and unique in its session, over all its streams"
KEPT = (
    "kept is called for the events of a session in their order, with True once they can be replayed, or with False if "
    "they never can; a log that does not span processes calls it before append returns"
)
REPLAYED = "after returns all that followed an event in its stream, in order and unchanged, or None"
UNKNOWN_EVENTS = (
    "after returns None for an id that was never given out, is malformed or belongs to another session"
)
ENDED_STREAM = "the events of a stream that ended may still be asked for"
FORGOTTEN_EVENTS = "forget frees all events of a session, and of no other"

# -- the bus
PUBLISHED = "every event reaches every other node, with its topic and key, and not the node that published it"
COALESCED = "an event that waits to be sent is not put a second time"
MISSED = "when events are lost, missed() is called at the nodes that did not get them"
UNSUBSCRIBED = "nothing is called any more once the returned function was called, and others still are"
MESSAGES = "messages to a mailbox arrive once, whole, in the order of their sender, and at no other mailbox"
MAILBOXES = (
    "send says whether the mailbox's node was there; messages to an address that is closed are dropped"
)

# -- tasks
CREATED = "when create returned None, every node can read the task, as it was given"
BOUNDS = "create returns whose bounds have no room, exactly, and keeps nothing then"
COMPARED = "replace keeps a value if the stored revision is the one before it, and only one of several wins"
LAST_VALUE = "a terminal value is the last one"
EXPIRED = "a task whose ttl is over does not exist, and one whose ttl is not over does"
PAGES = "page returns the tasks of one owner, oldest first, also behind one that was dropped in between"
ABANDONED = "abandoned returns the tasks that are not terminal and whose node is gone, and no others"
SURVIVES = "a store that survives has its tasks when all nodes have ended and one begins"

# -- replays
USED_ONCE = (
    "first_use is true once in so many seconds for a name, at all nodes together, and true again after them"
)
