"""Metrics: what an operator can watch. /metrics, /ready and /live on a port of their own, and one log line a job.

Nothing here tells who asked for what: no visitor, no label, no link of a job.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from explorer.job import OVER, Job
from explorer.record import STATUSES, Record

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

    from explorer.engine import Engine

TICK_S = 0.5
GONE_S = 60.0  # so long without any worker, and the app is no longer ready: the next one must prove itself
PROOF_S = 60.0
WAIT_BUCKETS_S = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)

log = logging.getLogger("explorer.jobs")


def prove() -> float:
    """Runs in the worker: one small kernel on its device, and the sum that it must give."""
    import jax
    import jax.numpy as jnp

    return float(jax.block_until_ready(jnp.arange(8, dtype=jnp.float32).sum()))


@dataclass(slots=True)
class Seconds:
    """A histogram by hand: prometheus_client's own can't be filled from counts."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BUCKETS_S) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        index = next((i for i, most in enumerate(WAIT_BUCKETS_S) if seconds <= most), len(WAIT_BUCKETS_S))
        self.counts[index] += 1
        self.total += seconds

    def buckets(self) -> Iterator[tuple[str, float]]:
        running = 0
        for most, count in zip((*map(str, WAIT_BUCKETS_S), "+Inf"), self.counts, strict=True):
            running += count
            yield most, running


class Meter:
    """Counts what the engine's jobs did. The engine keeps its last 100: to be asked before they are forgotten."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.records: dict[tuple[str, str], int] = {}
        self.kernel_s: dict[str, float] = {}
        self.compiles: dict[str, int] = {"hit": 0, "disk": 0, "miss": 0}
        self.wait, self.run = Seconds(), Seconds()
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}  # of jobs that are under way: how many results were counted
        self._closed: set[str] = set()

    def look(self) -> None:
        """Count what is new."""
        with self._lock:
            jobs = self.engine.jobs()
            for job in jobs:
                if job.id not in self._closed:
                    self._count(job)
            known = {job.id for job in jobs}
            self._closed &= known
            self._seen = {id: count for id, count in self._seen.items() if id in known}

    def _count(self, job: Job) -> None:
        is_over = job.is_over  # before the results: what comes later is for the next look
        results = job.results
        for result in results[self._seen.get(job.id, 0) :]:
            if isinstance(result, Record):
                self._count_record(result)
        self._seen[job.id] = len(results)
        if is_over:
            self._closed.add(job.id)
            ended = job.finished or time.time()
            waited = (job.started or ended) - job.created
            ran = ended - job.started if job.started else 0.0
            self.wait.add(waited)
            self.run.add(ran)
            log.info(
                "job",
                extra={
                    "fields": {
                        "state": job.state,
                        "priority": job.priority.name.lower(),
                        "points": len(job.points),
                        "results": len(results),
                        "worker": job.worker,
                        "waited_s": round(waited, 3),
                        "ran_s": round(ran, 3),
                        "error_type": job.error_type,
                    }
                },
            )

    def _count_record(self, record: Record) -> None:
        key = (record.backend, record.status)
        self.records[key] = self.records.get(key, 0) + 1
        if (timing := record.timing) is not None:
            spent = sum(timing.wall_ms.values) + timing.first_call_ms
            self.kernel_s[record.backend] = self.kernel_s.get(record.backend, 0.0) + spent / 1e3
            self.compiles["hit" if timing.cache_hit else "disk" if timing.disk_hit else "miss"] += 1

    def collect(self) -> Iterable[Metric]:
        """For prometheus_client's registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        self.look()
        stats = self.engine.stats()
        yield GaugeMetricFamily(
            "explorer_queue_length",
            "Jobs that wait or run: what the scaler of workers goes by.",
            stats.waiting + stats.running,
        )
        yield GaugeMetricFamily("explorer_jobs_waiting", "Jobs that wait.", stats.waiting)
        yield GaugeMetricFamily("explorer_jobs_running", "Jobs that run.", stats.running)
        yield GaugeMetricFamily("explorer_workers", "Workers that are there.", len(stats.workers))
        yield GaugeMetricFamily("explorer_workers_busy", "Workers with a job.", sum(w.is_busy for w in stats.workers))
        yield CounterMetricFamily("explorer_worker_restarts", "Workers that were lost without notice.", stats.restarts)
        jobs = CounterMetricFamily("explorer_jobs", "Jobs that are over.", labels=["state"])
        for state in sorted(OVER):
            jobs.add_metric([state], stats.jobs.get(state, 0))
        yield jobs
        with self._lock:
            records = CounterMetricFamily(
                "explorer_records", "Results, by what came of them.", labels=["backend", "status"]
            )
            for (backend, status), count in sorted(self.records.items()):
                assert status in STATUSES
                records.add_metric([backend, status], count)
            yield records
            kernels = CounterMetricFamily(
                "explorer_kernel_seconds",
                "Wall time of measured calls that agreed, first calls included.",
                labels=["backend"],
            )
            for backend, seconds in sorted(self.kernel_s.items()):
                kernels.add_metric([backend], seconds)
            yield kernels
            compiles = CounterMetricFamily(
                "explorer_compiles",
                "Where the compiled program came from: memory, disk, or the compiler.",
                labels=["cache"],
            )
            for kind, count in self.compiles.items():
                compiles.add_metric([kind], count)
            yield compiles
            for name, about, seconds in (
                (
                    "explorer_wait_seconds",
                    "From a job's asking to its beginning, or to its end without one.",
                    self.wait,
                ),
                ("explorer_run_seconds", "From a job's beginning to its end.", self.run),
            ):
                yield HistogramMetricFamily(name, about, buckets=list(seconds.buckets()), sum_value=seconds.total)


