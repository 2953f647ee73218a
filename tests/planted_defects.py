"""Planted defects: mistakes that a person could make, one at a time, and which test of the room sees each of them.

``python tests/planted_defects.py [NAMES…]`` copies the tracked files into a temporary folder, makes an environment in
which that copy is what is imported, by children of the tests too, and runs the tests that belong to a defect with it
planted. First the same tests run without any defect. It prints one line for each defect, and ends with 1 if more than
`MOST_UNSEEN` of them are not seen or if a test fails without a defect. ``test_planted_defects.py`` holds the table to
the code. A defect that makes its tests hang is seen when their time is over.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
MOST_UNSEEN = 2
# Copies beside each other: tests wait for the programs that they start more than they compute.
AT_ONCE = 2
# Seconds for the tests of one defect, and for all of them without one.
TIME_OF_ROOM = 60
TIME_OF_ALL = 1200


class Defect(NamedTuple):
    """One mistake: what it is in plain words, the text that it takes the place of, and the tests of its room."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Files in `tests`, the one that is likely to see it first."""


DEFECTS = (
    Defect(
        "a failed admission does not leave the limiters that it entered",
        "mcp_actors/_actors/limits.py",
        ("            for limiter in entered:\n                limiter.leave()\n            raise"),
        "            raise",
        ("actors/test_limits.py",),
    ),
    Defect(
        "a client that may not know the reasons learns which line blocked the loop",
        "mcp_actors/_server/failures.py",
        "{error.blockage.sentence(in_full=not masked)}",
        "{error.blockage.sentence()}",
        ("server/test_watchdog.py",),
    ),
    Defect(
        "a task that a call has started blocks the loop in the name of no call",
        "mcp_actors/_server/watchdog.py",
        'elif frame.f_code.co_name == "unrolled_run" and',
        'elif frame.f_code.co_name == "no_run" and',
        ("server/test_watchdog.py",),
    ),
    Defect(
        "the call that ran last is named although many keep the loop busy",
        "mcp_actors/_server/watchdog.py",
        "        is_one = all(",
        "        is_one = any(",
        ("server/test_watchdog.py",),
    ),
    Defect(
        "a call that only reads overtakes one that waits",
        "mcp_actors/_server/turns.py",
        "            if self.running and not (first.shares and all(each.shares for each in self.running)):",
        "            if self.running and not first.shares:",
        ("server/test_turns.py",),
    ),
    Defect(
        "a turn ends although the thread of its call runs on",
        "mcp_actors/_server/turns.py",
        "            use.when_over(partial(self._leave, queue, ticket))",
        "            self._leave(queue, ticket)",
        ("server/test_turns.py",),
    ),
    Defect(
        "the function of a node that is cut off runs on when its turn is lost",
        "mcp_actors/_server/turns.py",
        '                scope.cancel(reason="the turn was lost")\n',
        "",
        ("server/test_turns.py",),
    ),
    Defect(
        "the turns of a node that has died are kept",
        "mcp_actors/_server/turns.py",
        '{each for each in addresses if not await self.shared.bus.send(each, b"")}',
        "set()",
        ("server/test_turns.py",),
    ),
    Defect(
        "a large result is kept for everybody",
        "mcp_actors/middleware/spill.py",
        "        return cls(shared, caller_of(ctx))",
        '        return cls(shared, "all")',
        ("middleware/test_spill.py",),
    ),
    Defect(
        "large results are kept however many there are",
        "mcp_actors/middleware/spill.py",
        "if room >= 0 and ",
        "if ",
        ("middleware/test_spill.py",),
    ),
    Defect(
        "a large structure is sent in part although a schema demands all of it",
        "mcp_actors/middleware/spill.py",
        "return CallToolResult(blocks, is_error=True, meta=result.meta)",
        "return CallToolResult(blocks, meta=result.meta)",
        ("middleware/test_spill.py",),
    ),
    Defect(
        "what a retry does once is not claimed before it begins",
        "mcp_actors/_server/once.py",
        'return cls(state["call"], state["until"], True, ',
        'return cls(state["call"], state["until"], False, ',
        ("server/test_once.py",),
    ),
    Defect(
        "an effect that was cut off is begun again",
        "mcp_actors/_server/claims.py",
        "        if entry == seen:\n            raise OutcomeUnknown(what)\n",
        "        if entry == seen and await replace(shared, key, entry, None, 1.0):\n            return None\n",
        ("client/test_keys.py",),
    ),
    Defect(
        "what another node runs counts as lost",
        "mcp_actors/_server/claims.py",
        '(address != self._address and await shared.bus.send(address, b""))',
        "False",
        ("server/test_idempotency.py",),
    ),
    Defect(
        "an approval is good for many runs",
        "mcp_actors/_server/approvals.py",
        "    if not is_first:\n",
        "    if is_first is None:\n",
        ("server/test_approvals.py",),
    ),
    Defect(
        "another preview is what was approved",
        "mcp_actors/_server/approvals.py",
        "    if found.message != digest:\n",
        "    if not digest:\n",
        ("server/test_approvals.py",),
    ),
    Defect(
        "any site presses the button of a page",
        "mcp_actors/_server/approval_pages.py",
        "if origin != self._origin:",
        "if not self._origin:",
        ("server/test_approval_pages.py",),
    ),
    Defect(
        "a key has the answer to other arguments",
        "mcp_actors/_server/idempotency.py",
        "        if entry.digest != self.digest:\n",
        "        if not entry.digest:\n",
        ("server/test_idempotency.py",),
    ),
    Defect(
        "all callers have the same keys",
        "mcp_actors/_server/idempotency.py",
        'owner = "" if principal is None else principal.key',
        'owner = ""',
        ("server/test_keys_under_attack.py",),
    ),
    Defect(
        "what a function raises after it has done something is forgotten",
        "mcp_actors/_server/idempotency.py",
        'if "error" not in answer or ctx.call.raised:',
        'if "error" not in answer:',
        ("server/test_idempotency.py",),
    ),
    Defect(
        "the claim of a function ends before it does",
        "mcp_actors/_server/idempotency.py",
        "seconds = run.seconds + CLAIM_MARGIN",
        "seconds = run.seconds",
        ("server/test_keys_under_attack.py",),
    ),
    Defect(
        "a client makes a call with a key again at a server that takes none",
        "mcp_actors/_client/repetition.py",
        "        if not may_be_repeated(refusal, None) and not self._connectivity.negotiated.takes_keys:\n",
        "        if False:\n",
        ("client/test_keys.py",),
    ),
    Defect(
        "a request without any time left is begun",
        "mcp_actors/_actors/dispatcher.py",
        "        if not left:\n            raise DeadlineExceeded(title_of(invocation), begun=False)\n",
        "",
        ("server/test_deadlines.py",),
    ),
    Defect(
        "what goes on after a call still has its deadline",
        "mcp_actors/_actors/deadlines.py",
        "        held.end()\n",
        "        pass\n",
        ("server/test_deadlines.py",),
    ),
    Defect(
        "a call that waits for its place waits beyond its deadline",
        "mcp_actors/_actors/inbound_call.py",
        "trio.move_on_at(math.inf if deadline is None else deadline)",
        "trio.move_on_at(math.inf)",
        ("server/test_deadlines.py",),
    ),
    Defect(
        "a gateway passes a deadline on as it came",
        "mcp_actors/gateway/call_options.py",
        "    DEADLINE,\n    ETAG,\n",
        "    ETAG,\n",
        ("server/test_deadlines.py",),
    ),
    Defect(
        "what a killed process does still counts",
        "mcp_actors/testing/tool_check.py",
        "        if node is None or not node.is_dead:\n            self._counts",
        "        if True:\n            self._counts",
        ("testing/test_check_tool.py",),
    ),
    Defect(
        "an effect that never ran in a call that has succeeded is taken for half done",
        "mcp_actors/testing/tool_check.py",
        "if times > wanted or ended.succeeded:",
        "if times > wanted:",
        ("testing/test_check_tool.py",),
    ),
    Defect(
        "a long outcome goes into the sealed state",
        "mcp_actors/_server/once.py",
        "return self.id is None or self._sealed + size <= MOST_SEALED",
        "return True",
        ("server/test_once.py",),
    ),
    Defect(
        "a list shows what a provider has for nobody",
        "mcp_actors/_server/sources.py",
        "if not is_taken and registry.lists(self._caller, entry):",
        "if not is_taken:",
        ("server/test_providers.py",),
    ),
    Defect(
        "a cursor of a provider is good for everybody",
        "mcp_actors/_server/sources.py",
        '"target": which, "principal": principal_of(ctx.call)}',
        '"target": which, "principal": None}',
        ("server/test_providers.py",),
    ),
    Defect(
        "the file of a page may lie outside of the folder of its tool",
        "mcp_actors/_server/apps.py",
        "    if inside is None and not given.is_absolute():\n",
        "    if given is None:\n",
        ("server/test_apps.py",),
    ),
    Defect(
        "what a page asks for may have more than an origin in it",
        "mcp_actors/types/apps.py",
        "not re.fullmatch(_ORIGIN, origin)",
        "not re.match(_ORIGIN, origin)",
        ("client/test_apps.py",),
    ),
    Defect(
        "a page of another type is handed to the host",
        "mcp_actors/_client/apps.py",
        "    if contents[0].mime_type != APP_MIME:\n",
        "    if contents[0].mime_type is None:\n",
        ("client/test_apps.py",),
    ),
    Defect(
        "a tool that is for pages alone is offered to models",
        "mcp_actors/client.py",
        'offered = page.tools if for_apps else [each for each in page.tools if "model" in each.visibility]',
        "offered = page.tools",
        ("server/test_apps.py",),
    ),
    Defect(
        "a page of one upstream is found under the URI that it has there",
        "mcp_actors/_server/names.py",
        "return folder is None or not outside.startswith(APP_SCHEME) or outside.startswith(folder)",
        "return folder is None or bool(outside)",
        ("gateway/test_apps.py",),
    ),
    Defect(
        "an upstream without a prefix shows its results on a page of another one",
        "mcp_actors/gateway/names.py",
        "() if is_alone else (APP_SCHEME,)",
        "()",
        ("gateway/test_apps.py",),
    ),
    Defect(
        "a file of a skill that has become a link is followed",
        "mcp_actors/_server/skills.py",
        'getattr(os, "O_NOFOLLOW", 0)',
        'getattr(os, "O_NOWHERE", 0)',
        ("server/test_skills.py",),
    ),
    Defect(
        "a caller is listed a skill that it does not see",
        "mcp_actors/_server/skills.py",
        "            if entry is not None and resources.lists(caller, entry):\n",
        "            if entry is not None:\n",
        ("server/test_skills.py",),
    ),
    Defect(
        "a skill may have a file more than clients take",
        "mcp_actors/_server/skills.py",
        "    if len(files) > MOST_FILES or size",
        "    if len(files) > MOST_FILES + 1 or size",
        ("server/test_skills.py",),
    ),
    Defect(
        "a file of a skill is not compared with its digest",
        "mcp_actors/_client/skills.py",
        "        if digest_of(content) != listed.digest:\n",
        "        if not listed.digest:\n",
        ("client/test_skills.py",),
    ),
    Defect(
        "the frontmatter of a skill is not compared with its entry",
        "mcp_actors/_client/skills.py",
        "        if not is_same(frontmatter, dict(skill.frontmatter)):\n",
        "        if not frontmatter:\n",
        ("client/test_skills.py",),
    ),
    Defect(
        "an entry of a skill may name files elsewhere",
        "mcp_actors/_wire/skill_format.py",
        '    if len(uri) > LONGEST_SKILL_URI or not uri.startswith(f"{root}/"):\n',
        "    if len(uri) > LONGEST_SKILL_URI:\n",
        ("wire/test_skill_format.py",),
    ),
    Defect(
        "a gateway says of a skill what it is called at its server",
        "mcp_actors/gateway/forwarded_skills.py",
        "        if route.target == uri:\n",
        "        if uri:\n",
        ("gateway/test_skills.py",),
    ),
    Defect(
        "a template of a provider is handed what leads away",
        "mcp_actors/_server/resources.py",
        "    return None if found is None else _screened(entry, found)\n",
        "    return None if found is None else dict(found)\n",
        ("server/test_providers.py",),
    ),
    Defect(
        "what a subscription is charged for stays charged when the program refuses it",
        "mcp_actors/_actors/event_bus.py",
        "            _release(subscription.account, uri)\n            raise\n",
        "            raise\n",
        ("server/test_event_bus.py",),
    ),
    Defect(
        "a call that is cancelled after it got its place does not give the place back",
        "mcp_actors/_actors/limits.py",
        ("                if ticket.is_set():\n                    self.leave()\n                raise"),
        "                raise",
        ("actors/test_limits.py",),
    ),
    Defect(
        "progress does not restart the idle clock of a call",
        "mcp_actors/_actors/outbound_call.py",
        ("        self.deadline.touch()\n        if self._progress is not None:"),
        "        if self._progress is not None:",
        ("actors/test_timeouts.py",),
    ),
    Defect(
        "a listener that has ended is not told so",
        "mcp_actors/_client/notifications.py",
        ("            listener.end(lost)\n            taken_back.set()"),
        "            taken_back.set()",
        ("client/test_listening.py", "client/test_notifications.py"),
    ),
    Defect(
        "a cached answer is good for longer than any entry may be",
        "mcp_actors/_client/cache.py",
        "min(ttl, MAX_AGE * 1000) / 1000",
        "max(ttl, MAX_AGE * 1000) / 1000",
        ("client/test_cache.py",),
    ),
    Defect(
        "a client that names no revision gets the newest one",
        "mcp_actors/_eras/server_negotiation.py",
        "max(headerless, default=UNSAID_VERSION)",
        "max(legacy, default=UNSAID_VERSION)",
        ("eras/test_server_negotiation.py",),
    ),
    Defect(
        "a schema may be nested one level deeper than the limit",
        "mcp_actors/_schema/validate.py",
        ('        if depth > MAX_DEPTH:\n            raise ValueError(f"the schema is nested'),
        ('        if depth > MAX_DEPTH + 1:\n            raise ValueError(f"the schema is nested'),
        ("schema/test_validate.py",),
    ),
    Defect(
        "a program is not told that a listener has left",
        "mcp_actors/_server/subscriptions.py",
        "                ctx.server.on_unlisten(ctx)\n",
        "                pass\n",
        ("client/test_notifications.py",),
    ),
    Defect(
        "a subscription outlives the token of its caller",
        "mcp_actors/_server/subscriptions.py",
        "trio.move_on_after(left):",
        "trio.move_on_after(math.inf):",
        ("server/test_access.py",),
    ),
    Defect(
        "completions are cut one value too late",
        "mcp_actors/_server/completion.py",
        "t.Completion(values[:MAX_VALUES],",
        "t.Completion(values[: MAX_VALUES + 1],",
        ("server/test_prompts.py", "server/test_resources.py", "server/test_arguments.py"),
    ),
    Defect(
        "an id of one character too many is accepted",
        "mcp_actors/_wire/codec.py",
        "isinstance(id, str) and len(id) > LONGEST_ID:",
        "isinstance(id, str) and len(id) > LONGEST_ID + 1:",
        ("wire/test_codec.py",),
    ),
    Defect(
        "a URI that is longer than the limit is matched",
        "mcp_actors/_wire/uri_template.py",
        ("        if len(uri) > LONGEST_URI:\n            return None\n"),
        "",
        ("wire/test_uri_template.py", "wire/test_hostile_peers.py"),
    ),
    Defect(
        "closing a channel of lines leaves the incoming stream open when closing the outgoing one fails",
        "mcp_actors/abc/framing.py",
        (
            "        try:\n"
            "            await self._out.aclose()\n"
            "        finally:\n"
            "            await self._in.aclose()"
        ),
        ("        await self._out.aclose()\n        await self._in.aclose()"),
        ("test_framing.py",),
    ),
    Defect(
        "a line is measured without the part of it that came before",
        "mcp_actors/abc/framing.py",
        "suspect = len(partial) + len(data) > self._limit",
        "suspect = len(data) > self._limit",
        ("test_framing.py",),
    ),
    Defect(
        "the places where a server listens are not told to the program",
        "mcp_actors/asyncio/serving.py",
        "            self._bridge.notify(self._callback, value)",
        "            self._bridge.notify(self._callback, ())",
        ("server/test_asyncio_serving.py",),
    ),
    Defect(
        "an answer to a login of another issuer is accepted",
        "mcp_actors/auth/client/person_grant.py",
        "(issuer is not None and issuer != self.server.issuer)",
        '(issuer is not None and issuer == "")',
        ("auth/client/test_answers.py",),
    ),
    Defect(
        "an assertion has ended before it is made",
        "mcp_actors/auth/jose.py",
        '"exp": int(now) + ASSERTION_LIFETIME,',
        '"exp": int(now) - ASSERTION_LIFETIME,',
        ("auth/test_jose.py",),
    ),
    Defect(
        "an issuer's metadata that speaks for another issuer is believed",
        "mcp_actors/auth/metadata.py",
        '    if document.get("issuer") != wanted:',
        '    if document.get("issuer") is None:',
        ("auth/test_metadata.py",),
    ),
    Defect(
        "a token that has ended is accepted",
        "mcp_actors/auth/server/guard.py",
        "ends + self._settings.leeway <= now:",
        "ends + self._settings.leeway <= 0:",
        ("auth/server/test_answers.py", "auth/server/test_introspection.py"),
    ),
    Defect(
        "a proof is good at any time after it was made",
        "mcp_actors/auth/server/proofs.py",
        "not now - WINDOW <= iat <= now + WINDOW",
        "not iat <= now + WINDOW",
        ("auth/server/test_proofs.py",),
    ),
    Defect(
        "a call from another loop that has ended is kept",
        "mcp_actors/bridges/trio_bridge.py",
        ("        finally:\n            belongings.calls.discard(call)\n"),
        ("        finally:\n            pass\n"),
        ("bridges/test_trio_bridge.py", "bridges/test_endings.py"),
    ),
    Defect(
        "the arguments of a tool are listed without a bound",
        "mcp_actors/cli/arguments.py",
        ("    if depth >= MAX_NESTING:\n        return\n    for name"),
        "    for name",
        ("cli/test_arguments.py",),
    ),
    Defect(
        "alternatives of a schema are followed without an end",
        "mcp_actors/cli/arguments.py",
        "    if depth > MAX_NESTING:\n        return\n",
        "",
        ("cli/test_arguments.py",),
    ),
    Defect(
        "a load has a call too many in flight",
        "mcp_actors/cli/bench/driver.py",
        "while len(pending) < stage.window and",
        "while len(pending) <= stage.window and",
        ("bench/test_driver.py",),
    ),
    Defect(
        "a stage of a load goes on after its last call",
        "mcp_actors/cli/bench/driver.py",
        "(stage.calls and sent >= stage.calls):\n            if",
        "(stage.calls and sent > stage.calls):\n            if",
        ("bench/test_driver.py",),
    ),
    Defect(
        "a session of the demo that has ended counts as live",
        "mcp_actors/cli/demo/load.py",
        "tally.live -= 1",
        "tally.live -= 0",
        ("cli/test_demo.py",),
    ),
    Defect(
        "the demo counts a confirmed cancellation again",
        "mcp_actors/cli/demo/load.py",
        "self.tally.confirmed += counted - self.confirmed",
        "self.tally.confirmed += counted",
        ("cli/test_demo.py",),
    ),
    Defect(
        "a negative ttlMs passes the inspection",
        "mcp_actors/cli/inspect/message_checks.py",
        "isinstance(ttl, bool) or ttl < 0:",
        "isinstance(ttl, bool):",
        ("inspection/test_inspection.py",),
    ),
    Defect(
        "a configuration with several names is replaced",
        "mcp_actors/cli/install/config_file.py",
        "    if found.st_nlink > 1:",
        "    if found.st_nlink > 2:",
        ("cli/install/test_change.py",),
    ),
    Defect(
        "the lifespan of a replaced server is not left after its last call",
        "mcp_actors/cli/reload/replacement.py",
        ("        turn.lifespan.left.set()\n        self._former.remove(turn)\n"),
        ("        self._former.remove(turn)\n"),
        ("cli/reload/test_replacement.py",),
    ),
    Defect(
        "the chosen row moves below the last one",
        "mcp_actors/cli/top/screen.py",
        "min(max(0, self.choice.index + by), len(rows) - 1)",
        "max(0, self.choice.index + by)",
        ("cli/test_top.py",),
    ),
    Defect(
        "a REST API calls with the scopes of another key of the same subject",
        "mcp_actors/cli/rest/application.py",
        "None if principal is None else (principal.key, principal.scopes)",
        'None if principal is None else (principal.key, frozenset[str](""))',
        ("cli/rest/test_application.py",),
    ),
    Defect(
        "the pause before a worker is started again does not grow",
        "mcp_actors/cli/workers/supervisor.py",
        "min(slot.pause * 2 or self._times.pause, self._times.longest_pause)",
        "self._times.pause",
        ("cli/workers/test_supervisor.py",),
    ),
    Defect(
        "a list may have a page more than the bound",
        "mcp_actors/_client/pages.py",
        "            if sent >= most:",
        "            if sent > most:",
        ("client/test_client.py",),
    ),
    Defect(
        "a list may be kept for less than no time",
        "mcp_actors/server.py",
        "if not _is_whole(ttl_ms) or ttl_ms < 0:",
        "if not _is_whole(ttl_ms):",
        ("server/test_server.py",),
    ),
    Defect(
        "a delay of the peer that is less than nothing is obeyed",
        "mcp_actors/errors/protocol.py",
        "not 0 <= delay < 1e12",
        "not delay < 1e12",
        ("middleware/test_retry.py",),
    ),
    Defect(
        "a call of the example that has ended counts as running",
        "mcp_actors/examples/everything/content.py",
        ("    finally:\n        state.sleeping -= 1\n    state.slept += 1"),
        ("    finally:\n        pass\n    state.slept += 1"),
        ("conformance/test_everything.py",),
    ),
    Defect(
        "a refresh token that comes again ends nothing",
        "mcp_actors/examples/issuer/tokens.py",
        "        if found[1] != grant.number:\n            self.end(grant)\n",
        "        if found[1] != grant.number:\n",
        ("examples/test_issuer.py",),
    ),
    Defect(
        "a file that is too large is read",
        "mcp_actors/examples/filesystem.py",
        "        if len(data) > MAX_FILE_BYTES:\n",
        "        if len(data) < 0:\n",
        ("examples/test_filesystem.py",),
    ),
    Defect(
        "a result of a statement has a row more than asked for",
        "mcp_actors/examples/sqlite/guard.py",
        "        if len(rows) == max_rows or bytes_left < 0:",
        "        if len(rows) > max_rows or bytes_left < 0:",
        ("examples/test_sqlite.py",),
    ),
    Defect(
        "a job counts as lost while its lease is good",
        "mcp_actors/examples/transports/broker.py",
        "each.lease <= trio.current_time()",
        "each.lease > trio.current_time()",
        ("examples/test_transports.py",),
    ),
    Defect(
        "the circuit breaker opens a failure too late",
        "mcp_actors/gateway/breaker.py",
        "self.failures >= THRESHOLD",
        "self.failures > THRESHOLD",
        ("gateway/test_upstream.py",),
    ),
    Defect(
        "one caller may have one call too many at an upstream",
        "mcp_actors/gateway/connections.py",
        "        if of_caller >= self.limit_of_caller:",
        "        if of_caller > self.limit_of_caller:",
        ("gateway/test_callers.py", "gateway/test_upstream.py"),
    ),
    Defect(
        "a gateway gives an old list again",
        "mcp_actors/gateway/lists.py",
        "                if kept.listing is not None and kept.is_good:",
        "                if kept.listing is not None:",
        ("gateway/test_lists.py",),
    ),
    Defect(
        "a rate limit lets one request more through at once",
        "mcp_actors/middleware/rate.py",
        "(self.burst - 1) / self.rate",
        "self.burst / self.rate",
        ("middleware/test_rate.py",),
    ),
    Defect(
        "a private result is cached without the scopes of its caller",
        "mcp_actors/middleware/result_cache.py",
        '    return (f"principal {principal.key}", known, *sorted(principal.scopes))',
        '    return (f"principal {principal.key}", known)',
        ("middleware/test_result_cache.py",),
    ),
    Defect(
        "a private result is cached without its principal",
        "mcp_actors/middleware/result_cache.py",
        '    return (f"principal {principal.key}", known, *sorted(principal.scopes))',
        "    return (known, *sorted(principal.scopes))",
        ("middleware/test_result_cache.py",),
    ),
    Defect(
        "a call is made once more than it may be",
        "mcp_actors/middleware/retry.py",
        "                if number == self.attempts or",
        "                if number > self.attempts or",
        ("middleware/test_retry.py",),
    ),
    Defect(
        "a request of a kind that is not known is made again",
        "mcp_actors/middleware/retry.py",
        "            return call.method in IDEMPOTENT\n",
        "            return True\n",
        ("middleware/test_retry.py",),
    ),
    Defect(
        "an argument of an API leads out of its path",
        "mcp_actors/openapi/requests.py",
        '    if any(step in (".", "..") for text in _texts(value)',
        "    if any(step in () for text in _texts(value)",
        ("openapi/test_openapi_requests.py",),
    ),
    Defect(
        "an answer of an API has no bound",
        "mcp_actors/openapi/calls.py",
        "    if len(body) > most:",
        "    if len(body) > 1000 * most:",
        ("openapi/test_openapi_requests.py",),
    ),
    Defect(
        "what a mounted server hides is shown by its host",
        "mcp_actors/_server/visibility.py",
        "        return inside is not None and viewed.visibility.sees(inside, viewed.exposure)",
        "        return True",
        ("server/test_visibility.py",),
    ),
    Defect(
        "a value of a session is made once for each call that waits for it",
        "mcp_actors/_server/dependencies.py",
        "        kept = self._by_key.get(each.key)\n",
        "        kept = None\n",
        ("server/test_dependencies.py",),
    ),
    Defect(
        "an owner may have one task too many in memory",
        "mcp_actors/shared/memory.py",
        "        if len(owner.numbers) >= bounds.of_owner or",
        "        if len(owner.numbers) > bounds.of_owner or",
        ("shared/test_memory.py", "tasks/test_node.py"),
    ),
    Defect(
        "a lease in Redis of no seconds is accepted",
        "mcp_actors/shared/redis/state.py",
        "        if min(lease, timeout) <= 0:",
        "        if max(lease, timeout) <= 0:",
        ("shared/test_redis.py",),
    ),
    Defect(
        "a locked database is not tried again",
        "mcp_actors/shared/sqlite_steps.py",
        'if time.monotonic() > end or "locked" not in str(error):',
        'if time.monotonic() > end or "locked" in str(error):',
        ("shared/test_sqlite.py",),
    ),
    Defect(
        "one owner may have one task too many in a database",
        "mcp_actors/shared/sqlite_steps.py",
        "        if held >= tasks or",
        "        if held > tasks or",
        ("shared/test_sqlite.py",),
    ),
    Defect(
        "a budget is not released for its holder",
        "mcp_actors/supervision/budget.py",
        "            left = self._by_holder[holder] - amount\n",
        "            left = self._by_holder[holder]\n",
        ("actors/test_limits.py",),
    ),
    Defect(
        "a quantile looks past the wanted bucket",
        "mcp_actors/supervision/histogram.py",
        "            if passed >= wanted:",
        "            if passed > wanted:",
        ("telemetry/test_metrics.py", "telemetry/test_calls.py"),
    ),
    Defect(
        "a caller gets a task of another one",
        "mcp_actors/tasks/extension.py",
        "    if record is None or not may_see(record, ctx):",
        "    if record is None:",
        ("tasks/test_core.py", "tasks/test_node.py"),
    ),
    Defect(
        "a failed question stays marked as being asked",
        "mcp_actors/tasks/node.py",
        "            self._being_asked.discard(place)\n",
        "",
        ("tasks/test_asking.py",),
    ),
    Defect(
        "labels of metrics have no bound",
        "mcp_actors/telemetry/metrics.py",
        "                if len(self._series) >= MOST_SERIES:",
        "                if len(self._series) < 0:",
        ("telemetry/test_metrics.py",),
    ),
    Defect(
        "the kit lets a frame pass that has vanished",
        "mcp_actors/testing/conformance/carrying.py",
        "    expect(refused or after.data not in got, LIMIT,",
        "    expect(True, LIMIT,",
        ("testing/test_check_transport.py",),
    ),
    Defect(
        "a frame that is duplicated arrives once",
        "mcp_actors/testing/faults.py",
        "            self._statistics.duplicated += 1\n            self._push(due, frame)",
        "            self._statistics.duplicated += 1",
        ("testing/test_recorder.py",),
    ),
    Defect(
        "the kit does not compare what was delivered and received",
        "mcp_actors/testing/conformance/carrying.py",
        '        compare(got, [*sent, last], "server to client, delivered and received")',
        "        assert got is not None",
        ("testing/test_check_transport.py",),
    ),
    Defect(
        "the sides of a recording are exchanged",
        "mcp_actors/testing/recording.py",
        '"server" if side == "client" else "client"',
        '"client" if side == "client" else "server"',
        ("testing/test_recorder.py",),
    ),
    Defect(
        "the kit does not ask for missed events",
        "mcp_actors/testing/shared_state/events.py",
        "            lambda: listener.missed > 0 or len(set(listener.taken)) > FLOOD,",
        "            lambda: True,",
        ("shared/test_planted_faults.py",),
    ),
    Defect(
        "the clock of a simulation goes backwards",
        "mcp_actors/testing/simulate/links.py",
        "        self._now = max(then, self._now)\n",
        "        self._now = then\n",
        ("test_simulate.py",),
    ),
    Defect(
        "a run whose answer arrived counts as wasted",
        "mcp_actors/testing/simulate/report.py",
        ("        self._ended.append(seconds)\n        if call is None or call.outcome is not None:"),
        ("        self._ended.append(seconds)\n        if call is None or call.outcome is None:"),
        ("test_simulate.py",),
    ),
    Defect(
        "a form refuses the largest allowed number",
        "mcp_actors/types/form.py",
        'value > schema["maximum"]:',
        'value >= schema["maximum"]:',
        ("types/test_types.py", "client/test_callbacks.py"),
    ),
    Defect(
        "the token of the admin endpoint is not compared",
        "transports/mcp_transports/admin/access.py",
        '        if scheme.lower() == "bearer" and equal:',
        '        if scheme.lower() == "bearer":',
        ("telemetry/test_live_view_guards.py",),
    ),
    Defect(
        "an answer of an authorization server has no bound",
        "transports/mcp_transports/auth/fetcher.py",
        "            if len(body) > max_bytes:",
        "            if len(body) < 0:",
        ("transports/auth/test_fetcher.py",),
    ),
    Defect(
        "a lock of the token file is kept after its use",
        "transports/mcp_transports/auth/file_store.py",
        ("        finally:\n            lock.release()\n"),
        ("        finally:\n            pass\n"),
        ("transports/auth/test_file_store.py",),
    ),
    Defect(
        "the query does not count as a part of the target",
        "transports/mcp_transports/http/asgi/application.py",
        "    if len(full) + len(query) > limits.target_bytes:",
        "    if len(full) > limits.target_bytes:",
        ("transports/http/asgi/test_requests.py",),
    ),
    Defect(
        "the bytes of a request body are held after its answer",
        "transports/mcp_transports/http/asgi/application.py",
        "            self._bodies.release(request.peer, charged)\n",
        "            pass\n",
        ("transports/http/asgi/test_requests.py",),
    ),
    Defect(
        "a session id with any characters is accepted",
        "transports/mcp_transports/http/client/session_state.py",
        '        if id is not None and not (id and all("!" <= c <= "~" for c in id)):',
        "        if id is not None and not id:",
        ("transports/http/test_client_sessions.py", "transports/http/test_client_responses.py"),
    ),
    Defect(
        "a request may have one header line too many",
        "transports/mcp_transports/http/h1/parser.py",
        "        if len(headers) + message.lines > limits.headers:",
        "        if len(headers) + message.lines > limits.headers + 1:",
        ("transports/http/test_server_crashes.py",),
    ),
    Defect(
        "the pieces of a request body have no bound together",
        "transports/mcp_transports/http/h1/parser.py",
        "        if message.body_size > self._limits.body_bytes:",
        "        if message.body_size < 0:",
        ("transports/http/test_server_crashes.py",),
    ),
    Defect(
        "a scope of an operation is not asked for",
        "transports/mcp_transports/http/server/endpoint.py",
        "(principal is not None and needed <= principal.scopes)",
        "principal is not None",
        ("transports/http/test_scopes.py",),
    ),
    Defect(
        "Host is not checked",
        "transports/mcp_transports/http/server/origin_policy.py",
        "        if not (self._any_host or self._host_is_allowed(host)):",
        "        if not (self._any_host or self._hosts):",
        ("transports/http/test_origin_policy.py",),
    ),
    Defect(
        "a session that was closed keeps its place in the budget",
        "transports/mcp_transports/http/server/sessions.py",
        ("            self._budget.release(session.holder, 1)\n            if self._places is not None:"),
        "            if self._places is not None:",
        ("transports/http/test_sessions.py",),
    ),
    Defect(
        "an event of a stream has no bound",
        "transports/mcp_transports/http/sse.py",
        "        if size > self._limit:",
        "        if size < 0:",
        ("transports/http/test_sse.py",),
    ),
    Defect(
        "a full pipe in memory takes a frame more",
        "transports/mcp_transports/memory.py",
        "        if len(frames) >= self.limit and not readers:",
        "        if len(frames) > self.limit and not readers:",
        ("transports/test_memory.py",),
    ),
    Defect(
        "a connection that was closed keeps its place in the budget",
        "transports/mcp_transports/sockets/transport.py",
        (
            "                self._cut.remove(stream)\n"
            "            else:\n"
            "                self._connections.release(holder, 1)"
        ),
        "                self._cut.remove(stream)",
        ("transports/test_sockets.py",),
    ),
    Defect(
        "a line of stderr that comes in pieces loses its beginning",
        "transports/mcp_transports/stdio/child.py",
        "            self._add(self._partial + line)\n",
        "            self._add(line)\n",
        ("transports/test_stdio_client.py",),
    ),
    Defect(
        "the end of standard error is waited for after it has come",
        "transports/mcp_transports/stdio/child.py",
        "            self._stderr_ended.set()\n",
        "            pass\n",
        ("transports/test_stdio_client.py",),
    ),
    Defect(
        "the last lines of stderr are not kept",
        "transports/mcp_transports/stdio/child.py",
        '        self._lines.append(_text(raw[:KEPT_LINE_BYTES]).rstrip("\\r"))\n',
        "",
        ("transports/test_stdio_client.py",),
    ),
    Defect(
        "what a short write to a standard stream leaves over is lost",
        "transports/mcp_transports/stdio/windows/standard_streams.py",
        "        while sent < len(view):\n            sent += os.write(fd, view[sent:])",
        "        if sent < len(view):\n            sent += os.write(fd, view[sent:])",
        ("windows/test_server.py",),
    ),
    Defect(
        "the end of a child is not waited for",
        "transports/mcp_transports/stdio/windows/starting.py",
        "            if trio.current_time() >= end:",
        "            if trio.current_time() < end:",
        ("windows/test_children.py",),
    ),
    Defect(
        "a peer has no time for its answer when a ping was late",
        "transports/mcp_transports/websocket/channel.py",
        "            self._silent_since = now - times.ping_interval\n",
        "            pass\n",
        ("transports/websocket/test_channel.py",),
    ),
    Defect(
        "a message of many fragments has no bound",
        "transports/mcp_transports/websocket/protocol.py",
        "        if len(fragments.data) + len(payload) > fragments.limit:",
        "        if len(payload) > fragments.limit:",
        ("transports/websocket/test_protocol.py", "transports/websocket/test_channel.py"),
    ),
)


