"""``mcp-actors inspect``: the command, and the report as text."""

from __future__ import annotations

import importlib
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import click

from mcp_actors.abc import ClientTransport
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import (
    ConnectionOptions,
    inspection_options,
    lock_option,
    takes_headers,
)
from mcp_actors.cli.failures import (
    EXIT_UNCHECKED,
    EXIT_VIOLATES,
    CommandFailure,
    LoginNeeded,
    WrongUsage,
    asks_for_login,
    not_as_approved,
    reported,
    run_interruptible,
    traceback_option,
)
from mcp_actors.cli.inspect.conversation import Bounds
from mcp_actors.cli.inspect.inspected import Rule
from mcp_actors.cli.inspect.inspection import EraReport, Finding, ServerReport, inspect_server
from mcp_actors.cli.inspect.rules import RULES
from mcp_actors.cli.inspect.survey import Latency
from mcp_actors.cli.output import echo, echo_json, safe, styled
from mcp_actors.cli.progress import CallView
from mcp_actors.errors import McpError
from mcp_actors.supervision.arguments import did_you_mean

__all__ = ["command", "report_lines"]


MAX_IN_FLIGHT = 256


class _Unchecked(CommandFailure):
    """Nothing was found, but not everything was checked."""

    exit_code = EXIT_UNCHECKED


def _rules(_ctx: click.Context, _parameter: click.Parameter, names: Sequence[str]) -> frozenset[str]:
    known = [each.name for each in RULES]
    for name in names:
        if name not in known:
            close = did_you_mean(name, known)
            raise click.UsageError(f"there is no rule {name!r}{close or '; there are: ' + ', '.join(known)}")
    return frozenset(names)


@click.command("inspect", short_help="Say what a server is, what it violates, and how fast it answers.")
@inspection_options
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object on stdout.")
@click.option(
    "--ignore", metavar="RULE", multiple=True, callback=_rules, help="Leave a rule out; may be repeated."
)
@click.option(
    "--only", metavar="RULE", multiple=True, callback=_rules, help="Check this rule; may be repeated."
)
@click.option("--call", is_flag=True, help="Call tools too: those that say that they only read.")
@click.option("--tokens", is_flag=True, help="Say what each tool costs in a prompt of a model.")
@click.option(
    "--in-flight",
    type=click.IntRange(0, MAX_IN_FLIGHT),
    default=16,
    show_default=True,
    help="Requests at once when the speed is measured; 0 measures nothing.",
)
@lock_option
@traceback_option
def command(
    connection: ConnectionOptions,
    as_json: bool,
    ignore: frozenset[str],
    only: frozenset[str],
    call: bool,
    tokens: bool,
    in_flight: int,
    lock: str | None,
    show_traceback: bool,
) -> None:
    """Say what a server is, which rules of the protocol it violates, and how fast it answers.

    Each rule has its place in the specification: an error is a MUST, a warning a SHOULD, and a note a rule of an old
    revision that no client needs. Nothing is changed at the server, and tools are called only with --call. What was not
    reached within --cap is reported as not checked.

    The exit code is 4 if the server violates a MUST, or is not as approved with --lock, and 5 if it was found to
    violate none, but some rules could not be checked.
    """
    rules = [each for each in RULES if each.name not in ignore and (not only or each.name in only)]
    with reported(show_traceback):
        report = run_interruptible(
            lambda: _inspect(connection, call, in_flight, rules), "the inspection was interrupted"
        )
        drift = (
            []
            if lock is None or not report.eras
            else run_with_client(connection, lambda client: client.check_lock(), CallView(), lock=lock)
        )
        if as_json:
            echo_json(
                report.to_json() | ({} if lock is None else {"drift": [attrs.asdict(each) for each in drift]})
            )
        else:
            for line in report_lines(report, with_tokens=tokens):
                echo(line)
    if drift and not as_json:
        raise not_as_approved(drift)
    if report.violates or drift:
        raise click.exceptions.Exit(EXIT_VIOLATES)
    failure = _failure_of(report, connection)
    if failure is not None and as_json:
        raise click.exceptions.Exit(failure.exit_code)  # the report says why
    if failure is not None:
        raise failure


def _failure_of(report: ServerReport, connection: ConnectionOptions) -> CommandFailure | None:
    """Returns what a person has to know beside the report, and what the exit code is."""
    if not report.eras:
        if report.authorization is not None:
            return LoginNeeded(f"the server asks for authorization; run: mcp-actors login {connection.url}")
        return CommandFailure(
            f"there is no MCP server, or it speaks nothing that is known here; {report.stopped}"
        )
    if not report.unchecked:
        return None
    hint = "; --cap sets the seconds" if report.seconds >= connection.cap else ""
    return _Unchecked(
        f"{len(report.unchecked)} of {len(report.outcomes)} rules could not be checked, and the server may violate "
        f"them: {report.stopped or report.unchecked[0].reason}{hint}"
    )


