"""Reads the signature of a function: JSON Schemas for the peer, and converters for each call.

Everything is compiled when the function is registered, so that a call costs one conversion of the arguments and one of
the result. Conversion is strict: a string is never parsed into a number, and ``True`` is not an integer; ``3.0`` is
one, as for JSON Schema. Dates, times, UUIDs, paths and bytes (base64) are strings in JSON.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mcp_actors._schema.convert import (
    adapt,
    conversion_to,
    convert,
    problems_of,
    record_struct,
    to_json_value,
    whole_numbers,
)
from mcp_actors._schema.fields import NO_DEFAULT, TypeField, read_hints, strip
from mcp_actors._schema.generate import SchemaWriter, read_docstring, root_schema
from mcp_actors._schema.returned import output_encoder
from mcp_actors._schema.validate import Problem, Validator, compile_schema, json_type
from mcp_actors.types import CallToolResult
from mcp_actors.types.content import BLOCKS
from mcp_actors.types.media import MEDIA

__all__ = [
    "FilledParameter",
    "InvalidArguments",
    "JsonType",
    "Signature",
    "check_receiver",
    "function_hints",
    "injected_parameter",
    "provided_parameters",
    "read_signature",
]


# A function may return blocks as any of these; subclasses of ``list`` and ``tuple`` are meant too.
_SEQUENCES = frozenset(
    {
        *(collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection),
        *(collections.abc.Iterable, collections.abc.Iterator),
    }
)
_GENERATORS = frozenset(
    {
        *(collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator),
        *(collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator),
    }
)
# A model corrects a few things at a time, and a long answer costs it tokens.
MAX_PROBLEMS = 20

Bind = Callable[[dict[str, Any]], dict[str, Any]]


class InvalidArguments(ValueError):
    """The arguments of a call do not fit. The text names each offending one, so that a model can correct them.

    ``problems`` has one `Problem`, a path and a reason, for each thing that is wrong.
    """

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems = [Problem("", problems)] if isinstance(problems, str) else list(problems)
        listed = "; ".join(map(str, self.problems[:MAX_PROBLEMS]))
        more = len(self.problems) - MAX_PROBLEMS
        super().__init__(f"invalid arguments: {listed}" + (f"; and {more} more" if more > 0 else ""))


class Signature(msgspec.Struct, eq=False, dict=True):
    """The signature of a function, compiled.

    ``input_schema`` is the JSON Schema of its arguments. ``bind`` converts the JSON arguments to keyword arguments or
    raises `InvalidArguments`; arguments that were not given are left out, so that Python's own defaults apply.
    ``injected_name`` is the parameter that takes the context. ``description`` is the prose of the docstring, which may
    be empty.
    """

    input_schema: dict[str, Any]
    bind: Bind
    description: str
    injected_name: str | None
    _returned: Any
    _where: str

    @functools.cached_property
    def output_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the result; ``None`` if the function returns text, content, or has no annotation.

        Raises `TypeError` when the annotation has no form in JSON.
        """
        if _is_unstructured(self._returned):
            return None
        try:
            return root_schema(self._returned, output=True)
        except TypeError as error:
            raise TypeError(f"{self._where}: what it returns cannot be described: {error}") from None

    @property
    def passes_results_on(self) -> bool:
        """Whether the function says that it returns whole results."""
        return strip(self._returned)[0] is CallToolResult

    @property
    def returns_content(self) -> bool:
        """Whether the function returns a sequence of content blocks, which may be empty."""
        return _is_sequence_of(strip(self._returned)[0], _is_content)

    @functools.cached_property
    def encode_output(self) -> Callable[[Any], Any]:
        """Converts a result of the function to a JSON value.

        The converter raises `TypeError` for a value that has no form in JSON or is not of the declared type.
        """
        try:
            schema = self.output_schema
        except TypeError:
            return to_json_value
        if schema is None:
            return to_json_value
        return output_encoder(self._returned, functools.partial(_compiled, schema))


