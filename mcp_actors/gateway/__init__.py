"""A gateway: many servers as one; also groups of clients, and the configurations that name their servers.

A request goes down: `gateway` (the class) and `live` (all upstreams of one ``serve``), then `forwarding`, `results`,
`forwarded_tasks` and `call_options` (a request to an upstream and back), `lists`, `listing`, `names`, `routes`
 and `upstream_subscriptions` (what there is, and whose it is), `upstream`, `breaker`, `connections` and
`upstream_settings` (one server), `callbacks` and `held_calls` (what a server asks the client).
"""

from __future__ import annotations

import importlib

__all__ = [
    "Gateway",
    "SessionPolicy",
    "Upstream",
    "UpstreamStatistics",
    "UpstreamTarget",
    "bridge_to",
    "configured_gateway",
    "upstreams_of",
]

# A group of clients and whoever reads a configuration need no gateway: each name is loaded when it is first asked for.
# ``__init__.pyi`` tells type checkers what there is.
_LATE = {
    "Gateway": "gateway",
    "SessionPolicy": "upstream_settings",
    "Upstream": "upstream_settings",
    "UpstreamStatistics": "gateway",
    "UpstreamTarget": "upstream_settings",
    "bridge_to": "gateway",
    "configured_gateway": "gateway",
    "upstreams_of": "gateway",
}


def __getattr__(name: str) -> object:
    """Loads a name of the table above when it is first asked for.

    Raises:
        AttributeError: There is no such name.
    """
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
