"""The rows about HTTP of ``beside_official``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.figures import FLOOR, OFFICIAL, OURS, Figure, Peer, Trial, run_module
from benchmarks.http.driver import BUSY_SHARE
from benchmarks.http.listening import ListeningServer

__all__ = ["http_trials"]

IDLE_SESSIONS = 10_000
# The official SDK begins some hundreds a second; what a session costs shows with fewer just as well.
OFFICIAL_IDLE_SESSIONS = 2_000

Measure = Callable[[Peer], dict[str, Any]]


def _http(what: str, *options: str, server: tuple[str, ...] = ()) -> Measure:
    """One ``python -m benchmarks http``; ``server`` are options for the program of the server."""

    def measure(peer: Peer) -> dict[str, Any]:
        command = [*peer.command("_http"), *server]
        answer = run_module([sys.executable, "-m", "benchmarks", "http", what, *options, "--", *command])
        if answer.get("generator", 0.0) > BUSY_SHARE:
            print(f"{peer.name}: the generator was busier than the server may be", file=sys.stderr)
        return answer

    return measure


def _either(official: Measure, ours: Measure) -> Measure:
    return lambda peer: official(peer) if peer.name == OFFICIAL else ours(peer)


def _client(era: str, window: int, seconds: float) -> Measure:
    """Every client calls our server, each a fresh one."""

    def measure(peer: Peer) -> dict[str, Any]:
        with ListeningServer(Peer(OURS, sys.executable).command("_http")) as server:
            return run_module([*peer.command("_http_client"), server.url, era, str(window), str(seconds)])

    return measure


def _load_trials(seconds: float) -> list[Trial]:
    trials = []
    for era in ("legacy", "modern"):
        title = f"HTTP, {era}, 32 connections"
        rate = Figure(title, "req/s", 8.0, "per_second")
        cpu = Figure(f"{title}, processor time", "us/req", 8.0, "cpu_us", "lower")
        trials.append(Trial(_http("load", "--era", era, "--seconds", str(seconds)), [rate, cpu]))
    inline = Figure("HTTP, modern, floor answered in the reader", "req/s", None, "per_second")
    reader = _http("load", "--era", "modern", "--seconds", str(seconds), server=("--inline",))
    return [*trials, Trial(reader, [inline], (FLOOR,))]


def _client_trials(seconds: float) -> list[Trial]:
    trials = []
    for era in ("legacy", "default"):
        for window in (32, 1):
            title = f"HTTP client, {era}, {window} in flight"
            rate = Figure(title, "calls/s", None, "per_second")
            cpu = Figure(f"{title}, processor time", "us/call", None, "cpu_us", "lower")
            trials.append(Trial(_client(era, window, seconds), [rate, cpu]))
    return trials


def _session_trial() -> Trial:
    title = "HTTP, idle legacy session"
    figures = [
        Figure(title, "KiB", None, "kib_each", "lower", at_most=12.0),
        Figure(f"{title}, set-ups", "sessions/s", None, "per_second"),
        Figure(f"{title}, processor time of a set-up", "us", None, "cpu_us", "lower"),
    ]
    few = _http("sessions", "--number", str(OFFICIAL_IDLE_SESSIONS))
    many = _http("sessions", "--number", str(IDLE_SESSIONS))
    return Trial(_either(few, many), figures, (OFFICIAL, OURS))


def _leaving_trial() -> Trial:
    """With JSON replies the official SDK never hears that a client left, so it answers with streams here."""
    title = "HTTP, disconnect to Cancelled"
    figures = [
        Figure(f"{title}, {which} of 50", "ms", None, key, "lower", at_most=100.0)
        for which, key in (("median", "median_ms"), ("longest", "max_ms"))
    ]
    return Trial(
        _either(_http("disconnect", server=("--sse",)), _http("disconnect")), figures, (OFFICIAL, OURS)
    )


def _stalled_trial(seconds: float) -> Trial:
    """The official SDK has a stream to stall on only when it does not answer with JSON alone."""
    title = "HTTP, p99 of 200 connections"
    figures = [
        Figure(title, "ms", None, "alone_p99_ms", "lower"),
        Figure(f"{title} beside a stalled reader", "ms", None, "beside_p99_ms", "lower"),
    ]
    options = ("--seconds", str(3 * seconds))
    measure = _either(_http("stalled", *options, server=("--sse",)), _http("stalled", *options))
    return Trial(measure, figures, (OFFICIAL, OURS))


def http_trials(seconds: float) -> list[Trial]:
    """Loads, idle sessions, disconnects, stalled readers, clients."""
    return [
        *_load_trials(seconds),
        _session_trial(),
        _leaving_trial(),
        _stalled_trial(seconds),
        *_client_trials(seconds),
    ]
