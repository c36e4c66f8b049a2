"""The CPU overlay's commands, settings and TLS as processes of this machine: what no single process can show.

Scheduler, two workers, app and (where it is installed) nginx, started from the rendered manifests by deploy/local.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deploy import check
from deploy.local import Local, running
from explorer import engine as engine_module
from explorer import measure
from explorer.clock import Protocol
from explorer.engine import Call, Engine
from explorer.problem import Problem
from explorer.record import Record
from tests.load.visitor import Visitor, cookie

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.timeout(400)  # a loaded machine starts four processes slowly
NGINX = shutil.which("nginx")
PROBLEM = Problem(batch=1, q_len=32, kv_len=32, heads=2, kv_heads=2, head_dim=8, dtype="float32")
SHORT = Protocol(warmup=0, repeats=3)
LONG = Protocol(warmup=0, repeats=400, limit_s=1.0)
needs_nginx = pytest.mark.skipif(NGINX is None, reason="needs nginx (apt-get install nginx-light)")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with running(tmp_path_factory.mktemp("local"), has_front=NGINX is not None) as local:
        yield local


@pytest.fixture
def engine(local: Local, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A second app on the same cluster, with the first one's certificate."""
    for part, file in {"CA": "ca.crt", "CERT": "tls.crt", "KEY": "tls.key"}.items():
        monkeypatch.setenv(f"EXPLORER_TLS_{part}", str(local.tls / "app" / file))
    engine = engine_module.start(local.scheduler)
    try:
        wait_for(lambda: len(engine.stats().workers) == 2, 60)
        yield engine
    finally:
        engine.close()


def wait_for(holds: Callable[[], bool], patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.1)


