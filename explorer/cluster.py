"""Cluster: a Dask client, to workers of our own on this machine or to a cluster elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from explorer import worker

CONNECT_S = 10
KILLED_IN_S = 10.0

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def elsewhere(address: str) -> AsyncIterator[Cluster]:
    """The Dask cluster at that address, with TLS if the environment or Dask's settings say so."""
    worker.quiet_dask()
    async with _client(address, security=worker.security()) as client:
        yield Cluster(client, address)


@contextlib.asynccontextmanager
async def here(count: int | None) -> AsyncIterator[Cluster]:
    """A scheduler in this process and a command for each worker, so that nothing imports this process's __main__ again.

    One worker per GPU, or one; all on the loopback interface. They end with this process, however it ends.
    """
    gpus = worker.gpus()
    count = count or len(gpus) or 1
    commands = [
        _Command(
            str(n),
            ({"CUDA_VISIBLE_DEVICES": gpus[n % len(gpus)]} if len(gpus) > 1 else {})
            | ({"EXPLORER_WORKER": str(n)} if count > 1 else {}),
        )
        for n in range(count)
    ]
    try:
        for command in commands:  # they import what they need while the scheduler starts
            await command.start()
        worker.quiet_dask()
        import dask.config
        from distributed import Scheduler

        dask.config.set({"distributed.scheduler.http.routes": [], "distributed.scheduler.work-stealing": False})
        # Workers come by TCP; this process's own client needs no socket, which saves a third of the time for a call.
        ways = {"protocol": ["tcp://", "inproc://"], "host": ["127.0.0.1", ""], "port": [0, 0]}
        async with Scheduler(**ways, dashboard=False, dashboard_address="127.0.0.1:0") as scheduler:
            keepers = [asyncio.create_task(command.keep(scheduler.address)) for command in commands]
            try:
                async with _client(str(scheduler.listeners[1].contact_address)) as client:
                    yield Cluster(client, str(scheduler.address), {command.name: command for command in commands})
            finally:
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)
    finally:
        for command in commands:
            await command.end()


@contextlib.asynccontextmanager
async def _client(address: str, **options: Any) -> AsyncIterator[Any]:
    """A Dask client that is closed however it ends: one that never came up, or whose end was cut short, would close
    itself when it is collected, in a loop that is gone by then."""
    from distributed import Client

    client: Any = Client(address, asynchronous=True, set_as_default=False, timeout=CONNECT_S, **options)
    try:
        async with client:
            yield client
    finally:
        if client.status not in ("closed", "newly-created"):
            with contextlib.suppress(Exception):
                await client.close(timeout=1)
            client.status = "closed"


class Cluster:
    """What the engine asks of Dask."""

    def __init__(self, client: Any, address: str, commands: dict[str, _Command] | None = None) -> None:
        self.client, self.address = client, address
        self._commands = commands or {}

    @property
    def is_connected(self) -> bool:
        return self.client.status == "running"

    @property
    def trouble(self) -> str | None:
        """A worker of our own that does not come up."""
        return next((command.trouble for command in self._commands.values() if command.trouble), None)

    async def workers(self) -> dict[str, dict[str, Any]]:
        """By address, what each says of itself."""
        return (await self.client.scheduler.identity(n_workers=-1))["workers"]

    async def cancel(self, turn: str, address: str) -> None:
        await self.client.run(worker.cancel, turn, workers=[address], on_error="ignore")

    async def kill(self, address: str, name: str) -> None:
        """Through its nanny; should that not answer, by hand where the worker is our own."""
        asked = self.client.run(worker.kill, workers=[address], nanny=True, on_error="ignore")
        try:
            if await asyncio.wait_for(asked, KILLED_IN_S):
                return
            await self.client.run(worker.kill_itself, workers=[address], on_error="ignore")
        except TimeoutError:
            log.error("the nanny of worker %s does not answer", name)
        if name in self._commands:
            self._commands[name].kill()

    @contextlib.asynccontextmanager
    async def listening(self, **handlers: Any) -> AsyncIterator[None]:
        """Calls handlers with what is told under each topic."""
        for topic, handler in handlers.items():
            self.client.subscribe_topic(topic, handler)
        try:
            yield
        finally:
            for topic in handlers:  # else the scheduler tells us of our own leaving, and finds nobody
                self.client.unsubscribe_topic(topic)


class _Command:
    """`python -m explorer.worker`: a nanny and its worker, in a session of their own."""

    def __init__(self, name: str, env: dict[str, str]) -> None:
        self.name, self._env = name, env
        self._process: asyncio.subprocess.Process | None = None
        self.trouble: str | None = None

    async def start(self) -> None:
        paths = [str(Path(__file__).parents[1]), *filter(None, sys.path)]  # functions come by reference
        self._process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-P", "-m", "explorer.worker", worker.FROM_STDIN],
            *["--name", self.name, "--host", "127.0.0.1"],
            stdin=asyncio.subprocess.PIPE,
            stdout=sys.__stderr__,  # stdout belongs to the command line's answer
            env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **self._env, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the server; it ends its workers
        )

    async def keep(self, address: str) -> None:
        """Tell it where the scheduler is; should even the nanny die, start another."""
        for times in itertools.count(1):
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(f"{address}\n".encode())
            await self._process.wait()
            code = self._process.returncode
            self.trouble = (
                f"Worker {self.name} does not come up (exit code {code}); the server's log has its last words."
            )
            log.warning("the command of worker %s ended with %s", self.name, code)
            await asyncio.sleep(min(30.0, 2.0 ** min(times, 5) / 2))
            await self.start()

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self) -> None:
        self.kill()
        if self._process is not None:
            await self._process.wait()
