"""Memory over many shapes: python tests/bench/many_shapes.py [SHAPES]. Exit 1 if the worker or the server grows on.

Every shape is new, so every run compiles; the cache of compiled programs is bounded, and past its size memory must be.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

MIB = 2**20


def main(shapes: int = 300) -> int:
    from explorer import clock, engine, measure
    from explorer.problem import Problem

    protocol = clock.Protocol(warmup=0, repeats=1, trace_calls=0)
    queue = engine.start(workers=1)
    server, readings = psutil.Process(os.getpid()), []
    try:
        for i in range(shapes):
            problem = Problem.of(batch=1, q_len=1 + i % 50, kv_len=1 + i // 50, heads=1, head_dim=8)
            job = queue.submit(
                measure.run,
                {"problem": problem, "specs": ["naive"], "protocol": protocol},
                visitor="bench",
                priority=engine.LIVE,
                limit_s=60,
            )
            job.wait(60)
            if not job.results or job.results[0].status != "ok":
                print(f"shape {i} ended as {job.state}: {job.error or job.results[0].reason}")
                return 1
            if (i + 1) % (shapes // 6) == 0:
                (worker,) = queue.stats().workers
                worker_mib = psutil.Process(worker.pid).memory_info().rss / MIB
                readings.append((i + 1, worker_mib, server.memory_info().rss / MIB))
                print(f"{i + 1:5} shapes: worker {worker_mib:6.0f} MiB, server {readings[-1][2]:6.0f} MiB", flush=True)
    finally:
        queue.close()
    half, last = readings[len(readings) // 2 - 1], readings[-1]
    grown_worker, grown_server = last[1] - half[1], last[2] - half[2]
    print(f"second half: worker {grown_worker:+.0f} MiB, server {grown_server:+.0f} MiB")
    return int(grown_worker > 0.1 * half[1] or grown_server > 0.1 * half[2])


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