class Readiness:
    """Ready: a worker has run a kernel, and there has been a worker within the last minute."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_proved = False
        self.reason = "No worker has run a kernel yet."
        self._last_seen = time.monotonic()

    def look(self) -> None:
        """May take as long as the proof; call it from a thread of its own."""
        stats = self.engine.stats()
        if stats.state == "closed":
            self.is_proved, self.reason = False, "The app is shutting down."
            return
        if stats.workers:
            self._last_seen = time.monotonic()
        elif time.monotonic() - self._last_seen > GONE_S:
            self.is_proved, self.reason = False, stats.trouble or "No worker is there."
        if stats.workers and not self.is_proved:
            try:
                if (got := self.engine.ask(prove, timeout_s=PROOF_S)) != 28.0:
                    raise RuntimeError(f"0 + 1 + … + 7 came out as {got}")
                self.is_proved, self.reason = True, "A worker has run a kernel."
            except (TimeoutError, RuntimeError) as error:
                self.reason = str(error)


class Operations:
    """The operators' port. alive: whether the web server answers, asked at each /live."""

    def __init__(self, engine: Engine, *, port: int, alive: Callable[[], bool], host: str = "") -> None:
        from prometheus_client import CollectorRegistry

        self.meter, self.readiness = Meter(engine), Readiness(engine)
        self.registry: CollectorRegistry = CollectorRegistry()
        self.registry.register(self.meter)  # pyright: ignore[reportArgumentType]  it has collect, which is all that is asked
        self._alive, self._ended = alive, threading.Event()
        self._server = ThreadingHTTPServer((host, port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="operations", daemon=True),
            threading.Thread(target=self._every, args=(self.meter.look,), name="meter", daemon=True),
            threading.Thread(target=self._every, args=(self.readiness.look,), name="readiness", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self.meter.look()

    def _every(self, look: Callable[[], None]) -> None:
        while not self._ended.wait(TICK_S):
            try:
                look()
            except Exception:  # the watching must outlive whatever it stumbles over
                logging.getLogger(__name__).exception("an operator's figure could not be taken")

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self.registry)
        if path == "/ready":
            ready = self.readiness
            return 200 if ready.is_proved else 503, "text/plain; charset=utf-8", ready.reason.encode()
        if path == "/live":
            return (
                (200, "text/plain", b"ok") if self._alive() else (503, "text/plain", b"the web server does not answer")
            )
        return 404, "text/plain", b"/metrics, /ready and /live are here"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                status, kind, body = answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Probes every few seconds are no news."""

        return Handler


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and what the caller put into extra={"fields": ...}.

    A job is named by its state only: its id opens it, and its label is what its visitor asked.
    """

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.args, tuple):
            record.args = tuple(f"a job ({each.state})" if isinstance(each, Job) else each for each in record.args)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "severity": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def structured_logs() -> None:
    """Every logger of this process writes JSON lines to stderr, the web server's and Streamlit's too."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("explorer").setLevel(logging.INFO)
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        if logger.handlers and name.partition(".")[0] in ("streamlit", "uvicorn"):
            logger.handlers[:] = [handler]
