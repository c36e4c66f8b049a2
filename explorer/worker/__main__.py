"""The worker's command: a nanny, and the worker that it starts again whenever that dies.

multiprocessing leaves a module of this name alone where others would be imported once more in the worker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer import worker

if TYPE_CHECKING:
    from distributed import Nanny

LEAVE_S = 5.0
AGAIN_S = 2.0
MOST_DEATHS = 3  # in a row at its start; a worker that always dies there is given up


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m explorer.worker", description="A worker for the queue: nanny and worker process."
    )
    parser.add_argument("address", help="of the Dask scheduler; - reads it from stdin, and ends when stdin does")
    parser.add_argument("--name", help="kept when the nanny restarts the worker; sweeps are pinned to it")
    parser.add_argument("--host", help="address to listen on; default: the one that reaches the scheduler")
    parser.add_argument("--port", type=int, default=0, help="that the scheduler reaches the worker at; default: any")
    parser.add_argument("--nanny-port", type=int, default=0, help="the same of its nanny")
    parser.add_argument("--health-port", type=int, help="answers /health over HTTP on every interface")
    parser.epilog = "EXPLORER_LOAD_LIBRARIES=0 in the environment: don't import JAX ahead."
    options = parser.parse_args(arguments)
    worker.set_environment()
    _start_fork_server()
    worker.quiet_dask()
    if options.address == worker.FROM_STDIN:
        import distributed  # noqa: F401  while the scheduler starts

        options.address = sys.stdin.readline().strip()
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        if not options.address:
            return 1
    return asyncio.run(_run(options))


def _start_fork_server() -> None:
    """Workers are forked from a process that has Dask imported, and never JAX: one that dies is soon back."""
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(["distributed", "explorer.worker"])
    forkserver.ensure_running()


def _end_with_stdin() -> None:
    """The parent is gone, however it ended. start_new_session made us a group of our own: nothing of it stays."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


async def _run(options: argparse.Namespace) -> int:
    import dask.config
    import distributed.utils

    distributed.utils._forkserver_preload_set = True  # else Dask imports pandas here, to name it for the fork server
    dask.config.set(
        {
            "distributed.worker.multiprocessing-method": "forkserver",
            # Samples the running thread's stack every 10 ms: it would disturb the clock.
            "distributed.worker.profile.enabled": False,
            "distributed.diagnostics.nvml": False,
            "distributed.worker.http.routes": ["distributed.http.health"] if options.health_port else [],
            # Dask's default holds NumPy to one thread: the float64 reference would take twice as long, or more.
            "distributed.nanny.pre-spawn-environ": {"MALLOC_TRIM_THRESHOLD_": 65536},
        }
    )
    leaving = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, leaving.set)
    has_served, died = False, 0
    while not leaving.is_set():
        try:
            async with _nanny(options) as nanny:
                has_served, died = True, 0
                await asyncio.wait(
                    [asyncio.ensure_future(nanny.finished()), asyncio.ensure_future(leaving.wait())],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if leaving.is_set():
                    await _leave(nanny)
        except Exception as error:  # noqa: BLE001  Dask wraps whatever kept the nanny from starting
            if _has_died(error) and died < MOST_DEATHS:  # ended, as by kill -9, before the nanny had taken note of it
                died += 1
                continue
            print(
                f"worker: no way to {options.address}: {worker.first_line(error.__cause__ or error)}", file=sys.stderr
            )
            if not has_served and not _was_cut(error):
                return 1
        # The scheduler is gone, and with it our place: it may come back.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(leaving.wait(), AGAIN_S)
    return 0


def _has_died(error: Exception) -> bool:
    """Whether the worker process ended while the nanny was starting; the scheduler may have known it by then."""
    cause = error.__cause__ or error
    return isinstance(cause, RuntimeError) and "failed to start worker process" in str(cause)


def _was_cut(error: Exception) -> bool:
    """Whether a scheduler was there, and went while the nanny was starting."""
    from distributed.comm.core import CommClosedError, FatalCommClosedError

    cause = error.__cause__ or error
    return isinstance(cause, CommClosedError) and not isinstance(cause, FatalCommClosedError)


def _nanny(options: argparse.Namespace) -> Nanny:
    from distributed import Nanny

    return Nanny(
        options.address,
        nthreads=1,
        name=options.name,
        host=options.host,
        port=options.nanny_port,
        worker_port=options.port,
        memory_limit="0",  # none: it would pause or kill a worker in the middle of a measurement
        preload=["explorer.worker"],
        security=worker.security(),
        dashboard_address=f"{options.host or ''}:{options.health_port}" if options.health_port else "127.0.0.1:0",
    )


async def _leave(nanny: Nanny) -> None:
    """In good order: the scheduler is told, and what ran here runs again elsewhere."""
    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(_up(nanny), LEAVE_S)
        retire = nanny.scheduler.retire_workers(workers=[nanny.worker_address], remove=True, close_workers=True)
        await asyncio.wait_for(retire, LEAVE_S)
    await nanny.close(timeout=1, reason="signal")  # it holds nothing that is worth more patience


async def _up(nanny: Nanny) -> None:
    """Returns once its worker process is up. The scheduler knows one a little earlier than its nanny, and gives it
    work: to be retired in order, the nanny has to know it too."""
    from distributed.core import Status

    while nanny.process is None or nanny.process.status != Status.running or nanny.worker_address is None:
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
