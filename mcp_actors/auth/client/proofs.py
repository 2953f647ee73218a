"""Proofs of possession on top of every grant (RFC 9449): when they are made, with which key and which nonce."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mcp_actors.auth.extra import signatures
from mcp_actors.auth.urls import origin
from mcp_actors.errors import AuthorizationFailed
from mcp_actors.logging import log

__all__ = ["Prover"]

# Origins whose nonces are kept, and characters of a nonce.
MAX_ORIGINS = 16
MAX_NONCE = 1024

_KEYS = "mcp_actors.auth.client.dpop"


class Prover:
    """The key that the tokens of one issuer are bound to, and the nonces that servers gave.

    Args:
        wanted: Whether tokens are bound to a key: ``None`` where the other side can, ``True`` always, ``False`` never.
    """

    def __init__(self, wanted: bool | None) -> None:
        self.wanted = wanted
        self._key: Any = None
        # The nonces of a resource and of an authorization server never mix, even with one origin.
        self._nonces: dict[tuple[str, str], str] = {}

    def __repr__(self) -> str:
        return f"<Prover {self._key!r}>"

    @property
    def thumbprint(self) -> str | None:
        """The ``jkt`` of the key, ``None`` without one."""
        return None if self._key is None else str(self._key.thumbprint)

    def stored(self) -> dict[str, Any] | None:
        """Returns the private key for the token store, ``None`` without one."""
        return None if self._key is None else dict(self._key.as_jwk())

    def take(self, jwk: Mapping[str, Any] | None) -> None:
        """Takes the key that was stored with a token, ``None`` for a token that is bound to none."""
        self._key = None
        if jwk is not None:
            try:
                self._key = signatures(_KEYS).DpopKey.from_jwk(jwk)
            except (ValueError, ImportError):
                log.warning("a stored key for proofs cannot be used, and a new one will be made")

    def choose(
        self, supported: Collection[str] | None, challenged: Collection[str] | None, *, demanded: bool
    ) -> None:
        """Decides whether the next token is bound to a key, and has one of an algorithm that both sides can.

        Args:
            supported: The algorithms in the metadata of the authorization server; ``None`` if it lists none.
            challenged: The algorithms that the server's challenge or metadata names; ``None`` if it names none.
            demanded: Whether the server challenged for proofs, or its metadata demands them.

        Raises:
            AuthorizationFailed: Proofs are demanded, and there is no algorithm for them or they are switched off.
        """
        needed = demanded or self.wanted is True
        # A server that says nothing of proofs may know plain tokens alone, whatever its authorization server can do.
        offered = supported and challenged
        if self.wanted is False or not (needed or offered):
            if demanded:
                raise AuthorizationFailed(
                    "the server demands DPoP, which these settings switch off: remove dpop=False"
                )
            self._key = None
            return
        try:
            keys = signatures(_KEYS)
        except ImportError as error:
            if needed:
                raise AuthorizationFailed(f"DPoP is needed: {error}") from error
            log.info("the authorization server can bind tokens to a key, but the extra auth is not installed")
            self._key = None
            return
        lists = [each for each in (supported, challenged) if each]
        usable = [each for each in keys.PROOF_ALGORITHMS if all(each in names for names in lists)]
        if not usable and needed:
            raise AuthorizationFailed(
                "the server and its authorization server demand DPoP with algorithms of which none is known here: "
                f"known are {', '.join(keys.PROOF_ALGORITHMS)}"
            )
        if not usable:
            self._key = None
        elif self._key is None or self._key.algorithm not in usable:
            self._key = keys.DpopKey.generate(usable[0])

    def note(self, role: str, url: str, nonce: str | None) -> bool:
        """Keeps the nonce of a response, and returns whether it is another one than before."""
        if nonce is None or not 0 < len(nonce) <= MAX_NONCE:
            return False
        place = role, origin(url)
        if self._nonces.get(place) == nonce:
            return False
        if place not in self._nonces and len(self._nonces) >= MAX_ORIGINS:
            self._nonces.clear()
        self._nonces[place] = nonce
        return True

    def proof(self, role: str, method: str, url: str, now: float, token: str | None = None) -> str | None:
        """Returns a new proof for one sending of one request, ``None`` without a key."""
        if self._key is None:
            return None
        nonce = self._nonces.get((role, origin(url))) if self._nonces else None
        return str(self._key.proof(method, url, now=now, nonce=nonce, token=token))
