"""One inspection from its beginning to its end, and its findings as values that become JSON.

It finds out who is there, what is offered and how fast, and which rules hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import trio

from mcp_actors._server.search import tokens_of_json
from mcp_actors.abc import ClientTransport
from mcp_actors.abc.discovery import client_transport
from mcp_actors.auth.metadata import parse_challenges
from mcp_actors.cli.inspect.conversation import (
    SHOWN,
    Bounds,
    InspectionEnded,
    Record,
    StreamConversation,
    shown,
)
from mcp_actors.cli.inspect.http_checks import metadata_urls
from mcp_actors.cli.inspect.inspected import (
    InspectedServer,
    ListedItems,
    NotApplicable,
    Rule,
    Severity,
    SpokenEra,
)
from mcp_actors.cli.inspect.rules import RULES
from mcp_actors.cli.inspect.survey import Latency, list_everything, measure, survey
from mcp_actors.errors import AuthorizationError, McpError
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.types.apps import visibility_of

__all__ = [
    "AuthorizationReport",
    "EraReport",
    "Finding",
    "ListReport",
    "RuleOutcome",
    "ServerReport",
    "inspect_server",
]


# -- Findings ------------------------------------------------------------------------------------------

Result = Literal["followed", "violated", "not applicable", "not checked"]


@attrs.frozen(kw_only=True)
class Finding:
    """Something that a server does against a rule."""

    rule: str
    severity: Severity
    era: str
    source: str
    """The revision, the page and the section of the specification."""
    demand: str
    """What the rule demands."""
    observed: str
    """What the server does, with its own words cut and without control characters."""


@attrs.frozen(kw_only=True)
class RuleOutcome:
    """The outcome of one rule in one era."""

    rule: str
    severity: Severity
    era: str
    source: str
    result: Result
    reason: str = ""
    """Why it was not checked, or says nothing about this server."""


@attrs.frozen(kw_only=True)
class ListReport:
    """One list of a server."""

    count: int
    pages: int
    size: int
    """Bytes of all pages."""
    names: tuple[str, ...]
    """The first names, cut."""
    stopped: str | None = None
    """Why not everything was listed."""
    tokens: Mapping[str, int] = attrs.field(factory=dict)
    """The tokens that each tool costs in a prompt, estimated; empty for other lists. Those for pages cost none."""


@attrs.frozen(kw_only=True)
class EraReport:
    """The description that a server gives of itself in one era."""

    era: str
    versions: tuple[str, ...]
    """The revisions that it speaks, oldest first."""
    inspected: str
    """The revision that the rules were checked in."""
    server_name: str
    server_version: str
    instructions: int
    """Characters of its instructions."""
    capabilities: tuple[str, ...]
    extensions: tuple[str, ...]
    lists: Mapping[str, ListReport]
    latency: tuple[Latency, ...] = ()


@attrs.frozen(kw_only=True)
class AuthorizationReport:
    """The way in which a server asks for authorization."""

    status: int
    challenges: tuple[str, ...]
    """The schemes of its challenges."""
    metadata_urls: tuple[str, ...]
    """The places of its metadata, that of its challenge or the well-known ones."""


@attrs.frozen(kw_only=True)
class ServerReport:
    """The report of one inspection."""

    target: str
    eras: tuple[EraReport, ...]
    authorization: AuthorizationReport | None
    findings: tuple[Finding, ...]
    outcomes: tuple[RuleOutcome, ...]
    requests: int
    received_bytes: int
    connections: int
    seconds: float
    stopped: str | None = None
    """Why the inspection ended early."""

    @property
    def violates(self) -> bool:
        """Whether something was found that the specification forbids."""
        return any(each.severity == "error" for each in self.findings)

    @property
    def unchecked(self) -> tuple[RuleOutcome, ...]:
        """The rules that could not be checked, each with the reason: a bound was reached, or nothing was answered."""
        return tuple(each for each in self.outcomes if each.result == "not checked")

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON values."""
        found: dict[str, Any] = attrs.asdict(self)
        found |= {"violates": self.violates, "complete": not self.unchecked}
        return found


# -- The inspection ------------------------------------------------------------------------------------

# Findings of one rule in one era that are reported one by one; the others are counted.
MAX_FINDINGS = 5
# Names of a list, and names of capabilities, that a report has.
MAX_NAMES = 200


