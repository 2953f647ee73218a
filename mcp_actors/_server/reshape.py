"""Tools in another shape: under other names, with other texts and arguments, in another function, with another output.

A `Shape` is made of a tool and a `Reshape` once, when the tool is registered, mounted or listed by an upstream. Its
schema is made and checked then. It knows nothing of where the tool runs, so that it is the same for a server's own
tools, for those that are mounted, and for those of the upstreams of a gateway:

=====================  ===============================================================================================
a call of such a tool  by the shape
=====================  ===============================================================================================
its arguments          are checked against the schema that clients see, and get the names that the tool has for them;
                       what is fixed, defaulted or computed is added; then the tool checks them as always
its function           is called with a `ReshapedCall`, if the shape has one, and forwards the call as often as it likes
its result             is that of the tool, that of the function, or checked against another output schema
=====================  ===============================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import msgspec

from mcp_actors._actors.responses import InvalidResult
from mcp_actors._eras.era import ValueResult
from mcp_actors._eras.modern import annotated_params
from mcp_actors._schema.references import definitions_in_use, without_references
from mcp_actors._schema.repair import Repair
from mcp_actors._schema.signature import InvalidArguments, read_signature
from mcp_actors._schema.validate import Problem, Validator, compile_schema
from mcp_actors._server.content import ToolAnswer, UnreadFiles, finishing
from mcp_actors._server.context import Context
from mcp_actors._server.failures import failed, tool_error_in
from mcp_actors._server.invoke import Function, called, current, is_async, with_files_read
from mcp_actors._server.tools import (
    RepairedArguments,
    Tools,
    answer_of,
    warn_of_tool_name,
)
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import LocalProtocolError, ToolError, ToolFailed
from mcp_actors.types import UNSET, CallToolResult, Tool
from mcp_actors.types.records import Unset

__all__ = ["Argument", "Reshape", "ReshapedCall", "Shape", "reshape_tool", "reshaped_entry", "reshaped_names"]

# The keywords of a schema that say something of members by their names, beside "properties" and "required".
_APPLIED = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_BY_MEMBER = ("dependentRequired", "dependentSchemas", "dependencies")
_COUNTED = ("minProperties", "maxProperties", "propertyNames")

Forward = Callable[[dict[str, Any]], Awaitable[Any]]
"""Calls the tool itself with arguments by its own names, and returns its answer."""


@attrs.frozen
class Argument:
    """One argument of a reshaped tool: what becomes of it. Everything that is not given stays as it is.

    With ``value`` or ``compute`` clients do not see it.

    Raises:
        ValueError: Two of them contradict each other.
        TypeError: JSON cannot hold ``default`` or ``value``, or ``compute`` cannot be called.
    """

    name: str | None = None
    """The name for clients."""
    title: str | None = attrs.field(default=None, kw_only=True)
    """The name for people."""
    description: str | None = attrs.field(default=None, kw_only=True)
    default: Any = attrs.field(default=UNSET, kw_only=True)
    """The value of a call that does not give it; so clients need not give it."""
    value: Any = attrs.field(default=UNSET, kw_only=True)
    """The value of every call."""
    hidden: bool = attrs.field(default=False, kw_only=True)
    """Whether clients do not see it. It has its ``default`` then; without one, the tool is called without it."""
    compute: Callable[[Context[Any]], Any] | None = attrs.field(default=None, kw_only=True)
    """A function, plain or async, that returns the value for a call, of its `Context`. A plain one must not block."""

    def __attrs_post_init__(self) -> None:
        if self.compute is not None and not callable(self.compute):
            raise TypeError(f"compute={self.compute!r:.80} is not a function of the context")
        if (self.value is not UNSET) + (self.compute is not None) + (self.default is not UNSET) > 1:
            raise ValueError("an argument has only one of value=, compute= and default=")
        if self.is_hidden and (self.name, self.title, self.description) != (None, None, None):
            raise ValueError("an argument that clients do not see has no name, title or description for them")
        if self.name == "":
            raise ValueError("name='': write a name of one character or more, or leave it out")
        for each in ("default", "value"):
            try:
                encode_value(None if getattr(self, each) is UNSET else getattr(self, each))
            except (TypeError, ValueError) as error:
                raise TypeError(f"{each}={getattr(self, each)!r:.80}: JSON cannot hold it: {error}") from None

    @property
    def is_hidden(self) -> bool:
        """Whether clients do not see it."""
        return self.hidden or self.value is not UNSET or self.compute is not None

    @property
    def fixed(self) -> Any:
        """The value of a call that does not give it, `UNSET` if the shape has none."""
        return self.default if self.value is UNSET else self.value


@attrs.frozen(kw_only=True)
class Reshape:
    """Another shape of a tool. Everything that is not given stays as it is.

    For a server's own tools (`Server.reshape`), those that it mounts (``server.mount(…, tools={"x": Reshape(…)})``),
    and those of the upstreams of a gateway (``Upstream(tools={"x": Reshape(…)})``). The schema that clients see is made
    and checked where the shape is put on the tool. A mistake is raised there; where an upstream lists its tool later,
    it costs that tool, and is logged.

    Raises:
        TypeError: ``wrap`` is no async function of one parameter, or an argument is no `Argument`.
        ValueError: ``name`` is empty.
    """

    name: str | None = None
    """The name for clients, without any prefix."""
    title: str | None = None
    """The name for people."""
    description: str | None = None
    arguments: Mapping[str, Argument] = attrs.field(factory=dict)
    """What becomes of arguments, by the names that the tool has for them."""
    wrap: Callable[[ReshapedCall], Awaitable[Any]] | None = None
    """An ``async def f(call)``, whose parameter is a `ReshapedCall`, and which is called in place of the tool. It
    returns what a tool may return; its return type is the output schema, as that of a tool is, and for
    `~mcp_actors.types.CallToolResult` that stays the one of the tool."""
    output_schema: Mapping[str, Any] | Unset | None = UNSET
    """The JSON Schema of the structured result, which is checked; ``None`` leaves schema and structured result out."""

    def __attrs_post_init__(self) -> None:
        if self.name == "":
            raise ValueError("name='': write a name of one character or more, or leave it out")
        for name, each in self.arguments.items():
            if not isinstance(each, Argument):
                raise TypeError(f"arguments[{name!r}]={each!r:.80}: write Argument(…)")
        if self.wrap is not None and not is_async(self.wrap):
            raise TypeError(f"wrap={self.wrap!r:.80} is not async: write async def f(call)")


class ReshapedCall:
    """A call of a reshaped tool, as the function that is called in its place takes it: see `Reshape.wrap`."""

    __slots__ = ("_failure", "_forwarded", "arguments", "ctx", "tool")

    def __init__(
        self,
        tool: str,
        ctx: Context[Any],
        arguments: dict[str, Any],
        forwarded: Callable[[dict[str, Any]], Awaitable[CallToolResult]],
    ) -> None:
        self.tool = tool
        """The name that the tool itself has."""
        self.ctx = ctx
        self.arguments = arguments
        """The arguments by the names that clients see, checked, with their defaults."""
        self._forwarded = forwarded
        self._failure: ToolFailed | None = None

    def __repr__(self) -> str:
        return f"<ReshapedCall of {self.tool!r}>"

    async def forward(self, /, **changes: Any) -> CallToolResult:
        """Calls the tool itself with `arguments`, and returns its result.

        Progress, log messages and questions of the tool are those of the call. A tool that asks something of a client
        of a stateless revision ends the call, and the function runs again from its start when the answer is there: one
        that forwards more than once must not forward to a tool that asks.

        Args:
            changes: Arguments that are others than in `arguments`, by the names that clients see; those that clients do
                not see, by their own.

        Raises:
            ToolFailed: The tool says that it has failed. If the function lets it pass, the call has that result.
            McpError: What a call of the tool raises.
        """
        result = await self._forwarded({**self.arguments, **changes})
        if result.is_error:
            self._failure = ToolFailed(self.tool, result.text, result)
            raise self._failure
        return result

    def result_of(self, error: ToolFailed) -> CallToolResult | None:
        """Returns the result of a failure that comes from the tool itself, ``None`` for any other."""
        return error.result if error is self._failure else None


# -- the shape of one tool ---------------------------------------------------------------------------------------------


class Shape:
    """A tool in another shape.

    Args:
        tool: The tool as it is.
        reshape: Its other shape, whose name is not looked at: what a tool is called belongs to where it is shown.

    Raises:
        ValueError: It has no such argument, two would have the same name, a value does not fit its schema, the tool
            needs an argument that nobody gives, or the schema cannot be used any more.
        TypeError: The function has other parameters, or returns what has no form in JSON.
    """

    def __init__(self, tool: Tool, reshape: Reshape) -> None:
        self._reshape = reshape
        self._arguments = _ShapedArguments(tool.input_schema, reshape)
        self.inner = tool
        """The tool as it is."""
        changes: dict[str, Any] = {"input_schema": self._arguments.schema}
        for each in ("title", "description"):
            if getattr(reshape, each) is not None:
                changes[each] = getattr(reshape, each)
        output: Any = reshape.output_schema
        self._finish: Callable[[Any], ToolAnswer] | None = None
        if reshape.wrap is not None:
            signature = read_signature(reshape.wrap, injected=Context, raw=True)
            if signature.injected_name is not None:
                raise TypeError("wrap= takes one parameter, the call, which has the context as .ctx")
            if output is UNSET:
                returned = signature.output_schema
                output = None if returned is None else without_references(returned) or returned
                if signature.passes_results_on:
                    output = tool.output_schema
            given = isinstance(reshape.output_schema, Mapping)
            compiled = compile_schema(dict(output)) if given else None
            self._finish = finishing(
                signature.encode_output,
                compiled,
                declared=output is not None,
                content=signature.returns_content,
            )
        elif output is not UNSET:
            self._finish = (
                _without_structure if output is None else partial(_checked, compile_schema(dict(output)))
            )
        if reshape.wrap is not None or output is not UNSET:
            changes["output_schema"] = None if output is None else dict(output)
        self.tool = attrs.evolve(tool, **changes)
        """The tool as clients see it, but for its name."""

    def __repr__(self) -> str:
        return f"<Shape of {self.inner.name!r}>"

    @property
    def is_plain(self) -> bool:
        """Whether only arguments are renamed and added: nothing has to be awaited, and the result is not looked at."""
        return self._finish is None and not self._arguments.computed

    def check(self, arguments: dict[str, Any]) -> None:
        """Raises `InvalidArguments` for arguments that do not fit what clients see."""
        self._arguments.check(arguments)

    def refusal(self, arguments: dict[str, Any]) -> CallToolResult | None:
        """Returns the result that says what is wrong with arguments that do not fit what clients see."""
        try:
            self.check(arguments)
        except InvalidArguments as error:
            return failed(error)
        return None

    def mapped(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns arguments by the names that the tool has, with those that are fixed or have a default."""
        return self._arguments.mapped(arguments)

    def unmapped(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns arguments by the names that clients see, without those that they do not see."""
        return self._arguments.unmapped(arguments)

    def translated(self, error: InvalidArguments) -> InvalidArguments:
        """Returns what the tool says of its arguments, about the names that clients see."""
        return InvalidArguments([self._arguments.translated(each) for each in error.problems])

    async def completed(self, ctx: Context[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns arguments as `mapped`, with those that are computed."""
        own = self.mapped(arguments)
        for name, compute in self._arguments.computed.items():
            if name not in own:
                own[name] = await called(compute, ctx)
        return own

    async def call(
        self,
        ctx: Context[Any],
        arguments: dict[str, Any],
        forward: Forward,
        read: Callable[[Any], Awaitable[CallToolResult]],
    ) -> Any:
        """Answers a call whose arguments were checked.

        Args:
            ctx: The call.
            arguments: Its arguments.
            forward: Calls the tool itself.
            read: Makes a result of what ``forward`` returns.

        Returns:
            The answer: what ``forward`` returned if nothing else is done with it.

        Raises:
            InvalidResult: The result cannot be sent.
            Exception: What the functions of the shape raise.
        """
        if self._reshape.wrap is None:
            answer = await forward(await self.completed(ctx, arguments))
            return answer if self._finish is None else await self._finished(await read(answer))

        async def forwarded(changed: dict[str, Any]) -> CallToolResult:
            try:
                return await read(await forward(await self.completed(ctx, changed)))
            finally:
                # The tool may run in this task, with a context of another server.
                current.set(ctx)

        call = ReshapedCall(self.inner.name, ctx, self._arguments.with_defaults(arguments), forwarded)
        current.set(ctx)
        try:
            value = await self._reshape.wrap(call)
        except ToolFailed as error:
            result = call.result_of(error)
            if result is None:
                raise
            return result
        except ToolError as error:
            return failed(error)
        except ExceptionGroup as group:
            cause = tool_error_in(group)
            if cause is None:
                raise
            return failed(cause)
        return await self._finished(value)

    async def _finished(self, value: Any) -> ToolAnswer:
        assert self._finish is not None
        try:
            try:
                return self._finish(value)
            except UnreadFiles as unread:
                value = await with_files_read(unread.value)
            return self._finish(value)
        except Exception as error:
            raise InvalidResult(str(error)) from error


def _without_structure(value: Any) -> ToolAnswer:
    result: CallToolResult = value
    return attrs.evolve(result, structured_content=UNSET)


def _checked(schema: Validator, value: Any) -> ToolAnswer:
    result: CallToolResult = value
    if not result.is_error:
        if result.structured_content is UNSET:
            raise ValueError("the tool gave no structured result, which the output schema describes")
        problems = schema.problems(result.structured_content)
        if problems:
            raise ValueError(f"the result does not fit the output schema: {'; '.join(problems)}")
    return result


# -- arguments and their schema ----------------------------------------------------------------------------------------


class _ShapedArguments:
    """The arguments of one tool in another shape: the schema of them, and the ways between both."""

    def __init__(self, schema: dict[str, Any], reshape: Reshape) -> None:
        given = reshape.arguments
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        for own in given:
            if own not in known:
                raise ValueError(f"there is no argument {own!r}: {_listed(known)}")
        hidden = {own for own, each in given.items() if each.is_hidden}
        # Both ways, of all that the schema names and clients see.
        self._outside: dict[str, str] = {own: _outside(own, given) for own in known if own not in hidden}
        self._own = {outside: own for own, outside in self._outside.items()}
        if len(self._own) < len(self._outside):
            names = list(self._outside.values())
            twice = next(each for each in names if names.count(each) > 1)
            raise ValueError(f"two arguments would be called {twice!r}")
        # A schema may take names that it does not list; a hidden argument cannot be given by its own name all the same.
        self._gone = frozenset(known.keys() - self._own.keys())
        self._fixed = {own: each.fixed for own, each in given.items() if each.fixed is not UNSET}
        self._defaults = {own: value for own, value in self._fixed.items() if own not in hidden}
        self.computed = {own: each.compute for own, each in given.items() if each.compute is not None}
        found = schema.get("required")
        required: list[str] = found if isinstance(found, list) else []
        self._required = [
            self._outside.get(each, each)
            for each in required
            if each not in hidden and each not in self._fixed
        ]
        missing = [
            own
            for own in hidden.intersection(required)
            if own not in self._fixed and own not in self.computed
        ]
        if missing and reshape.wrap is None:
            raise ValueError(
                f"the tool needs {missing[0]!r}, which nobody gives when it is hidden: add default=, value= or compute="
            )
        self._check_values(schema, known)
        self.schema = self._schema_for_clients(schema, known, given, hidden) if given else schema
        self._validator = self._compiled(schema)

    def _check_values(self, schema: dict[str, Any], known: Mapping[str, Any]) -> None:
        for own, value in self._fixed.items():
            try:
                compiled = compile_schema({**_around(schema), **_as_object(known[own])})
            except ValueError:
                continue  # the tool itself checks what its schema cannot say
            problems = compiled.problems(value)
            if problems:
                raise ValueError(f"the argument {own!r} does not take {value!r:.80}: {'; '.join(problems)}")

    def _schema_for_clients(
        self,
        schema: dict[str, Any],
        known: Mapping[str, Any],
        given: Mapping[str, Argument],
        hidden: set[str],
    ) -> dict[str, Any]:
        made = {
            word: value
            for word, value in schema.items()
            if word != "required" and not (word in _COUNTED and (hidden or self._is_renamed))
        }
        made["properties"] = {
            outside: _described(known[own], given[own]) if own in given else known[own]
            for own, outside in self._outside.items()
        }
        if self._required:
            made["required"] = self._required
        if hidden or self._is_renamed:
            for word in (*_APPLIED, *_BY_MEMBER):
                if word not in schema:
                    continue
                # Without a hidden member it can only be left out, which lets more pass: the tool checks it again.
                if hidden and any(each in hidden for each in _named_in(word, schema[word])):
                    del made[word]
                else:
                    made[word] = _renamed(word, schema[word], self._outside)
            # These mean something together only.
            if "if" not in made:
                made.pop("then", None)
                made.pop("else", None)
        return definitions_in_use(made) if hidden else made

    @property
    def _is_renamed(self) -> bool:
        return any(own != outside for own, outside in self._outside.items())

    def _compiled(self, schema: dict[str, Any]) -> Validator | None:
        try:
            annotated_params(self.schema)
            return compile_schema(self.schema)
        except ValueError:
            try:
                compile_schema(schema)
            except ValueError:
                return None  # the one of the tool is no use either: then the tool alone checks
            raise

    def check(self, arguments: dict[str, Any]) -> None:
        if self._validator is not None:
            problems = self._validator.findings(arguments)
        else:
            problems = [
                Problem(each, "is required but missing") for each in self._required if each not in arguments
            ]
        if not problems and not self._gone.isdisjoint(arguments):
            problems = [Problem(each, "is not known here") for each in arguments if each in self._gone]
        if problems:
            raise InvalidArguments(problems)

    def mapped(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        own = {self._own.get(name, name): value for name, value in arguments.items()}
        for name, value in self._fixed.items():
            if name not in own:
                own[name] = _own_copy(value)
        return own

    def with_defaults(self, arguments: dict[str, Any]) -> dict[str, Any]:
        given = dict(arguments)
        for name, value in self._defaults.items():
            given.setdefault(self._outside[name], _own_copy(value))
        return given

    def unmapped(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {
            self._outside.get(own, own): value
            for own, value in arguments.items()
            if own in self._outside or (own not in self._gone and own not in self._own)
        }

    def translated(self, problem: Problem) -> Problem:
        for own, outside in self._outside.items():
            if (
                own != outside
                and problem.path.startswith(own)
                and problem.path[len(own) : len(own) + 1] in ("", ".", "[")
            ):
                return Problem(outside + problem.path[len(own) :], problem.text)
        return problem


def _outside(own: str, given: Mapping[str, Argument]) -> str:
    argument = given.get(own)
    return own if argument is None else argument.name or own


def _listed(known: Mapping[str, Any]) -> str:
    return f"the arguments are {', '.join(known)}" if known else "there are no arguments"


def _around(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a document that the schema of a member refers to."""
    return {word: schema[word] for word in ("$schema", "$defs", "definitions") if word in schema}


def _as_object(schema: Any) -> dict[str, Any]:
    if isinstance(schema, dict):
        return schema
    return {"not": {}} if schema is False else {}


def _described(schema: Any, argument: Argument) -> dict[str, Any]:
    """The schema of a member with the texts and the default that it has for clients."""
    changes = {"title": argument.title, "description": argument.description}
    made = {**_as_object(schema), **{word: text for word, text in changes.items() if text is not None}}
    return made if argument.default is UNSET else {**made, "default": argument.default}


def _named_in(word: str, value: Any) -> Iterator[str]:
    """Yields the names of members of the arguments that a keyword says something of."""
    if word in _BY_MEMBER:
        for name, each in value.items() if isinstance(value, dict) else ():
            yield name
            yield from each if isinstance(each, list) else _named_in("not", each)
        return
    for schema in value if isinstance(value, list) else [value]:
        if isinstance(schema, dict):
            for name in ("required", "properties"):
                yield from (each for each in schema.get(name, ()) if isinstance(each, str))
            for inner in (*_APPLIED, *_BY_MEMBER):
                if inner in schema:
                    yield from _named_in(inner, schema[inner])


def _renamed(word: str, value: Any, names: Mapping[str, str]) -> Any:
    """A keyword with the names of members as clients see them."""
    if word in _BY_MEMBER:
        if not isinstance(value, dict):
            return value
        return {
            names.get(name, name): [names.get(one, one) for one in each]
            if isinstance(each, list)
            else _renamed("not", each, names)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_renamed("not", each, names) for each in value]
    if not isinstance(value, dict):
        return value
    made = {
        inner: _renamed(inner, each, names) if inner in (*_APPLIED, *_BY_MEMBER) else each
        for inner, each in value.items()
    }
    if isinstance(value.get("required"), list):
        made["required"] = [names.get(each, each) for each in value["required"]]
    if isinstance(value.get("properties"), dict):
        made["properties"] = {names.get(name, name): each for name, each in value["properties"].items()}
    return made


def _own_copy(value: Any) -> Any:
    """A value that the function may change."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


# -- tools that run in this process ------------------------------------------------------------------------------------


def reshaped_names(of: str, tools: Mapping[str, Reshape]) -> dict[str, str]:
    """Returns the tools that get another name, with that.

    Args:
        of: Names the server in errors.
        tools: The shapes, by the names of the tools.

    Raises:
        TypeError: They are no such mapping.
    """
    if not isinstance(tools, Mapping) or not all(isinstance(each, Reshape) for each in tools.values()):
        raise TypeError(f"{of}: tools={tools!r:.80}: write a dict of names and Reshape(…)")
    return {own: each.name for own, each in tools.items() if each.name is not None}


def reshape_tool(tools: Tools, name: str, reshape: Reshape, keep: bool) -> None:
    """Shows a tool of a registry in another shape; see `mcp_actors.Server.reshape`."""
    entry, *others = tools.versions(name) or (None,)
    if entry is None:
        raise LocalProtocolError(f"there is no tool {name!r}")
    if others:
        raise LocalProtocolError(
            f"the tool {name!r} has several versions: reshape it before the others are added"
        )
    key = reshape.name or name
    try:
        made = reshaped_entry(entry, reshape, key, tools.next_serial())
    except (TypeError, ValueError) as error:
        raise type(error)(f"the tool {name!r} cannot be reshaped: {error}") from None
    if keep or key != name:
        tools.check(key)
        warn_of_tool_name(key)
    if not keep:
        tools.remove(name)
    tools.insert(made)


def reshaped_entry(entry: Any, reshape: Reshape, key: str, serial: int) -> Any:
    """Returns an entry of a registry of tools, as it is in another shape, under ``key``; raises as `Shape`."""
    shape = Shape(entry.tool, reshape)

    def bind_own(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            bound: dict[str, Any] = entry.bind(arguments)
        except InvalidArguments as error:
            raise shape.translated(error) from None
        return bound

    def bind(arguments: dict[str, Any]) -> dict[str, Any]:
        shape.check(arguments)
        return bind_own(shape.mapped(arguments)) if shape.is_plain else arguments

    inner = msgspec.structs.replace(entry, bind=bind_own)

    async def run(ctx: Context[Any], arguments: dict[str, Any]) -> Any:
        return await shape.call(ctx, arguments, partial(answer_of, inner, ctx), _result_of)

    tool = shape.tool if shape.tool.name == key else attrs.evolve(shape.tool, name=key)
    changes: dict[str, Any] = {"bind": bind}
    if not shape.is_plain:
        changes |= {"function": Function(run, inline=False), "finish": _as_it_is}
    repair = None
    if entry.repair is not None:
        repair = RepairedArguments(key, Repair(tool.input_schema), bind, entry.repair.count)
    rules = entry.rules
    if rules is not None and rules.before is not None:
        rules = msgspec.structs.replace(rules, before=partial(_before_task, shape, rules.before, repair))
    mirrored = annotated_params(tool.input_schema)
    # Switches and rules know a component by the name that clients see.
    component = msgspec.structs.replace(entry.exposure.component, name=key)
    exposure = msgspec.structs.replace(entry.exposure, component=component)
    changes |= {"mirrored": mirrored, "repair": repair, "rules": rules, "exposure": exposure}
    return msgspec.structs.replace(entry, key=key, serial=serial, tool=tool, **changes)


async def _before_task(
    shape: Shape,
    before: Callable[[dict[str, Any], Any], Awaitable[Mapping[str, Any]]],
    repair: RepairedArguments | None,
    arguments: dict[str, Any],
    ctx: Context[Any],
) -> Mapping[str, Any]:
    """Runs what runs before a task exists, with the arguments of the tool itself; clients' names come back."""
    try:
        shape.check(arguments)
    except InvalidArguments:
        repaired = None if repair is None else repair(arguments)
        if repaired is None:
            return arguments  # the call is refused for them
        arguments = repaired.arguments
    return shape.unmapped(await before(await shape.completed(ctx, arguments), ctx))


async def _result_of(answer: ToolAnswer) -> CallToolResult:
    return answer.as_result() if isinstance(answer, ValueResult) else answer


def _as_it_is(value: Any) -> Any:
    return value