def fetch(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def point(seed: int, protocol: Protocol = SHORT) -> Call:
    return Call(measure.run, {"problem": PROBLEM.but(seed=seed), "specs": ["naive"], "protocol": protocol})


# --- TLS


def log_of(local: Local, name: str) -> str:
    return local.processes[name].log.read_text()


def test_every_link_is_encrypted(local: Local) -> None:
    assert "tls://" in log_of(local, "scheduler")
    assert "tcp://" not in log_of(local, "scheduler")
    assert local.scheduler.startswith("tls://")


@pytest.mark.parametrize("papers", ["none", "of another authority"])
def test_a_worker_without_the_certificate_is_refused(local: Local, tmp_path: Path, papers: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("EXPLORER_TLS")}
    if papers != "none":
        check.output(check.HERE / "certificates.sh", tmp_path / "tls")
        for part, file in {"CA": "ca.crt", "CERT": "tls.crt", "KEY": "tls.key"}.items():
            env[f"EXPLORER_TLS_{part}"] = str(tmp_path / "tls/worker" / file)
    address = local.scheduler if papers != "none" else local.scheduler.replace("tls", "tcp")
    before = len(log_of(local, "scheduler"))
    intruder = subprocess.Popen(
        [sys.executable, "-m", "explorer.worker", address, "--name", "intruder", "--host", "127.0.0.1"],
        env=env | {"PYTHONPATH": str(check.ROOT), "EXPLORER_LOAD_LIBRARIES": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: "TLS handshake failed" in log_of(local, "scheduler")[before:], 60)
        time.sleep(3)  # for another try
        assert "intruder" not in log_of(local, "scheduler")
        assert local.metric("explorer_workers") == 2
    finally:
        os.killpg(intruder.pid, signal.SIGKILL)
        intruder.wait()


# --- the way in


def test_nothing_opens_without_the_token(local: Local) -> None:
    status, _, body = fetch(f"{local.url}/")
    assert (status, b'name="token"' in body) == (401, True)
    assert fetch(f"{local.url}/static/js/x.js")[0] == 401
    assert fetch(f"{local.url}/_stcore/health")[::2] == (200, b"ok")
    assert local.token not in log_of(local, "app")  # it was given, so nobody needs to be told


@needs_nginx
def test_front_compresses_and_hides_what_is_for_operators(local: Local) -> None:
    pass_ = cookie(local.url, local.token)
    page = fetch(f"{local.url}/", Cookie=pass_)[2].decode()
    script = next(part.split('"')[0] for part in page.split('src="')[1:] if ".js" in part.split('"')[0])
    path = f"{local.url}/{script.removeprefix('./').lstrip('/')}"
    status, headers, body = fetch(path, Cookie=pass_, **{"Accept-Encoding": "gzip"})
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    whole = fetch(path, Cookie=pass_)[2]
    assert gzip.decompress(body) == whole
    assert len(body) < len(whole) / 2
    for hidden in ("/metrics", "/ready", "/_stcore/metrics"):
        assert fetch(f"{local.url}{hidden}", Cookie=pass_)[0] == 404
    access = (local.folder / "front" / "access.log").read_text().splitlines()
    assert access
    assert json.loads(access[-1]).keys() == {"time", "method", "status", "bytes", "seconds"}


def test_operators_port_answers(local: Local) -> None:
    assert local.get("/ready") == (200, "A worker has run a kernel.")
    assert local.get("/live")[0] == 200
    assert all((local.folder / f"tmp-worker-{number}-explorer-ran-a-kernel").exists() for number in (0, 1))


# --- many workers


def records(job: Any) -> list[Record]:
    return [result for result in job.results if isinstance(result, Record)]


def seeds(job: Any) -> list[int]:
    return [record.problem.seed for record in records(job) if record.status == "ok"]


def test_a_worker_sent_away_in_a_sweep_loses_nothing(local: Local, engine: Engine) -> None:
    """As at a scale-down: SIGTERM to the pod's command. Then it comes back, as a scale-up does."""
    sweep = engine.submit_many([point(seed, LONG) for seed in range(8)], visitor="a")
    wait_for(lambda: len(records(sweep)) >= 2, 120)
    first = records(sweep)[0].environment["worker"]
    number = int(first.removeprefix("worker-"))
    local.processes[first].end()
    assert sweep.wait(180)
    assert seeds(sweep) == list(range(8))
    after = records(sweep)[-1].environment["worker"]
    assert after != first
    local.start_worker(number)
    wait_for(lambda: len(engine.stats().workers) == 2, 90)
    assert [job for job in (sweep,) if job.state == "done"]


def test_a_worker_that_joins_in_a_sweep_changes_nothing(local: Local, engine: Engine) -> None:
    local.processes["worker-1"].end()
    wait_for(lambda: len(engine.stats().workers) == 1, 60)
    sweep = engine.submit_many([point(seed, LONG) for seed in range(6)], visitor="a")
    wait_for(lambda: sweep.state == "running", 60)
    local.start_worker(1)
    wait_for(lambda: len(engine.stats().workers) == 2, 90)
    assert sweep.wait(180)
    assert seeds(sweep) == list(range(6))
    assert {record.environment["worker"] for record in records(sweep)} == {"worker-0"}


def test_a_killed_worker_costs_one_point_and_says_so(local: Local, engine: Engine) -> None:
    sweep = engine.submit_many([point(seed, LONG) for seed in range(6)], visitor="a")
    wait_for(lambda: len(records(sweep)) >= 2, 120)
    name = records(sweep)[0].environment["worker"]
    pid = local.worker_pid(int(name.removeprefix("worker-")))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert sweep.wait(180)
    lost = [each for each in sweep.points if each.state == "failed"]
    assert len(lost) <= 1
    assert len(seeds(sweep)) == 6 - sum(not each.results for each in lost)  # it may have told its result before
    assert all("worker process died" in (each.error or "") for each in lost)


# --- visitors


# --- the end: nothing comes after this one


def test_graceful_stop(local: Local) -> None:
    """The running points end and are shown, the waiting is told, and only then is the app gone."""
    app = local.processes["app"]
    assert app.popen is not None
    slow = Problem(batch=4, q_len=512, kv_len=512, heads=8, kv_heads=8, head_dim=64, dtype="float32")
    pass_ = cookie(local.url, local.token)

    async def stop_under_load() -> list[str]:
        visitors = [Visitor(number, local.url, pass_, slow) for number in range(3)]
        async with contextlib.AsyncExitStack() as tabs:
            for number, visitor in enumerate(visitors):
                await tabs.enter_async_context(visitor.session(seed=number))
            wait_text = "Waiting in the queue"
            said = [asyncio.create_task(visitor.read(f"{wait_text}|Running ", 90)) for visitor in visitors]
            await asyncio.gather(*said)
            while local.metric("explorer_jobs_running") < 2:
                await asyncio.sleep(0.1)
            os.kill(app.pid, signal.SIGTERM)
            return await asyncio.gather(*(each.read("Largest error|The app is shutting down", 90) for each in visitors))

    told = asyncio.run(stop_under_load())
    assert sum("Largest error" in each for each in told) == 2
    assert sum("shutting down" in each for each in told) == 1
    assert app.popen.wait(60) in (0, -signal.SIGTERM)  # uvicorn ends by the signal that asked it to
    lines = [json.loads(line) for line in log_of(local, "app").splitlines() if line.startswith("{")]
    assert any(line["message"] == "stopping" and line["waiting"] == 1 for line in lines)
    assert lines[-1]["message"] == "stopped"
    assert not any("Traceback" in json.dumps(line) for line in lines)
