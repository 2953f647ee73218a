"""The servers of others that stand behind one gateway, and what a client does with each.

A step has a name, an expression that its answer matches as JSON, a method of ``peers/planned_client.py`` (and of its
counterpart in TypeScript), and arguments, in which ``*_`` stands for the prefix of the server in the gateway.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["LISTED", "STEPS", "TELL_OF_CHANGES", "plan_of"]

LONG, SHORT = {"seconds": 60, "steps": 1000}, {"seconds": 0.06, "steps": 3}
GREETING = "gruß 🐍\n\u2028"
TOTAL = {"a": 2, "b": 3.5}
SUM = r'"structuredContent": {"total": 5.5'
NOT_THERE = r'"code": -32602'
DEPARTMENT = {"name": "department", "value": "E"}
WEATHER = {"city": "Paris", "state": "Texas"}
Step = tuple[Any, ...]

STEPS: dict[str, list[Step]] = {
    "python": [
        ("text", "This is a simple text", "call", "*_test_simple_text", {}),
        ("structured", SUM, "call", "*_add", TOTAL),
        ("log", "Tool with logging executed", "call", "*_test_tool_with_logging", {}),
        ("progress", "slept 0.06 s", "call", "*_sleep", SHORT),
        ("failing", '"isError": true', "call", "*_test_error_handling", {}),
        ("sampling", "I am the model", "call", "*_test_sampling", {"prompt": "Who are you?"}),
        ("elicitation", "my username", "call", "*_test_elicitation", {"message": "Tell me"}),
        ("template", "Data for ID: 7", "read", "test://template/7/data"),
        ("no_resource", NOT_THERE + r'.*"uri": "test://nothing"', "read", "test://nothing"),
        ("prompt", "arg1='a'", "prompt", "*_test_prompt_with_arguments", {"arg1": "a", "arg2": "b"}),
        # This server has a code of its own for it in each era.
        ("no_prompt", r'"code": (0|-32603)', "prompt", "*_nothing", {}),
        (
            "complete",
            '"paris", "park", "party"',
            "complete",
            {"type": "ref/prompt", "name": "*_test_prompt_with_arguments"},
            {"name": "arg1", "value": "par"},
        ),
        ("cancel", '"cancelled"', "cancel", "*_sleep", LONG),
        ("subscribe", "", "subscribe", "test://watched-resource", "*_touch", {"text": "new"}),
    ],
    "typescript": [
        ("text", "gruß 🐍", "call", "*_echo", {"message": GREETING}),
        ("structured", SUM, "call", "*_add", TOTAL),
        ("log", "logged", "call", "*_log", {}),
        ("progress", "slept 0.06 s", "call", "*_sleep", SHORT),
        ("failing", '"isError": true', "call", "*_add", {"a": "two", "b": 1}),
        ("elicitation", "Hello, my name!", "call", "*_ask", {}),
        ("template", "Data for ID: 7", "read", "typescript://template/7/data"),
        ("no_resource", NOT_THERE + r'.*"uri": "typescript://nothing"', "read", "typescript://nothing"),
        ("prompt", "Greet Ada.", "prompt", "*_greet", {"name": "Ada"}),
        ("no_prompt", NOT_THERE, "prompt", "*_nothing", {}),
        ("cancel", '"cancelled"', "cancel", "*_sleep", LONG),
        ("subscribe", "", "subscribe", "typescript://watched-resource", "*_touch", {"text": "new"}),
    ],
    "fastmcp": [
        ("text", "gruß 🐍", "call", "*_echo", {"message": GREETING}),
        ("structured", SUM, "call", "*_add", TOTAL),
        ("log", "logged", "call", "*_log", {}),
        ("progress", "slept 0.06 s", "call", "*_sleep", SHORT),
        ("failing", '"isError": true', "call", "*_fail", {}),
        ("elicitation", "Hello, my name!", "call", "*_ask", {}),
        ("template", "Data for ID: 7", "read", "fast://template/7/data"),
        ("no_resource", NOT_THERE + r'.*"uri": "fast://nothing"', "read", "fast://nothing"),
        ("prompt", "Greet Ada.", "prompt", "*_greet", {"name": "Ada"}),
        ("no_prompt", NOT_THERE, "prompt", "*_nothing", {}),
        ("cancel", '"cancelled"', "cancel", "*_sleep", LONG),
        ("subscribe", "", "subscribe", "fast://text", "*_echo", {"message": GREETING}),
    ],
    "everything": [
        ("text", "Echo: hello", "call", "*_echo", {"message": "hello"}),
        (
            "structured",
            '"structuredContent": {.*"Light rain',
            "call",
            "*_get-structured-content",
            {"location": "Chicago"},
        ),
        ("progress", "completed", "call", "*_trigger-long-running-operation", {"duration": 0.06, "steps": 3}),
        ("failing", '"isError": true', "call", "*_get-sum", {"a": "one", "b": 2}),
        ("sampling", "I am the model", "call", "*_trigger-sampling-request", {"prompt": "hi"}),
        ("elicitation", "my name", "call", "*_trigger-elicitation-request", {}),
        ("roots", "file:///home/peer", "call", "*_get-roots-list", {}),
        ("template", "Resource 7:", "read", "demo://resource/dynamic/text/7"),
        ("no_resource", NOT_THERE, "read", "demo://resource/nothing"),
        ("prompt", "weather in Paris, Texas", "prompt", "*_args-prompt", WEATHER),
        ("no_prompt", NOT_THERE, "prompt", "*_nothing", {}),
        (
            "complete",
            "Engineering",
            "complete",
            {"type": "ref/prompt", "name": "*_completable-prompt"},
            DEPARTMENT,
        ),
        ("subscribe", "", "subscribe", "demo://resource/dynamic/text/7", "*_toggle-subscriber-updates", {}),
    ],
}
LISTED = {
    # One thing of each list.
    "python": ("*_add", "test://static-text", "test://template/{id}/data", "*_test_simple_prompt"),
    "typescript": ("*_add", "typescript://watched-resource", "typescript://template/{id}/data", "*_greet"),
    "fastmcp": ("*_add", "fast://text", "fast://template/{id}/data", "*_greet"),
    "everything": (
        "*_echo",
        "demo://resource/static/document/features.md",
        "demo://resource/dynamic/text/{resourceId}",
        "*_simple-prompt",
    ),
}
TELL_OF_CHANGES = {("python", "modern"), ("typescript", "modern"), ("everything", "legacy")}
"""The servers that take subscriptions to resources, with the eras in which they do."""


def plan_of(servers: list[str]) -> list[list[Any]]:
    """Returns the steps for these servers, whose keys are ``server step``, and before them the lists of all."""
    steps: list[list[Any]] = [["list", "list"]]
    for server in servers:
        for name, _, *step in STEPS[server]:
            steps.append([f"{server} {name}", *json.loads(json.dumps(step).replace('"*_', f'"{server}_'))])
    return steps
