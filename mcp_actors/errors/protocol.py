"""The base of all exceptions, and those about broken rules of the protocol."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "URL_ELICITATION_REQUIRED",
    "ApiDocumentError",
    "AppRefused",
    "CallEnded",
    "ClosedElsewhere",
    "ConfigurationError",
    "DeadlineExceeded",
    "DefinitionChanged",
    "HeaderMismatch",
    "InboxUnavailable",
    "InsufficientScope",
    "KeyConflict",
    "LocalProtocolError",
    "MalformedMessage",
    "McpError",
    "MethodNotFound",
    "MissingCapability",
    "MissingVariable",
    "NotAllowed",
    "OnceConflict",
    "OnceFailed",
    "OutcomeUnknown",
    "Overloaded",
    "ProtocolError",
    "RemoteProtocolError",
    "ResourceNotFound",
    "RpcError",
    "ServerStopping",
    "SharedStateUnavailable",
    "SkillRefused",
    "TaskNotFound",
    "TurnLost",
    "Unavailable",
    "UnsupportedVersion",
    "UpstreamMisbehaved",
    "UpstreamTimeout",
    "UpstreamUnavailable",
    "invalid_params",
]


# -- the error codes of JSON-RPC 2.0, section 5.1, and of the protocol, that have no class of their own ------------

PARSE_ERROR = -32700
"""JSON-RPC 2.0: the message is not JSON."""
INVALID_REQUEST = -32600
"""JSON-RPC 2.0: the JSON is not a request."""
METHOD_NOT_FOUND = -32601
"""JSON-RPC 2.0: the peer does not have this method."""
INVALID_PARAMS = -32602
"""JSON-RPC 2.0: the parameters of the request do not fit its method."""
INTERNAL_ERROR = -32603
"""JSON-RPC 2.0: the request failed at the peer."""
URL_ELICITATION_REQUIRED = -32042
"""MCP 2025-11-25: a person has to visit a page before the request can succeed."""


def see_page(page: str) -> str:
    """Returns the words with which a message names the page that says more.

    Args:
        page: What ``mcp-actors docs``, which needs no network, prints: a page, or a section as ``page#section``.
    """
    return f"see: mcp-actors docs {page}"


class McpError(Exception):
    """The base class of all exceptions of this package."""

    PAGE: ClassVar[str] = ""
    """The page that says more, or an empty string where the message says all. An exception has it as a note
    (`BaseException.add_note`), so that tracebacks and commands show it below the message."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if self.PAGE:
            self.add_note(see_page(self.PAGE))


class ProtocolError(McpError):
    """A rule of the protocol was broken."""


class LocalProtocolError(ProtocolError):
    """The program asked for something that the protocol does not allow in this state or revision. Nothing was sent."""


class OnceConflict(LocalProtocolError):
    """A use of `Context.once` that does not fit to what the call has done: the text says to what."""

    PAGE: ClassVar[str] = "once"


class OnceFailed(McpError):
    """An effect of `Context.once` has failed with an exception, in an earlier run of the call.

    Args:
        name: The name that `Context.once` was given.
        error: The type and the text of the exception.
    """

    def __init__(self, name: str, error: str) -> None:
        super().__init__(f"{name!r} has failed before: {error}")
        self.error = error


class SkillRefused(McpError):
    """A skill, or a file of it, is not what its server has listed, or has too much: it must not be used (SEP-2640).

    It may have changed since: `Client.get_skill` asks for the entry of today. Whoever has approved the former one has
    not approved that.

    Args:
        uri: The file, or the ``SKILL.md`` of the skill.
        reason: What is wrong with it: its ``"digest"``, its ``"size"``, its ``"frontmatter"``, that it is
            ``"unlisted"``, or that the skill is beyond the ``"limits"``.
        explanation: The reason in words.
    """

    PAGE: ClassVar[str] = "skills#when-a-skill-is-refused"

    def __init__(
        self,
        uri: str,
        reason: Literal["digest", "size", "frontmatter", "unlisted", "limits"],
        explanation: str,
    ) -> None:
        super().__init__(f"{uri[:200]} is refused: {explanation[:500]}")
        self.uri = uri
        self.reason = reason


