"""What ready middleware is given: numbers out of range, and the side that it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcp_actors import Client, Server
from mcp_actors import asyncio as in_asyncio
from mcp_actors import sync as in_threads
from mcp_actors.middleware import (
    AuditLog,
    ConcurrencyLimit,
    RateLimit,
    ResultCache,
    ResultSize,
    Retry,
    Timing,
)

NUMBERS: dict[str, Callable[[Any], object]] = {
    "ConcurrencyLimit(places=)": lambda number: ConcurrencyLimit(number),
    "ConcurrencyLimit(per_caller=)": lambda number: ConcurrencyLimit(5, per_caller=number),
    "ConcurrencyLimit(waiting=)": lambda number: ConcurrencyLimit(5, waiting=number),
    "ConcurrencyLimit(max_wait=)": lambda number: ConcurrencyLimit(5, max_wait=number),
    "RateLimit(rate=)": lambda number: RateLimit(number),
    "RateLimit(burst=)": lambda number: RateLimit(5, burst=number),
    "ResultCache(max_bytes=)": lambda number: ResultCache(max_bytes=number),
    "ResultCache(max_entries=)": lambda number: ResultCache(max_entries=number),
    "ResultSize(limit=)": lambda number: ResultSize(number),
    "Retry(attempts=)": lambda number: Retry(number),
    "Retry(pause=)": lambda number: Retry(pause=number),
    "Retry(most=)": lambda number: Retry(most=number),
}
EACH = pytest.mark.parametrize("name", NUMBERS)
ON_SERVERS = (
    AuditLog(),
    ConcurrencyLimit(1),
    RateLimit(1),
    ResultCache(),
    ResultSize(1024),
)


@EACH
@pytest.mark.parametrize(
    "number", [float("nan"), float("inf"), float("-inf"), -1, pytest.param(10**400, id="huge")]
)
def test_a_number_out_of_range_is_refused_in_one_line_that_names_it(name: str, number: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        NUMBERS[name](number)
    assert str(refused.value).startswith(f"{name} is a ")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


@EACH
@pytest.mark.parametrize("number", ["3", True, [1], 1j, b"3"])
def test_what_is_no_number_is_refused_in_one_line_that_names_it(name: str, number: Any) -> None:
    with pytest.raises(TypeError) as refused:
        NUMBERS[name](number)
    assert str(refused.value).startswith(f"{name} is a ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("given", [Retry(), Retry])
def test_what_is_for_clients_is_refused_by_a_server(given: Any) -> None:
    with pytest.raises(
        TypeError, match=r"Retry is for clients: write Client\(…, middleware=\[Retry\(…\)\]\)$"
    ):
        Server("s").middleware(given)


@pytest.mark.parametrize("given", ON_SERVERS)
@pytest.mark.parametrize("client", [Client, in_asyncio.Client, in_threads.Client])
def test_what_is_for_servers_is_refused_by_a_client(given: Any, client: Any) -> None:
    name = type(given).__name__
    for each in (given, type(given)):
        with pytest.raises(
            TypeError, match=rf"^{name} is for servers: write server\.middleware\({name}\(…\)\)$"
        ):
            client(Server("s"), middleware=[each])


@pytest.mark.parametrize("client", [Client, in_asyncio.Client, in_threads.Client])
def test_a_class_is_refused_by_a_client(client: Any) -> None:
    with pytest.raises(TypeError, match=r"Timing is a class: give an object of it, Timing\(…\)"):
        client(Server("s"), middleware=[Timing])
