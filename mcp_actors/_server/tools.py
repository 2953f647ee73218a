"""Tools: functions that a model may call (MCP, Server Features, Tools)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Literal, TypeVar, get_args

import attrs
import msgspec
import trio

from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._eras.era import ValueResult
from mcp_actors._eras.modern import MirroredParam, annotated_params
from mcp_actors._schema.references import MOST_TIMES, without_references
from mcp_actors._schema.repair import Repair, Repaired
from mcp_actors._schema.signature import InvalidArguments, Signature, read_signature
from mcp_actors._schema.validate import Validator, compile_schema
from mcp_actors._server.approvals import ApprovedBy, Confirmation, confirmed
from mcp_actors._server.apps import linked_meta
from mcp_actors._server.content import ToolAnswer, UnreadFiles, finishing
from mcp_actors._server.context import Context
from mcp_actors._server.dependencies import function
from mcp_actors._server.failures import OutOfTime, failed, tool_error_in
from mcp_actors._server.invoke import ISOLATED, Function, Handler, Loop, check_async, name_of, with_files_read
from mcp_actors._server.registry import Registry
from mcp_actors._server.sources import list_result, with_provided
from mcp_actors._server.streams import collecting, is_generator
from mcp_actors._server.turns import Turn, TurnKey, Turns, TurnTaker, in_turn
from mcp_actors._server.visibility import Exposure, make_exposure
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import RpcError, ToolError, invalid_params
from mcp_actors.supervision.arguments import did_you_mean
from mcp_actors.supervision.logging import log
from mcp_actors.types import (
    CallToolResult,
    Icon,
    ListToolsResult,
    Tool,
    ToolAnnotations,
    ToolExecution,
)

__all__ = [
    "Arguments",
    "BeforeTask",
    "RepairCount",
    "RepairedArguments",
    "TaskRules",
    "TaskSupport",
    "ToolElsewhere",
    "Tools",
    "answer_of",
    "tool_without_references",
    "warn_of_tool_name",
    "with_repairs",
]


IDEMPOTENT = "mcp-actors/idempotent"
"""The member of a tool's ``_meta`` that says for how many seconds the answers to its calls with keys are kept."""
_ADVISED_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


# Bytes of another server's schema as JSON that is written without references, which takes some 20 ms then. No model
# reads longer ones.
MOST_WRITTEN = 64 * 1024


class _ToolEntry(msgspec.Struct, frozen=True, eq=False):
    """A tool with everything decided that can be decided before it is called."""

    key: str
    serial: int
    tool: Tool
    bind: Callable[[dict[str, Any]], dict[str, Any]]
    function: Function
    finish: Callable[[Any], ToolAnswer]
    mirrored: tuple[MirroredParam, ...]
    scopes: frozenset[str]
    rules: TaskRules | None
    repair: RepairedArguments | None
    """Is asked about arguments that were refused; ``None`` where they stay refused."""
    exposure: Exposure
    answers_kept: float = 0.0
    """Seconds for which the answer to a call with a key is kept; 0 where keys are refused."""
    isolated: Any = None
    """The `mcp_actors._server.isolation.IsolatedFunction`, where a process runs the function."""


class ToolElsewhere(msgspec.Struct, frozen=True, eq=False):
    """A tool that is called by this server and registered at another one."""

    mirrored: tuple[MirroredParam, ...] = ()
    rules: TaskRules | None = None
    answers_kept: float = 0.0
    passes_key: bool = False
    """Whether the other server keeps the answers, too."""
    is_destructive: bool = True
    """Whether it may destroy something: its server says neither that it only reads nor that it does not."""


def warn_of_tool_name(name: str) -> None:
    """Logs that some clients refuse a name, if they do."""
    if not _ADVISED_NAME.fullmatch(name):
        log.warning("some clients refuse this tool name: use 1 to 128 of A-Z a-z 0-9 _ . -", tool=name)


def tool_without_references(tool: Tool) -> Tool:
    """Returns a tool of another server with its schemas written without references, each as far as that is possible."""
    written: dict[str, Any] = {}
    for member in ("input_schema", "output_schema"):
        schema = getattr(tool, member)
        if schema is not None and len(encode_value(schema)) <= MOST_WRITTEN:
            written[member] = without_references(schema) or schema
    return (
        tool
        if all(getattr(tool, each) is written[each] for each in written)
        else attrs.evolve(tool, **written)
    )


