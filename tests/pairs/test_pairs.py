"""The table of all pairs: (our client, our server) x binding x revision x how it was agreed x feature."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import trio

from mcp_actors import Client
from tests.pairs.bindings import BINDINGS, MODERN, Binding
from tests.pairs.features import FEATURES, ROOTS, Feature, Pair, answer_form, answer_model

# Seconds for one feature; nothing here waits for longer than a moment on a machine that is not busy.
PATIENCE = 60

AGREEMENTS = ("told", "found out", "among all")
"""The client is told the revision, or finds it out from a server that has no other, or both have all of them."""


def options(agreement: str, version: str) -> tuple[str, tuple[str, ...]]:
    """Returns what the client is told, and which revisions the server has."""
    if agreement == "told":
        return version, (version,)
    if agreement == "found out":
        return "auto", (version,)
    return version, ()


PAIRS = [
    pytest.param(binding, version, agreement, id=f"{binding.name}-{version}-{agreement}")
    for binding in BINDINGS
    for version in binding.versions
    for agreement in AGREEMENTS
]


async def failure(feature: Feature, pair: Pair) -> str | None:
    """Runs one cell of the table and says what was wrong with it."""
    try:
        with trio.fail_after(PATIENCE):
            await feature(pair)
    except (Exception, pytest.fail.Exception) as error:  # the cells after this one are tried all the same
        last = "".join(traceback.format_exception(error)[-3:])
        return f"{feature.__name__}: {last}"
    return None


@pytest.mark.parametrize(("binding", "version", "agreement"), PAIRS)
async def test_every_feature_of_a_pair(binding: Binding, version: str, agreement: str) -> None:
    era, versions = options(agreement, version)
    logged: list[Any] = []
    notified: list[Any] = []
    remembered = binding.sessions or version == MODERN
    # Without a session only a header names the revision, which the oldest two do not have.
    alone = not remembered and agreement == "among all"
    served = max(version, "2025-03-26") if alone else version
    async with (
        binding.reached(versions or BINDINGS[0].versions) as target,
        Client(
            target,
            era=era,
            sampling=answer_model,
            elicitation=answer_form,
            roots=ROOTS,
            on_notification=lambda method, params: notified.append((method, params)),
            on_log=lambda level, data, logger: logged.append((level, data, logger)),
        ) as client,
    ):
        kept = binding.connection or (remembered and version != MODERN)
        pair = Pair(client, version, served, remembered, kept, binding.over_http, logged, notified)
        failures = [said for feature in FEATURES if (said := await failure(feature, pair))]
    assert not failures, "\n\n".join(failures)


def test_the_size_of_the_table() -> None:
    """No binding, revision or feature disappears unseen."""
    assert len(BINDINGS) == 13
    assert len(PAIRS) == 12 * 5 * 3 + 4 * 3
    assert len(PAIRS) * len(FEATURES) == 192 * 32
