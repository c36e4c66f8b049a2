"""Local: an overlay as plain processes on this machine, with the commands, settings and TLS of its manifests.

`python -m deploy.local` runs cpu-demo (scheduler, two workers, app) until Ctrl-C; the tests and the load script use it
too. What Kubernetes adds (network policies, probes, limits) is not there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from deploy import check

ROOT = check.ROOT
HOST = "127.0.0.1"
READY_S = 180.0
END_S = 20.0


def free_ports(count: int) -> list[int]:
    """Ports that nothing uses now."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in taken]


@dataclass(kw_only=True, eq=False)
class Process:
    """One container's command."""

    name: str
    command: list[str]
    env: dict[str, str]
    log: Path
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def end(self, patience_s: float = END_S) -> int | None:
        """Its exit code; whatever is left of its session is killed."""
        if self.popen is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            self.popen.terminate()
        try:
            return self.popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()


@dataclass(kw_only=True)
class Local:
    """An overlay's processes. Ports stand for the pods' addresses."""

    folder: Path
    overlay: str = "cpu-demo"
    workers: int = 2
    has_front: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment for the app beyond its manifest's."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    processes: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = check.manifests(check.render(f"overlays/{self.overlay}"))
        self._specs: dict[str, Any] = {
            m["metadata"]["name"]: m["spec"]["template"]["spec"]
            for m in found
            if m["kind"] in ("Deployment", "StatefulSet")
        }
        self._front = next(m["data"]["nginx.conf"] for m in found if m["kind"] == "ConfigMap")
        self._ports = dict(zip(("dask", "health", "app", "ops", "front"), free_ports(5), strict=True))
        self._worker_ports = [free_ports(3) for _ in range(self.workers)]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._ports['front' if self.has_front else 'app']}"

    @property
    def operations(self) -> str:
        return f"http://{HOST}:{self._ports['ops']}"

    @property
    def scheduler(self) -> str:
        return f"tls://{HOST}:{self._ports['dask']}"

    @property
    def tls(self) -> Path:
        return self.folder / "tls"

    def get(self, path: str, timeout_s: float = 10.0) -> tuple[int, str]:
        """From the operators' port."""
        try:
            with urllib.request.urlopen(self.operations + path, timeout=timeout_s) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """Of /metrics; the sum over the series that have these labels."""
        total, is_there = 0.0, False
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith((f"{name} ", f"{name}{{")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total, is_there = total + float(line.rsplit(" ", 1)[1]), True
        if not is_there:
            raise KeyError(f"no metric {name} with {labels}")
        return total

    def start(self) -> None:
        if not self.tls.exists():
            check.output(check.HERE / "certificates.sh", self.tls)
        self._start("scheduler", "scheduler", self._container("scheduler"))
        for number in range(self.workers):
            self.start_worker(number)
        extra = {"EXPLORER_TOKEN": self.token, **self.settings}
        self._start("app", "app", self._container("app"), extra)
        if self.has_front:
            self._start_front()

    def start_worker(self, number: int, **env: str) -> Process:
        return self._start(f"worker-{number}", "worker", self._container("worker"), env, number=number)

    def wait_ready(self, patience_s: float = READY_S) -> None:
        """Until the app says that a worker has run a kernel, and every worker that it has."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            for process in self.processes.values():
                if not process.is_running:
                    raise RuntimeError(f"{process.name} ended:\n{process.log.read_text()[-2000:]}")
            with contextlib.suppress(OSError):
                if self.get("/ready")[0] == 200 and self.metric("explorer_workers") >= self.workers:
                    return
            time.sleep(0.3)
        raise TimeoutError(f"not ready within {patience_s:g} s: {self.get('/ready')[1]}")

    def worker_pid(self, number: int) -> int | None:
        """Of the process with JAX, the nanny's child; None while there is none."""
        name = f"worker-{number}"
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.processes[name].pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any(c.laddr.port == self._worker_ports[number][0] for c in child.net_connections("tcp")):
                        return child.pid
        return None

    def close(self) -> dict[str, int | None]:
        """In the order in which Kubernetes would not leave anything to be told; the exit code of each."""
        order = sorted(self.processes, key=lambda name: (name == "scheduler", name.startswith("worker"), name))
        return {name: self.processes[name].end() for name in order}

    # --- from a manifest to a command

    def _container(self, workload: str) -> dict[str, Any]:
        return self._specs[workload]["containers"][0]

    def _start(
        self,
        name: str,
        role: str,
        container: Mapping[str, Any],
        extra: Mapping[str, str] | None = None,
        *,
        number: int = 0,
    ) -> Process:
        env = {
            each["name"]: self._here(each["value"], role, number) if "value" in each else name
            for each in container.get("env", [])
        } | {"EXPLORER_OPS_HOST": HOST, "STREAMLIT_SERVER_FILE_WATCHER_TYPE": "none", **(extra or {})}
        own = [f"--host={HOST}"] if role == "worker" else []  # a pod listens on its own address
        args = [self._here(arg, role, number).replace("$(EXPLORER_WORKER)", name) for arg in container["args"]] + own
        process = Process(name=name, command=[*_program(args[0]), *args[1:]], env=env, log=self.folder / f"{name}.log")
        process.start()
        self.processes[name] = process
        return process

    def _here(self, text: str, role: str, number: int) -> str:
        """A manifest's value with this machine's paths and ports in place of the pod's."""
        worker = dict(zip(("8788", "8789", "8790"), map(str, self._worker_ports[number]), strict=True))
        places = {
            "--host=tls://0.0.0.0": f"--host=tls://{HOST}",
            "tls://scheduler:8786": self.scheduler,
            "--port=8786": f"--port={self._ports['dask']}",
            "--dashboard-address=:8787": f"--dashboard-address={HOST}:{self._ports['health']}",
            "--port=8788": f"--port={worker['8788']}",
            "--nanny-port=8789": f"--nanny-port={worker['8789']}",
            "--health-port=8790": f"--health-port={worker['8790']}",
            "--server.port=8501": f"--server.port={self._ports['app']}",
            "9400": str(self._ports["ops"]),
            "/tls/": f"{self.tls}/{role}/",
            "/cache": str(self.folder / "cache"),
            "/tmp/": f"{self.folder}/tmp-{role}-{number}-",
        }
        for pod, here in places.items():
            if text == pod or (pod.startswith("/") and text.startswith(pod)) or (pod.endswith("/") and pod in text):
                return text.replace(pod, here)
        return text

    def _start_front(self) -> None:
        (self.folder / "front").mkdir(exist_ok=True)
        config = self._front
        for pod, here in {
            "127.0.0.1:8501": f"{HOST}:{self._ports['app']}",
            "listen 8080": f"listen {HOST}:{self._ports['front']}",
            "/tmp/": f"{self.folder}/front/",
            "/dev/stdout": f"{self.folder}/front/access.log",
        }.items():
            assert pod in config, pod
            config = config.replace(pod, here)
        path = self.folder / "front" / "nginx.conf"
        path.write_text(config)
        command = [check.tool("nginx"), "-c", str(path), "-e", "stderr", "-g", "daemon off;"]
        process = Process(name="front", command=command, env={}, log=self.folder / "front.log")
        process.start()
        self.processes["front"] = process


def _program(name: str) -> list[str]:
    """A program of the image: here, of this Python's environment. It ends with this process, however that ends."""
    leash = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    if name == "python":
        return [*leash, sys.executable]
    return [*leash, sys.executable, str(Path(sys.executable).parent / name)]


@contextlib.contextmanager
def running(folder: Path, **options: Any) -> Iterator[Local]:
    """Started, ready, and gone at the end."""
    local = Local(folder=folder, **options)
    try:
        local.start()
        local.wait_ready()
        yield local
    finally:
        local.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    parser.add_argument("--overlay", choices=check.OVERLAYS, default="cpu-demo")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--front", action="store_true", help="with nginx before the app, as in the pod")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), overlay=options.overlay, workers=options.workers, has_front=options.front) as local,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"{local.url}/?token={local.token}", flush=True)
        print(f"{local.operations}/metrics, /ready, /live   (logs in {folder}; Ctrl-C ends it)", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
