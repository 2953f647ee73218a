"""Proofs of possession (RFC 9449 section 4.3): good ones, and bad ones that differ from a good one in one way."""

from __future__ import annotations

import base64
import json
import secrets
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.auth import AccessGuard, Denial, Principal
from mcp_actors.auth.jose import DpopKey, import_private_key, sign, token_hash
from mcp_actors.auth.server import proofs as proofs_module
from mcp_actors.auth.server.proofs import Nonces, NonceWanted, ProofInvalid, Proofs
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.memory import MemoryReplayGuard

from .authority import RESOURCE, START, Listener, Request, bearer, bound_to, token, unsigned, without_none

KEYS = {name: DpopKey.generate(name) for name in ("ES256", "ES384", "PS256", "RS256", "Ed25519")}
KEY = KEYS["ES256"]
OTHER = DpopKey.generate("ES256")
TOKEN = token(bound_to(KEY))
BAD_PROOF = (
    'DPoP error="invalid_dpop_proof", error_description="The DPoP proof is not valid for this request.", '
)
Values = dict[str, Any]


def made(claims: Values | None = None, header: Values | None = None, key: DpopKey = KEY) -> str:
    """Returns a good proof, but for what is given; ``None`` leaves a member out."""
    whole = {
        "jti": secrets.token_urlsafe(12),
        "htm": "POST",
        "htu": RESOURCE,
        "iat": int(START),
        "ath": token_hash(TOKEN),
    } | (claims or {})
    jwk = key.as_jwk()
    public = {name: value for name, value in jwk.items() if name in ("kty", "crv", "x", "y", "n", "e")}
    head = {"typ": "dpop+jwt", "alg": key.algorithm, "jwk": public} | (header or {})
    algorithm = head["alg"] if head["alg"] in list(KEYS) else key.algorithm
    signed = sign(
        {**without_none(head), "alg": algorithm}, without_none(whole), import_private_key(jwk, algorithm)
    )
    if algorithm == head["alg"]:
        return signed
    return unsigned(without_none(whole), without_none(head), b"\0" * 64)


def listener(**settings: Any) -> Listener:
    return Listener(**{"dpop": "allowed", **settings})


def request(proof: str | None, text: str = TOKEN, **more: Any) -> Request:
    return Request(authorization=f"DPoP {text}", **({} if proof is None else {"dpop": proof}), **more)


GOOD: dict[str, Callable[[], str]] = {
    "plain": made,
    "htu in capitals": lambda: made({"htu": "HTTPS://H.EXAMPLE/mcp"}),
    "htu with the default port": lambda: made({"htu": "https://h.example:443/mcp"}),
    "htu with an escape": lambda: made({"htu": "https://h.example/%6dcp"}),
    "iat at the beginning of the window": lambda: made({"iat": START - 300}),
    "iat at the end of the window": lambda: made({"iat": START + 300}),
    "iat with a fraction": lambda: made({"iat": START + 0.5}),
    "jti of one character": lambda: made({"jti": "j"}),
    "jti of 256 characters": lambda: made({"jti": "j" * 256}),
    "a nonce that nobody asked for": lambda: made({"nonce": "n"}),
    "more claims": lambda: made({"exp": 1, "aud": "x"}),
    "kid in the header": lambda: made(header={"kid": "k"}),
}

