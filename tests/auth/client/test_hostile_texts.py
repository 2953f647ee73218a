"""Texts of servers that are hostile: none of them gets into a log or the store as it came."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from mcp_actors.auth.client.authorization import Answered
from mcp_actors.auth.effects import Fetch, Fetched
from mcp_actors.errors import AuthorizationError, AuthorizationFailed, RegistrationFailed
from tests.auth.scripted import ISSUER, answer, scene

LONGEST = 1000


def is_harmless(text: str) -> bool:
    return text.isprintable() and len(text) <= LONGEST


@pytest.mark.parametrize(
    "challenge",
    [
        # Terminals take U+009B for the beginning of an escape sequence.
        'Bearer error="invalid_token\x9b2J", scope="\x1b]0;title\x07"',
        f'Bearer error="{"e" * 9000}", scope="{"s " * 9000}"',
        f'Bearer error="insufficient_scope", scope="{" ".join(f"scope:{n}" for n in range(3000))}"',
    ],
)
@pytest.mark.parametrize("status", [401, 403])
def test_a_challenge_is_logged_cut_and_without_what_a_terminal_obeys(challenge: str, status: int) -> None:
    _, _, server, caller = scene()
    assert caller.call() == 200
    server.refuses = lambda operation: Answered(status, [challenge])
    raised = ""
    with capture_logs() as logs:
        try:
            assert caller.call() == status
        except AuthorizationError as error:
            raised = str(error)
    values = [
        raised,
        *(value if isinstance(value, str) else repr(value) for each in logs for value in each.values()),
    ]
    assert [each for each in values if not is_harmless(each)] == []


def test_a_server_that_wants_ever_more_scopes_does_not_fill_the_message() -> None:
    _, _, server, caller = scene()
    assert caller.call() == 200
    refused = 0

    def refuse(operation: str) -> Answered:
        nonlocal refused
        refused += 1
        wanted = " ".join(f"{refused}:{number}:{'x' * 200}" for number in range(50))
        return Answered(403, [f'Bearer error="insufficient_scope", scope="{wanted}"'])

    server.refuses = refuse
    with pytest.raises(AuthorizationFailed) as failed:
        caller.call()
    assert is_harmless(str(failed.value))


@pytest.mark.parametrize("name", ["c\n  issuer: https://bank.example", "c\x9b2J", "\u202ec", "c" * 100_000])
def test_a_client_id_that_could_deceive_a_person_is_none(name: str) -> None:
    world, _, _, caller = scene()
    inner = world.handlers[ISSUER]

    def register(fetch: Fetch) -> Any:
        found = inner(fetch)
        if fetch.url.endswith("/register") and isinstance(found, Fetched):
            return answer({"client_id": name, "redirect_uris": []}, 201)
        return found

    world.handlers[ISSUER] = register
    with pytest.raises(RegistrationFailed):
        caller.call()
    assert world.logins == []
    # A later attempt registers anew.
    world.handlers[ISSUER] = inner
    assert caller.call() == 200