def read_signature(
    call: Callable[..., Any], *, injected: type, raw: bool = False, yields: bool = False
) -> Signature:
    """Reads a function, bound method, partial or callable object.

    Args:
        injected: the class of the context. A parameter annotated with it (or with it or ``None``) takes the context
            and is not an argument of the peer.
        raw: whether the one other parameter takes all arguments as a dict, unchecked.
        yields: whether it is a generator, whose output is all that it yields.

    Raises:
        TypeError: if arguments given by name cannot fill the parameters, and for types without a form in JSON.
    """
    where = getattr(call, "__qualname__", None) or repr(call)
    hints = function_hints(call)
    parameters, injected_name = _parameters(call, hints, injected, where)
    docstring = read_docstring(_doc(call))
    if raw:
        schema, bind = {"type": "object"}, _raw_bind(parameters, where)
    else:
        schema, bind = _typed_bind(parameters, hints, docstring.parameters, where)
    returned = hints.get("return", Any)
    if yields:
        returned = _collected(returned)
    return Signature(schema, bind, docstring.description, injected_name, returned, where)


class JsonType:
    """The JSON Schema of a type, with its members at the root.

    Raises `TypeError` for a type that has no form in JSON.
    """

    __slots__ = ("__weakref__", "schema")

    def __init__(self, tp: Any) -> None:
        self.schema: dict[str, Any] = root_schema(tp, output=False)


def _doc(call: Callable[..., Any]) -> str | None:
    while isinstance(call, functools.partial):
        call = call.func
    if inspect.isroutine(call):
        return call.__doc__
    return type(call).__call__.__doc__ or type(call).__doc__


def _parameters(
    call: Callable[..., Any], hints: dict[str, Any], injected: type, where: str
) -> tuple[list[inspect.Parameter], str | None]:
    """The parameters that are arguments of the peer, and the one that takes the context.

    Raises `TypeError` for a parameter that cannot be given by name.
    """
    injected_name = injected_parameter(call, injected)
    check_receiver(call, where)
    provided = provided_parameters(call)
    found = []
    for each in inspect.signature(call).parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            star = "*" if each.kind is each.VAR_POSITIONAL else "**"
            raise TypeError(
                f"{where}: {star}{each.name} has no names for a schema; declare each parameter by its own"
            )
        if each.kind is each.POSITIONAL_ONLY:
            if each.default is each.empty or each.name == injected_name:
                raise TypeError(
                    f"{where}: {each.name} is positional only, and arguments come by name; remove the '/'"
                )
            continue
        if type(each.default).__module__ == "pydantic.fields":
            raise TypeError(
                f"{where}: write {each.name}: Annotated[<type>, Field(...)], with a plain default after it"
            )
        if each.name != injected_name and each.name not in provided:
            found.append(each)
    return found, injected_name


def _raw_bind(parameters: list[inspect.Parameter], where: str) -> Bind:
    if len(parameters) != 1:
        raise TypeError(f"{where}: with a schema of its own it takes one parameter, a dict, and the context")
    name = parameters[0].name
    return lambda arguments: {name: arguments}


def _typed_bind(
    parameters: list[inspect.Parameter], hints: dict[str, Any], described: dict[str, str], where: str
) -> tuple[dict[str, Any], Bind]:
    writer = SchemaWriter(output=False)
    properties: dict[str, Any] = {}
    adapted: list[tuple[TypeField, Any]] = []
    for each in parameters:
        required = each.default is each.empty
        hint = hints.get(each.name, Any)
        field = TypeField(each.name, hint, required, each.name, NO_DEFAULT if required else each.default)
        try:
            tp = adapt(hint)
            adapted.append((field, tp))
            properties[each.name] = writer.member(_promised(field, tp), described.get(each.name))
        except TypeError as error:
            raise TypeError(f"{where}: the parameter {each.name} cannot be used: {error}") from None
    # Also without arguments: many clients take the member for granted.
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required_names = [field.wire for field, _ in adapted if field.required]
    if required_names:
        schema["required"] = required_names
    schema["additionalProperties"] = False
    return writer.document(schema), _binding(adapted, writer.document(schema))


def _promised(field: TypeField, tp: Any) -> TypeField:
    """The field without a default of another type than its own, such as ``None`` for an integer, or a sentinel."""
    if field.default is NO_DEFAULT:
        return field
    try:
        convert(to_json_value(field.default), tp)
    except (TypeError, ValueError):
        return msgspec.structs.replace(field, default=NO_DEFAULT)
    return field