BAD: dict[str, Callable[[], str | None]] = {
    "none at all": lambda: None,
    "empty": lambda: "",
    "two headers": lambda: f"{made()}, {made()}",
    "the same twice": lambda: ", ".join([made()] * 2),
    "garbage": lambda: "abc",
    "garbage in three parts": lambda: "a.b.c",
    "four parts": lambda: made() + ".AAAA",
    "a blank in it": lambda: made() + " ",
    "signature changed": lambda: made()[:-6] + "AAAAAA",
    "signature missing": lambda: made().rpartition(".")[0] + ".",
    "signed by another key": lambda: made(header={"jwk": public_of(KEY)}, key=OTHER),
    "another key": lambda: made(key=OTHER),
    "another key of another kind": lambda: made(key=KEYS["RS256"]),
    "typ JWT": lambda: made(header={"typ": "JWT"}),
    "typ missing": lambda: made(header={"typ": None}),
    "typ in capitals": lambda: made(header={"typ": "DPOP+JWT"}),
    "alg none": lambda: made(header={"alg": "none"}),
    "alg HS256": lambda: made(header={"alg": "HS256"}),
    "alg ES512": lambda: made(header={"alg": "ES512"}),
    "alg missing": lambda: made(header={"alg": None}),
    "alg is a list": lambda: made(header={"alg": ["ES256"]}),
    "alg of another curve": lambda: made(header={"alg": "Ed25519"}, key=KEYS["Ed25519"]),
    "jwk missing": lambda: made(header={"jwk": None}),
    "jwk is a text": lambda: made(header={"jwk": "x"}),
    "jwk is symmetric": lambda: made(header={"jwk": {"kty": "oct", "k": "c2VjcmV0"}}),
    "jwk with its private member": lambda: made(header={"jwk": KEY.as_jwk()}),
    "jwk off its curve": lambda: made(header={"jwk": public_of(KEY) | {"x": "AAAA"}}),
    "jwk of a weak RSA key": lambda: made(header={"jwk": {"kty": "RSA", "n": "w" * 171, "e": "AQAB"}}),
    "crit": lambda: made(header={"crit": ["x"], "x": 1}),
    "header too long": lambda: made(header={"x": "y" * 4000}),
    "jti missing": lambda: made({"jti": None}),
    "jti empty": lambda: made({"jti": ""}),
    "jti of 257 characters": lambda: made({"jti": "j" * 257}),
    "jti is a number": lambda: made({"jti": 7}),
    "iat missing": lambda: made({"iat": None}),
    "iat too old": lambda: made({"iat": START - 301}),
    "iat too new": lambda: made({"iat": START + 301}),
    "iat is a text": lambda: made({"iat": str(START)}),
    "iat is true": lambda: made({"iat": True}),
    "iat is huge": lambda: made({"iat": 10**18}),
    "iat has no end": lambda: unsigned_with_iat(b"1" + b"0" * 400),
    "iat has more digits than Python reads": lambda: unsigned_with_iat(b"9" * 5000),
    "htm missing": lambda: made({"htm": None}),
    "htm of another method": lambda: made({"htm": "GET"}),
    "htm in lower case": lambda: made({"htm": "post"}),
    "htu missing": lambda: made({"htu": None}),
    "htu of another path": lambda: made({"htu": RESOURCE + "2"}),
    "htu with a slash": lambda: made({"htu": RESOURCE + "/"}),
    "htu in capitals in its path": lambda: made({"htu": "https://h.example/MCP"}),
    "htu of another host": lambda: made({"htu": "https://evil.example/mcp"}),
    "htu of another scheme": lambda: made({"htu": "http://h.example/mcp"}),
    "htu of another port": lambda: made({"htu": "https://h.example:8443/mcp"}),
    "htu with a port that is none": lambda: made({"htu": "https://h.example:99999/mcp"}),
    "htu with an open bracket": lambda: made({"htu": "https://[h.example/mcp"}),
    "htu with a query": lambda: made({"htu": RESOURCE + "?a=1"}),
    "htu with a fragment": lambda: made({"htu": RESOURCE + "#a"}),
    "htu with a user": lambda: made({"htu": "https://u@h.example/mcp"}),
    "htu is a list": lambda: made({"htu": [RESOURCE]}),
    "ath missing": lambda: made({"ath": None}),
    "ath of another token": lambda: made({"ath": token_hash("other")}),
    "ath is a number": lambda: made({"ath": 1}),
    "ath not ASCII": lambda: made({"ath": "é"}),
}


def unsigned_with_iat(digits: bytes) -> str:
    """Returns a proof with a number that no JSON writer of ours writes. Its claims are read before its signature."""
    head, _, tag = made().split(".")
    claims = b'{"jti":"j","htm":"POST","htu":"https://h.example/mcp","iat":' + digits + b"}"
    return f"{head}.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.{tag}"


