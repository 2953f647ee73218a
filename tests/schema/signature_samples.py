"""Classes of every kind that signatures may name, and short ways to read one."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, NewType, TypedDict, TypeVar

import attrs
import msgspec
import pytest

from mcp_actors._schema.signature import InvalidArguments, Signature, read_signature

T = TypeVar("T")


class Context:
    """Stands for the context class: which one it is, is a parameter."""


class Special(Context, Generic[T]):
    """A context with more to it."""


def read(call: Callable[..., Any]) -> Signature:
    return read_signature(call, injected=Context)


def refused(call: Callable[..., Any], arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        read(call).bind(arguments)
    return str(caught.value).removeprefix("invalid arguments: ")


def taking(hint: Any) -> Callable[..., Any]:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = hint
    return take


def take(hint: Any, value: Any) -> Any:
    return read(taking(hint)).bind({"value": value})["value"]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Odd(enum.Enum):
    HALF = 1.5
    NONE = None


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Circle:
    x: int
    radius: float


@attrs.define
class Private:
    _secret: str
    shown: int = 1
    made: int = attrs.field(init=False, default=7)


class Options(TypedDict, total=False):
    verbose: bool


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class IntBox(Box[int]):
    more: int = 0


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    n: int


@dataclass
class Shapes:
    """Holds a union that cannot be told apart by its tags."""

    one: Point | Circle
    more: list[Shapes] = field(default_factory=list)


UserId = NewType("UserId", int)