class Tools(Registry[_ToolEntry]):
    """The tools of one server and the handlers of ``tools/list`` and ``tools/call``."""

    what = "tool"
    shown_as = "tool"

    elsewhere: Callable[[str], ToolElsewhere | None] | None = None
    """Finds a tool that is registered at another server, by its name here; ``None`` without other servers."""

    inline_refs = True
    """Whether schemas of type hints are written without references."""

    is_strict = True
    """Whether arguments that do not fit are refused, and not repaired."""

    @cached_property
    def repairs(self) -> RepairCount:
        """Counts calls with repaired arguments, those of tools elsewhere included."""
        return RepairCount()

    @cached_property
    def turns(self) -> Turns:
        """The calls that take turns. Tools that take the place of these at a reload have the same ones."""
        return Turns()

    def add(self, call: Callable[..., Any], **options: Any) -> Tool:
        """Adds ``call`` as a tool and returns how clients see it; see `entry` for the options.

        Raises what `entry` does, and `LocalProtocolError` for a name that is taken.
        """
        entry = self.entry(call, serial=self.next_serial(), **options)
        warn_of_tool_name(entry.key)
        self.insert(entry)
        return entry.tool

    def entry(
        self,
        call: Callable[..., Any],
        *,
        serial: int = 0,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        icons: Sequence[Icon] = (),
        meta: Mapping[str, Any] | None = None,
        inline: bool = False,
        loop: Loop = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        scopes: Iterable[str] = (),
        task: Literal["optional", "required"] | None = None,
        restartable: bool = False,
        before_task: Callable[..., Any] | None = None,
        turn: Turn | TurnKey | None = None,
        idempotent: timedelta | None = None,
        confirm: str | None = None,
        preview: Callable[..., Any] | None = None,
        confirm_by: ApprovedBy = "form",
        app: Any = None,
        **exposed: Any,
    ) -> _ToolEntry:
        """Makes the entry of a tool, with the options that `ToolOptions` describes.

        With ``input_schema`` (any JSON Schema with ``type: object`` at its root) ``call`` takes the arguments as one
        dict; otherwise the schema is read from its signature. A person approves a call before it waits for its turn.
        Raises `TypeError` or `ValueError` for a signature or a schema that cannot be used.
        """
        name = name_of(call) if name is None else name
        rules = TaskRules.of(task, restartable, before_task, inline)
        answers_kept, meta = _answers_kept(idempotent, meta)
        signature, schema, bind = self._bound(call, input_schema, name)
        how: Any = {"inline": inline, "loop": loop, "timeout": timeout}
        schemas, bounds, isolated = (input_schema, output_schema), _bounds_in(exposed), None
        if bounds is None:
            ready = self._ready(call, signature, name, **how)
        else:
            isolated, bind, ready = _isolated(call, signature, name, bind, bounds, schemas=schemas, **how)
        if turn is not None:
            taker = TurnTaker(name, annotations, schema, input_schema is not None)
            ready = in_turn(ready, call, turn, taker, lambda: self.turns)
        if confirm is not None:
            values, defaults = (dict, _defaults_of(call)) if input_schema is None else (_only_value, {})
            asked = self._confirmation(confirm, preview, schema, defaults)
            ready = confirmed(ready, asked, confirm_by, values)
        elif preview is not None:
            raise ValueError("preview= is for the question of confirm=, which is not there")
        exposure, meta = make_exposure("tool", name, linked_meta(app, meta), **exposed)
        tool = Tool(
            name,
            schema,
            title=title,
            description=description or signature.description or title or name,
            output_schema=self._returned(signature, output_schema, name),
            annotations=annotations,
            icons=list(icons) or None,
            meta=meta,
            execution=None if rules is None else ToolExecution(rules.support),
        )
        return _ToolEntry(
            key=name,
            serial=serial,
            tool=tool,
            bind=bind,
            function=ready,
            finish=_finish(signature, output_schema, tool, isolated),
            mirrored=annotated_params(schema),
            scopes=frozenset(scopes),
            rules=rules,
            repair=None if self.is_strict else RepairedArguments(name, Repair(schema), bind, self.repairs),
            exposure=exposure,
            answers_kept=answers_kept,
            isolated=isolated,
        )

    def _bound(
        self, call: Callable[..., Any], given: Mapping[str, Any] | None, name: str
    ) -> tuple[Signature, dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]:
        """The signature of a tool, its schema, and what binds arguments to its parameters."""
        yields = is_generator(call)
        if given is None:
            signature = read_signature(call, injected=self._injected, yields=yields)
            return signature, self._published(signature.input_schema, name), signature.bind
        signature = read_signature(call, injected=self._injected, raw=True, yields=yields)
        schema = _object_schema(given)
        return signature, schema, _raw_binding(signature, compile_schema(schema))

    def _ready(
        self,
        call: Callable[..., Any],
        signature: Signature,
        name: str,
        *,
        inline: bool = False,
        loop: Loop = None,
        timeout: float | None = None,
    ) -> Function:
        """The function of a tool, or one that says more about a call of it, made ready."""
        if is_generator(call):
            if inline:
                raise TypeError(f"{name}: a generator waits for its client to read; remove inline=True")
            call = collecting(call, signature)
        ready = function(
            call,
            injected_name=signature.injected_name,
            for_sync=self._for_sync,
            inline=inline,
            threads=self._threads,
            loop=loop,
        )
        return ready if timeout is None else _limited(ready, name, timeout)

    def _confirmation(
        self,
        confirm: str,
        preview: Callable[..., Any] | None,
        schema: Mapping[str, Any],
        defaults: Mapping[str, Any],
    ) -> Confirmation:
        """Returns the way in which a person is asked to approve a tool; raises as `Confirmation.of`."""
        made = None
        if preview is not None:
            signature = read_signature(preview, injected=Context)
            found = self._ready(preview, signature, "preview")
            made = found, frozenset(signature.input_schema.get("properties", ()))
        return Confirmation.of(confirm, schema.get("properties", {}), defaults, made)

    def _returned(
        self, signature: Signature, given: Mapping[str, Any] | None, tool: str
    ) -> dict[str, Any] | None:
        if given is not None:
            return dict(given)
        schema = signature.output_schema
        return None if schema is None else self._published(schema, tool)

    def _published(self, schema: dict[str, Any], tool: str) -> dict[str, Any]:
        """A schema of type hints as clients see it."""
        if not self.inline_refs or "$defs" not in schema:
            return schema
        written = without_references(schema)
        if written is None:
            log.warning(
                "a schema keeps its $ref, which some hosts cannot read: written out it would be more than "
                f"{MOST_TIMES} times as long",
                tool=tool,
            )
        return written or schema

    def get(self, name: str) -> Tool | None:
        """The tool as clients see it, or ``None``."""
        entry = self.by_key.get(name)
        return None if entry is None else entry.tool

    def task_rules(self, name: object) -> TaskRules | None:
        """The rules by which calls of a tool become tasks, ``None`` where they never do."""
        found = self._found(name)
        return None if found is None else found.rules

    def answers_kept(self, name: object) -> float:
        """Seconds for which the answer to a call of a tool with a key is kept; 0 for a tool that takes no keys."""
        found = self._found(name)
        return 0.0 if found is None else found.answers_kept

    def mirrored_params(self, name: object) -> tuple[MirroredParam, ...]:
        """The parameters of a tool that clients repeat in headers."""
        found = self._found(name)
        return () if found is None else found.mirrored

    def _found(self, name: object) -> _ToolEntry | ToolElsewhere | None:
        if not isinstance(name, str):
            return None
        entry = self.by_key.get(name)
        return self.elsewhere(name) if entry is None and self.elsewhere is not None else entry

    def is_inline(self, name: str) -> bool:
        """Whether the function of a tool runs where the call arrives, and in no task."""
        entry = self.by_key.get(name)
        return entry is not None and entry.function.inline

    def handlers(self) -> Mapping[str, Handler]:
        return {"tools/list": self._list, "tools/call": self._call}

    def _list(self, ctx: Context) -> ListToolsResult | Continuation:
        rows = self.seen_by(ctx, self.listing(), "tools")
        return list_result(self, ctx, "tools", rows, ListToolsResult)

    def unknown(self, ctx: Context, name: str) -> RpcError:
        """Returns the error for a name that a caller sees no tool under."""
        return invalid_params(f"unknown tool: {name}{did_you_mean(name, self.names_seen_by(ctx))}")

    def _call(self, ctx: Context) -> ToolAnswer | Continuation:
        # MCP, Server Features, Tools, Error Handling: params of the wrong form and unknown tools are errors of the
        # protocol, wrong arguments are not.
        params = ctx.params
        name = params.get("name")
        if type(name) is not str:
            raise invalid_params("'name' must be a string")
        entry = self.by_key.get(name) if self.is_plain else self.find(ctx, name)
        if entry is None:
            if self.sources:
                return Continuation(with_provided, self, ctx, "tool", name, partial(self._called, ctx, name))
            raise self.unknown(ctx, name)
        return self._answer(ctx, entry)

    def _called(self, ctx: Context, name: str, entry: _ToolEntry | None) -> ToolAnswer | Continuation:
        if entry is None:
            raise self.unknown(ctx, name)
        return self._answer(ctx, entry)

    def _answer(self, ctx: Context, entry: _ToolEntry) -> ToolAnswer | Continuation:
        arguments = ctx.params.get("arguments")
        if type(arguments) is not dict:
            if arguments is not None:
                raise invalid_params("'arguments' must be an object")
            arguments = {}
        if not entry.function.inline:
            return Continuation(_run, entry, ctx, arguments)
        try:
            bound = entry.bind(arguments)
        except InvalidArguments as error:
            if entry.repair is None or (repaired := entry.repair(arguments)) is None:
                return _refused(ctx, error)
            return Continuation(_run_repaired, entry, ctx, repaired)
        try:
            value = entry.function.call(ctx, bound)
        except ToolError as error:
            return failed(error)
        except RpcError:
            ctx.call.raised = True
            raise
        try:
            return _result(entry, value)
        except UnreadFiles as unread:
            return Continuation(_read, entry, unread.value)