class AppRefused(McpError):
    """The page of a tool is not one that a host may show (SEP-1865).

    Args:
        uri: The page.
        reason: What is wrong with it: its ``"uri"`` is no ``ui://``, its ``"type"`` is another one, it is beyond the
            ``"limits"`` of 4 MiB, or it has no ``"contents"`` that are one document.
        explanation: The reason in words.
    """

    PAGE: ClassVar[str] = "apps#when-a-page-is-refused"

    def __init__(
        self, uri: str, reason: Literal["uri", "type", "limits", "contents"], explanation: str
    ) -> None:
        super().__init__(f"{uri[:200]} is refused: {explanation[:500]}")
        self.uri = uri
        self.reason = reason


class ClosedElsewhere(LocalProtocolError):
    """A `Client` or a `ClientPool` was closed in another task, or in another order, than it was opened in.

    Its connections are closed all the same. The clients of a `ClientPool` may be closed in any order, from any task.
    """

    def __init__(self, owner: str, where: str) -> None:
        super().__init__(
            f"this {owner} was left {where} than it was entered in: an 'async with' block and what is opened inside of "
            "it must be left in reverse order by one task. Open clients with 'ClientPool.open', which may be closed "
            "in any order, from any task"
        )


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow."""


class MalformedMessage(RemoteProtocolError):
    """Bytes that are not one valid JSON-RPC message.

    Args:
        code: the JSON-RPC code to answer with, -32700 (no JSON), -32600 (no message) or 429 (no room, `Overloaded`).
        id: the request id, if one could be read.

    ``beginning`` has the first characters of what came, where they are known.
    """

    def __init__(self, message: str, *, code: int = PARSE_ERROR, id: int | str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.id = id
        self.beginning = ""


class Unavailable(RemoteProtocolError):
    """The server, or a proxy before it, cannot serve the request at present; the same may succeed later.

    A binding raises it for a refusal that says nothing about the protocol, as HTTP does for 5xx and 429.

    Args:
        message: What happened.
        retry_after: The seconds to wait that the server asked for; ``None`` if it did not say.
        never_run: Whether the request was refused before anything of it was begun.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, never_run: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.never_run = never_run


# -- error responses: one class for each code that a program may want to catch -------------------------------------

SharedRole = Literal["sessions", "events", "bus", "tasks", "replays", "values"]
"""A part of the state that several processes share; see `mcp_actors.abc`."""