def public_of(key: DpopKey) -> Values:
    return {name: value for name, value in key.as_jwk().items() if name in ("kty", "crv", "x", "y")}


@pytest.mark.parametrize("name", GOOD)
async def test_a_good_proof_is_good_once(name: str) -> None:
    protected = listener()
    proof = GOOD[name]()
    assert await protected.ask(request(proof)) == Principal("alice", "https://as.example/t1", "c1")
    assert await protected.refuses(request(proof)) == BAD_PROOF + PLACED


PLACED = (
    'algs="ES256 ES384 PS256 RS256 Ed25519", '
    'resource_metadata="https://h.example/.well-known/oauth-protected-resource/mcp"'
)


@pytest.mark.parametrize("algorithm", KEYS)
async def test_a_proof_of_our_client_is_good_for_each_algorithm(algorithm: str) -> None:
    protected, key = listener(dpop="required"), KEYS[algorithm]
    text = token(bound_to(key))
    for _ in range(2):
        proof = key.proof("POST", RESOURCE + "?query=1", now=START, token=text)
        assert await protected.status(request(proof, text)) == 200


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_proof_is_refused_without_a_word_about_the_reason(name: str) -> None:
    protected = listener()
    assert await protected.refuses(request(BAD[name]())) == BAD_PROOF + PLACED
    # The token is remembered by now: the answer is the same without any waiting.
    again = protected.guard.known(request(BAD[name]()))
    assert isinstance(again, Denial)
    assert again.status == 401
    assert await protected.status(request(made())) == 200


# -- several processes ------------------------------------------------------------------------------------------------


class Unreachable:
    """A memory of used proofs during an outage."""

    async def first_use(self, name: bytes, seconds: float) -> bool:
        await trio.lowlevel.checkpoint()
        raise SharedStateUnavailable("replays", "nobody listens")


def at_two_processes(**settings: Any) -> tuple[Listener, Listener]:
    uses = MemoryReplayGuard()
    listeners = listener(dpop="required", **settings), listener(dpop="required", **settings)
    for each in listeners:
        each.guard.share(uses, b"n" * 32)
    return listeners


async def test_a_proof_that_was_used_at_one_process_is_refused_at_another() -> None:
    here, there = at_two_processes()
    proof = made()
    assert await here.status(request(proof)) == 200
    assert "invalid_dpop_proof" in await there.refuses(request(proof))
    assert "invalid_dpop_proof" in await here.refuses(request(proof))
    # The token is known by now, and is not asked for again: it is the proof that counts.
    assert await there.status(request(made())) == 200


async def test_a_nonce_of_one_process_is_good_at_another() -> None:
    here, there = at_two_processes(dpop_nonces=True)
    denial = await here.ask(request(made()))
    assert isinstance(denial, Denial)
    nonce = dict(denial.headers)["DPoP-Nonce"]
    assert await there.status(request(made({"nonce": nonce}))) == 200


def test_a_process_that_remembers_too_much_makes_older_nonces_of_all_processes_bad() -> None:
    nonces = Nonces()
    nonces.share(b"n" * 32)
    others = Nonces()
    others.share(b"n" * 32)
    older = others.current(START)
    nonces.replace(START + 1)
    assert not nonces.is_good(older, START + 1)
    assert nonces.is_good(nonces.current(START + 1), START + 1)
    assert others.is_good(nonces.current(START + 1), START + 1)


async def test_a_proof_that_cannot_be_checked_is_told_to_try_again() -> None:
    protected = listener(dpop="required")
    protected.guard.share(Unreachable(), b"n" * 32)
    denial = await protected.ask(request(made()))
    assert isinstance(denial, Denial)
    assert (denial.status, dict(denial.headers)["Retry-After"]) == (503, "2")
    protected.guard.share(None, b"n" * 32)
    assert await protected.status(request(made())) == 200


