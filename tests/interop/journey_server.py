"""Our server that frameworks for agents use: its tools have nested classes, all kinds of arguments and of results."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from mcp_actors import Image, Server, ToolError
from mcp_actors.examples.everything.app import PIXEL_PNG
from mcp_actors.types import TextContent

server = Server("journeys")


class Class(Enum):
    FIRST = "first"
    SECOND = "second"


@dataclass
class Position:
    latitude: float
    longitude: float


@dataclass
class Place:
    name: str
    position: Position | None = None
    country: str = "CH"


@dataclass
class Leg:
    start: Place
    end: Place
    by: Literal["train", "boat"] = "train"
    seat: Class = Class.SECOND
    days: int = 1


@dataclass
class Journey:
    title: str
    legs: list[Leg] = field(default_factory=list)


@dataclass
class Plan:
    title: str
    days: int
    places: list[Place]


@server.tool
def plan(journey: Journey, home: Place, urgent: bool = False) -> Plan:
    """Plan a journey."""
    places = [home, *(leg.end for leg in journey.legs)]
    return Plan(journey.title, sum(leg.days for leg in journey.legs), places)


@server.tool
def book(count: int, price: float, confirmed: bool, names: list[str], place: Place, note: str = "") -> str:
    """Book seats."""
    return repr((count, price, confirmed, names, place.name, place.country, note))


@server.tool
def show() -> list[TextContent | Image | str]:
    """Show a picture."""
    return [TextContent("a block"), Image(PIXEL_PNG), "a text"]


@server.tool
def numbers() -> list[int]:
    """Return the numbers of the seats."""
    return [4, 5]


@server.tool
def count() -> int:
    """Count the seats."""
    return 45


@server.tool
def fail() -> str:
    """Fail for a reason."""
    raise ToolError("there is no train on Sundays")


if __name__ == "__main__":
    server.run()