class RpcError(McpError):
    """A JSON-RPC error response. A handler raises it to send it; a client's call raises what it received.

    Args:
        code: the JSON-RPC error code.
        message: one sentence, which the peer sees.
        data: any JSON value; ``None`` is sent as no data.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} (code {self.code})"

    @classmethod
    def from_wire(cls, code: int, message: str, data: Any = None) -> RpcError:
        """Returns an instance of the most specific class for ``code``, so that callers can catch by type."""
        kind = _RPC_CLASS_BY_CODE.get(code, RpcError)
        if isinstance(data, dict):
            for each in _RPC_CLASSES_WITH_REASONS:
                if (code, data.get("reason")) == (each.CODE, each.REASON):
                    kind = each
        return kind._rebuild(code, message, data)

    @classmethod
    def _rebuild(cls, code: int, message: str, data: Any) -> RpcError:
        error = cls.__new__(cls)
        RpcError.__init__(error, code, message, data)
        return error


class MethodNotFound(RpcError):
    """The revision has no such method, or the receiver has not declared the capability that it belongs to."""

    CODE: ClassVar[int] = METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(self.CODE, f"method not found: {method}")


class UnsupportedVersion(RpcError):
    """The server does not serve the requested revision (MCP 2026-07-28).

    ``supported`` lists the revisions that it serves.
    """

    CODE: ClassVar[int] = -32022
    PAGE: ClassVar[str] = "connections#versions"

    def __init__(self, requested: str, supported: list[str]) -> None:
        super().__init__(
            self.CODE,
            f"protocol version {requested!r} is not supported; supported: {', '.join(supported)}",
            {"supported": supported, "requested": requested},
        )

    @property
    def supported(self) -> list[str]:
        """The versions that the peer serves; empty if its error does not list them."""
        listed = self.data.get("supported") if isinstance(self.data, dict) else None
        return [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []


class MissingCapability(RpcError):
    """The client has not declared a capability that this request needs.

    ``data["requiredCapabilities"]`` has the missing ones.
    """

    CODE: ClassVar[int] = -32021

    def __init__(self, required: dict[str, Any]) -> None:
        super().__init__(
            self.CODE,
            f"the client must declare the capability {', '.join(sorted(required))} for this request",
            {"requiredCapabilities": required},
        )


class HeaderMismatch(RpcError):
    """An HTTP header that repeats a part of the body (SEP-2243) is missing, malformed or differs from the body."""

    CODE: ClassVar[int] = -32020

    def __init__(self, message: str) -> None:
        super().__init__(self.CODE, message)


class ResourceNotFound(RpcError):
    """There is no resource with the URI ``uri``.

    A resource function raises it, and the engine sends the code of the peer's revision: -32002, or -32602 from MCP
    2026-07-28 on. A client raises it for either code.
    """

    CODE: ClassVar[int] = -32002

    def __init__(self, uri: str) -> None:
        super().__init__(self.CODE, f"resource not found: {uri}", {"uri": uri})

    @property
    def uri(self) -> str:
        """The URI that was asked for; empty if the peer's error does not say it."""
        uri = self.data.get("uri") if isinstance(self.data, dict) else None
        return uri if isinstance(uri, str) else ""


class TaskNotFound(RpcError):
    """There is no task with that id: it never existed, its time is over, or it belongs to another client.

    A server answers so to all three, so that clients do not learn of the tasks of others. ``task_id`` is the id that
    was asked for; an id is a secret, so the message has its beginning only.
    """

    CODE: ClassVar[int] = INVALID_PARAMS

    task_id: str

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(self.CODE, f"no such task: {task_id[:6]}…; it may have expired")


def _retry_after(data: Any) -> float | None:
    """Returns the seconds that the data of an error names for another attempt, if it names any that can be."""
    delay = data.get("retryAfterMs") if isinstance(data, dict) else None
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay < 1e12:
        return None
    return delay / 1000


