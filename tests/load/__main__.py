"""Load: visitors of the real app, with the CPU overlay's commands as processes on this machine. Bounded in every way.

    python -m tests.load                       50 visitors, two minutes, two workers
    python -m tests.load --kill-every 10       the same, and every 10 s a worker is killed
    python -m tests.load --visitors 25         half the load: the waiting must halve

Talks to 127.0.0.1 only, and ends by itself. Prints one JSON object; exit 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from deploy.local import Local, running
from explorer.problem import Problem
from explorer.record import quantile
from tests.load import turns
from tests.load.visitor import Visit, Visitor, cookie

PROBLEM = Problem(batch=16, q_len=64, kv_len=64, heads=8, kv_heads=8, head_dim=8, dtype="float32")
MOST_VISITORS, MOST_SECONDS = 100, 300.0
PATIENCE_S = 150.0  # of one visitor for one answer
THINK_S = 1.0
RESTLESS = 0.2  # so many move on before the answer came: the older question must be replaced, not answered
SAMPLE_S = 1.0
FLAT = 1.10  # memory at the end over that at half time


@dataclass(kw_only=True)
class Seen:
    """What was noted during a run."""

    visits: list[Visit] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)


async def visit(visitor: Visitor, until: float, seen: Seen, dice: random.Random) -> None:
    """One person with one tab, until the time is up; the answer under way is still waited for."""
    seed = visitor.number * 10_000
    try:
        async with visitor.session(seed):
            while True:
                seen.visits.append(await visitor.ask(seed, PATIENCE_S))
                await asyncio.sleep(dice.uniform(0, 2 * THINK_S))
                if time.time() >= until:
                    return
                seed += 1
                if dice.random() < RESTLESS:
                    await visitor.move(seed)
                    await asyncio.sleep(dice.uniform(0, 0.3))
                    seed += 1
    except Exception as error:  # noqa: BLE001  whatever it was, the app lost a visitor
        seen.left.append(f"visitor {visitor.number}: {type(error).__name__}: {error}")


def memory(local: Local) -> dict[str, int]:
    """Resident bytes of each process and its children."""
    found = {}
    for name, process in local.processes.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            one = psutil.Process(process.pid)
            total = 0
            for each in [one, *one.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += each.memory_info().rss
            found[name] = total
    return found


async def sample(local: Local, seen: Seen) -> None:
    while True:
        seen.memory.append((time.time(), await asyncio.to_thread(memory, local)))
        await asyncio.sleep(SAMPLE_S)


async def kill(local: Local, every_s: float, until: float, seen: Seen, dice: random.Random) -> None:
    """SIGKILL to one of the processes that hold JAX, as a crash in a GPU library would end it."""
    while time.time() + every_s < until:
        await asyncio.sleep(every_s)
        pid = await asyncio.to_thread(local.worker_pid, dice.randrange(local.workers))
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            seen.kills.append(time.time())


def waits(local: Local) -> list[dict[str, Any]]:
    """The app's own log lines of jobs that ended well."""
    found = []
    for line in local.processes["app"].log.read_text().splitlines():
        if line.startswith("{"):
            told = json.loads(line)
            if told["logger"] == "explorer.jobs" and told["state"] == "done":
                found.append(told)
    return found


async def load(local: Local, options: argparse.Namespace) -> dict[str, Any]:
    dice, seen = random.Random(options.seed), Seen()
    turn_log = local.folder / "turns"
    await turns.install(local, turn_log)
    pass_ = await asyncio.to_thread(cookie, local.url, local.token)
    visitors = [Visitor(number, local.url, pass_, PROBLEM) for number in range(options.visitors)]
    warm = Visitor(options.visitors, local.url, pass_, PROBLEM)
    async with warm.session(1):  # compiles; both workers keep the program on disk
        await warm.ask(1, PATIENCE_S)
    jobs_before = len(waits(local))
    began = time.time()
    until = began + options.seconds
    beside = [asyncio.create_task(sample(local, seen))]
    if options.kill_every:
        beside.append(asyncio.create_task(kill(local, options.kill_every, until, seen, dice)))
    await asyncio.gather(
        *(visit(each, until, seen, random.Random(f"{options.seed}-{each.number}")) for each in visitors)
    )
    ended = time.time()
    await asyncio.sleep(5)
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    counted = await asyncio.to_thread(turns.count, turn_log, began)
    return figures(local, options, seen, began, ended, counted, waits(local)[jobs_before:])