# -- one request ------------------------------------------------------------------------------------------------------


async def test_a_proof_is_for_one_method_and_one_path() -> None:
    protected = listener()
    for method, path in (("GET", "/mcp"), ("DELETE", "/mcp"), ("POST", "/mcp/messages")):
        assert await protected.status(request(made(), method=method, path=path)) == 401
        proof = made({"htm": method, "htu": "https://h.example" + path})
        assert await protected.status(request(proof, method=method, path=path)) == 200
        assert await protected.status(request(proof, method=method, path="/other")) == 401


async def test_the_public_url_counts_and_never_the_host_of_the_request() -> None:
    protected = listener()
    evil = made({"htu": "https://evil.example/mcp"})
    assert await protected.status(request(evil, host="evil.example", x_forwarded_host="evil.example")) == 401
    assert await protected.status(request(made(), host="10.0.0.1:8080")) == 200


async def test_a_bound_token_is_not_served_as_a_bearer_token() -> None:
    for dpop in ("no", "allowed", "required"):
        protected = listener(dpop=dpop)
        for _ in range(2):
            challenge = await protected.refuses(bearer(TOKEN, dpop=made()))
            assert 'error="invalid_token"' in challenge
            assert challenge.startswith("Bearer" if dpop == "no" else "DPoP")


async def test_a_token_that_is_not_bound_is_not_served_with_a_proof() -> None:
    protected, text = listener(), token()
    proof = made({"ath": token_hash(text)})
    assert 'DPoP error="invalid_token"' in await protected.refuses(request(proof, text))
    assert await protected.status(bearer(text)) == 200


async def test_a_token_of_another_key_is_not_served() -> None:
    protected, text = listener(), token(bound_to(OTHER))
    assert await protected.refuses(request(made({"ath": token_hash(text)}), text)) == BAD_PROOF + PLACED


async def test_a_bad_token_is_refused_before_its_proof_is_looked_at() -> None:
    protected = listener()
    text = token({**bound_to(KEY), "exp": START - 31})
    proof = made({"ath": token_hash(text)})
    assert 'DPoP error="invalid_token"' in await protected.refuses(request(proof, text))
    assert await protected.status(request(made())) == 200


async def test_scopes_are_looked_at_after_the_proof() -> None:
    protected = listener(scopes=["admin"])
    assert await protected.status(request("abc")) == 401
    assert "insufficient_scope" in await protected.refuses(request(made()))


# -- nonces ------------------------------------------------------------------------------------------------------------


def nonce_of(answer: Principal | Denial) -> str:
    assert isinstance(answer, Denial)
    (nonce,) = [value for name, value in answer.headers if name == "DPoP-Nonce"]
    return nonce


async def test_a_proof_without_a_nonce_is_told_which_one_to_use() -> None:
    protected = listener(dpop_nonces=True)
    found = await protected.ask(request(made()))
    assert isinstance(found, Denial)
    assert found.status == 401
    headers = dict(found.headers)
    assert headers["WWW-Authenticate"] == (
        'DPoP error="use_dpop_nonce", '
        'resource_metadata="https://h.example/.well-known/oauth-protected-resource/mcp"'
    )
    assert headers["Cache-Control"] == "no-store"
    assert json.loads(found.body)["error"] == "use_dpop_nonce"
    assert await protected.status(request(made({"nonce": headers["DPoP-Nonce"]}))) == 200


async def test_a_nonce_is_good_for_five_minutes_and_many_proofs() -> None:
    protected = listener(dpop_nonces=True)
    nonce = nonce_of(await protected.ask(request(made())))
    for seconds in (0, 100, 300):
        protected.clock.time = START + seconds
        assert await protected.status(request(made({"nonce": nonce, "iat": START + seconds}))) == 200
    protected.clock.time = START + 301
    stale = await protected.ask(request(made({"nonce": nonce, "iat": START + 301})))
    assert nonce_of(stale) != nonce


