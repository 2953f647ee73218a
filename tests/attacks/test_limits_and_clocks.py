"""Clocks that jump, callers that evade limits, and servers without memory."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mcp_actors import RpcError
from mcp_actors._eras.modern import StateSealer
from mcp_actors.auth import JwtVerifier, Principal
from mcp_actors.auth.effects import Fetched
from mcp_actors.errors import AuthorizationFailed
from tests.auth.client.test_authorization import Answered, scene
from tests.auth.server.authority import JWKS, METADATA, NEW_KEY, START, Listener, bearer, token
from tests.auth.server.test_introspection import ACTIVE, listener, say

# Seconds by which the clock of a machine is set back: a correction, a time zone, a day, a battery that is empty.
BACK = pytest.mark.parametrize("seconds", [90.0, 3600.0, 86_400.0, 1_700_000_000.0])
ENDS_LATE = {"exp": 9_000_000_000}


# -- the wall clock is set back ----------------------------------------------------------------------------------------


@BACK
async def test_a_revocation_takes_effect_although_the_clock_was_set_back(seconds: float) -> None:
    protected = listener({**ACTIVE, "iat": 0, "exp": START + 600})
    assert await protected.status(bearer("opaque")) == 200
    say(protected, {"active": False})
    protected.clock.time -= seconds
    assert await protected.status(bearer("opaque")) == 401


@BACK
async def test_a_refusal_is_not_believed_for_the_time_that_the_clock_was_ahead(seconds: float) -> None:
    protected = listener({"active": False})
    assert await protected.status(bearer("opaque")) == 401
    say(protected, {**ACTIVE, "iat": 0})
    protected.clock.time -= seconds
    assert await protected.status(bearer("opaque")) == 200


@BACK
async def test_an_authorization_server_that_was_away_is_asked_again(seconds: float) -> None:
    protected = listener(Fetched(503, (), b""))
    assert await protected.status(bearer("opaque")) == 503
    say(protected, {**ACTIVE, "iat": 0})
    protected.clock.time -= seconds
    assert await protected.status(bearer("opaque")) == 200


@BACK
@pytest.mark.parametrize("url", [METADATA, JWKS])
async def test_metadata_and_keys_that_could_not_be_had_are_asked_for_again(seconds: float, url: str) -> None:
    protected = Listener(verifier=JwtVerifier(remembered_for=0.0))
    protected.authority.bodies[url] = b""
    good = token({"iat": 0, **ENDS_LATE})
    assert await protected.status(bearer(good)) == 503
    del protected.authority.bodies[url]
    protected.clock.time -= seconds
    assert await protected.status(bearer(good)) == 200


@BACK
async def test_a_new_key_is_found_although_the_clock_was_set_back(seconds: float) -> None:
    protected = Listener(verifier=JwtVerifier(remembered_for=0.0))
    assert await protected.status(bearer(token({"iat": 0, **ENDS_LATE}))) == 200
    protected.authority.keys = [NEW_KEY]
    protected.clock.time -= seconds
    assert await protected.status(bearer(token({"iat": 0, **ENDS_LATE}, {"kid": "ec2"}, NEW_KEY))) == 200


@BACK
async def test_a_withdrawn_key_is_forgotten_although_the_clock_was_set_back(seconds: float) -> None:
    protected = Listener(verifier=JwtVerifier(remembered_for=0.0))
    good = token({"iat": 0, **ENDS_LATE})
    assert await protected.status(bearer(good)) == 200
    protected.authority.keys = [NEW_KEY]
    protected.clock.time -= seconds
    assert await protected.status(bearer(good)) == 401


@BACK
def test_a_client_asks_again_although_the_clock_was_set_back(seconds: float) -> None:
    world, _, server, caller = scene()
    server.refuses = lambda operation: Answered(401, server.challenge())
    with pytest.raises(AuthorizationFailed):
        caller.call("initialize")
    world.now -= seconds
    refusals = [Answered(401, server.challenge())]
    server.refuses = lambda operation: refusals.pop() if refusals else None
    assert caller.call() == 200


# -- it is set forward -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [601.0, 3600.0, 86_400.0, 1e9, 1e12])
async def test_no_token_outlives_a_clock_that_is_set_forward(seconds: float) -> None:
    protected = Listener()
    good = token()
    assert await protected.status(bearer(good)) == 200
    protected.clock.time += seconds + 31
    assert await protected.status(bearer(good)) == 401
    protected.clock.time -= seconds + 31
    assert await protected.status(bearer(good)) == 200


@pytest.mark.parametrize("jump", [-1e9, -86_400.0, -1.0, 0.0, 299.0, 300.0, 301.0, 1e9, 1e15])
def test_a_sealed_state_ends_with_its_lifetime_and_is_never_somebody_elses(jump: float) -> None:
    sealer = StateSealer(b"k" * 32, lifetime=300.0)
    ann, bob = Principal("ann"), Principal("bob")
    sealed = sealer.seal({"answers": []}, method="tools/call", target={"a": 1}, principal=ann, now=START)

    def opens(principal: Principal | None, target: Any, method: str = "tools/call") -> bool:
        try:
            sealer.open(sealed, method=method, target=target, principal=principal, now=START + jump)
        except RpcError:
            return False
        return True

    assert opens(ann, {"a": 1}) == (jump < 300.0)
    assert not opens(bob, {"a": 1})
    assert not opens(None, {"a": 1})
    assert not opens(ann, {"a": 2})
    assert not opens(ann, {"a": 1}, "prompts/get")


@pytest.mark.parametrize("now", [-1e9, 0.0, START - 1e9, START, START + 1e9, 1e15])
def test_the_time_that_a_stream_may_stay_open_is_a_time(now: float) -> None:
    left = Principal("ann", expires_at=START).seconds_left(now)
    assert 0.0 <= left <= max(START - now, 0.0) + 60.0
    assert Principal("ann").seconds_left(now) == math.inf
