"""`check_shared_state`: every check in turn, each with an implementation of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import attrs
import trio

from mcp_actors.testing.conformance.rules import Check, RuleBroken
from mcp_actors.testing.shared_state.events import BUS, EVENTS
from mcp_actors.testing.shared_state.moving import MOVING
from mcp_actors.testing.shared_state.nodes import NODES, REPLAYS, SESSIONS, USERS
from mcp_actors.testing.shared_state.outages import CANCELLED_METHODS, OUTAGES
from mcp_actors.testing.shared_state.stored_tasks import TASK_LIVES, TASK_STORES
from mcp_actors.testing.shared_state.subject import SharedStateMaker, StateUnderTest

__all__ = ["CHECKS", "SharedStateBreach", "SharedStateReport", "check_shared_state"]

CHECKS = (
    *NODES,
    *SESSIONS,
    *EVENTS,
    *BUS,
    *MOVING,
    *TASK_STORES,
    *TASK_LIVES,
    *REPLAYS,
    *USERS,
    *CANCELLED_METHODS,
    *OUTAGES,
)


class SharedStateBreach(AssertionError):
    """An implementation broke a rule of `mcp_actors.abc.shared`. The text says which, and what was seen.

    ``check`` is the name of the check that found it, ``rule`` the rule, ``seen`` what happened instead.
    """

    def __init__(self, check: str, rule: str, seen: str) -> None:
        super().__init__(
            f"check_shared_state: {check} failed\n"
            f"  rule (mcp_actors.abc.shared): {rule}\n"
            f"  seen: {seen}\n"
            f"  to see it again: await check_shared_state(make_subject, only=[{check!r}])"
        )
        self.check = check
        self.rule = rule
        self.seen = seen


@attrs.frozen
class SharedStateReport:
    """The checks that `check_shared_state` ran and skipped."""

    passed: tuple[str, ...]
    """The checks that ran, in order. None failed, or there would be no report."""
    skipped: tuple[tuple[str, str], ...]
    """The checks that did not run, each with the reason."""
    seconds: float
    """Seconds that it took, by the clock of the Trio run."""


async def check_shared_state(
    make_subject: SharedStateMaker,
    *,
    patience: float = 5.0,
    quiet: float = 0.1,
    many: int = 2000,
    timeout: float = 60.0,
    only: Collection[str] = (),
) -> SharedStateReport:
    """Proves that an implementation of shared state keeps the contracts of `mcp_actors.abc.shared`, role by role.

    ``make_subject`` is called for each check. It returns an async context manager that yields a `SharedStateSubject`,
    whose state is empty::

        @asynccontextmanager
        async def make_subject():
            folder = tempfile.mkdtemp()
            yield SharedStateSubject(share=lambda: SqliteShared(f"{folder}/state.db", lease=0.5), now=time.time)

        async def test_sqlite():
            await check_shared_state(make_subject)

    Roles that do not span processes are checked at one node, for what they promise there.

    Args:
        patience: Seconds that any one step may take.
        quiet: Seconds without anything happening after which nothing is expected to happen any more. Under virtual
            time any will do.
        many: Events, messages or names of the checks that try many.
        timeout: Seconds that any one check may take.
        only: Names of the checks to run; all if empty.

    Raises:
        SharedStateBreach: A rule is broken; it is an `AssertionError`. The checks after it do not run.
        ValueError: ``only`` has a name that does not exist.
    """
    if unknown := set(only) - {check.name for check in CHECKS}:
        raise ValueError(f"no such checks: {', '.join(sorted(unknown))}")
    begin = trio.current_time()
    passed: list[str] = []
    skipped: list[tuple[str, str]] = []
    for check in CHECKS:
        if only and check.name not in only:
            skipped.append((check.name, "not asked for"))
            continue
        async with make_subject() as subject:
            if check.needs is not None and getattr(subject, check.needs) is None:
                skipped.append((check.name, f"{check.needs} was not given"))
                continue
            await _run(check, StateUnderTest(subject, patience, quiet, many), timeout)
        passed.append(check.name)
    return SharedStateReport(tuple(passed), tuple(skipped), trio.current_time() - begin)


async def _run(check: Check, tested: StateUnderTest, timeout: float) -> None:
    try:
        with trio.fail_after(timeout):
            await check.run(tested)
    except Exception as error:
        rule, seen = _breach(check, error, timeout)
        raise SharedStateBreach(check.name, rule, seen) from error


def _breach(check: Check, error: Exception, timeout: float) -> tuple[str, str]:
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, RuleBroken):
            return leaf.rule, leaf.seen
    if isinstance(leaves[0], trio.TooSlowError):
        return check.rule, f"the check did not come to its end in {timeout:g} s"
    return check.rule, f"{leaves[0]!r} was raised where nothing should have failed"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