async def test_answers_carry_the_next_nonce_before_the_old_one_ends() -> None:
    protected = listener(dpop_nonces=True)
    nonce = nonce_of(await protected.ask(request(made())))
    found = await protected.ask(request(made({"nonce": nonce})))
    assert isinstance(found, Principal)
    assert protected.guard.response_headers(found) == [("DPoP-Nonce", nonce)]
    protected.clock.time += 150
    ((name, fresh),) = protected.guard.response_headers(found)
    assert name == "DPoP-Nonce"
    assert fresh != nonce
    assert await protected.status(request(made({"nonce": fresh, "iat": START + 150}))) == 200
    assert protected.guard.response_headers(Principal("bearer")) == ()
    assert listener().guard.response_headers(found) == ()


@pytest.mark.parametrize("nonce", [None, "", "x", "A" * 32, 7, "é" * 32, "!" * 32, ["n"], "A" * 10_000])
async def test_a_nonce_of_nobody_is_refused(nonce: Any) -> None:
    protected = listener(dpop_nonces=True)
    assert nonce_of(await protected.ask(request(made({"nonce": nonce}))))


async def test_a_proof_is_not_good_again_after_a_restart_if_nonces_are_wanted() -> None:
    protected = listener(dpop_nonces=True)
    proof = made({"nonce": nonce_of(await protected.ask(request(made())))})
    assert await protected.status(request(proof)) == 200
    protected.guard = AccessGuard(protected.settings, protected.clock)
    assert nonce_of(await protected.ask(request(proof)))


@given(st.text(max_size=40) | st.binary(min_size=24, max_size=24).map(lambda raw: raw.hex()[:32]))
def test_no_text_is_a_nonce_by_luck(text: str) -> None:
    nonces = Nonces()
    assert not nonces.is_good(text, START)
    assert nonces.is_good(nonces.current(START), START)


# -- the store of used proofs ------------------------------------------------------------------------------------------


def use(proofs: Proofs, proof: str, now: float = START) -> None:
    proofs.check(proof, method="POST", url=RESOURCE, token=TOKEN, thumbprint=KEY.thumbprint, now=now)


def test_fifty_thousand_proofs_take_bounded_memory_and_none_is_good_twice() -> None:
    proofs = Proofs(always_nonces=False)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(3 * proofs_module.MAX_PROOFS):
        try:
            proofs._use(f"proof {number}", START + 300, START)
        except NonceWanted:
            assert proofs.wants_nonces(START)
        assert len(proofs) <= proofs_module.MAX_PROOFS
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held < 16 * 1024 * 1024


def test_when_too_many_are_remembered_nonces_are_wanted_until_the_last_one_is_too_old() -> None:
    proofs = Proofs(always_nonces=False, limit=10)
    used = [made({"iat": START + 300}) for _ in range(10)]
    for proof in used:
        use(proofs, proof)
    with pytest.raises(NonceWanted):
        use(proofs, made())
    for proof in used:
        with pytest.raises(NonceWanted):
            use(proofs, proof)
    with pytest.raises(NonceWanted):
        use(proofs, used[0], START + 599)
    assert not proofs.wants_nonces(START + 600)
    with pytest.raises(ProofInvalid):
        use(proofs, used[0], START + 601)


def test_a_client_with_a_nonce_goes_on_and_a_full_store_makes_older_nonces_bad() -> None:
    proofs = Proofs(always_nonces=True, limit=10)
    first = proofs.nonces.current(START)
    used = [made({"nonce": first}) for _ in range(10)]
    for proof in used:
        use(proofs, proof)
    with pytest.raises(NonceWanted):
        use(proofs, made({"nonce": first}))
    for proof in used:
        with pytest.raises(NonceWanted):
            use(proofs, proof)
    second = proofs.nonces.current(START)
    assert second != first
    use(proofs, made({"nonce": second}))
    assert len(proofs) == 1


def test_proofs_that_are_too_old_make_room_without_nonces() -> None:
    proofs = Proofs(always_nonces=False, limit=10)
    for number in range(100):
        now = START + number * 100
        use(proofs, made({"iat": now}), now)
    assert len(proofs) <= 10
    assert not proofs.wants_nonces(START + 10_000)


