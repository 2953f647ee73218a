"""`check_transport`: every check in turn, each with a transport of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import trio

from mcp_actors.errors import McpError
from mcp_actors.testing.conformance.cancelling import CANCELLING
from mcp_actors.testing.conformance.carrying import CARRYING
from mcp_actors.testing.conformance.ending import ENDING
from mcp_actors.testing.conformance.eras import checks_of_containment, checks_of_era
from mcp_actors.testing.conformance.rules import ENDINGS, Check, RuleBroken, TransportBreach, TransportReport
from mcp_actors.testing.conformance.serving import SERVING
from mcp_actors.testing.conformance.subject import ChannelAction, TransportMaker, TransportUnderTest

__all__ = ["check_transport"]

LINKS = (*SERVING, *CARRYING, *ENDING, *CANCELLING)
_THREE_ENDINGS = (trio.ClosedResourceError, trio.BrokenResourceError, trio.EndOfChannel)


async def check_transport(
    maker: TransportMaker,
    *,
    exchange: bool = False,
    half_close: ChannelAction | None = None,
    break_off: ChannelAction | None = None,
    senders_at_once: bool = False,
    connections: int = 8,
    max_buffered: int = 32 * 1024 * 1024,
    largest: int = 16 * 1024 * 1024,
    eras: Sequence[str] = ("legacy", "modern"),
    quiet: float = 0.1,
    patience: float = 5.0,
    timeout: float = 60.0,
    only: Collection[str] = (),
) -> TransportReport:
    """Proves that a binding keeps the contract of `mcp_actors.abc`, link by link and then end to end.

    ``maker`` is called for each check. It returns an async context manager that yields the server's transport and a
    function from the place that ``serve`` reported to a client's transport::

        @asynccontextmanager
        async def maker():
            yield PigeonServerTransport(), lambda where: PigeonClientTransport(where)

        async def test_pigeons():
            await check_transport(maker)

    Args:
        exchange: the binding's server side has exchanges instead of channels, as HTTP has. What can be said of the
            client's channel alone is checked, and everything end to end.
        half_close: ``await half_close(channel)`` ends what this end sends while it can still receive. Give it if the
            medium can do that (pipes, sockets); without it that rule is not checked.
        break_off: ``await break_off(channel)`` breaks the connection off as the world would (a reset, a killed
            process), so that the other end must get `trio.BrokenResourceError`. Without it breakage is checked
            only as far as a clean close of the other end shows it.
        senders_at_once: the binding promises more than the contract: several tasks may send on one channel at the
            same time. The engine never does.
        connections: how many may be open at the same time; 1 if the medium has just one.
        max_buffered: bytes that may be under way in one direction before ``send`` must wait for a peer that reads
            nothing. The default, 32 MiB, is room for what kernels take.
        largest: bytes of the longest frame that is tried; ``max_message_bytes`` itself if that is not longer.
        eras: the eras that clients speak in the checks from end to end; empty to leave these out.
        quiet: seconds without anything happening after which a task is taken to wait. Under virtual time any will do.
        patience: seconds that any one step may take, closing included.
        timeout: seconds that any one check may take.
        only: names of the checks to run; all if empty.

    Raises:
        TransportBreach: a rule is broken; it is an `AssertionError`. The checks after it do not run.
        ValueError: ``only`` has a name that does not exist.

    Works under the real clock and, for media in memory, under `trio.testing.MockClock` with autojump.
    """
    tested = TransportUnderTest(
        maker=maker,
        half_close=half_close,
        break_off=break_off,
        senders_at_once=senders_at_once,
        connections=connections,
        max_buffered=max_buffered,
        largest=largest,
        quiet=quiet,
        patience=patience,
    )
    checks = (*LINKS, *_end_to_end(eras))
    if unknown := set(only) - {check.name for check in checks}:
        raise ValueError(f"no such checks: {', '.join(sorted(unknown))}")
    begin = trio.current_time()
    passed: list[str] = []
    skipped: list[tuple[str, str]] = []
    for check in checks:
        if only and check.name not in only:
            skipped.append((check.name, "not asked for"))
        elif reason := _why_not(check, tested, exchange):
            skipped.append((check.name, reason))
        else:
            await _run(check, tested, timeout)
            passed.append(check.name)
    return TransportReport(tuple(passed), tuple(skipped), trio.current_time() - begin)


def _end_to_end(eras: Sequence[str]) -> Iterator[Check]:
    for era in eras:
        yield from checks_of_era(era)
        yield from checks_of_containment(era)


def _why_not(check: Check, tested: TransportUnderTest, exchange: bool) -> str | None:
    if exchange and check.tier == "link":
        return "an exchange binding has no channel on its server's side"
    if check.needs == "connections" and tested.connections < 2:
        return "connections=1"
    if check.needs is not None and not getattr(tested, check.needs):
        return f"{check.needs} was not given"
    return None


async def _run(check: Check, tested: TransportUnderTest, timeout: float) -> None:
    arguments = () if check.era is None else (check.era,)
    try:
        with trio.fail_after(timeout):
            await check.run(tested, *arguments)
    except Exception as error:
        rule, seen = _breach(check, error, timeout)
        raise TransportBreach(check.name, rule, seen) from error


def _breach(check: Check, error: Exception, timeout: float) -> tuple[str, str]:
    """Returns the rule that an exception breaks, and a description. A check's finding comes before its consequences."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, RuleBroken):
            return leaf.rule, leaf.seen
    for leaf in leaves:
        if check.tier != "eras" and not isinstance(leaf, (*_THREE_ENDINGS, trio.TooSlowError, McpError)):
            return ENDINGS, f"{leaf!r} came out of the binding"
    leaf = leaves[0]
    if isinstance(leaf, trio.TooSlowError):
        return check.rule, f"the check did not come to its end in {timeout:g} s"
    return check.rule, f"{leaf!r} was raised where nothing should have ended"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