def figures(
    local: Local,
    options: argparse.Namespace,
    seen: Seen,
    began: float,
    ended: float,
    counted: tuple[int, int],
    jobs: list[dict[str, Any]],
) -> dict[str, Any]:
    outcomes = Counter(each.outcome for each in seen.visits)
    answered = [each.seconds for each in seen.visits if each.outcome == "right"]
    waited = [job["waited_s"] for job in jobs]
    ran = [job["ran_s"] for job in jobs]
    middle = began + (ended - began) / 2
    grown = {
        name: _level(seen, name, ended - 5, ended + 60) / _level(seen, name, middle - 5, middle + 5)
        for name in local.processes
    }
    return {
        "visitors": options.visitors,
        "workers": local.workers,
        "seconds": round(ended - began, 1),
        "kill_every_s": options.kill_every,
        "kills": len(seen.kills),
        "visits": len(seen.visits),
        **{kind: outcomes[kind] for kind in ("right", "told", "wrong", "silent")},
        "visitors_lost": len(seen.left),
        "visit_s": _spread(answered),
        "job_wait_s": _spread(waited),
        "job_run_s": _spread(ran),
        "jobs": len(jobs),
        "turns": counted[0],
        "turns_at_once_on_a_worker": counted[1],
        # Little's law: so long a job would wait if all visitors' jobs stood in one line before the workers.
        "line_s": round(options.visitors * statistics.fmean(ran or [0.0]) / local.workers, 2),
        "memory_mib_at_half_time": {n: round(_level(seen, n, middle - 5, middle + 5) / 2**20) for n in local.processes},
        "memory_mib_at_the_end": {n: round(_level(seen, n, ended - 5, ended + 60) / 2**20) for n in local.processes},
        "memory_grown": {name: round(value, 3) for name, value in grown.items()},
        "restarts": local.metric("explorer_worker_restarts_total"),
        "cores": os.cpu_count(),
        "machine_load": [round(each, 1) for each in os.getloadavg()],
        "examples": [asdict(each) for each in seen.visits if each.outcome in ("wrong", "silent")][:5] + seen.left[:5],
    }


def _level(seen: Seen, name: str, start: float, end: float) -> float:
    """The median of a process's memory between two moments."""
    values = [held[name] for at, held in seen.memory if start <= at <= end and name in held]
    return statistics.median(values or [held[name] for _, held in seen.memory[-1:] if name in held] or [0.0]) or 1.0


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"p{round(100 * q)}": round(quantile(sorted(values), q), 2) for q in (0.5, 0.95)} | {
        "most": round(max(values), 2)
    }


def broken(figures: dict[str, Any]) -> list[str]:
    """The promises that were not kept, a sentence each."""
    found = [f"{figures[kind]} visits were {kind}" for kind in ("wrong", "silent") if figures[kind]]
    if figures["visitors_lost"]:
        found.append(f"{figures['visitors_lost']} visitors were lost")
    if figures["turns_at_once_on_a_worker"]:
        found.append(f"{figures['turns_at_once_on_a_worker']} turns ran beside another on their worker")
    if figures["told"] > figures["kills"] + (figures["kills"] > 0):
        found.append(f"{figures['told']} visits lost their worker in {figures['kills']} kills")
    if not figures["right"]:
        found.append("nobody got an answer")
    if not figures["kill_every_s"] and figures["seconds"] >= 60:
        found += [
            f"{name} grew by {grown:.2f} in the second half"
            for name, grown in figures["memory_grown"].items()
            if grown > FLAT
        ]
    return found


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--visitors", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--kill-every", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if not (0 < options.visitors <= MOST_VISITORS and 0 < options.seconds <= MOST_SECONDS):
        parser.error(f"1 … {MOST_VISITORS} visitors for at most {MOST_SECONDS:g} s")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), workers=options.workers) as local:
        found = asyncio.run(load(local, options))
    print(json.dumps(found, indent=1))
    problems = broken(found)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