def _binding(fields: list[tuple[TypeField, Any]], schema: dict[str, Any]) -> Bind:
    struct = record_struct(fields, closed=True)
    as_dict, unset, make = msgspec.structs.asdict, msgspec.UNSET, conversion_to(tp for _, tp in fields)
    explained = _Explained(fields, schema)

    def bind_all(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return as_dict(make(arguments, struct))
        except msgspec.ValidationError as error:
            refused = error
        whole = whole_numbers(arguments)
        try:
            return as_dict(make(whole, struct))
        except msgspec.ValidationError:
            raise explained(whole, refused) from None

    def bind_given(arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in bind_all(arguments).items() if value is not unset}

    return bind_all if all(field.required for field, _ in fields) else bind_given


class _Explained:
    """Finds everything that is wrong with arguments that could not be converted."""

    def __init__(self, fields: list[tuple[TypeField, Any]], schema: dict[str, Any]) -> None:
        self._singles = {field.wire: record_struct([(field, tp)]) for field, tp in fields}
        self._required = [field.wire for field, _ in fields if field.required]
        self._schema = schema

    @functools.cached_property
    def _members(self) -> Validator | None:
        # Compiled for the first wrong call: most functions never get one.
        return _compiled({word: value for word, value in self._schema.items() if word != "required"})

    def __call__(self, arguments: Any, error: msgspec.ValidationError) -> InvalidArguments:
        if not isinstance(arguments, dict):
            return InvalidArguments(f"expected object, got {json_type(arguments)}")
        problems = [
            Problem(name, "is required but missing") for name in self._required if name not in arguments
        ]
        for name, value in arguments.items():
            if name in self._singles:
                problems += self._argument(name, value)
            else:
                known = (
                    f"the arguments are {', '.join(self._singles)}"
                    if self._singles
                    else "there are no arguments"
                )
                problems.append(Problem(str(name), f"is not an argument; {known}"))
        return InvalidArguments(problems or problems_of(error))

    def _argument(self, name: str, value: Any) -> list[Problem]:
        try:
            convert({name: value}, self._singles[name])
        except msgspec.ValidationError as error:
            found = [] if self._members is None else self._members.findings({name: value})
            return found or problems_of(error)
        return []


def _collected(tp: Any) -> Any:
    """The type of all values that a generator yields: text is joined, and anything else is a list."""
    bare, _ = strip(tp)
    args = typing.get_args(bare)
    if typing.get_origin(bare) not in _GENERATORS or not args:
        return Any
    item = args[0]
    if _is_unstructured(item) and not _is_content(item):
        return str if strip(item)[0] is str else Any
    return types.GenericAlias(list, (item,))


def _is_unstructured(tp: Any) -> bool:
    """Whether a result of this type is sent as content blocks alone, without structured content."""
    bare, _ = strip(tp)
    if bare in (Any, object, str, type(None), typing.NoReturn, typing.Never):
        return True
    origin, args = typing.get_origin(bare) or bare, typing.get_args(bare)
    if origin in (typing.Union, types.UnionType):
        return all(_is_unstructured(each) for each in args)
    if isinstance(origin, type) and issubclass(origin, (*BLOCKS, *MEDIA, CallToolResult)):
        return True
    # A sequence of anything may be one of blocks. Its schema would say no more than that it is an array.
    return _is_sequence_of(bare, lambda each: _is_content(each) or strip(each)[0] in (Any, object))


def _is_sequence_of(bare: Any, accepts: Callable[[Any], bool]) -> bool:
    """Whether it is a sequence with items that are accepted; ``list`` without a parameter is one of anything."""
    origin, args = typing.get_origin(bare) or bare, typing.get_args(bare)
    if origin in _SEQUENCES or origin in (list, tuple):
        args = args or (Any,)
    elif not (isinstance(origin, type) and issubclass(origin, (list, tuple))):
        return False
    return any(map(accepts, args))


def _is_content(tp: Any) -> bool:
    bare, _ = strip(tp)
    if typing.get_origin(bare) in (typing.Union, types.UnionType):
        return any(_is_content(each) for each in typing.get_args(bare))
    return isinstance(bare, type) and issubclass(bare, (*BLOCKS, *MEDIA))


def _compiled(schema: dict[str, Any]) -> Validator | None:
    """A validator for a generated schema, or ``None`` for one that is over a limit of `compile_schema`."""
    try:
        return compile_schema(schema)
    except ValueError:
        return None


# -- The parameters of a function that no peer fills: the one that takes the context, and the receiver of a method ---

# Without an annotation this name is meant for the context all the same.
CONTEXT_NAME = "ctx"
# Functions of Python and of Cython have annotations by such an attribute of their class.
_COMPUTED = types.GetSetDescriptorType


def function_hints(call: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of a function, partial or callable object, resolved; ``return`` is among them."""
    return read_hints(_annotated(call))


def _annotated(call: Any) -> Any:
    """Returns what has the annotations of a callable.

    Annotations of an object are those of its fields, which are found through its class up to CPython 3.13. A decorator
    such as `functools.cache`, which makes an object of a function, copies the annotations up to 3.13 only.
    """
    while True:
        if isinstance(call, functools.partial):
            call = call.func
        elif inspect.ismethod(call):
            call = call.__func__
        elif isinstance(call, type) or isinstance(vars(type(call)).get("__annotations__"), _COMPUTED):
            return call
        elif "__wrapped__" in getattr(call, "__dict__", ()):
            call = call.__wrapped__
        else:
            return type(call).__call__


def injected_parameter(call: Callable[..., Any], injected: type) -> str | None:
    """Returns the name of the parameter that takes the context, if there is one.

    Raises `TypeError` for two of them, for one without an annotation, and for one with a class that does not fit.
    """
    hints = function_hints(call)
    named = [name for name, hint in hints.items() if name != "return" and _is_injected(hint, injected)]
    where = getattr(call, "__qualname__", None) or repr(call)
    if len(named) > 1:
        raise TypeError(f"{where} takes the context twice: {' and '.join(named)}")
    if CONTEXT_NAME not in hints and CONTEXT_NAME in inspect.signature(call).parameters:
        raise TypeError(
            f"{where}: the parameter {CONTEXT_NAME} has no annotation and would be an argument of the model; "
            f"write {CONTEXT_NAME}: {injected.__name__}"
        )
    if named and inspect.iscoroutinefunction(call) and _is_narrower(hints[named[0]], injected):
        raise TypeError(f"{where} is async, and awaits its context: write {named[0]}: {injected.__name__}")
    return named[0] if named else None


def _is_narrower(hint: Any, injected: type) -> bool:
    bare, _ = strip(hint)
    if typing.get_origin(bare) in (typing.Union, types.UnionType):
        return any(
            _is_narrower(each, injected) for each in typing.get_args(bare) if _is_injected(each, injected)
        )
    cls = typing.get_origin(bare) or bare
    return isinstance(cls, type) and cls is not injected


class FilledParameter:
    """Marks a parameter, in ``Annotated``, that the server fills and no peer: it is part of no schema."""


def provided_parameters(call: Callable[..., Any]) -> dict[str, FilledParameter]:
    """Returns the parameters that are marked with `FilledParameter`, each with its mark.

    Raises `TypeError` for a mark that is a default, and for two marks at one parameter.
    """
    # A class has its parameters in its __init__.
    target: Any = call.__init__ if isinstance(call, type) else call  # type: ignore[misc]
    where = getattr(call, "__qualname__", None) or repr(call)
    found: dict[str, FilledParameter] = {}
    for name, hint in function_hints(target).items():
        marks = [each for each in strip(hint)[1] if isinstance(each, FilledParameter)]
        if len(marks) > 1:
            raise TypeError(f"{where}: the parameter {name} is marked twice: {marks[0]!r} and {marks[1]!r}")
        if marks and name != "return":
            found[name] = marks[0]
    for name, each in _signature_of(call).items():
        if isinstance(each.default, FilledParameter):
            raise TypeError(f"{where}: write {name}: Annotated[<type>, {each.default!r}], without a default")
    return found


def _signature_of(call: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(call).parameters
    except ValueError:  # a class written in C may have none
        return {}


def check_receiver(call: Callable[..., Any], where: str) -> None:
    """Raises `TypeError` for a method that is taken from its class instead of from an object."""
    first = next(iter(inspect.signature(call).parameters), None)
    if first in ("self", "cls") and first not in function_hints(call):
        raise TypeError(
            f"{where}: the parameter {first} would be an argument of the model; make the object first, and add its"
            " method: server.add_tool(thing.method)"
        )


def _is_injected(hint: Any, injected: type) -> bool:
    bare, _ = strip(hint)
    if typing.get_origin(bare) in (typing.Union, types.UnionType):
        return any(_is_injected(each, injected) for each in typing.get_args(bare))
    cls = typing.get_origin(bare) or bare
    return isinstance(cls, type) and issubclass(cls, injected)
