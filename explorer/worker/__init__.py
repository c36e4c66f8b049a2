"""The worker: the only process that imports JAX, one per GPU. `python -m explorer.worker ADDRESS` runs one."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import os
import pickle
import signal
import threading
import time
import traceback
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Nanny, Security, Worker

MOST_RESULT_BYTES = 64 * 2**20
PROGRESS_EVERY_S = 0.03
# Dask keeps this many past messages in each of several logs; ours hold results, so the default of 1000 would add up.
DASK_LOG_LENGTH = 10
FROM_STDIN = "-"

_loading: threading.Thread | None = None
_to_cancel: OrderedDict[str, None] = OrderedDict()


def gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them; asks NVML, opens no CUDA context."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    try:
        import pynvml

        pynvml.nvmlInit()
        return [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # noqa: BLE001  NVML has a class for each cause; all mean that no GPU can be counted
        return []


def cache_dir() -> Path:
    """Where compiled programs are kept; EXPLORER_CACHE_DIR overrides the user's own cache directory."""
    if own := os.environ.get("EXPLORER_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attention-explorer"


def set_environment() -> None:
    """What must stand in the environment before JAX is imported. Values that the user has set win."""
    from explorer import te

    for name, value in {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "DASK_LOGGING__DISTRIBUTED": "critical",
    }.items():
        os.environ.setdefault(name, value)
    if not te.has_driver():  # JAX's CUDA plugin would log a traceback each time, and then take the CPU
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def load_libraries() -> None:
    """Import TransformerEngine, where it can work, and then JAX: the other order mixes two cuDNN libraries."""
    from explorer import te

    te.prepare()
    importlib.import_module("jax")


def security() -> Security:
    """TLS from EXPLORER_TLS_CA, _CERT and _KEY; without them, what Dask's own settings say."""
    from distributed import Security

    given = {name: os.environ.get(f"EXPLORER_TLS_{name}") for name in ("CA", "CERT", "KEY")}
    if not any(given.values()):
        return Security()
    if missing := [f"EXPLORER_TLS_{name}" for name, value in given.items() if not value]:
        raise ValueError(f"TLS needs EXPLORER_TLS_CA, EXPLORER_TLS_CERT and EXPLORER_TLS_KEY; {missing} not set")
    roles = {f"tls_{role}_{part}": given[part.upper()] for role in ("client", "worker") for part in ("cert", "key")}
    return Security(require_encryption=True, tls_ca_file=given["CA"], **roles)


def quiet_dask() -> None:
    """Settings that must stand before distributed is imported. DASK_LOGGING__DISTRIBUTED=info shows its log again."""
    import dask.config

    if dask.config.get("logging", None) is None:
        names = ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application")
        dask.config.set({"logging": dict.fromkeys(names, "critical")})
    dask.config.set({"distributed.admin.low-level-log-length": DASK_LOG_LENGTH})


def first_line(error: BaseException) -> str:
    """Type and first line of an error, as one sentence to show."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:500] if lines else type(error).__name__


# --- in the worker process


def dask_setup(worker: Worker) -> None:
    """Dask calls this as the module is its preload: the libraries load meanwhile, so that a first run is quick."""
    global _loading
    worker.startup_information["explorer"] = facts
    if os.environ.get("EXPLORER_LOAD_LIBRARIES") != "0":
        _loading = threading.Thread(target=_load_and_prove, name="load-libraries", daemon=True)
        _loading.start()


def dask_teardown(worker: Worker) -> None:
    """Dask calls this as the worker closes. Where the scheduler is gone, what still runs would be told to nobody.

    Dask would wait half a minute for it, and only then look for the scheduler again.
    """
    stream = worker.batched_stream
    if stream is None or stream.closed():
        os._exit(1)


def _load_and_prove() -> None:
    """With EXPLORER_READY_FILE, the file appears once a kernel has run here: the device and its libraries work."""
    load_libraries()
    if path := os.environ.get("EXPLORER_READY_FILE"):
        import jax

        jax.block_until_ready(jax.numpy.ones(8) + 1)
        Path(path).touch()


def facts(worker: Worker) -> dict[str, Any]:
    """What the engine tells about a worker."""
    return {"pid": os.getpid(), "gpu": ",".join(gpus()) or None}


def cancel(turn: str) -> None:
    """Called by the engine, beside a running turn: it ends at its next yield, or where it asks cancelled()."""
    _to_cancel[turn] = None
    while len(_to_cancel) > 1000:  # those that came after their turn was over
        _to_cancel.popitem(last=False)


def kill(dask_worker: Nanny) -> None:
    """Called in the nanny: a kernel can't be interrupted, so the worker goes; the nanny starts another."""
    import psutil

    if dask_worker.pid is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(dask_worker.pid)
            for child in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def kill_itself() -> None:
    """For a worker without a nanny (whoever started it must start another)."""
    os.kill(os.getpid(), signal.SIGKILL)


class Turn:
    """One call's turn on this worker: what it tells the engine, and whether it should stop."""

    def __init__(self, worker: Worker, topic: str, turn: str) -> None:
        self.worker, self.topic, self.turn = worker, topic, turn
        self.was_told = False
        self._count = 0
        self._last_progress = 0.0
        self._item: Any = None

    def _message(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        return {"turn": self.turn, "kind": kind, "count": self._count, **content}

    def tell(self, kind: str, **content: Any) -> None:
        self.worker.log_event(self.topic, self._message(kind, content))

    def tell_surely(self, kind: str, **content: Any) -> None:
        """Returns when the scheduler has it: what was told before a crash is then known, to the last word."""
        send = self.worker.scheduler.log_event(topic=self.topic, msg=self._message(kind, content))
        asyncio.run_coroutine_threadsafe(send, self.worker.loop.asyncio_loop).result()  # pyright: ignore

    def result(self, value: object) -> bytes:
        try:
            content = pickle.dumps(value, protocol=5)
        except Exception as error:
            kind = type(value).__name__
            raise TypeError(
                f"a result must be plain data that can be sent, got {kind} ({first_line(error)})"
            ) from error
        if len(content) > MOST_RESULT_BYTES:
            most, got = MOST_RESULT_BYTES // 2**20, len(content) / 2**20
            raise ValueError(f"a result may have {most} MiB at most, got {got:.0f} MiB; send a part")
        return content

    def report(self, done: float, total: float, text: str = "", item: object = None) -> None:
        """Progress; item says what is under way, and is known even if the next call kills the process."""
        if item != self._item:
            self._item = item
            self.tell_surely("progress", progress=(done, total, text), item=pickle.dumps(item))
        elif done >= total or time.monotonic() - self._last_progress > PROGRESS_EVERY_S:
            self.tell("progress", progress=(done, total, text))
        else:
            return
        self._last_progress = time.monotonic()

    def cancelled(self) -> bool:
        if self.turn in _to_cancel:
            self.was_told = True
        return self.was_told

    def run(self, payload: bytes) -> dict[str, bytes]:
        """Tells what a generator yields as it comes; the value of a function goes with the end.

        A function that takes cancelled() decides itself where to stop, and what it still has to say.
        """
        function, kwargs = pickle.loads(payload)
        wanted = inspect.signature(function).parameters
        offered = {"report": self.report, "cancelled": self.cancelled}
        kwargs = {name: value for name, value in offered.items() if name in wanted} | kwargs
        if not inspect.isgeneratorfunction(function):
            return {"value": self.result(function(**kwargs))}
        with contextlib.closing(function(**kwargs)) as results:
            for value in results:
                self.tell_surely("result", value=self.result(value))
                if "cancelled" not in wanted and self.cancelled():
                    break
        return {}


def perform(topic: str, turn: str, payload: bytes) -> None:
    """A turn of the queue: the Dask task. Everything goes to the engine as events, errors too."""
    from distributed import get_worker

    if _loading is not None:
        _loading.join()  # two threads importing JAX at once see it half made
    call = Turn(get_worker(), topic, turn)
    try:
        if call.cancelled():
            call.tell("ended", state="cancelled")
            return
        call.tell_surely("begun")
        value = call.run(payload)
        call.tell("ended", state="cancelled" if call.was_told else "done", **value)
    except BaseException as error:  # noqa: BLE001  SystemExit must not take Dask's thread along
        sentence = str(error) if isinstance(error, ValueError) and str(error) else first_line(error)
        call.tell(
            "ended",
            state="failed",
            error=sentence,
            error_type=type(error).__name__,
            traceback=traceback.format_exc(limit=-8),
        )
    finally:
        _to_cancel.pop(turn, None)
