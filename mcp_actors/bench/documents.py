"""From the results of a load to the document that is kept, and to the figures that a threshold looks at."""

from __future__ import annotations

import os
import time
from typing import Any

from mcp_actors._client.targets import shown
from mcp_actors.bench.load import BUSY_SHARE, LATE_US
from mcp_actors.bench.plan import LoadPlan
from mcp_actors.bench.results import Document, JobFailure, ResultRow
from mcp_actors.bench.surroundings import machine, versions

__all__ = ["SCENARIO", "document_of", "figures", "knee"]

SCENARIO = "bench"


def document_of(plan: LoadPlan, server: str, result: dict[str, Any], seconds: float) -> Document:
    """Returns the document of one load."""
    scheme = plan.url.partition(":")[0].lower()
    load = "{:.1f} {:.1f}".format(*os.getloadavg()[:2]) if hasattr(os, "getloadavg") else "not known"
    options: dict[str, Any] = {
        "size": SCENARIO,
        "rounds": plan.stages[0].slices,
        "seconds": sum(stage.seconds for stage in plan.stages),
        "seed": plan.seed,
        "url": shown(plan.url),
        "version": plan.version,
        "calls": list(dict.fromkeys(call.label for call in plan.calls)),
        "sessions": plan.sessions,
        "cancel_share": plan.cancel_share,
        "warm_up": plan.warm_up,
    }
    rows = [
        ResultRow(
            number,
            SCENARIO,
            scheme,
            plan.era,
            server,
            stage["at"],
            part["metrics"],
            part["latency"],
            part["generator"],
        )
        for stage in result["stages"]
        for number, part in enumerate(stage["slices"], 1)
    ]
    failures = [
        JobFailure(SCENARIO, scheme, plan.era, server, f"{kind}, {found['count']}: {found['example']}")
        for kind, found in result["failures"].items()
    ]
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() - seconds))
    details = {name: value for name, value in result.items() if name != "stages"}
    details["stages"] = [
        {name: value for name, value in stage.items() if name != "slices"}
        | {"began": [part["began"] for part in stage["slices"]]}
        for stage in result["stages"]
    ]
    return Document(
        machine(load),
        versions(),
        "",
        started,
        options,
        seconds,
        rows,
        failures,
        _warnings(plan, result),
        details,
    )


def knee(details: dict[str, Any]) -> float | None:
    """Returns the highest rate of a ramp up to which each was held; 0 if none was, and ``None`` without a ramp."""
    stages = details["stages"]
    if not details["ramp"]:
        return None
    found = 0.0
    for stage in stages:
        if not stage["held"]:
            break
        found = float(stage["at"]["arrivals_per_second"])
    return found


def figures(details: dict[str, Any]) -> dict[str, float]:
    """Returns the figures of a run by name, latencies in seconds. Those of a ramp are of its knee, or first rate."""
    stages = details["stages"]
    at_knee = knee(details)
    stage = stages[0]
    for each in stages if at_knee else ():
        if each["at"].get("arrivals_per_second") == at_knee:
            stage = each
    latencies = {name: value for name, value in stage["total"].items() if name != "count"}
    calls = details["total"]["count"] + details["failed"]
    found = latencies | {
        "throughput": stage["per_second"],
        "errors": float(details["failed"]),
        "errors%": 100.0 * details["failed"] / calls if calls else 0.0,
    }
    return found if at_knee is None else found | {"knee": at_knee}


def _warnings(plan: LoadPlan, result: dict[str, Any]) -> list[str]:
    found = []
    sessions = result["sessions"]
    parts = [part for stage in result["stages"] for part in stage["slices"]]
    busiest = max((part["generator"] or 0.0 for part in parts), default=0.0)
    if busiest > BUSY_SHARE:
        found.append(
            f"the load itself was at {busiest:.0%} of a processor: the server can do more than is shown here"
        )
    held = [part for stage in result["stages"] if stage["held"] for part in stage["slices"]]
    late = max((part["metrics"].get("late_p99_us", 0.0) for part in held), default=0.0)
    if late > LATE_US:
        found.append(
            f"the load itself sent up to {late / 1000:.1f} ms late, which is in the latencies: they count from when a "
            "call was meant to be sent"
        )
    found += [
        f"{stage['at']['arrivals_per_second']} calls/s were not reached: {stage['unsent']} calls were never sent, and "
        "the latencies are lower bounds"
        for stage in result["stages"]
        if stage["unsent"]
    ]
    if sessions["opened"] < sessions["wanted"]:
        found.append(
            f"{sessions['opened']} of {sessions['wanted']} sessions could be opened: {sessions.get('reason', '')}"
        )
    if sessions["lost"]:
        found.append(f"{sessions['lost']} sessions were lost and opened again: {sessions.get('reason', '')}")
    if plan.through_client:
        found.append(
            "this URL has no raw load: the work of this package's own client is part of the latencies"
        )
    if result["interrupted"]:
        found.append("it was ended early")
    return found
