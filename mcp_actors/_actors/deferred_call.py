"""Calls without a task of their own: what they wait for is one answer, which is read in somebody else's turn.

==============================  =====================================================================================
what happens to such a call     what becomes of it
==============================  =====================================================================================
there is an outcome             it is sent in the turn of whoever read it, or the call gets a task for the rest
the peer cancels it             it is abandoned, and nothing is sent
whoever runs the server ends    it is abandoned, and the error is sent
it
its session ends                the session waits for it as for its tasks; it is abandoned when these are cancelled
==============================  =====================================================================================
"""

from __future__ import annotations

from functools import partial

from mcp_actors._actors.continuation import Continuation, Deferred
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.responses import result_frame
from mcp_actors._actors.task_pool import TaskPool

__all__ = ["begun_without_task"]


def begun_without_task(call: InboundCall, pool: TaskPool) -> bool:
    """Begins a call if it can do without a task; returns false if it needs one, or was not begun for another reason.

    Args:
        call: The call, which has nothing more to enter.
        pool: Starts the task that the rest of it may need.
    """
    deferred = call.continuation
    assert call.admission is not None
    # Calls begin in the order of their requests. Telemetry is told of the task of a call, and reports of progress are
    # passed on by it.
    if (
        not isinstance(deferred, Deferred)
        or call.__class__ is not InboundCall
        or call.admission.ahead
        or call.invocation.progress_token is not None
        or pool.has_queue
    ):
        return False
    call.deferred = deferred
    try:
        if deferred.begin(partial(_done, call, pool)):
            return True
    except Exception as error:
        call.end_now(call.failure(error))
        return True
    call.deferred = None
    return False


def _done(call: InboundCall, pool: TaskPool) -> None:
    deferred, call.deferred = call.deferred, None
    assert deferred is not None
    try:
        result = deferred.outcome()
        if isinstance(result, Continuation):
            call.continuation = result
            pool.start(call)
            return
        frame = result_frame(call.invocation, result, call.owner.responder.stamp, call.outlet.longest)
    except Exception as error:
        frame = call.failure(error)
    call.end_now(frame)