class Overloaded(RpcError):
    """The request was refused because a limit is reached. Nothing was run, so it may be sent again later.

    ``data`` has the limit's ``scope``, the ``limit`` itself and how many requests are ``waiting``. The code is outside
    the range that JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it.
    """

    CODE: ClassVar[int] = 429
    PAGE: ClassVar[str] = "limits"

    def __init__(self, scope: str, limit: int, waiting: int) -> None:
        super().__init__(
            self.CODE,
            f"too many requests in flight on this {scope}: {limit} running and {waiting} waiting; retry later",
            {"reason": "overloaded", "scope": scope, "limit": limit, "waiting": waiting},
        )

    @classmethod
    def for_caller(cls, what: str, limit: float, retry_after: float) -> Overloaded:
        """Returns the refusal of a request of a caller that has reached a limit of its own.

        Args:
            what: The things that are limited, in the plural.
            limit: How many of them a caller may have.
            retry_after: Seconds after which the caller may expect better.
        """
        error = cls._rebuild(
            cls.CODE,
            f"too many {what} of this client: the limit is {limit:g}; retry in {retry_after:.3g} s",
            {
                "reason": "overloaded",
                "scope": "holder",
                "limit": limit,
                "retryAfterMs": math.ceil(retry_after * 1000),
            },
        )
        assert isinstance(error, Overloaded)
        return error

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server expects to serve the request; ``None`` if it does not say."""
        return _retry_after(self.data)

    @classmethod
    def for_bytes(cls, what: str, whose: Literal["holder", "all"], limit: int) -> Overloaded:
        """Returns the refusal of a request with which ``what`` would hold more than ``limit`` bytes.

        ``whose`` says what the limit is for: the ``what`` of one client (``"holder"``) or of all clients.
        """
        of = "this client" if whose == "holder" else "all clients together"
        error = cls._rebuild(
            cls.CODE,
            f"too many bytes in the {what} of {of}: the limit is {limit}; retry later",
            {"reason": "overloaded", "scope": whose, "limit": limit},
        )
        assert isinstance(error, Overloaded)
        return error

    @classmethod
    def for_tasks(cls, what: str, whose: Literal["holder", "all"], limit: int) -> Overloaded:
        """Returns the refusal of a call that would become a task too many.

        ``what`` says which tasks are counted, such as those that run, and ``whose`` what the limit is for: the tasks
        of one client (``"holder"``) or of all clients.
        """
        of = "this client" if whose == "holder" else "all clients together"
        error = cls._rebuild(
            cls.CODE,
            f"too many {what} of {of}: the limit is {limit}; retry later",
            {"reason": "overloaded", "scope": whose, "limit": limit},
        )
        assert isinstance(error, Overloaded)
        return error


class OutcomeUnknown(RpcError):
    """Something that may be done once only was begun, and nobody knows what came of it: it is not begun again.

    The process that ran it has ended in between, or its call was cancelled: look at what it has changed.
    The code is outside of the range that JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it.

    Args:
        what: What was begun, such as the name that `Context.once` was given.
    """

    CODE: ClassVar[int] = 409
    REASON: ClassVar[str] = "outcome_unknown"
    PAGE: ClassVar[str] = "once"

    def __init__(self, what: str) -> None:
        super().__init__(
            self.CODE,
            f"{what!r} was begun before, and its outcome is not known: find out what it has done before you call again",
            {"reason": self.REASON, "what": what},
        )


class TurnLost(RpcError):
    """The turn of a call was lost while its function ran, which was cancelled: another node may run the next call.

    Its node could not reach the shared state for longer than the lease of a turn, or others took it for gone. What the
    function has done until then is done. The code is outside of the range that JSON-RPC 2.0, section 5.1 reserves,
    because MCP forbids new codes inside it.

    Args:
        key: The key of the turn.
    """

    CODE: ClassVar[int] = 409
    REASON: ClassVar[str] = "turn_lost"
    PAGE: ClassVar[str] = "turns"

    def __init__(self, key: str) -> None:
        super().__init__(
            self.CODE,
            "the call was stopped in the middle: its turn was lost, since the shared state could not be reached",
            {"reason": self.REASON, "key": key},
        )


class KeyConflict(RpcError):
    """The key of a call was used before with other arguments: nothing was begun.

    A key belongs to one request of one caller: make the next call with another key. The code is outside of the range
    that JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it.

    Args:
        tool: The tool that is called.
        key: The key.
    """

    CODE: ClassVar[int] = 409
    REASON: ClassVar[str] = "key_conflict"
    PAGE: ClassVar[str] = "idempotency"

    def __init__(self, tool: str, key: str) -> None:
        super().__init__(
            self.CODE,
            f"the key {key!r} of {tool!r} belongs to a call with other arguments: use another key for this call",
            {"reason": self.REASON},
        )


class CallEnded(RpcError):
    """A message was sent to a call that has ended, or that the node which got the message does not have.

    Nothing of it was delivered. The code is outside of the range that JSON-RPC 2.0, section 5.1 reserves, because MCP
    forbids new codes inside it.
    """

    CODE: ClassVar[int] = 410
    REASON: ClassVar[str] = "call_ended"
    PAGE: ClassVar[str] = "streams"

    def __init__(self) -> None:
        super().__init__(
            self.CODE,
            "the call has ended, or runs at another node: no message reaches it",
            {"reason": self.REASON},
        )


class InboxUnavailable(LocalProtocolError):
    """The server takes no messages for calls that run: it does not have the extension ``mcp-actors/streams``."""

    PAGE: ClassVar[str] = "streams"


class DeadlineExceeded(RpcError):
    """The time that the caller had left for a request is over: the server has refused it, or stopped in the middle.

    A client raises it, too, without sending anything, where the call that it is made for has no time left. The code is
    outside of the range that JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it.

    Args:
        what: The method, with the name of what was called.
        begun: Whether something of it may have been done.
    """

    CODE: ClassVar[int] = 504
    REASON: ClassVar[str] = "deadline_exceeded"
    PAGE: ClassVar[str] = "deadlines"

    def __init__(self, what: str, *, begun: bool) -> None:
        how = (
            "while it ran: it was cancelled, and may have done a part of its work"
            if begun
            else "before it was begun: nothing was run"
        )
        super().__init__(
            self.CODE,
            f"{what}: the time that its caller had left was over {how}",
            {"reason": self.REASON, "begun": begun},
        )

    @property
    def begun(self) -> bool:
        """Whether something may have been done of it; false only where it is known that nothing was run."""
        return not (isinstance(self.data, dict) and self.data.get("begun") is False)


class InsufficientScope(RpcError):
    """The caller's access token lacks a scope that the operation needs.

    ``data["scopes"]`` lists all scopes of the operation. The engine raises it for ``scopes=`` of a tool, and then
    nothing was run. A handler raises it where the scopes depend on the arguments. The code is outside the range that
    JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it. Over HTTP the same refusal is a 403
    with a challenge (MCP 2026-07-28, Authorization, Runtime Insufficient Scope Errors), wherever a status can still be
    sent: a handler that has reported progress before has its stream already.

    Args:
        scopes: All scopes of the operation, those that the caller has included.

    Raises:
        TypeError: They are one text.
    """

    CODE: ClassVar[int] = 403

    needed: frozenset[str] = frozenset()
    """The scopes, where the error is raised. Of one that came from a server they are in ``data`` alone: a handler that
    lets it out must not make its own callers ask for the scopes of another server."""

    def __init__(self, scopes: Iterable[str]) -> None:
        if isinstance(scopes, str):
            raise TypeError(f"scopes is the text {scopes!r}: give a set or a list of scopes")
        self.needed = frozenset(scopes)
        needed = sorted(self.needed)
        super().__init__(
            self.CODE,
            f"the access token lacks a scope; needed are: {' '.join(needed)}",
            {"reason": "insufficient_scope", "scopes": needed},
        )


class NotAllowed(RpcError):
    """The caller may not use the tool, prompt or resource: ``auth=`` of it refuses.

    The code is that of `InsufficientScope`, from which ``data["reason"]`` tells it apart; no other scope would help.

    Args:
        kind: ``"tool"``, ``"prompt"``, ``"resource"`` or ``"template"``.
        name: Its name, or its URI.
    """

    CODE: ClassVar[int] = 403
    REASON: ClassVar[str] = "not_allowed"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(self.CODE, f"you may not use the {kind} {name}", {"reason": self.REASON})


class DefinitionChanged(RpcError):
    """A tool, prompt or skill is not what was approved of it, as a lock file has it; a call was not sent to its server.

    A client with ``Client(lock=)`` raises it, and a gateway answers with it. The code is that of `InsufficientScope`,
    from which ``data["reason"]`` tells it apart.

    Args:
        kind: ``"tool"``, ``"prompt"`` or ``"skill"``.
        name: Its name, of a skill its URI.
        change: ``"changed"``, ``"added"`` if it was not approved, or ``"missing"`` if it is not listed any more.
        diff: What is different, for a person; it is not sent to anybody.
    """

    CODE: ClassVar[int] = 403
    REASON: ClassVar[str] = "definition_changed"
    PAGE: ClassVar[str] = "lock"
    diff: str = ""
    """What is different, as a unified diff of JSON; empty where another program has refused it."""

    def __init__(self, kind: str, name: str, change: str, diff: str = "") -> None:
        why = {"added": "was not approved", "missing": "was approved, and is not listed any more"}
        said = why.get(change, "is not what was approved")
        data = {"reason": self.REASON, "change": change}
        super().__init__(self.CODE, f"the {kind} {name[:SHOWN]!r} {said}, so that it is not used", data)
        self.diff = diff


class SharedStateUnavailable(RpcError):
    """The state that several processes share cannot be reached, so that this request cannot be served now.

    ``data["role"]`` says what of it the request needed: its session, events, tasks, bus, replays or users. Requests
    that need nothing of it go on, and it comes back by itself: send the request again later. The code is outside the
    range that JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it.

    Args:
        role: What was needed.
        cause: The reason, for the log of this side; the peer does not see it.
    """

    CODE: ClassVar[int] = 503
    PAGE: ClassVar[str] = "processes"

    cause: str = ""
    """The reason, where the error is raised; empty on the other side."""

    def __init__(self, role: SharedRole, cause: str = "") -> None:
        self.cause = cause
        super().__init__(
            self.CODE,
            f"the shared state of this server cannot be reached, and this needs its {role}; retry later",
            {"reason": "shared_state_unavailable", "role": role},
        )
        if cause:
            # Tracebacks show it; what peers are sent is the message.
            self.add_note(cause)


class ServerStopping(RpcError):
    """The server stops: it has not begun the request, or could not end it in the time that it had left.

    ``data["begun"]`` says which of the two. Of a request that was begun ``data`` has ``ranMs``, and ``progress`` and
    ``total`` where the function has reported them: it was cancelled, and may have done a part of its work. The code is
    outside the range that JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it.
    """

    CODE: ClassVar[int] = 503
    REASON: ClassVar[str] = "server_stopping"

    def __init__(self) -> None:
        super().__init__(
            self.CODE,
            "the server is stopping, and nothing of this was begun; send it again",
            {"reason": self.REASON, "begun": False, "retryAfterMs": 1000},
        )

    @classmethod
    def cut(cls, what: str, ran: float, progress: tuple[float, float | None] | None = None) -> ServerStopping:
        """Returns the answer to a request that was begun.

        Args:
            what: The method, with the name of what was called.
            ran: Seconds since it arrived.
            progress: What its function has reported last, with the total.
        """
        data: dict[str, Any] = {"reason": cls.REASON, "begun": True, "ranMs": math.ceil(ran * 1000)}
        reported = ""
        if progress is not None:
            done, total = progress
            data["progress"] = done
            reported = f", and had reported a progress of {done}"
            if total is not None:
                data["total"] = total
                reported += f" of {total}"
        message = (
            f"the server was stopped while {what} ran, for {ran:.1f} s by then{reported}; it was cancelled, and may "
            "have done a part of its work"
        )
        error = cls._rebuild(cls.CODE, message, data)
        assert isinstance(error, ServerStopping)
        return error

    @classmethod
    def elsewhere(cls) -> ServerStopping:
        """Returns the answer to a request that this server had passed on to another node, which may go on with it."""
        error = cls._rebuild(
            cls.CODE,
            "the server was stopped while another node had the request, which may go on with it there",
            {"reason": cls.REASON, "begun": True},
        )
        assert isinstance(error, ServerStopping)
        return error

    @property
    def begun(self) -> bool:
        """Whether the server may have done something of the request; false only where it says that it has not."""
        return not (isinstance(self.data, dict) and self.data.get("begun") is False)

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the request may be sent again; ``None`` if the server does not say."""
        return _retry_after(self.data)


