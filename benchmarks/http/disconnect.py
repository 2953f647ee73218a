"""How long a handler runs on after its client has gone: from the close of the connection to its ``Cancelled``."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass

from benchmarks.http.driver import connect
from benchmarks.http.listening import ListeningServer
from benchmarks.http.wire import FIRST_ID, call
from benchmarks.suite.process import LoadError

__all__ = ["DisconnectMeasured", "measure_disconnect"]

BEGIN_WITHIN_SECONDS = 30.0
# Handlers that are not cancelled by then are counted as if they had been; the figure is a lower bound then.
CANCEL_WITHIN_SECONDS = 5.0
# A client leaves at no particular moment of the server's clocks.
LONGEST_STAY_SECONDS = 0.02


@dataclass
class DisconnectMeasured:
    """Milliseconds; ``never`` is the number of handlers that were not cancelled while they were watched."""

    disconnects: int
    median_ms: float
    max_ms: float
    never: int


def measure_disconnect(command: list[str], *, disconnects: int) -> DisconnectMeasured:
    """Starts ``command PORT``; so many clients call its tool ``hang``, one after the other, and leave."""
    took: list[float] = []
    never = 0
    with ListeningServer(command) as server:
        for number in range(disconnects):
            with connect(server.port) as connection:
                connection.sendall(call(server.port, "modern", "", FIRST_ID + number, "hang", {}))
                if server.told("began", BEGIN_WITHIN_SECONDS) is None:
                    raise LoadError("the handler did not begin")
                time.sleep(random.uniform(0.0, LONGEST_STAY_SECONDS))
                left = time.monotonic()
            cancelled = server.told("cancelled", CANCEL_WITHIN_SECONDS)
            if cancelled is None:
                never += 1
            took.append((cancelled - left if cancelled is not None else CANCEL_WITHIN_SECONDS) * 1000)
            if never > disconnects // 10:
                break
    return DisconnectMeasured(len(took), statistics.median(took), max(took), never)