async def inspect_server(
    target: str | ClientTransport,
    *,
    url: str | None = None,
    bare: ClientTransport | None = None,
    call: bool = False,
    in_flight: int = 16,
    bounds: Bounds | None = None,
    rules: Sequence[Rule] = RULES,
    progress: Callable[[str], object] | None = None,
) -> ServerReport:
    """Looks at a server: what it is, which rules of the protocol it violates, and how fast it answers.

    Nothing is changed at the server: lists are read, discovery and pings are sent, and requests that a server must
    refuse. Tools are called only with ``call``. Cancelled, it closes its connections and leaves nothing behind.

    Args:
        target: A URL, or a transport to the server.
        url: The URL of the server where ``target`` is a transport, for rules about it.
        bare: A transport to the same server without the credentials that ``target`` has, for the rules about
            authorization.
        call: Whether tools may be called: those that say that they only read, and need no arguments, and one that does
            not exist. Default false, because what a tool does is the server's own word.
        in_flight: Requests that are sent at once when the speed is measured, 16 by default; 0 measures nothing.
        bounds: What the inspection may take.
        rules: The rules that are checked, all by default.
        progress: Called with what is being done, for a person who waits.

    Raises:
        AuthorizationError: The server refuses the credentials of ``target``.
        ConnectFailed: The server cannot be reached.
        TransportNotFound: No binding is installed for the URL.
        ValueError: The URL or an option of the binding is wrong.
    """
    transport = client_transport(target) if isinstance(target, str) else target
    record = Record(bounds or Bounds())
    server = InspectedServer(
        transport, record, url=url or (target if isinstance(target, str) else None), bare=bare
    )
    run = _Inspection(server, rules, call, in_flight, progress or (lambda text: None))
    began = trio.current_time()
    with trio.move_on_after(record.bounds.total_time) as scope:
        async with server.reached():
            await run.everything()
    if scope.cancelled_caught:
        run.stopped = f"{record.bounds.total_time:g} s were over"
    return ServerReport(
        target=url or (target if isinstance(target, str) else repr(target)),
        eras=tuple(run.eras()),
        authorization=run.authorization(),
        findings=tuple(run.findings),
        outcomes=tuple(run.all_outcomes()),
        requests=len(record.answers),
        received_bytes=record.bytes,
        connections=record.connections,
        seconds=round(trio.current_time() - began, 3),
        stopped=run.stopped,
    )