class UpstreamUnavailable(RpcError):
    """A server behind a gateway cannot be reached, or was lost during the call, so that this request failed.

    ``data["upstream"]`` names the server, and requests for other ones go on. After ``data["retryAfterMs"]``, where that
    is told, it is tried again; until then requests for it are refused at once. The code is outside the range that
    JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it.

    Args:
        upstream: The name of the server in the gateway.
        reason: What happened, for the client's side; it must hold no secrets.
        retry_after: Seconds after which the gateway tries again; ``None`` if the next request does.
    """

    CODE: ClassVar[int] = 502

    def __init__(self, upstream: str, reason: str, retry_after: float | None = None) -> None:
        data: dict[str, Any] = {"reason": "upstream_unavailable", "upstream": upstream}
        if retry_after is not None:
            data["retryAfterMs"] = math.ceil(retry_after * 1000)
        super().__init__(self.CODE, f"the server {upstream!r} is not available: {reason}", data)


class UpstreamTimeout(RpcError):
    """A server behind a gateway has neither answered nor reported progress in time; it was asked to stop.

    ``data["upstream"]`` names the server. Whether the request was run is not known. The code is outside the range that
    JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it.

    Args:
        upstream: The name of the server in the gateway.
        clock: The clock that ran out, as in `CallTimeout`.
        seconds: Its length.
    """

    CODE: ClassVar[int] = 504

    def __init__(self, upstream: str, clock: Literal["idle", "cap"], seconds: float) -> None:
        waited = "no answer and no progress for" if clock == "idle" else "not finished after"
        data = {"reason": "upstream_timeout", "upstream": upstream, "clock": clock, "seconds": seconds}
        super().__init__(self.CODE, f"the server {upstream!r}: {waited} {seconds:g} s", data)


