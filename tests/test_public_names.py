"""The public surface, frozen: a name that comes or goes must be changed here too, on purpose.

``python tests/test_public_names.py`` freezes the present names; look at what it changed before you commit that.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import mcp_actors
import mcp_transports

# BEGIN FROZEN
PUBLIC: dict[str, list[str]] = {
    "mcp_actors": [
        "CallTimeout",
        "Client",
        "ConnectFailed",
        "ConnectionLost",
        "Context",
        "HeaderMismatch",
        "InputRequired",
        "Limits",
        "LocalProtocolError",
        "MalformedMessage",
        "McpError",
        "Meta",
        "MethodNotFound",
        "MissingCapability",
        "Overloaded",
        "Progress",
        "ProtocolError",
        "RemoteProtocolError",
        "ResourceNotFound",
        "RpcError",
        "Server",
        "SessionExpired",
        "SubscriptionLost",
        "ToolError",
        "TransportNotFound",
        "UnsupportedVersion",
        "abc",
        "errors",
        "register_transport",
        "types",
    ],
    "mcp_actors.abc": [
        "Arrival",
        "ClientTransport",
        "Frame",
        "FrameChannel",
        "NoAnswer",
        "Outlet",
        "ServerHandler",
        "ServerSession",
        "ServerTransport",
    ],
    "mcp_actors.client": [
        "CallStatistics",
        "ChangeHandler",
        "Client",
        "Counters",
        "ElicitationHandler",
        "Event",
        "EventKind",
        "LinkStatistics",
        "Listener",
        "LogHandler",
        "OutboundCallStatistics",
        "Progress",
        "ProgressCallback",
        "Roots",
        "SamplingHandler",
        "SessionStatistics",
        "Target",
    ],
    "mcp_actors.context": ["Context"],
    "mcp_actors.discovery": [
        "FromUrl",
        "client_transport",
        "installed_schemes",
        "register_transport",
        "server_transport",
    ],
    "mcp_actors.errors": [
        "CallTimeout",
        "ConnectFailed",
        "ConnectionLost",
        "HeaderMismatch",
        "InputRequired",
        "LocalProtocolError",
        "MalformedMessage",
        "McpError",
        "MethodNotFound",
        "MissingCapability",
        "Overloaded",
        "ProtocolError",
        "RemoteProtocolError",
        "ResourceNotFound",
        "RpcError",
        "SessionExpired",
        "SubscriptionLost",
        "ToolError",
        "TransportNotFound",
        "UnsupportedVersion",
    ],
    "mcp_actors.framing": [
        "BufferedChannel",
        "DEFAULT_MAX_MESSAGE_BYTES",
        "LineChannel",
        "SupportsDeliver",
        "SupportsSendAtOnce",
    ],
    "mcp_actors.logging": ["log", "logger"],
    "mcp_actors.server": ["Server", "ServerStatistics"],
    "mcp_actors.simulate": [
        "Constant",
        "Distribution",
        "Empirical",
        "Exponential",
        "Latencies",
        "LinkProfile",
        "LogNormal",
        "Report",
        "Uniform",
        "User",
        "World",
        "simulate",
    ],
    "mcp_actors.supervision": [
        "Containment",
        "Cost",
        "TASKS",
        "TaskKind",
        "reraised",
        "start",
        "start_again",
        "start_and_wait",
    ],
    "mcp_actors.testing": [
        "ChannelAction",
        "FaultStatistics",
        "Faults",
        "FaultyTransport",
        "PlaybackReport",
        "RawServer",
        "RecordedEvent",
        "RecordedServer",
        "Recording",
        "RecordingTransport",
        "ScriptedPeer",
        "TransportBreach",
        "TransportMaker",
        "TransportReport",
        "check_transport",
        "connected_pair",
        "play_to_server",
        "raw_client",
        "raw_server",
    ],
    "mcp_actors.types": [
        "Annotations",
        "AudioContent",
        "BlobResourceContents",
        "BooleanSchema",
        "CacheScope",
        "CallToolParams",
        "CallToolResult",
        "CancelledParams",
        "ClientCapabilities",
        "CompleteParams",
        "CompleteResult",
        "Completion",
        "CompletionArgument",
        "CompletionContext",
        "CompletionReference",
        "ContentBlock",
        "CreateMessageParams",
        "CreateMessageResult",
        "DiscoverResult",
        "ElicitAction",
        "ElicitFormParams",
        "ElicitParams",
        "ElicitResult",
        "ElicitUrlParams",
        "ElicitationCapability",
        "ElicitationCompleteParams",
        "EmbeddedResource",
        "EmptyResult",
        "EnumOption",
        "EnumSchema",
        "GetPromptParams",
        "GetPromptResult",
        "Icon",
        "ImageContent",
        "Implementation",
        "IncludeContext",
        "InitializeParams",
        "InitializeResult",
        "InputRequest",
        "InputRequiredResult",
        "InputResponse",
        "LOGGING_LEVELS",
        "LegacyTitledEnumSchema",
        "ListPromptsResult",
        "ListResourceTemplatesResult",
        "ListResourcesResult",
        "ListRootsParams",
        "ListRootsResult",
        "ListToolsResult",
        "LoggingLevel",
        "LoggingMessageParams",
        "ModelHint",
        "ModelPreferences",
        "NotificationParams",
        "NumberSchema",
        "PaginatedParams",
        "PrimitiveSchema",
        "ProgressParams",
        "ProgressToken",
        "Prompt",
        "PromptArgument",
        "PromptMessage",
        "PromptReference",
        "PromptsCapability",
        "ReadResourceParams",
        "ReadResourceResult",
        "RequestParams",
        "Resource",
        "ResourceContents",
        "ResourceLink",
        "ResourceTemplate",
        "ResourceTemplateReference",
        "ResourceUpdatedParams",
        "ResourcesCapability",
        "Role",
        "Root",
        "RootsCapability",
        "SamplingCapability",
        "SamplingContent",
        "SamplingMessage",
        "ServerCapabilities",
        "SetLevelParams",
        "StringSchema",
        "SubscribeParams",
        "SubscriptionFilter",
        "SubscriptionsAcknowledgedParams",
        "SubscriptionsListenParams",
        "SubscriptionsListenResult",
        "TextContent",
        "TextResourceContents",
        "TitledMultiSelectEnumSchema",
        "TitledSingleSelectEnumSchema",
        "Tool",
        "ToolAnnotations",
        "ToolChoice",
        "ToolExecution",
        "ToolResultContent",
        "ToolUseContent",
        "ToolsCapability",
        "UNSET",
        "Unset",
        "UnsubscribeParams",
        "UntitledMultiSelectEnumSchema",
        "UntitledSingleSelectEnumSchema",
        "fill_defaults",
        "form_schema",
        "validate_form_answer",
    ],
    "mcp_transports": [],
    "mcp_transports.http": ["HttpTransport", "from_url"],
    "mcp_transports.memory": [
        "DEFAULT_MAX_BUFFER",
        "MemoryChannel",
        "MemoryTransport",
        "from_url",
        "memory_channel_pair",
    ],
    "mcp_transports.sockets": [
        "DEFAULT_MAX_CONNECTIONS",
        "SocketChannel",
        "SocketStatistics",
        "TcpTransport",
        "UnixTransport",
        "from_url",
    ],
    "mcp_transports.stdio": ["StdioClientTransport", "StdioServerTransport", "from_url"],
    "mcp_transports.websocket": ["WebSocketTransport", "from_url"],
}
# END FROZEN

# Reached as programs or through the command line, not as libraries.
PROGRAMS = {"mcp_actors.__main__", "mcp_actors.cli", "mcp_actors.examples"}


def public_modules() -> list[str]:
    """The modules one step below the two packages; what lies deeper is reached through them."""
    found = []
    for package in (mcp_actors, mcp_transports):
        found.append(package.__name__)
        found += [
            f"{package.__name__}.{module.name}"
            for module in pkgutil.iter_modules(package.__path__)
            if not module.name.startswith("_") and f"{package.__name__}.{module.name}" not in PROGRAMS
        ]
    return sorted(found)


def exported(name: str) -> list[str]:
    return list(getattr(importlib.import_module(name), "__all__", ()))


def present() -> dict[str, list[str]]:
    return {name: sorted(exported(name)) for name in public_modules()}


def test_the_public_modules_are_those_that_are_frozen() -> None:
    assert public_modules() == sorted(PUBLIC)


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_the_public_names_are_those_that_are_frozen(module: str) -> None:
    assert sorted(exported(module)) == PUBLIC[module]


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_every_public_name_exists_once_and_is_documented(module: str) -> None:
    namespace = importlib.import_module(module)
    names = exported(module)
    assert len(set(names)) == len(names)
    assert undocumented(namespace, names) == []


def undocumented(namespace: ModuleType, names: list[str]) -> list[str]:
    """Modules, classes and functions without a docstring of their own, and their public methods without one."""
    missing = [] if namespace.__doc__ else [namespace.__name__]
    for name in names:
        value = getattr(namespace, name)
        if not (inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value)):
            continue
        if not (vars(value) if inspect.isclass(value) else {"__doc__": value.__doc__}).get("__doc__"):
            missing.append(name)
        if inspect.isclass(value) and value.__module__.startswith(("mcp_actors", "mcp_transports")):
            missing += [
                f"{name}.{member}"
                for member, each in vars(value).items()
                if not member.startswith("_")
                if inspect.isroutine(each) or isinstance(each, property)
                if not inspect.getdoc(getattr(value, member))
            ]
    return missing


def test_a_missing_docstring_is_found() -> None:
    namespace = ModuleType("mcp_actors.made_up", "A module.")

    class Silent:
        def speak(self) -> None: ...

    Silent.__module__ = "mcp_actors.made_up"
    namespace.Silent = Silent  # type: ignore[attr-defined]
    assert undocumented(namespace, ["Silent"]) == ["Silent", "Silent.speak"]


def test_a_star_import_brings_the_public_names() -> None:
    program = "import sys; before = set(dir()); from mcp_actors import *; print(len(set(dir()) - before) - 1)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(result.stdout) == len(PUBLIC["mcp_actors"])


def freeze() -> None:
    lists = "".join(f"    {module!r}: {names!r},\n" for module, names in present().items())
    file = Path(__file__)
    before, _, rest = file.read_text().partition("# BEGIN FROZEN\n")
    _, _, after = rest.partition("# END FROZEN\n")
    frozen = f"# BEGIN FROZEN\nPUBLIC: dict[str, list[str]] = {{\n{lists}}}\n# END FROZEN\n"
    file.write_text(before + frozen + after)
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(file)], check=True, timeout=60)


if __name__ == "__main__":
    freeze()
