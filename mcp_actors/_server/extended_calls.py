"""The parts of a call that functions of extensions need beside its `Context`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_actors._eras.era import structured
from mcp_actors._server import client_requests
from mcp_actors._server.context import Context
from mcp_actors._wire.messages import RequestId
from mcp_actors.types import InputRequest, InputResponse

__all__ = ["ask_client", "check_answer", "has_asked", "holder_of", "progress_token_of", "read_answer"]


def holder_of(ctx: Context) -> str | None:
    """Returns who is charged for what a call makes the server keep: its principal or, without one, its address.

    ``None`` where neither is known, as in memory.

    Args:
        ctx: The call.
    """
    memory = ctx.call.owner.limiters.memory
    return None if memory is None else memory.holder(ctx.call.invocation)


def has_asked(ctx: Context) -> bool:
    """Whether the functions of a call have asked the client, so that the result is good for this call alone.

    Args:
        ctx: The call.
    """
    invocation = ctx.call.invocation
    return bool(ctx._kept) or invocation.answers is not None or invocation.state is not None


def progress_token_of(ctx: Context) -> RequestId | None:
    """Returns the token for reports of progress that a call was made with, ``None`` if it wants none.

    Args:
        ctx: The call.
    """
    return ctx.call.invocation.progress_token


async def ask_client(ctx: Context, method: str, params: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """Sends a request to the client of a session, on the stream of a call, and returns its raw result.

    Cancelled, it sends a cancellation of the request.

    Args:
        ctx: The call.
        method: The method.
        params: Its params.
        seconds: How long the answer may take.

    Raises:
        RpcError: The client answered with an error.
        CallTimeout: It did not answer in time.
        LocalProtocolError: There is no session.
        ConnectionLost: The connection ended before the answer.
        SessionExpired: The session ended before the answer.
    """
    return await ctx.call.ask(method, params, idle=seconds, cap=seconds)


def read_answer(ctx: Context, question: InputRequest, raw: Any) -> InputResponse:
    """Returns the typed answer to a question.

    Args:
        ctx: The call of the client that was asked, whose revision the answer has.
        question: The question.
        raw: The answer, as JSON values.

    Raises:
        RemoteProtocolError: The answer is malformed, or does not fit the form.
    """
    return client_requests.read_answer(question, raw, ctx.era)


def check_answer(ctx: Context, question: Mapping[str, Any], key: str, answers: Mapping[str, Any]) -> None:
    """Checks one of the answers that came with a request (``inputResponses``).

    Args:
        ctx: The call that brought them.
        question: The question, with its ``method`` and ``params`` as JSON values.
        key: The key of the question.
        answers: The answers, by key.

    Raises:
        RpcError: -32602: the answer is malformed, or does not fit the form.
    """
    method = ctx.era.client_methods[question["method"]]
    asked: Any = structured(ctx.era, question["params"], method.params)
    client_requests.read_recorded(asked, key, answers, ctx.era)
