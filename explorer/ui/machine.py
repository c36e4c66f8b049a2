"""Machine: what the This machine page is made of; the doctor, on a page."""

from __future__ import annotations

import time
from typing import Any

import streamlit as st

from explorer import measure, memory, te
from explorer.backends import BACKENDS
from explorer.charts import MISSING
from explorer.device import Device
from explorer.job import Job
from explorer.problem import Problem
from explorer.ui import jobs, panels
from explorer.ui.jobs import Answer

ASKED = Problem(dtype="bfloat16")  # as the command line's doctor: the lab's shape in the dtype most backends take
REFRESH_S = 2.0
CACHE_REFRESH_S = 10.0


def processor(here: Device) -> None:
    """The GPU, or a notice that there is none and the CPU in its place."""
    if not here.is_gpu:
        st.info(
            f"All that runs here runs on the CPU, and no number says otherwise. ({here.missing.get('gpu', MISSING)})",
            title="No NVIDIA GPU here",
            icon=":material/info:",
        )
    with st.grid(3, min_column_width=200):
        st.metric("GPU" if here.is_gpu else "CPU", here.name, border=True, height="stretch")
        capability = here.capability_text or MISSING
        st.metric(
            "Compute capability", capability, border=True, height="stretch", help="NVIDIA's; a CPU has none.", icon=None
        )
        st.metric(
            "Memory", memory.gib(here.memory_bytes), border=True, height="stretch", help="In all, not what is free."
        )


def readiness(here: Device) -> None:
    """Each backend: ready, or the reason it is not."""
    with st.container(gap="medium"):
        for name, backend in BACKENDS.items():
            why = backend.why_not(ASKED, here)
            head, about = st.columns([0.42, 0.58], gap="xsmall")
            with head.container(horizontal=True, horizontal_alignment="distribute", gap="small"):
                st.html(panels.tag(name), width="content")
                ready = ":green-badge[:material/check_circle: ready]"
                st.markdown(ready if why is None else ":gray-badge[:material/block: not here]", width="content")
            about.caption(backend.about if why is None else why)


def libraries() -> Answer:
    """TransformerEngine, the cuDNN libraries loaded in the worker, and FP8, each with its reason."""
    answer = jobs.ask(te.facts, {}, slot="machine-te", label="TransformerEngine")
    if answer.results:
        found = te.rows(answer.results[-1])
        st.table(found, border="horizontal", alt="TransformerEngine, cuDNN libraries and FP8 recipes in the worker")
    else:
        st.caption(answer.error or "The worker has not answered yet.")
    return answer


def versions(here: Device) -> None:
    """Every version that matters to a result; what is missing says so."""
    names = {"cudnn": "cuDNN", "cudnn_built": "cuDNN, built against", "cuda": "CUDA", "jax": "JAX", "python": "Python"}
    names |= {"transformer_engine": "TransformerEngine", "driver": "NVIDIA driver", "numpy": "NumPy", "flax": "Flax"}
    names |= {"streamlit": "Streamlit", "dask": "Dask"}
    rows: dict[str, str] = {
        names.get(name, name): found or f"{MISSING} not found" for name, found in here.versions.items()
    }
    st.table(rows, border="horizontal", alt="Versions of the libraries that results depend on")


@st.fragment(run_every=REFRESH_S)
def queue() -> None:
    """The engine now: workers, what waits and runs, what ended, and the compile cache. Drawn anew by itself."""
    stats = jobs.engine().stats()
    if stats.trouble:
        st.warning(stats.trouble, icon=":material/hourglass_top:")
    cache = _cache()
    with st.grid(4, min_column_width=150):
        st.metric("Running", stats.running, border=True)
        st.metric("Waiting", stats.waiting, border=True)
        st.metric("Cache hits", MISSING if cache is None else cache["hits"], border=True)
        st.metric(
            "Cache misses",
            MISSING if cache is None else cache["misses"],
            border=True,
            help="Of the compile cache since the worker started; the least recently used program is thrown out first.",
        )
    if cache is not None:
        st.caption(f"{cache['size']} of at most {cache['most']} compiled programs are kept in the worker.")
    workers = [
        {"worker": w.name, "pid": w.pid, "host": w.host, "GPU": w.gpu, "now": "busy" if w.is_busy else "free"}
        for w in stats.workers
    ]
    if workers:
        panels.table(workers, alt_text="Worker processes: name, process id, host, GPU, busy or free")
    ended = ", ".join(f"{count} {state}" for state, count in sorted(stats.jobs.items())) or "none yet"
    st.caption(f"Jobs that ended: {ended}. Workers restarted: {stats.restarts}.")


def _cache() -> dict[str, int] | None:
    """The last known figures; asks for newer ones now and then, and only while nobody waits."""
    state, stats = st.session_state, jobs.engine().stats()
    last: Job | None = state.get("cache_job")
    is_old = last is None or (last.finished is not None and time.time() - last.finished > CACHE_REFRESH_S)
    if is_old and not stats.running and not stats.waiting:
        last = state["cache_job"] = jobs.engine().submit(measure.cache_info, {}, replace=False, label="compile cache")
        last.wait(0.3)
    if last is not None and last.results:
        state["cache_info"] = last.results[-1]
    return state.get("cache_info")


def starting() -> Any:
    """Until the worker has told what it has: says so, and looks again."""
    st.info(jobs.engine().stats().trouble or "The worker is loading JAX; this page fills in a moment.", icon="spinner")
    _look_again()


@st.fragment(run_every=0.5)
def _look_again() -> None:
    if jobs.device() is not None:
        st.rerun(scope="app")
