"""How long a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable

# A call shorter than this is timed several times at once, so that the clock does not count.
SHORT_SECONDS = 1e-4


def seconds(call: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    if once > SHORT_SECONDS:
        return once
    repeats = int(5 * SHORT_SECONDS / max(once, 1e-7)) + 1
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