def test_two_clients_may_use_one_name() -> None:
    proofs = Proofs(always_nonces=False)
    use(proofs, made({"jti": "same"}))
    text = made({"jti": "same"}, key=OTHER)
    proofs.check(text, method="POST", url=RESOURCE, token=TOKEN, thumbprint=OTHER.thumbprint, now=START)
    with pytest.raises(ProofInvalid):
        use(proofs, made({"jti": "same"}))


# -- any proof ---------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.text(max_size=300))
def test_any_text_as_a_proof_is_refused(text: str) -> None:
    proofs = Proofs(always_nonces=False)
    with pytest.raises(ProofInvalid):
        use(proofs, text)


@given(
    st.dictionaries(st.sampled_from(["jti", "iat", "htm", "htu", "ath", "nonce"]), JSON),
    st.dictionaries(st.sampled_from(["typ", "alg", "jwk", "crit"]), JSON),
)
def test_any_claims_and_header_without_a_signature_are_refused(claims: Values, header: Values) -> None:
    good = {"jti": "j", "iat": START, "htm": "POST", "htu": RESOURCE, "ath": token_hash(TOKEN)}
    head = {"typ": "dpop+jwt", "alg": "ES256", "jwk": public_of(KEY)}
    proofs = Proofs(always_nonces=False)
    with pytest.raises(ProofInvalid):
        use(proofs, unsigned(good | claims, head | header, b"\0" * 64))
    assert len(proofs) == 0


@given(
    st.text(max_size=60) | st.from_regex(r"https?://[a-z.:\[\]@%0-9]{0,20}(/[ -~]{0,20})?", fullmatch=True)
)
def test_any_url_in_a_proof_is_the_same_or_refused(url: str) -> None:
    proofs = Proofs(always_nonces=False)
    try:
        use(proofs, made({"htu": url}))
    except ProofInvalid:
        return
    assert url.lower().replace("%6d", "m").startswith("https://h.example")


def test_a_server_without_proofs_needs_no_library_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp_actors.auth.server.proofs", None)
    assert listener(dpop="no").guard.known(Request()) is not None
    with pytest.raises(ImportError, match="pip install"):
        listener(dpop="required")


# -- at a token endpoint, where there is no token yet ---------------------------------------------


def test_the_holder_of_any_key_proves_it_once_and_for_this_endpoint() -> None:
    proofs = Proofs(always_nonces=False)
    proof = made({"ath": None})
    for url in ("https://h.example/other", "https://h.example/mcp/token"):
        with pytest.raises(ProofInvalid):
            proofs.holder(proof, method="POST", url=url, now=START)
    assert proofs.holder(proof, method="POST", url=RESOURCE, now=START) == KEY.thumbprint
    with pytest.raises(ProofInvalid):
        proofs.holder(proof, method="POST", url=RESOURCE, now=START)
    other = made({"ath": None}, key=OTHER)
    assert proofs.holder(other, method="POST", url=RESOURCE, now=START) == OTHER.thumbprint


def test_a_proof_by_no_public_key_has_no_holder() -> None:
    proofs = Proofs(always_nonces=False)
    for jwk in (None, KEY.as_jwk(), {"kty": "oct", "k": "c2VjcmV0"}):
        with pytest.raises(ProofInvalid):
            proofs.holder(made({"ath": None}, {"jwk": jwk}), method="POST", url=RESOURCE, now=START)


def test_a_holder_is_asked_for_a_nonce_where_each_proof_has_one() -> None:
    proofs = Proofs(always_nonces=True)
    with pytest.raises(NonceWanted):
        proofs.holder(made({"ath": None}), method="POST", url=RESOURCE, now=START)
    nonce = proofs.nonces.current(START)
    proof = made({"ath": None, "nonce": nonce})
    assert proofs.holder(proof, method="POST", url=RESOURCE, now=START) == KEY.thumbprint
