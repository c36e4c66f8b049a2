"""Serve: the app as a service. `streamlit run deploy/serve.py` is streamlit_app.py with a gate, an operators' port
and a graceful stop; on one's own machine `streamlit run streamlit_app.py` needs none of them.

EXPLORER_ACCESS, EXPLORER_TOKEN: see explorer/access.py. EXPLORER_OPS_PORT: /metrics, /ready, /live; none without it.
EXPLORER_GRACE_S: how long a running point may take after SIGTERM (default: the longest a job may, and a little).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import streamlit as st
from starlette.middleware import Middleware

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from explorer import metrics  # noqa: E402  the package lies beside deploy/
from explorer.access import HEALTH, Access, Gate  # noqa: E402

if TYPE_CHECKING:
    from explorer.ui.jobs import Desk

GRACE_S = float(os.environ.get("EXPLORER_GRACE_S", "125"))
TOLD_S = 15.0  # the most that pages have to draw what became of their jobs
SENT_S = 1.0  # and what is drawn, to leave

log = logging.getLogger("explorer.serve")
access = Access.of()


def url() -> str:
    port = st.get_option("server.port")
    return f"http://127.0.0.1:{port}"


def answers() -> bool:
    try:
        with urllib.request.urlopen(url() + HEALTH, timeout=4) as response:
            return response.status == 200
    except OSError:
        return False


def announce() -> None:
    if access.is_new:
        log.info(
            "open", extra={"fields": {"url": f"http://localhost:{st.get_option('server.port')}/?token={access.token}"}}
        )
    elif access.way == "open":
        log.warning("EXPLORER_ACCESS=open: whoever reaches this port may use it")


def stop_gracefully(desk: Desk) -> None:
    """At SIGTERM: waiting jobs are told, the running point ends, its page gets it; only then does the server stop."""
    servers_own = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    is_asked = False

    def drain() -> None:
        engine = desk.engine
        stats = engine.stats()
        log.info("stopping", extra={"fields": {"waiting": stats.waiting, "running": stats.running}})
        engine.close(grace_s=GRACE_S)
        if not desk.wait_told(TOLD_S):
            log.warning("stopping before every page has drawn what became of its job")
        time.sleep(SENT_S)
        os.kill(os.getpid(), signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        own = servers_own[signal.Signals(number)]
        if is_asked and callable(own):  # drained, or asked a second time: at once
            own(number, frame)
        elif not is_asked:
            is_asked = True
            threading.Thread(target=drain, name="drain").start()

    for number in servers_own:
        signal.signal(number, handle)


@contextlib.asynccontextmanager
async def lifespan(_app: Any) -> AsyncIterator[None]:
    from explorer.ui import jobs

    metrics.structured_logs()
    desk = jobs.desk()  # now, not at the first visit: /ready must not wait for a visitor
    engine, operations = desk.engine, None
    if port := os.environ.get("EXPLORER_OPS_PORT"):
        operations = metrics.Operations(
            engine, port=int(port), alive=answers, host=os.environ.get("EXPLORER_OPS_HOST", "")
        )
    stop_gracefully(desk)
    announce()
    yield
    engine.close()
    if operations is not None:
        operations.close()
    log.info("stopped")


app = st.App(ROOT / "streamlit_app.py", lifespan=lifespan, middleware=[Middleware(Gate, access=access)])
