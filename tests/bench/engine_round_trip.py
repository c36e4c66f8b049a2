"""How long the queue takes for a call that does nothing, until a result is there, and until a killed worker is back.

python tests/bench/engine_round_trip.py [--jax]
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

from explorer import engine  # noqa: E402


def now() -> float:
    return time.monotonic()


def three_times(report: Callable[..., None]) -> Iterator[float]:
    for _ in range(3):
        yield time.monotonic()
        time.sleep(0.05)


def say(what: str, values_s: list[float]) -> None:
    values = sorted(value * 1e3 for value in values_s)
    p10, p90 = values[len(values) // 10], values[-1 - len(values) // 10]
    print(f"{what:42} median {statistics.median(values):8.1f} ms   p10 {p10:8.1f}   p90 {p90:8.1f}   n {len(values)}")


def timed(function: Callable[[], object]) -> float:
    began = time.monotonic()
    function()
    return time.monotonic() - began


def main() -> None:
    from engine_round_trip import now, three_times  # a worker can't import from __main__

    os.environ["EXPLORER_LOAD_LIBRARIES"] = "1" if "--jax" in sys.argv else "0"
    began = time.monotonic()
    queue = engine.start(workers=1)
    say("engine.start() returns", [time.monotonic() - began])
    queue.wait_ready(120)
    say("a worker is there", [time.monotonic() - began])
    queue.ask(now, timeout_s=120)
    say("the first answer", [time.monotonic() - began])
    say("an empty call, there and back", [timed(lambda: queue.submit(now).wait()) for _ in range(200)])

    delays = []
    for _ in range(10):
        job, arrived, version = queue.submit(three_times), [], 0
        while not job.is_over:
            version = job.wait_change(version)
            arrived += [time.monotonic()] * (len(job.results) - len(arrived))
        delays += [there - then for there, then in zip(arrived, job.results, strict=True)]
    say("from a yield until it is in job.results", delays)

    back = []
    for _ in range(5):
        pid = queue.ask(os.getpid)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        queue.ask(os.getpid, timeout_s=120)
        back.append(time.monotonic() - began)
    say("from kill -9 until the next answer", back)
    say("close()", [timed(queue.close)])


if __name__ == "__main__":
    main()
