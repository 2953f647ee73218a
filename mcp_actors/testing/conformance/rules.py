"""The rules of `mcp_actors.abc` that the kit checks, in the words in which a breach is reported."""

from __future__ import annotations

__all__ = [
    "ACCEPTING",
    "BLOCK",
    "BREAKAGE",
    "CALLS",
    "CANCELLED_CALL",
    "CANCELLED_RECEIVE",
    "CANCELLED_SEND",
    "CHANGES",
    "CLEAN_END",
    "CLOSING",
    "DELIVER",
    "DELIVERED",
    "ENDINGS",
    "HALF_CLOSE",
    "HAND_OVER",
    "ISOLATION",
    "LIMIT",
    "NOTHING_KEPT",
    "NO_DUPLICATION",
    "NO_LOSS",
    "NO_TASK_LEFT",
    "ORDER",
    "PRESSURE",
    "PROGRESS",
    "PROPERTIES",
    "QUESTIONS",
    "SERVER_GONE",
    "SERVE_CANCELLED",
    "SETTLED",
    "TURNS",
    "WHOLE",
    "WRITE_NOW",
]

ORDER = "frames arrive in the order in which they were sent"
NO_LOSS = "no frame is lost"
NO_DUPLICATION = "no frame arrives twice"
WHOLE = "a frame arrives whole and unchanged"
LIMIT = (
    "max_message_bytes is the longest message a channel carries, in either direction: that long ones arrive, "
    "a longer one is refused with LocalProtocolError and nothing sent, or ends the connection"
)
PROPERTIES = (
    "max_message_bytes is a positive int or None, mirrors a bool, peer a str, and loss_report() a mapping"
)
SETTLED = "settled() must not wait, and may name a request the channel knows nothing of"
HAND_OVER = (
    "send_nowait hands one frame over whole, in order with what send was given, or raises WouldBlock "
    "and sends nothing"
)
WRITE_NOW = (
    "write_now takes all of a frame, in order with what send was given, or nothing, and says whether it did; "
    "it says no when the channel is closed"
)
DELIVER = (
    "what deliver_to was given takes frames only while somebody waits in receive_many and nothing is ahead of them, "
    "and what it refuses is received"
)
PRESSURE = "send waits while the peer takes no more: memory is bounded when a peer does not read"
ISOLATION = "every connection stands alone: one that stalls or ends holds up no other"
TURNS = (
    "receive_many returns a part of what has come, some hundred frames at most, and is a checkpoint each time: others "
    "have their turn beside a peer that floods"
)
ENDINGS = (
    "ClosedResourceError, BrokenResourceError and EndOfChannel (receiving only), and no other exception, "
    "come out of a channel"
)
CLEAN_END = (
    "receive raises EndOfChannel when the peer ended cleanly, after all that it sent, and goes on raising it"
)
BREAKAGE = "BrokenResourceError: the world broke it, and nothing can be sent any more"
DELIVERED = "what was sent before aclose arrives before the end"
HALF_CLOSE = "a peer that ended cleanly sends no more, but may read"
CLOSING = (
    "aclose closes both directions at once, is legal from any task and any number of times, and whoever uses "
    "the channel then, or waits in it, gets ClosedResourceError"
)
BLOCK = "leaving the block of connect() closes the channel, within a bounded time"
CANCELLED_RECEIVE = "cancelling receive or receive_many loses nothing"
CANCELLED_SEND = (
    "a cancelled send may leave its frame sent, not sent or torn; a torn one is the last thing that was sent, so "
    "every later send raises an ending"
)
ACCEPTING = "task_status.started(where) is called once connections are accepted, and each gets its handler"
SERVE_CANCELLED = "serve, when cancelled, closes everything at once"
NO_TASK_LEFT = "nothing of a transport is left when serve and connect() have ended"
CALLS = "end to end: every call gets its own answer, once, whatever else is under way"
PROGRESS = "end to end: all progress of a call arrives, in order, before its answer"
CANCELLED_CALL = "end to end: a cancelled call is cancelled where it runs, and nothing else is"
CHANGES = "end to end: changes that were asked for arrive"
QUESTIONS = "end to end: what a handler asks reaches the client, and the answer comes back to it"
SERVER_GONE = (
    "end to end: when the server has ended, every call in flight fails soon, with an error of this engine"
)
NOTHING_KEPT = (
    "end to end: nothing that has ended keeps what a peer sent, not even until garbage is collected"
)
