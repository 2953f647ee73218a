"""The servers of ``mcp-actors demo``: one for its load, one for its tour, with most features in a few lines each.

Run the first: ``mcp-actors serve mcp_actors.cli.demo.servers``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import attrs
import trio
from msgspec import Meta

from mcp_actors import Context, Server

__all__ = ["CITIES", "HOLD_SECONDS", "Forecast", "Sighting", "server", "server_that_tells"]


HOLD_SECONDS = 60.0  # far longer than any wait: a held call ends by being cancelled


def server() -> Server:
    """A server that counts, for each session by the name it gives itself, how many of its handlers were cancelled."""
    app = Server("demo", instructions="Answers the demo of mcp-actors.")
    seen_cancelled: Counter[str] = Counter()

    @app.tool
    async def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @app.tool
    async def steps(count: int, ctx: Context) -> int:
        """Reports progress ``count`` times."""
        for step in range(count):
            await ctx.progress(step + 1, count, f"step {step + 1}")
        return count

    @app.tool
    async def hold(who: str, ctx: Context) -> str:
        """Says that it has begun, then waits to be cancelled and counts it."""
        try:
            await ctx.progress(0, None, "holding")
            await trio.sleep(HOLD_SECONDS)
        except trio.Cancelled:
            seen_cancelled[who] += 1
            raise
        return "nobody cancelled this"

    @app.tool
    async def cancellations(who: str) -> int:
        """Returns the number of held calls of ``who`` that were cancelled."""
        return seen_cancelled[who]

    return app


CITIES = ("Berlin", "Bergen", "Bern", "Lima")
_STEP_SECONDS = 0.03  # between two reports, so that they are seen to come one by one


@dataclass
class Forecast:
    """The weather of some days."""

    city: str
    celsius: list[int]


@dataclass
class Wishes:
    """The form that a person fills in."""

    name: str
    nights: int


@attrs.define
class Sighting:
    """The notes that functions of the server leave for the tour that runs in the same process."""

    cancelled: trio.Event = attrs.field(factory=trio.Event)
    """Set when a held call has seen its cancellation."""
    cancelled_at: float = 0.0
    """The moment of that, by Trio's clock."""
    left: trio.Event = attrs.field(factory=trio.Event)
    """Set when the client that began a task has left; the task goes on until then."""
    weather: dict[str, str] = attrs.field(factory=lambda: dict.fromkeys(CITIES, "sunny"))


def tour_server() -> Server:
    """A server for a process of its own, where its notes go unread, and no task waits for anything."""
    sighting = Sighting()
    sighting.left.set()
    return server_that_tells(sighting)


def server_that_tells(sighting: Sighting) -> Server:
    """A server that has each feature once, and writes into ``sighting``."""
    app = Server("tour", instructions="Shows what mcp-actors can do.")
    _add_tools(app)
    _add_long_tools(app, sighting)
    _add_readings(app, sighting)
    return app


def _add_tools(app: Server) -> None:
    @app.tool
    async def forecast(city: str, days: Annotated[int, Meta(ge=1, le=14)]) -> Forecast:
        """Forecasts the temperatures of some days."""
        return Forecast(city, [20 + day for day in range(1, days + 1)])

    @app.tool
    async def leave() -> None:
        """Fails with an exception that it does not expect."""
        raise SystemExit(3)

    @app.tool
    async def book(ctx: Context) -> str:
        """Asks the person, the model and the program at the client, and says what they answered."""
        wishes = await ctx.elicit("Whose room, and for how long?", Wishes, key="wishes")
        greeting = await ctx.sample("Greet the guest.", max_tokens=20, key="greeting")
        roots = await ctx.list_roots(key="roots")
        text = getattr(greeting.content, "text", "")
        who = "nobody" if wishes.data is None else f"{wishes.data.name}, {wishes.data.nights} nights"
        return f"{who}; {text}; {', '.join(root.uri for root in roots)}"

    @app.tool
    async def who(ctx: Context) -> str:
        """Says who calls."""
        return "nobody" if ctx.principal is None else ctx.principal.subject


def _add_long_tools(app: Server, sighting: Sighting) -> None:
    @app.tool
    async def pack(items: list[str], ctx: Context) -> str:
        """Reports progress and logs while it works."""
        for number, item in enumerate(items, 1):
            await ctx.progress(number, len(items), item)
            await ctx.log("info", f"{item} is packed")
            await trio.sleep(_STEP_SECONDS)
        return "ready"

    @app.tool(task="optional")
    async def study(city: str) -> str:
        """Goes on at the server until its caller has left."""
        await sighting.left.wait()
        return f"{city} is warm"

    @app.tool
    async def hold(ctx: Context) -> str:
        """Says that it has begun, then waits to be cancelled."""
        try:
            await ctx.progress(0, None, "holding")
            await trio.sleep(HOLD_SECONDS)
        except trio.Cancelled:
            if not sighting.cancelled.is_set():
                sighting.cancelled_at = trio.current_time()
                sighting.cancelled.set()
            raise
        return "nobody cancelled this"


def _add_readings(app: Server, sighting: Sighting) -> None:
    @app.resource("weather://{city}/now")
    async def now(city: str) -> str:
        """The weather of a city."""
        return f"{city}: {sighting.weather[city]}"

    @app.tool
    async def rain(city: str) -> None:
        """Changes the weather, and notifies its subscribers."""
        sighting.weather[city] = "rainy"
        app.resource_updated(f"weather://{city}/now")

    @app.prompt
    async def plan(city: str) -> str:
        """Plans a journey."""
        return f"Plan three days in {city}."

    @app.completion(prompt="plan", argument="city")
    async def complete_city(value: str, context: Mapping[str, str]) -> list[str]:
        return [city for city in CITIES if city.startswith(value)]
