"""What every test runs under: which tests can run here, shape checks, a Chromium and the real server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
TIMEOUT_S = 120
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_FLAGS = (
    "--no-sandbox",  # Chromium refuses to start as root with it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@cache
def gpu_missing() -> str | None:
    """None where nvidia-smi works, else why not. Asks the driver, so that no test process loads JAX for it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no NVIDIA GPU here: nvidia-smi is not on PATH"
    try:
        subprocess.run([program, "-L"], check=True, capture_output=True, timeout=60)
    except (subprocess.SubprocessError, OSError) as error:
        return f"no NVIDIA GPU here: nvidia-smi fails ({type(error).__name__})"
    return None


@cache
def chromium_path() -> str | None:
    """The Chromium that browser tests drive: EXPLORER_CHROMIUM, else the first on PATH."""
    named = os.environ.get("EXPLORER_CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


def chromium_missing() -> str | None:
    if chromium_path() is None:
        looked = os.environ.get("EXPLORER_CHROMIUM") or ", ".join(CHROMIUM_NAMES)
        return f"no Chromium here (looked for {looked}); install one or set EXPLORER_CHROMIUM to its path"
    if find_spec("playwright") is None:
        return "no playwright here; `make test` installs it"
    return None


# Before anything starts a worker: it inherits these.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
if gpu_missing():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

if find_spec("jaxtyping") and find_spec("beartype"):
    import jaxtyping._decorator

    # jaxtyping imports JAX at its first decorator, only to shorten JAX's tracebacks; a test that asks whether a module
    # loads JAX must not find it there already.
    if hasattr(jaxtyping._decorator, "_tb_flag"):
        jaxtyping._decorator._tb_flag = False
    jaxtyping.install_import_hook("explorer", "shapes.checked")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): no effect here, pytest-timeout is not installed")


def pytest_report_header() -> list[str]:
    gpu, chromium = gpu_missing(), chromium_missing()
    return [
        f"gpu tests: skipped, {gpu}" if gpu else "gpu tests: run",
        f"browser tests: skipped, {chromium}" if chromium else f"browser tests: run in {chromium_path()}",
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    has_timeout = config.pluginmanager.hasplugin("timeout")
    for item in items:
        if "browser" in item.path.relative_to(ROOT).parts:
            item.add_marker("browser")
        if has_timeout and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if item.get_closest_marker("gpu") and (why := gpu_missing()):
            item.add_marker(pytest.mark.skip(reason=why))
        # In CI a missing Chromium is a failure: the fixture says so.
        if item.get_closest_marker("browser") and not IN_CI and (why := chromium_missing()):
            item.add_marker(pytest.mark.skip(reason=why))
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)
    if hasattr(config, "workerinput"):  # tests run side by side: the longest part must begin first
        items.sort(key=lambda item: not _is_heavy(item.nodeid))


def _is_heavy(nodeid: str) -> bool:
    """Starts whole apps of its own."""
    return "/browser/" in nodeid or "test_cluster.py" in nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay in one process, where they share its server or worker; the heavy files share one process, or
    they would slow each other down. xdist's own groups do nothing under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "heavy" if _is_heavy(nodeid) else nodeid.split("::")[0]

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """A command run in this process sets what JAX is to find in the environment; the next test starts without."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():  # never all at once: another thread may be starting a process
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="module")
def app_engine() -> Iterator[None]:
    """The queue of pages under AppTest ends with the module and is forgotten: the next module's pages start another."""
    from explorer.ui import jobs

    yield
    jobs.engine().close()
    jobs.desk.clear()


@dataclass(kw_only=True)
class Server:
    """The app as its own process."""

    url: str
    pid: int
    log: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    def stop(self) -> None:
        """Ends the server and everything it started."""
        import psutil

        try:
            parent = psutil.Process(self.pid)
            family = [*parent.children(recursive=True), parent]
        except psutil.NoSuchProcess:
            family = []
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(family, timeout=5)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(timeout=10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(*options: str, env: dict[str, str] | None = None, ready_s: float = 60) -> Server:
    """Starts the real app on a free port and waits until it is healthy; `options` go to `streamlit run`."""
    port = free_port()
    log = Path(tempfile.mkstemp(prefix="explorer-server-", suffix=".log")[1])
    command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "streamlit_app.py"), "--server.port", str(port)]
    command += [
        "--server.address",
        "127.0.0.1",
        "--server.headless",
        "true",
        "--server.fileWatcherType",
        "none",
        *options,
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, **(env or {})})
    server = Server(url=f"http://127.0.0.1:{port}", pid=process.pid, log=log, process=process)
    give_up = time.monotonic() + ready_s
    while time.monotonic() < give_up and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return server
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    server.stop()
    raise RuntimeError(f"the server was not healthy within {ready_s:.0f} s; its log ends:\n{log.read_text()[-3000:]}")


@pytest.fixture
def fresh_server() -> Iterator[Callable[..., Server]]:
    """A function that starts servers no one has visited yet; takes start_server's arguments."""
    started: list[Server] = []

    def start(*options: str, env: dict[str, str] | None = None, ready_s: float = 60) -> Server:
        started.append(start_server(*options, env=env, ready_s=ready_s))
        return started[-1]

    yield start
    for server in started:
        server.stop()
        server.log.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One running app for all of a module's tests that only visit it."""
    running = start_server()
    yield running
    running.stop()
    running.log.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A headless Chromium, through Playwright, which keeps an event loop in this thread until the module's end."""
    if why := chromium_missing():
        pytest.fail(f"browser tests must run in CI: {why}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """An empty page in a profile of its own."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture
def other_page(chromium: Browser) -> Iterator[Page]:
    """A second browser, with a profile of its own."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()