class UpstreamMisbehaved(RpcError):
    """A server behind a gateway has answered with what the protocol does not allow, so that this request failed.

    ``data["upstream"]`` names the server. The code is outside the range that JSON-RPC 2.0, section 5.1 reserves,
    because MCP forbids new codes inside it.

    Args:
        upstream: The name of the server in the gateway.
        problem: What it did, for the client's side; it must hold no secrets.
    """

    CODE: ClassVar[int] = 520

    def __init__(self, upstream: str, problem: str) -> None:
        data = {"reason": "upstream_misbehaved", "upstream": upstream}
        super().__init__(self.CODE, f"the server {upstream!r} misbehaved: {problem}", data)


_RPC_CLASS_BY_CODE: dict[int, type[RpcError]] = {
    each.CODE: each
    for each in (
        MethodNotFound,
        UnsupportedVersion,
        MissingCapability,
        HeaderMismatch,
        ResourceNotFound,
        Overloaded,
        InsufficientScope,
        SharedStateUnavailable,
        UpstreamUnavailable,
        UpstreamTimeout,
        UpstreamMisbehaved,
    )
}

# Their codes are those of others, too.
_RPC_CLASSES_WITH_REASONS = (
    ServerStopping,
    NotAllowed,
    DefinitionChanged,
    OutcomeUnknown,
    KeyConflict,
    TurnLost,
    DeadlineExceeded,
    CallEnded,
)