def _refused(ctx: Context, error: InvalidArguments) -> ToolAnswer:
    ctx.call.refused = True
    return failed(error)


async def _run(entry: _ToolEntry, ctx: Context, arguments: dict[str, Any]) -> ToolAnswer:
    try:
        bound = entry.bind(arguments)
    except InvalidArguments as error:
        if entry.repair is None or (repaired := entry.repair(arguments)) is None:
            return _refused(ctx, error)
        return await _run_repaired(entry, ctx, repaired)
    try:
        value = await entry.function.call(ctx, bound)
    except ToolError as error:
        return failed(error)
    except RpcError:
        ctx.call.raised = True
        raise
    except ExceptionGroup as group:
        cause = tool_error_in(group)
        if cause is not None:
            return failed(cause)
        raise
    try:
        return entry.finish(value)
    except UnreadFiles as unread:
        value = unread.value
    except Exception as error:
        raise InvalidResult(str(error)) from error
    return await _read(entry, value)


async def _run_repaired(entry: _ToolEntry, ctx: Context, repaired: Repaired) -> ToolAnswer:
    answer = await answer_of(entry, ctx, repaired.arguments)
    result = answer.as_result() if isinstance(answer, ValueResult) else answer
    return with_repairs(result, repaired.paths)


async def answer_of(entry: _ToolEntry, ctx: Context, arguments: dict[str, Any]) -> ToolAnswer:
    """Calls a tool in the task of a call, wherever its function runs, and returns its answer.

    Raises:
        Exception: What the function raises, but for a `ToolError`, and `InvalidResult` for what cannot be sent.
    """
    if not entry.function.inline:
        return await _run(entry, ctx, arguments)
    try:
        return _result(entry, entry.function.call(ctx, entry.bind(arguments)))
    except (ToolError, InvalidArguments) as error:
        return failed(error)
    except RpcError:
        ctx.call.raised = True
        raise
    except UnreadFiles as unread:
        return await _read(entry, unread.value)


