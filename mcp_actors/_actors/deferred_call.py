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
from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import CALL_WORKER

__all__ = ["begun_without_task"]


def begun_without_task(call: InboundCall, pool: TaskPool) -> bool:
    """Begins a call whose continuation can do without a task now; returns false, having done nothing, if it needs one.

    Args:
        call: The call, which has entered every limiter, or waits for one.
        pool: Starts the task that the rest of it may need.
    """
    deferred = call.continuation
    assert call.admission is not None
    # Calls begin in the order of their requests. Telemetry is told when the task of a call goes on, and the task of a
    # call passes reports of progress on.
    if (
        not isinstance(deferred, Deferred)
        or call.__class__ is not InboundCall
        or call.admission.ahead
        or call.invocation.progress_token is not None
        or pool.has_queue
    ):
        return False
    deferred.begun = True
    try:
        deferred.begun = deferred.begin(partial(_done, call, deferred, pool))
    except Exception as error:
        call.end_now(call.failure(error))
        return True
    return deferred.begun


def _done(call: InboundCall, deferred: Deferred, pool: TaskPool) -> None:
    # Whoever reads the answer serves other calls too, for which this one must not fail.
    with Containment(CALL_WORKER, call.fail):
        call.continuation = None
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