async def _inspect(
    connection: ConnectionOptions, call: bool, in_flight: int, rules: Sequence[Rule]
) -> ServerReport:
    view = CallView()
    options: dict[str, Any] = {"headers": connection.headers} if connection.headers else {}
    if connection.url.partition(":")[0].lower() == "stdio":
        options = {"stderr": None, "env": "inherit"}
    elif takes_headers(connection.url) and "authorization" not in map(str.lower, connection.headers):
        # Only such a URL needs this module, and what it imports.
        auth = await importlib.import_module("mcp_actors.cli.login").stored_auth(connection.url)
        options |= {} if auth is None else {"auth": auth}
    try:
        transport = client_transport(connection.url, **options)
        has_credentials = "auth" in options or bool(connection.headers)
        bare: ClientTransport | None = client_transport(connection.url) if has_credentials else None
    except (ValueError, TypeError, McpError) as error:
        raise WrongUsage(str(error)) from error
    try:
        return await inspect_server(
            transport,
            url=connection.url,
            bare=bare,
            call=call,
            in_flight=in_flight,
            rules=rules,
            bounds=Bounds(answer_time=min(connection.timeout, 10.0), total_time=connection.cap),
            progress=view.waits_for,
        )
    except McpError as error:
        if asks_for_login(error):
            raise LoginNeeded(
                f"the server asks for authorization; run: mcp-actors login {connection.url}"
            ) from error
        raise
    finally:
        view.waits_for("")


# -- The report as text. Nothing that a server sent reaches a terminal as it came ----------------------

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
# Names of each list that are shown.
SHOWN_NAMES = 8


def report_lines(report: ServerReport, *, with_tokens: bool = False) -> Iterator[str]:
    """Returns the lines of a report, ``with_tokens`` also what each tool costs."""
    yield styled(safe(report.target), bold=True)
    if not report.eras and report.authorization is None:
        yield "no revision of the protocol was found here"
    if report.authorization is not None:
        asked = report.authorization
        yield f"asks for authorization: HTTP {asked.status}, {', '.join(map(safe, asked.challenges)) or 'no challenge'}"
        for url in asked.metadata_urls:
            yield f"  metadata: {safe(url)}"
    for era in report.eras:
        yield ""
        yield from _era_lines(era)
    if with_tokens and report.eras:
        yield ""
        # Both eras list the same tools.
        yield from _token_lines(report.eras[-1])
    yield ""
    yield from _finding_lines(report)
    yield from _unchecked_lines(report)
    yield ""
    yield from _closing_lines(report)


def _era_lines(era: EraReport) -> Iterator[str]:
    name = f"{era.server_name or 'a server without a name'} {era.server_version}".strip()
    yield styled(f"{era.era} era", bold=True, underline=True)
    yield f"  server        {safe(name)}"
    yield f"  revisions     {', '.join(map(safe, era.versions))} (inspected: {era.inspected})"
    yield f"  capabilities  {', '.join(map(safe, era.capabilities)) or 'none'}"
    if era.extensions:
        yield f"  extensions    {', '.join(map(safe, era.extensions))}"
    if era.instructions:
        yield f"  instructions  {era.instructions:,} characters"
    for what, found in era.lists.items():
        pages = f" in {found.pages} pages" if found.pages > 1 else ""
        names = ", ".join(map(safe, found.names[:SHOWN_NAMES]))
        more = ", …" if found.count > SHOWN_NAMES else ""
        which = f": {names}{more}" if found.names else ""
        yield f"  {what:<18}  {found.count}{pages}, {found.size:,} bytes{which}"
        if found.stopped is not None:
            yield f"  {'':<18}  not everything was listed: {safe(found.stopped)}"
    if era.latency:
        yield "  answers             in flight   median      p99    a second"
        yield from map(_latency_line, era.latency)


def _token_lines(era: EraReport) -> Iterator[str]:
    found = {name: number for each in era.lists.values() for name, number in each.tokens.items()}
    yield styled(f"tools cost {sum(found.values()):,} tokens in each prompt, estimated", bold=True)
    for name, number in sorted(found.items(), key=lambda each: -each[1]):
        yield f"  {number:>7,}  {safe(name)}"


def _latency_line(each: Latency) -> str:
    failed = f"   {each.failed} failed" if each.failed else ""
    return (
        f"    {each.method:<18}{each.in_flight:>9}{each.median_ms:>7.1f} ms{each.p99_ms:>6.1f} ms"
        f"{each.per_second:>12,.0f}{failed}"
    )


def _finding_lines(report: ServerReport) -> Iterator[str]:
    if not report.findings and not report.unchecked and report.eras:
        yield styled("nothing was found that violates a rule", fg="green")
    shown: set[tuple[str, str]] = set()
    for severity in _COLOURS:
        for each in report.findings:
            if each.severity == severity:
                if (each.rule, each.era) not in shown:
                    shown.add((each.rule, each.era))
                    yield from _rule_lines(each)
                yield f"    - {safe(each.observed)}"


def _rule_lines(finding: Finding) -> Iterator[str]:
    head = styled(f"{finding.severity:<8}", fg=_COLOURS[finding.severity], bold=True)
    yield f"{head}{finding.rule} ({finding.era} era)"
    yield f"    {finding.demand}"
    yield styled(f"    {finding.source}", dim=True)


def _unchecked_lines(report: ServerReport) -> Iterator[str]:
    rules: dict[tuple[str, str], list[str]] = {}
    for each in report.unchecked:
        rules.setdefault((each.era, each.reason), []).append(each.rule)
    for (era, reason), names in rules.items():
        head = styled("not checked", fg="yellow", bold=True)
        yield f"{head} ({era} era): {safe(reason)}"
        yield textwrap.fill(", ".join(names), 100, initial_indent=" " * 4, subsequent_indent=" " * 4)


def _closing_lines(report: ServerReport) -> Iterator[str]:
    results = Counter(each.result for each in report.outcomes)
    yield (
        f"{len(report.outcomes)} rules: {results['followed']} followed, {results['violated']} violated, "
        f"{results['not applicable']} not applicable, {results['not checked']} not checked"
    )
    yield (
        f"{report.requests} messages, {report.received_bytes:,} bytes received, in {report.seconds:.1f} s"
        + (f"; stopped early: {safe(report.stopped)}" if report.stopped is not None else "")
    )