async def _read(entry: _ToolEntry, value: Any) -> ToolAnswer:
    return _result(entry, await with_files_read(value))


def _result(entry: _ToolEntry, value: Any) -> ToolAnswer:
    try:
        return entry.finish(value)
    except UnreadFiles:
        raise
    except Exception as error:
        raise InvalidResult(str(error)) from error


def _limited(function: Function, name: str, seconds: float) -> Function:
    """The function with a time limit; `OutOfTime` leaves it when that is reached."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        raise ValueError(f"timeout={seconds!r}: write a number of seconds greater than 0, or leave it out")
    if function.inline:
        raise ValueError(
            f"timeout={seconds!r}: nothing can stop a function on the event loop; remove inline=True"
        )
    call = function.call

    async def limited(ctx: Context, arguments: dict[str, Any]) -> Any:
        with trio.move_on_after(seconds) as limit:
            return await call(ctx, arguments)
        late = trio.current_time() - limit.deadline
        raise OutOfTime(f"{name}: stopped, because it may take no longer than {seconds:g} s", seconds + late)

    return Function(limited, inline=False)


_Bounds = tuple[str, int | None, float | None, Callable[[], Any] | None]


def _bounds_in(options: dict[str, Any]) -> _Bounds | None:
    """Takes out of the options what is for a process; raises `ValueError` if there is to be none."""
    isolate, memory, cpu, lifespan = (
        options.pop(each, None) for each in ("isolate", "memory", "cpu", "lifespan")
    )
    if isolate is not None:
        return isolate, memory, cpu, lifespan
    if lifespan is not None:
        raise ValueError(
            'lifespan= of a tool is for its process: add isolate="process", or give it to Server(lifespan=)'
        )
    if memory is not None or cpu is not None:
        raise ValueError('memory= and cpu= bound a process: add isolate="process"')
    return None


def _isolated(
    call: Callable[..., Any],
    signature: Signature,
    name: str,
    bind: Callable[[dict[str, Any]], dict[str, Any]],
    bounds: _Bounds,
    *,
    schemas: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
    inline: bool,
    loop: Loop,
    timeout: float | None,
) -> tuple[Any, Callable[[dict[str, Any]], dict[str, Any]], Function]:
    """A function that runs in processes, what binds its arguments, and what calls it."""
    isolation = ISOLATED["process"]()
    isolate, memory, cpu, lifespan = bounds
    input_schema, output_schema = schemas
    isolated, ready = isolation.isolated_function(
        call,
        signature,
        name,
        isolate=isolate,
        memory=memory,
        cpu=cpu,
        lifespan=lifespan,
        inline=inline,
        loop=loop,
        takes_dict=input_schema is not None,
        output_schema=output_schema,
        declares_output=output_schema is not None or signature.output_schema is not None,
    )
    ready = ready if timeout is None else _limited(ready, name, timeout)
    return isolated, isolation.keeping_given(bind), ready


def _finish(
    signature: Signature, given: Mapping[str, Any] | None, tool: Tool, isolated: object
) -> Callable[[Any], ToolAnswer]:
    compiled = None if given is None else compile_schema(dict(given))
    if isolated is not None:
        return _as_it_is
    declared = tool.output_schema is not None
    return finishing(signature.encode_output, compiled, declared=declared, content=signature.returns_content)


def _as_it_is(answer: ToolAnswer) -> ToolAnswer:
    """The answer of a function in a process, where it was made of what the function returned."""
    return answer


def _object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    if schema.get("type") != "object":
        raise ValueError('input_schema must have "type": "object" at its root')
    return dict(schema)


def _defaults_of(call: Callable[..., Any]) -> dict[str, Any]:
    """The values that a function has for what a call leaves out."""
    parameters = inspect.signature(call).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}


def _only_value(bound: dict[str, Any]) -> Any:
    """The arguments of a function that takes them as one dict."""
    return next(iter(bound.values()))


def _raw_binding(signature: Signature, schema: Validator) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def bind(arguments: dict[str, Any]) -> dict[str, Any]:
        findings = schema.findings(arguments)
        if findings:
            raise InvalidArguments(findings)
        return signature.bind(arguments)

    return bind


# -- Arguments of another type than a tool takes, which its author lets be repaired ---

REPAIRED = "mcp-actors/repaired"
"""The member of a result's ``_meta`` that tells the model which arguments were repaired."""

