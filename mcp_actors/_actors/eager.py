"""Makes the next step of a parked task at once, in the turn of the task that calls, in place of Trio's next turn.

A call that arrives alone is answered in the turn in which it was read, so that the loop does not go round in between,
with its look at the clock and at the system. The task stays a task: its scopes, its context variables and its
cancellation are its own, because what runs in the step sees it as the current one.

Trio has no public way to do this. The private names that it takes are here and nowhere else, and they are used only
with the versions of Trio that this was tried with. With any other one, and with ``MCP_ACTORS_EAGER=0`` in the
environment, `step` is ``None``: tasks are woken, and make the same step a turn later.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import outcome
import trio

__all__ = ["SWITCH", "step"]

SWITCH = "MCP_ACTORS_EAGER"
"""The environment variable that switches eager steps off, by ``0``."""

FIRST, LAST = (0, 31), (0, 35)
"""The versions of Trio whose loop makes a step as it is made here."""


class _Nothing:
    """The outcome of waiting without a result; Trio's own is an object more for each step."""

    def unwrap(self) -> None:
        return None


class _Nesting(threading.local):
    """Whether a step is being made in this thread: one inside of another would nest without a bound."""

    inside = False


_NOTHING, _nesting = _Nothing(), _Nesting()


def _make_step() -> Callable[[trio.lowlevel.Task], bool]:
    run, traps = import_module("trio._core._run"), import_module("trio._core._traps")
    here, checkpoint, waits = (
        run.GLOBAL_RUN_CONTEXT,
        traps.CancelShieldedCheckpoint,
        traps.WaitTaskRescheduled,
    )

    def step(task: Any) -> bool:
        """Makes a step of ``task``, which waits in `trio.lowlevel.wait_task_rescheduled`; returns false if it may not.

        It may not inside of another such step, and outside of every task. Nothing else may reschedule ``task``.
        """
        caller, runner = getattr(here, "task", None), here.runner
        if caller is None or _nesting.inside:
            return False
        # As `trio.lowlevel.reschedule` leaves a task that is woken.
        task._abort_func = task.custom_sleep_data = None
        _nesting.inside = True
        here.task = task
        final: Any = None
        try:
            message = task.context.run(task.coro.send, _NOTHING)
        except StopIteration as done:
            final = outcome.Value(done.value)
        except BaseException as error:
            final = outcome.Error(error)
        finally:
            here.task = caller
            _nesting.inside = False
        if final is not None:
            runner.task_exited(task, final)
            return True
        task._schedule_points += 1
        if type(message) is waits:
            task._cancel_points += 1
            task._abort_func = message.abort_func
            task._attempt_delivery_of_any_pending_cancel()
        elif message is checkpoint:
            runner.reschedule(task)
        else:
            _refuse(runner, task, message)
        return True

    return step


def _refuse(runner: Any, task: Any, message: object) -> None:
    """Raises in the task what Trio raises there for something that only another library can wait for."""
    runner.reschedule(
        task,
        TypeError(
            f"trio.run received unrecognized yield message {message!r}. Are you trying to use a library written for "
            "some other framework like asyncio?"
        ),
    )
    task._next_send_fn = task.coro.throw


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in trio.__version__.split(".")[:2])


step: Callable[[trio.lowlevel.Task], bool] | None = (
    _make_step() if os.environ.get(SWITCH) != "0" and FIRST <= _version() <= LAST else None
)