class Copy:
    """A copy of the tracked files with an environment that imports it, and everything else from this environment."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "copy"
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        for name in listed.stdout.split("\0"):
            if name and (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        environment = folder / "environment"
        venv.create(environment, symlinks=os.name != "nt")
        scripts, packages = (
            Path(sysconfig.get_path(kind, "venv", {"base": str(environment), "platbase": str(environment)}))
            for kind in ("scripts", "purelib")
        )
        self.python = scripts / Path(sys.executable).name
        # A folder that a .pth file adds is not searched for further .pth files, so that of the editable installation
        # has no effect in this environment. Children of a test get no variables, and this file all the same.
        lines = [self.root, self.root / "transports", sysconfig.get_path("purelib")]
        (packages / "copy.pth").write_text("".join(f"{line}\n" for line in lines))
        command = scripts / "mcp-actors"
        command.write_text(
            f"#!{self.python}\nimport sys\nfrom mcp_actors.cli import main\nsys.exit(main())\n"
        )
        command.chmod(0o755)
        self.variables = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            self.variables.pop(name, None)
        for package in ("mcp_actors", "mcp_transports"):
            imported = self.run([str(self.python), "-c", f"import {package}; print({package}.__file__)"], 60)[
                1
            ]
            assert Path(imported.strip()).is_relative_to(self.root), f"{package} is imported from {imported}"

    def run(self, command: list[str], seconds: float) -> tuple[int | None, str]:
        """Runs a command and returns its code and output; the code is ``None`` if its time was over."""
        child = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return None, child.communicate()[0]
        return child.returncode, output

    def test(self, files: tuple[str, ...], seconds: float, *options: str) -> tuple[int | None, str]:
        """Runs test files, as `run` does."""
        plain = ["-p", "no:cacheprovider", "-rfE", "--tb=no", "-W", "ignore::pytest.PytestCacheWarning"]
        paths = [f"tests/{file}" for file in files]
        return self.run(
            [
                str(self.python),
                "-m",
                "pytest",
                *plain,
                "-m",
                "not peers and not frameworks",
                *options,
                *paths,
            ],
            seconds,
        )

    def write(self, file: str, text: str) -> None:
        """Writes a file of the copy and removes what Python has compiled of it: a size and a second may be the same."""
        path = self.root / file
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def seen_by(copy: Copy, defect: Defect) -> str | None:
    """Plants a defect, and returns which test saw it, ``None`` if none did."""
    text = (copy.root / defect.file).read_text()
    copy.write(defect.file, text.replace(defect.old, defect.new))
    try:
        code, output = copy.test(defect.tests, TIME_OF_ROOM, "-x", "-n", "0")
    finally:
        copy.write(defect.file, text)
    if code is None:
        return f"{defect.tests[0]}: the tests hang"
    if code == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
    return found[1] if found else f"no test: pytest ended with {code}: {output.strip()[-200:]}"


def look(copy: Copy, waiting: queue.SimpleQueue[Defect], unseen: list[Defect]) -> None:
    """Plants one defect after the other in one copy, as long as some wait."""
    while True:
        try:
            defect = waiting.get_nowait()
        except queue.Empty:
            return
        began = time.monotonic()
        test = seen_by(copy, defect)
        if test is None or test.startswith("no test"):
            unseen.append(defect)
        seconds = time.monotonic() - began
        print(f"{test or 'NOT SEEN'} ({seconds:.0f} s): {defect.name} [{defect.file}]", flush=True)


def main(names: list[str]) -> int:
    """Plants the defects with these names, or all; returns the exit code."""
    chosen = [each for each in DEFECTS if not names or each.name in names]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(AT_ONCE)]
        files = tuple(dict.fromkeys(file for each in chosen for file in each.tests))
        code, output = copies[0].test(files, TIME_OF_ALL, "-n", str(AT_ONCE))
        print(f"without a defect: {output.strip().splitlines()[-1]}", flush=True)
        if code != 0:
            print(output)
            return 1
        waiting: queue.SimpleQueue[Defect] = queue.SimpleQueue()
        for each in chosen:
            waiting.put(each)
        unseen: list[Defect] = []
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(look, copy, waiting, unseen) for copy in copies]:
                done.result()
    print(f"{len(chosen) - len(unseen)} of {len(chosen)} were seen, in {time.monotonic() - began:.0f} s")
    return int(len(unseen) > MOST_UNSEEN or not chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