# Tools whose repaired calls are counted: those of a gateway's upstreams may have other names each time.
MOST_COUNTED = 1_000

Arguments = Literal["repair", "strict"]
"""What becomes of arguments that do not fit the schema of a tool."""


ResultT = TypeVar("ResultT")


def with_repairs(result: ResultT, paths: Sequence[str]) -> ResultT:
    """Returns the result of ``tools/call`` with the paths of what was repaired; one that is a dict is changed."""
    told = {REPAIRED: {"arguments": paths}}
    if isinstance(result, CallToolResult):
        return attrs.evolve(result, meta={**(result.meta or {}), **told})
    if isinstance(result, dict):
        result["_meta"] = {**(result.get("_meta") or {}), **told}
    return result


class RepairCount:
    """The calls of each tool that were made with repaired arguments, those of the first `MOST_COUNTED` tools."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def note(self, tool: str, paths: Sequence[str]) -> None:
        """Counts a call, and logs the first one of each tool."""
        if tool not in self.calls:
            if len(self.calls) >= MOST_COUNTED:
                return
            log.info(
                "a model sent arguments of another type, which are repaired from now on",
                tool=tool,
                arguments=paths,
            )
        self.calls[tool] = self.calls.get(tool, 0) + 1


class RepairedArguments(msgspec.Struct, frozen=True, eq=False):
    """Repairs the arguments of one tool."""

    tool: str
    repair: Repair
    bind: Callable[[dict[str, Any]], dict[str, Any]]
    count: RepairCount

    def __call__(self, arguments: dict[str, Any]) -> Repaired | None:
        """Returns arguments that fit, ``None`` if there are none that can be meant."""
        found = self.repair(arguments)
        if found is None:
            return None
        try:
            self.bind(found.arguments)
        except InvalidArguments:
            return None
        self.count.note(self.tool, found.paths)
        return found


# -- The rules by which calls of a tool become tasks that outlive their caller ---

TaskSupport = Literal["optional", "required"]
"""MCP 2025-11-25, Tasks, Tool-Level Negotiation; a tool without any is ``forbidden`` there."""

BeforeTask = Callable[[dict[str, Any], Any], Awaitable[Mapping[str, Any]]]
"""Is given the arguments and the `Context` of a call before it becomes a task, and returns the arguments to use."""


def _answers_kept(
    idempotent: timedelta | None, meta: Mapping[str, Any] | None
) -> tuple[float, Mapping[str, Any] | None]:
    """Returns for how many seconds answers are kept, and the ``_meta`` of a tool that says so."""
    if idempotent is None:
        return 0.0, meta
    seconds = idempotent.total_seconds()
    if not seconds > 0:
        raise ValueError(f"idempotent={idempotent!r}: the answers have to be kept for some time")
    return seconds, {**(meta or {}), IDEMPOTENT: seconds}


class TaskRules(msgspec.Struct, frozen=True):
    """The rules of one tool: ``support``, whether it is ``restartable``, and what runs ``before`` the task exists."""

    support: TaskSupport
    restartable: bool
    before: BeforeTask | None

    @classmethod
    def of(
        cls, task: TaskSupport | None, restartable: bool, before: BeforeTask | None, inline: bool
    ) -> TaskRules | None:
        """Returns the rules that a tool is registered with, ``None`` for a tool whose calls never become tasks.

        Raises:
            TypeError: ``before`` is not of its form.
            ValueError: The options contradict each other.
        """
        if task is None:
            if restartable or before is not None:
                raise ValueError(
                    'restartable= and before_task= are for tasks: add task="optional", or "required"'
                )
            return None
        if task not in get_args(TaskSupport):
            raise ValueError(f'task={task!r}: write "optional" or "required", or leave it out')
        if inline:
            raise ValueError(
                f"task={task!r}: a task may take long, and blocks everything; remove inline=True"
            )
        if before is not None:
            check_async(before, "arguments, ctx")
        return cls(task, restartable, before)
