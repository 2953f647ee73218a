"""Signed JSON: what is read, which keys are taken, and what joserfc thinks of what we sign."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws as joserfc_jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from mcp_actors.auth.jose import (
    ALGORITHMS,
    PROOF_ALGORITHMS,
    DpopKey,
    JoseRejected,
    client_assertion,
    import_private_key,
    import_public_key,
    is_signed_by,
    read_claims,
    read_jws,
    sign,
    token_hash,
)

EC = ECKey.generate_key("P-256")
RSA = RSAKey.generate_key(2048)
NOW = 1_800_000_000.0
WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)


def encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


WEAK_MODULUS = encoded(WEAK.public_key().public_numbers().n.to_bytes(128, "big"))


@pytest.mark.parametrize("algorithm", PROOF_ALGORITHMS)
def test_a_proof_is_what_joserfc_verifies_and_has_the_claims_of_rfc_9449(algorithm: str) -> None:
    key = DpopKey.generate(algorithm)
    proof = key.proof("POST", "https://h/mcp?a=1#b", now=NOW, nonce="n1", token="t0ken")
    registry = joserfc_jws.JWSRegistry(algorithms=[algorithm])
    registry.max_header_length = 4096
    found = joserfc_jws.extract_compact(proof.encode(), registry=registry)
    public = import_public_key(found.headers()["jwk"])
    assert joserfc_jws.validate_compact(found, public, registry=registry)
    assert found.headers()["typ"] == "dpop+jwt"
    assert found.headers()["alg"] == algorithm
    assert public.thumbprint() == key.thumbprint
    claims = json.loads(found.payload)
    assert len(claims.pop("jti")) >= 16
    assert claims == {
        "htm": "POST",
        "htu": "https://h/mcp",
        "iat": NOW,
        "nonce": "n1",
        "ath": token_hash("t0ken"),
    }


def test_a_signature_has_one_spelling() -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    proof = DpopKey.generate("ES256").proof("GET", "https://h/", now=NOW)
    assert len(proof.rpartition(".")[2]) % 4 == 2  # of the last character four bits are left over
    others = [proof[:-1] + each for each in alphabet if each != proof[-1]]
    for other in [each for each in others if alphabet.index(each[-1]) >> 4 == alphabet.index(proof[-1]) >> 4]:
        with pytest.raises(JoseRejected, match="one spelling"):
            read_jws(other)
    assert read_jws(proof)


def test_a_proof_shows_no_private_member_and_is_new_each_time() -> None:
    key = DpopKey.generate("RS256")
    proofs = [read_jws(key.proof("GET", "https://h/", now=NOW)) for _ in range(2)]
    assert set(proofs[0].header["jwk"]) == {"kty", "n", "e"}
    first, second = (read_claims(each) for each in proofs)
    assert first["jti"] != second["jti"]
    assert "ath" not in first
    assert "nonce" not in first


@pytest.mark.parametrize("algorithm", PROOF_ALGORITHMS)
def test_a_key_comes_back_from_a_store(algorithm: str) -> None:
    key = DpopKey.generate(algorithm)
    again = DpopKey.from_jwk(json.loads(json.dumps(key.as_jwk())))
    assert (again.thumbprint, again.algorithm) == (key.thumbprint, algorithm)
    proof = read_jws(again.proof("GET", "https://h/", now=NOW))
    assert is_signed_by(proof, import_public_key(dict(proof.header["jwk"])), PROOF_ALGORITHMS)
    assert key.as_jwk().get("d", "") not in repr(again)


@pytest.mark.parametrize(
    "jwk",
    [
        {},
        {"alg": "HS256", "kty": "oct", "k": "c2VjcmV0"},
        {"alg": "ES256", "kty": "EC", "crv": "P-256", "x": "secretx", "y": "secrety", "d": "secretd"},
        {**EC.as_dict(private=False), "alg": "ES256"},
        {**EC.as_dict(private=True), "alg": "RS256"},
        {**EC.as_dict(private=True), "alg": "ES384"},
    ],
)
def test_what_is_no_key_for_proofs_is_refused_without_being_quoted(jwk: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"algorithm of a proof|no .* key|public one") as caught:
        DpopKey.from_jwk(jwk)
    assert not any(value in str(caught.value) for value in jwk.values() if len(value) > 5)


def test_an_algorithm_that_proofs_must_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="one of ES256"):
        DpopKey.generate("HS256")


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [("ES256", EC), ("RS256", RSA), ("PS256", RSA), ("Ed25519", OKPKey.generate_key("Ed25519"))],
)
def test_an_assertion_names_the_client_twice_and_the_issuer(algorithm: str, key: Any) -> None:
    pem = key.as_pem(private=True).decode()
    text = client_assertion(pem, algorithm, "me", "https://as", NOW, key_id="k1")
    jws = read_jws(text)
    assert is_signed_by(jws, key, [algorithm])
    assert dict(jws.header) == {"alg": algorithm, "typ": "JWT", "kid": "k1"}
    claims = read_claims(jws)
    assert claims.pop("jti") != read_claims(read_jws(client_assertion(pem, algorithm, "me", "a", NOW)))["jti"]
    assert claims == {"iss": "me", "sub": "me", "aud": "https://as", "iat": NOW, "exp": NOW + 60}


@pytest.mark.parametrize("pem", ["", "not a key", RSA.as_pem(private=True).decode(), EC.as_pem().decode()])
def test_a_key_that_cannot_sign_an_assertion_is_refused_without_being_quoted(pem: str) -> None:
    with pytest.raises(ValueError, match=r"no EC key|public one") as caught:
        client_assertion(pem, "ES256", "me", "https://as", NOW)
    assert not any(line in str(caught.value) for line in pem.splitlines() if line)


def test_an_unknown_algorithm_of_an_assertion_is_refused() -> None:
    with pytest.raises(ValueError, match="one of ES256"):
        client_assertion(EC.as_pem(private=True).decode(), "none", "me", "https://as", NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a.b",
        "a.b.c.d",
        f"{encoded({'alg': 'ES256'})}.{encoded({})}.",
        f"{encoded({'alg': 'ES256'})}.{encoded({})}.s+/=",
        f"{encoded(['alg'])}.{encoded({})}.AAAA",
        f"{encoded('alg')}.{encoded({})}.AAAA",
        f"{encoded(b'[' * 3000)}.{encoded({})}.AAAA",
        f"{encoded({'alg': 'ES256', 'x': 'y' * 4096})}.{encoded({})}.AAAA",
        f"{encoded({'alg': 'ES256', 'crit': ['exp'], 'exp': 1})}.{encoded({})}.AAAA",
        f"{encoded({'alg': 'ES256', 'crit': ['b64'], 'b64': False})}.{encoded({})}.AAAA",
        f"{encoded({'alg': 'ES256'})}.{encoded({})}.AAAA\n",
        "é.é.é",
    ],
)
def test_what_is_no_jws_is_rejected(text: str) -> None:
    with pytest.raises(JoseRejected):
        read_jws(text)


@pytest.mark.parametrize(
    "payload", [b"[]", b"1", b"", b"\xff", b'{"exp": NaN}', b'{"a":' * 20_000, b"[" * 50_000, b"{}{}"]
)
def test_a_payload_that_is_no_json_object_is_rejected(payload: bytes) -> None:
    jws = read_jws(f"{encoded({'alg': 'ES256'})}.{encoded(payload) or 'AAAA'}.AAAA")
    with pytest.raises(JoseRejected):
        read_claims(jws)


@given(
    st.text(max_size=300) | st.from_regex(r"[A-Za-z0-9_-]{1,80}(\.[A-Za-z0-9_-]{1,80}){2}", fullmatch=True)
)
def test_any_text_is_a_jws_or_is_rejected(text: str) -> None:
    try:
        jws = read_jws(text)
    except JoseRejected:
        return
    assert not is_signed_by(jws, EC, ALGORITHMS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
MEMBER = st.sampled_from(["kty", "crv", "x", "y", "n", "e", "d", "k", "use", "key_ops", "alg", "kid", "x5c"])
VALUE = JSON | st.sampled_from(["EC", "RSA", "OKP", "oct", "P-256", "Ed25519", "AQAB", "sig", "enc"])


@given(JSON | st.dictionaries(MEMBER, VALUE))
def test_any_json_is_a_public_key_or_is_rejected(jwk: Any) -> None:
    try:
        key = import_public_key(jwk)
    except JoseRejected:
        return
    assert not key.is_private


@pytest.mark.parametrize(
    "jwk",
    [
        OctKey.import_key("secret" * 10).as_dict(),
        EC.as_dict(private=True),
        {"kty": "RSA", "n": WEAK_MODULUS, "e": "AQAB"},
        {**RSA.as_dict(private=False), "e": encoded(b"\xff" * 200)},
        {"kty": "RSA", "n": encoded(b"\xff" * 2000), "e": "AQAB"},
        {**EC.as_dict(private=False), "x": encoded(b"\x01" * 32)},
        {**EC.as_dict(private=False), "crv": "P-999"},
        {**EC.as_dict(private=False), "kty": ["EC"]},
        {},
        None,
        "EC",
    ],
)
def test_weak_private_symmetric_and_malformed_keys_are_rejected(jwk: Any) -> None:
    with pytest.raises(JoseRejected):
        import_public_key(jwk)


@pytest.mark.filterwarnings("ignore:Key size")
def test_a_weak_private_key_signs_nothing() -> None:
    pem = WEAK.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with pytest.raises(ValueError, match="no RSA key"):
        import_private_key(pem, "RS256")


@pytest.mark.parametrize("algorithm", ["none", "HS256", "", None, 1, ["ES256"], "ES384"])
def test_a_signature_counts_by_the_algorithms_that_are_asked_for_only(algorithm: Any) -> None:
    good = read_jws(sign({"alg": "ES256"}, {"a": 1}, EC))
    assert is_signed_by(good, EC, ["ES256"])
    assert not is_signed_by(good, EC, ["RS256"])
    assert not is_signed_by(good, ECKey.generate_key("P-256"), ["ES256"])
    assert not is_signed_by(good, RSA, ["ES256"])
    changed = f"{encoded({'alg': algorithm})}.{encoded({'a': 1})}.{encoded(good.signature)}"
    assert not is_signed_by(read_jws(changed), EC, [*ALGORITHMS, "none", "HS256"])


def test_a_key_for_another_use_verifies_nothing() -> None:
    good = read_jws(sign({"alg": "ES256"}, {"a": 1}, EC))
    for member in ({"use": "enc"}, {"alg": "ES384"}, {"key_ops": ["encrypt"]}):
        key = import_public_key({**EC.as_dict(private=False), **member})
        assert not is_signed_by(good, key, ["ES256"])
