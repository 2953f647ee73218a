"""An extension that is not of the protocol: prices of stocks, which a client may ask for, watch and correct."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors import Context, Server
from mcp_actors.errors import invalid_params
from mcp_actors.extensions import ClientExtension, ServerExtension, Serving, Voice, detached, outcome

ID = "com.example/stocks"


@attrs.define
class Stocks:
    """What one server knows, and what the tests look at."""

    extension: ServerExtension
    prices: dict[str, float] = attrs.field(factory=lambda: {"ACME": 1.0, "HIDDEN": 2.0})
    corrected: list[tuple[str, float]] = attrs.field(factory=list)
    served: list[str] = attrs.field(factory=list)
    nursery: trio.Nursery | None = None
    serving: Serving | None = None
    later: list[Mapping[str, Any]] = attrs.field(factory=list)

    def set(self, name: str, price: float) -> None:
        self.prices[name] = price
        self.extension.publish("stocks", name)


class Words(Voice):
    """Keeps what a detached function says, and answers with ``answers``."""

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        self.said: list[Any] = []
        self.answers = answers or {}

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        self.said.append(("progress", progress, total, message))

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        self.said.append((method, params))

    async def ask(self, questions: Mapping[str, Any]) -> Mapping[str, Any]:
        self.said.append(("asked", sorted(questions)))
        return self.answers

    def stop(self) -> None:
        """Nothing is to be stopped."""


def stocks(*, words: Callable[[], Voice] = Words, **options: Any) -> Stocks:
    extension = ServerExtension(ID, settings={"currency": "EUR"}, **options)
    made = Stocks(extension)

    @extension.method("stocks/price", target="name")
    async def price(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        if params.get("name") not in made.prices:
            raise invalid_params("no such stock")
        return {"price": made.prices[params["name"]], "settings": ctx.extensions[ID]}

    @extension.notification("notifications/stocks/correct")
    async def correct(name: str, price: float) -> None:
        made.corrected.append((name, price))

    @extension.listen("stocks", "notifications/stocks/price")
    async def prices_of(names: Sequence[str], ctx: Context) -> Mapping[str, Mapping[str, Any]]:
        shown = [name for name in names if name in made.prices and name != "HIDDEN"]
        return {name: {"name": name, "price": made.prices[name]} for name in shown}

    @extension.around("tools/call", when=lambda params: params.get("name") == "slow")
    async def around(ctx: Context, call_next: Any) -> Any:
        if ID not in ctx.extensions or made.nursery is None:
            return await call_next()
        later = detached(ctx, words())

        async def go_on() -> None:
            made.later.append(await outcome(later, lambda: call_next(later)))

        made.nursery.start_soon(go_on)
        return {"resultType": "later", "for": ctx.params["name"]}

    @extension.serving
    @asynccontextmanager
    async def serving(serving: Serving) -> AsyncIterator[None]:
        made.serving = serving
        made.served.append("entered")
        async with trio.open_nursery() as made.nursery:
            yield
            made.nursery.cancel_scope.cancel()
        made.served.append("left")

    return made


def watcher(**options: Any) -> tuple[ClientExtension, list[dict[str, Any]]]:
    """The same on the other side: an extension and the prices that it is told."""
    extension = ClientExtension(ID, targets={"stocks/price": "name"}, **options)
    told: list[dict[str, Any]] = []

    @extension.notification("notifications/stocks/price")
    def price(params: dict[str, Any]) -> None:
        told.append({"name": params["name"], "price": params["price"]})

    return extension, told


def market(extension: ServerExtension, **options: Any) -> Server:
    server = Server("market", extensions=[extension], **options)

    @server.tool
    async def slow(ctx: Context, fail: bool = False) -> str:
        """Takes its time."""
        await ctx.progress(1, 2, "half")
        await ctx.log("warning", "careful")
        if fail:
            raise ValueError("no")
        return f"done for {ctx.peer.version}"

    return server
