"""Every rule finds the server that breaks it, and finds nothing at one that follows all of them."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from mcp_actors.cli.inspect.inspection import ServerReport, inspect_server
from mcp_actors.cli.inspect.rules import RULES
from tests.inspection.broken import BROKEN
from tests.inspection.fake_server import URL, FakeHttp, FakeServer, FakeStream

# Where breaking one rule cannot be done without another.
ALSO = {
    # A client cannot tell a media type that is wrong from a body that is no answer.
    "media-types": {"empty-ping", "same-id", "batches"},
    # The error that breaks this rule is in place of the one that another rule wants.
    "foreign-codes": {"unknown-prompt"},
}


async def inspected(server: FakeServer, binding: str) -> ServerReport:
    bare = FakeHttp(server) if server.token is not None else None
    transport = FakeHttp(server, server.token) if binding == "http" else FakeStream(server)
    return await inspect_server(transport, url=URL, bare=bare, call=True, in_flight=0)


@pytest.mark.parametrize("streams", [True, False], ids=["streams", "JSON"])
@pytest.mark.parametrize("eras", [("modern", "legacy"), ("modern",), ("legacy",)], ids="+".join)
@pytest.mark.parametrize("binding", ["stream", "http"])
async def test_a_server_that_follows_all_rules(
    autojump_clock: MockClock, binding: str, eras: tuple[str, ...], streams: bool
) -> None:
    report = await inspected(FakeServer(eras=eras, streams=streams), binding)
    assert report.findings == ()
    assert [each.era for each in report.eras] == list(eras)
    assert {each.result for each in report.outcomes} <= {"followed", "not applicable"}


async def test_each_rule_is_followed_somewhere(autojump_clock: MockClock) -> None:
    servers = [
        (FakeServer(), "stream"),
        (FakeServer(token="t"), "http"),
        (FakeServer(eras=("modern",)), "http"),
    ]
    followed = {
        each.rule
        for server, binding in servers
        for each in (await inspected(server, binding)).outcomes
        if each.result == "followed"
    }
    assert followed == {rule.name for rule in RULES}


def test_each_rule_has_a_server_that_breaks_it_and_a_place() -> None:
    assert sorted(BROKEN) == sorted(rule.name for rule in RULES)
    assert all(rule.legacy is not None or rule.modern is not None for rule in RULES)


@pytest.mark.parametrize("rule", BROKEN)
async def test_the_rule_finds_who_breaks_it(autojump_clock: MockClock, rule: str) -> None:
    broken = BROKEN[rule]
    server = FakeServer(broken.change, eras=broken.eras, streams=broken.streams, token=broken.token)
    report = await inspected(server, broken.binding)
    assert {each.rule for each in report.findings} == {rule} | ALSO.get(rule, set())
    row = next(each for each in RULES if each.name == rule)
    own = [each for each in report.findings if each.rule == rule]
    assert {each.severity for each in own} == {row.severity}
    assert all(each.source in (str(row.legacy), str(row.modern)) for each in own)
    assert report.violates is any(each.severity == "error" for each in report.findings)
