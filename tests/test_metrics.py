"""The operators' figures, taken from a real engine that ran real kernels."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from explorer import engine as engine_module
from explorer import measure, metrics
from explorer.clock import Protocol
from explorer.engine import Engine
from explorer.problem import Problem

PROBLEM = Problem(batch=1, q_len=8, kv_len=8, heads=1, kv_heads=1, head_dim=8, dtype="float32")
SHORT = Protocol(warmup=0, repeats=2)
VISITOR = "visitor-whose-name-nobody-may-see"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXPLORER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        engine = engine_module.start(workers=1)
        yield engine
        engine.close()


def run(engine: Engine, *backends: str) -> str:
    job = engine.submit(
        measure.run,
        {"problem": PROBLEM, "specs": backends, "protocol": SHORT},
        visitor=VISITOR,
        label="a secret shape",
        replace=False,
    )
    assert job.wait(120)
    assert job.state == "done"
    return job.id


def series(text: str) -> dict[str, float]:
    """Each sample as name{labels}: value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_port_answers_and_counts(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    is_alive = True
    operations = metrics.Operations(engine, port=0, alive=lambda: is_alive, host="127.0.0.1")
    try:
        assert engine.wait_ready(60)
        with caplog.at_level(logging.INFO, logger="explorer.jobs"):
            first = run(engine, "naive", "cudnn")  # the CPU has no cuDNN: refused
            run(engine, "naive")
            now = series(fetch(operations.port, "/metrics")[1])
        assert now["explorer_records_total{backend=naive,status=ok}"] == 2
        assert now["explorer_records_total{backend=cudnn,status=refused}"] == 1
        assert now["explorer_compiles_total{cache=miss}"] == 1
        assert now["explorer_compiles_total{cache=hit}"] == 1
        assert 0 < now["explorer_kernel_seconds_total{backend=naive}"] < 60
        assert "explorer_kernel_seconds_total{backend=cudnn}" not in now
        assert now["explorer_queue_length"] == now["explorer_jobs_waiting"] == now["explorer_jobs_running"] == 0
        assert now["explorer_workers"] == 1
        assert now["explorer_worker_restarts_total"] == 0
        ours = [r for r in caplog.records if r.name == "explorer.jobs" and getattr(r, "fields", {}).get("results")]
        assert now["explorer_wait_seconds_count"] == now["explorer_jobs_total{state=done}"] >= len(ours) >= 2
        lines = [metrics.JsonLines().format(record) for record in caplog.records]
        assert {json.loads(line)["logger"] for line in lines} >= {"explorer.jobs"}
        for hidden in (VISITOR, "secret shape", first):
            assert not any(hidden in line for line in lines)
            assert hidden not in fetch(operations.port, "/metrics")[1]

        operations.readiness.look()
        assert fetch(operations.port, "/ready") == (200, "A worker has run a kernel.")
        assert fetch(operations.port, "/live") == (200, "ok")
        is_alive = False
        assert fetch(operations.port, "/live")[0] == 503
        assert fetch(operations.port, "/else")[0] == 404
    finally:
        operations.close()


def test_a_killed_worker_is_counted_and_the_next_serves(engine: Engine) -> None:
    import os
    import signal

    assert engine.wait_ready(60)
    (worker,) = engine.stats().workers
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    assert engine.ask(metrics.prove, timeout_s=60) == 28.0
    now = series(metrics_text(engine))
    assert now["explorer_worker_restarts_total"] == 1
    assert now["explorer_workers"] == 1


def metrics_text(engine: Engine) -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(metrics.Meter(engine))  # pyright: ignore[reportArgumentType]
    return generate_latest(registry).decode()


def test_not_ready_before_a_kernel_ran_nor_after_the_end(tmp_path_factory: pytest.TempPathFactory) -> None:
    engine = engine_module.start("tcp://127.0.0.1:9", workers=1)  # nobody is there
    readiness = metrics.Readiness(engine)
    try:
        readiness.look()
        assert not readiness.is_proved
        assert "kernel" in readiness.reason
    finally:
        engine.close()
    readiness.is_proved = True
    readiness.look()
    assert not readiness.is_proved
    assert "shutting down" in readiness.reason


def test_waiting_times_fall_into_cumulative_buckets() -> None:
    seconds = metrics.Seconds()
    for value in (0.1, 0.2, 4.0, 1000.0):
        seconds.add(value)
    told = dict(seconds.buckets())
    assert (told["0.1"], told["0.5"], told["5"], told["300"], told["+Inf"]) == (1, 2, 3, 3, 4)
    assert seconds.total == pytest.approx(1004.3)


def test_a_job_s_id_and_label_stay_out_of_the_log(engine: Engine) -> None:
    job = engine.submit(metrics.prove, {}, visitor=VISITOR, label="secret shape")
    assert job.wait(60)
    record = logging.LogRecord("explorer.engine", logging.WARNING, "", 0, "worker %s died during %s", ("0", job), None)
    assert json.loads(metrics.JsonLines().format(record))["message"] == f"worker 0 died during a job ({job.state})"


def test_a_log_line_is_one_json_object() -> None:
    record = logging.LogRecord("explorer.x", logging.INFO, "", 0, "two\nlines", (), None)
    record.fields = {"state": "done"}
    line = metrics.JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line) | {"time": ""} == {
        "time": "",
        "severity": "INFO",
        "logger": "explorer.x",
        "message": "two\nlines",
        "state": "done",
    }