class _Inspection:
    """The state of one inspection."""

    def __init__(
        self,
        server: InspectedServer,
        rules: Sequence[Rule],
        call: bool,
        in_flight: int,
        progress: Callable[[str], object],
    ) -> None:
        self.findings: list[Finding] = []
        self.stopped: str | None = None
        self._server = server
        self._rules = rules
        self._call = call
        self._in_flight = in_flight
        self._progress = progress
        self._outcomes: dict[tuple[str, str], RuleOutcome] = {}
        self._latency: dict[str, list[Latency]] = {}

    async def everything(self) -> None:
        """Runs all steps; `stopped` says what a bound cut off."""
        try:
            self._progress("finding the eras that it speaks")
            await survey(self._server)
            for spoken in self._server.spoken:
                self._progress(f"listing what it offers in {spoken.era.version}")
                await list_everything(spoken)
                if self._in_flight:
                    self._progress(f"measuring its answers in {spoken.era.version}")
                    self._latency[spoken.era.name] = await measure(spoken, self._in_flight)
            if self._server.refusing is not None:
                for rule in self._rules:
                    if rule.access:
                        await self._check(rule, self._server.refusing)
            for stage in (0, 1):
                for spoken in self._server.spoken:
                    await self._check_all(spoken, stage)
        except InspectionEnded as reached:
            self.stopped = str(reached)
        if not self._server.spoken and self._server.refusing is None and self.stopped is None:
            asked = [f"{each.method}: {each.summary()}" for each in self._server.record.answers]
            self.stopped = f"no revision was found: {asked[-1] if asked else 'nothing was answered'}"
        # These look at what has come, and send nothing.
        for spoken in self._server.spoken:
            await self._check_all(spoken, 2)

    async def _check_all(self, spoken: SpokenEra, stage: int) -> None:
        """Checks the rules of a stage: 0 those that ask, 1 those that may end the server, 2 those about all answers."""
        for rule in self._rules:
            own = 2 if rule.last else 1 if rule.disruptive else 0
            if own == stage and not rule.access and rule.source_for(spoken) is not None:
                if not rule.last:
                    self._progress(f"checking {rule.name} in {spoken.era.version}")
                await self._check(rule, spoken)

    async def _check(self, rule: Rule, spoken: SpokenEra) -> None:
        excuse = self._excuse(rule, spoken)
        if excuse is not None:
            self._note(rule, spoken, "not applicable", excuse)
            return
        before = len(self._server.record.answers)
        try:
            if not rule.last:
                await self._server.renew(spoken)
            observed = await rule.check(spoken)
        except NotApplicable as reason:
            self._note(rule, spoken, "not applicable", str(reason))
        except (InspectionEnded, AuthorizationError):
            raise
        except McpError as error:
            self._note(rule, spoken, "not checked", shown(str(error)))
        except Exception as error:
            # A bug of the check, which must not cost the other rules.
            log.exception("the check of a rule failed", rule=rule.name)
            self._note(rule, spoken, "not checked", f"the check itself failed: {shown(repr(error))}")
        else:
            self._note(rule, spoken, "violated" if observed else "followed", "")
            self._report(rule, spoken, observed)
        if any(each.gone is not None for each in self._server.record.answers[before:]) and not rule.access:
            await self._require_life(rule, spoken)

    async def _require_life(self, rule: Rule, spoken: SpokenEra) -> None:
        """Ends the inspection if a request failed because the server is gone, which no later rule is about."""
        for _ in range(2):
            answer = await spoken.conversation.ask(spoken.era.client.ping_method, keep=False)
            if answer.reply is not None:
                return
            if isinstance(spoken.conversation, StreamConversation):
                spoken.conversation.give_up()
                await self._server.renew(spoken)
        raise InspectionEnded(f"the server has answered nothing since the rule {rule.name} was checked")

    def _excuse(self, rule: Rule, spoken: SpokenEra) -> str | None:
        if rule.binding == "http" and not spoken.is_http:
            return "it is about HTTP"
        if rule.binding == "stream" and spoken.is_http:
            return "it is about channels"
        if rule.calls and not self._call:
            return "tools are not called"
        return None

    def _note(self, rule: Rule, spoken: SpokenEra, result: Any, reason: str) -> None:
        self._outcomes[rule.name, spoken.era.name] = RuleOutcome(
            rule=rule.name,
            severity=rule.severity,
            era=spoken.era.name,
            source=str(rule.source_for(spoken)),
            result=result,
            reason=reason,
        )

    def _report(self, rule: Rule, spoken: SpokenEra, observed: Sequence[str]) -> None:
        chosen = list(observed[:MAX_FINDINGS])
        if len(observed) > MAX_FINDINGS:
            chosen.append(f"and {len(observed) - MAX_FINDINGS} more of the same kind")
        self.findings += [
            Finding(
                rule=rule.name,
                severity=rule.severity,
                era=spoken.era.name,
                source=str(rule.source_for(spoken)),
                demand=rule.text,
                observed=each,
            )
            for each in chosen
        ]

    def all_outcomes(self) -> Iterator[RuleOutcome]:
        """Returns the outcome of every rule in the eras that are spoken, in the order of the table."""
        for rule in self._rules:
            eras = [self._server.refusing] if rule.access else self._server.spoken
            for spoken in eras:
                if spoken is None or rule.source_for(spoken) is None:
                    continue
                if (rule.name, spoken.era.name) not in self._outcomes:
                    self._note(rule, spoken, "not checked", self.stopped or "the inspection ended before")
                yield self._outcomes[rule.name, spoken.era.name]

    # -- what the server is --------------------------------------------------------------------------------------------

    def eras(self) -> Iterator[EraReport]:
        """Returns what the server says of itself."""
        for spoken in self._server.spoken:
            extensions = spoken.capabilities.get("extensions")
            yield EraReport(
                era=spoken.era.name,
                versions=spoken.versions,
                inspected=spoken.era.version,
                server_name=_cut(spoken.server_info().get("name")),
                server_version=_cut(spoken.server_info().get("version")),
                instructions=len(str(spoken.said.get("instructions") or "")),
                capabilities=tuple(_capabilities(spoken.capabilities))[:MAX_NAMES],
                extensions=tuple(map(_cut, extensions))[:MAX_NAMES] if isinstance(extensions, dict) else (),
                lists={name: _listed(found) for name, found in spoken.lists.items()},
                latency=tuple(self._latency.get(spoken.era.name, ())),
            )

    def authorization(self) -> AuthorizationReport | None:
        """Returns how the server asks for authorization, if it does."""
        refusing = self._server.refusing
        if refusing is None or refusing.handshake.status is None:
            return None
        challenges = parse_challenges([refusing.handshake.headers.get("www-authenticate", "")])
        return AuthorizationReport(
            status=refusing.handshake.status,
            challenges=tuple(_cut(each.scheme) for each in challenges),
            metadata_urls=tuple(map(_cut, metadata_urls(refusing))),
        )


def _cut(value: object) -> str:
    return printable(value, SHOWN) if isinstance(value, str) else ""


def _capabilities(value: Any, prefix: str = "") -> Iterator[str]:
    """Yields the names of what is declared; that of an object if nothing in it is."""
    for name, inner in value.items():
        if name == "extensions" or inner is False or inner is None:
            continue
        own = f"{prefix}{_cut(name)}"
        yield from (list(_capabilities(inner, f"{own}.")) if isinstance(inner, dict) else []) or [own]


def _is_offered(tool: Mapping[str, Any]) -> bool:
    """Whether a tool is for models, and not for pages alone."""
    meta = tool.get("_meta")
    return not isinstance(meta, dict) or "model" in visibility_of(meta)


def _listed(found: ListedItems) -> ListReport:
    names = [each.get("name") for each in found.items if isinstance(each, dict)]
    return ListReport(
        count=len(found.items),
        pages=len(found.answers),
        size=found.size,
        names=tuple(map(_cut, names[:MAX_NAMES])),
        stopped=found.stopped,
        tokens={
            _cut(each.get("name")): tokens_of_json(each)
            for each in found.items
            if isinstance(each, dict) and isinstance(each.get("inputSchema"), dict) and _is_offered(each)
        },
    )