def invalid_params(message: str) -> RpcError:
    """Returns the error for params that do not have the form that the method needs: code -32602."""
    return RpcError(INVALID_PARAMS, message)


# -- configurations of servers that cannot be used -----------------------------------------------------------------

# Characters of a name from a configuration that a message shows.
SHOWN = 80


class ConfigurationError(McpError):
    """A configuration of servers cannot be used, or the target of an upstream. No secret of a configuration is shown.

    Args:
        problem: A clause that says what is wrong, and what to write.
        file: The file, or words for where the configuration came from.
        server: The name of the entry, if it is about one.
        member: The member of the entry, such as ``env.API_KEY``.
    """

    PAGE: ClassVar[str] = "gateway#a-configuration"

    def __init__(
        self, problem: str, *, file: str, server: str | None = None, member: str | None = None
    ) -> None:
        where = [file]
        if server is not None:
            where.append(f"server {server[:SHOWN]!r}")
        if member is not None:
            where.append(member[:SHOWN])
        super().__init__(f"{', '.join(where)}: {problem}")
        self.file = file
        self.server = server
        self.member = member


class ApiDocumentError(ConfigurationError):
    """An OpenAPI document cannot be read, or no server can be made of it; ``file`` is its path or URL."""

    PAGE: ClassVar[str] = "openapi"


class MissingVariable(ConfigurationError):
    """An entry names an environment variable that is not set, and has no default for it.

    Args:
        variable: The name of the variable.
        problem: A clause that says what is missing.
        file: The file, or words for where the configuration came from.
        server: The name of the entry.
        member: The member that names the variable.
    """

    def __init__(self, variable: str, problem: str, *, file: str, server: str, member: str) -> None:
        super().__init__(problem, file=file, server=server, member=member)
        self.variable = variable
