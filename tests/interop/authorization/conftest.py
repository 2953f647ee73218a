from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from interop.installation import Peers

from .identity_provider import IdentityProvider, Signer
from .programs import Issuer, issuing, protected

PLATFORM = "https://platform.test"


@pytest.fixture(scope="session")
def signer() -> Signer:
    """The key of a client that has one, and of the platform that workloads run on."""
    return Signer(PLATFORM)


@pytest.fixture(scope="session")
def identity() -> Iterator[IdentityProvider]:
    with IdentityProvider.serving() as provider:
        yield provider


@pytest.fixture(scope="session")
def issued(peers: Peers, signer: Signer, identity: IdentityProvider) -> Iterator[Callable[..., Issuer]]:
    """Starts an authorization server with some settings once, when it is first asked for."""
    trusted = {each.issuer: each.public_jwk for each in (signer, identity.signer)}
    with ExitStack() as stack:

        @cache
        def start(**settings: object) -> Issuer:
            return stack.enter_context(
                issuing(peers, workloadKey=signer.public_jwk, trusted=trusted, **settings)
            )

        yield start


@pytest.fixture(scope="session")
def issuer(issued: Callable[..., Issuer]) -> Issuer:
    """The authorization server of most tests: JWTs, no proofs, and a person who agrees to everything."""
    return issued()


@pytest.fixture(scope="session")
def guarded(peers: Peers, issuer: Issuer) -> Iterator[Callable[[str], str]]:
    """Starts a protected server of others once, when it is first asked for, and returns its URL."""
    with ExitStack() as stack:
        yield cache(lambda server: stack.enter_context(protected(peers, server, issuer)))
