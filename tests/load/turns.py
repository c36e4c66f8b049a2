"""Turns: what ran when, by the workers' own account, so that two at once on one worker would be seen."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from distributed import Client, Security, WorkerPlugin

from deploy.local import Local


class TurnLog(WorkerPlugin):
    """In each worker process: a line when a task begins to execute, and one when it no longer does."""

    name = "explorer-load-turns"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def setup(self, worker: Any) -> None:
        self.path = Path(self.folder, f"{worker.name}.{os.getpid()}")

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        is_over = finish in ("released", "forgotten", "memory", "error")
        if finish == "executing":
            self._write("begins", key)
        elif is_over and start in ("executing", "cancelled", "resumed"):
            self._write("ends", key)

    def _write(self, what: str, key: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([time.time(), what, str(key)]) + "\n")


async def install(local: Local, folder: Path) -> None:
    """On every worker that is there, and on each that is started again."""
    folder.mkdir(exist_ok=True)
    tls = {"tls_client_cert": str(local.tls / "app/tls.crt"), "tls_client_key": str(local.tls / "app/tls.key")}
    security = Security(require_encryption=True, tls_ca_file=str(local.tls / "app/ca.crt"), **tls)
    async with Client(local.scheduler, security=security, asynchronous=True, set_as_default=False) as client:
        await client.register_plugin(TurnLog(str(folder)))


def count(folder: Path, since: float) -> tuple[int, int]:
    """Turns that began since then, and how many of them began while another ran on the same worker.

    A process that was killed ends what it ran: its successor's file begins later.
    """
    turns = overlapping = 0
    by_worker: dict[str, list[tuple[float, float]]] = {}
    for path in sorted(folder.iterdir()):
        begun: dict[str, float] = {}
        last = 0.0
        spans = by_worker.setdefault(path.name.partition(".")[0], [])
        for text in path.read_text().splitlines():
            last, what, key = json.loads(text)
            if what == "begins":
                begun[key] = last
            elif key in begun:
                spans.append((begun.pop(key), last))
        spans += [(start, max(start, last)) for start in begun.values()]
    for spans in by_worker.values():
        spans.sort()
        turns += sum(start >= since for start, _ in spans)
        overlapping += sum(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))
    return turns, overlapping
