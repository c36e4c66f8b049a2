"""Heads: what the Heads page is made of: the drawing, the proof, the KV cache and its limits, a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from explorer import charts, charts_heads, heads, memory, record, recordings
from explorer.backends import BACKENDS
from explorer.heads import Cache, Fit, Model, Proof
from explorer.problem import Problem, divisors
from explorer.record import Record
from explorer.recordings.sets import DECODE, SETS
from explorer.sweep import Point
from explorer.ui import jobs, machine, panels, sweeps
from explorer.ui.jobs import Answer

RECORDING = "decode"
CONTEXTS = tuple(2**k for k in range(9, 21))
FORMULA = (
    r"\text{bytes} = 2 \cdot \text{layers} \cdot \text{batch} \cdot \text{context} \cdot K \cdot H "
    r"\cdot \text{bytes a number}"
)
DECODE_ON_CPU = Problem.of(batch=1, q_len=1, kv_len=4096, heads=32, head_dim=128, dtype="float32")
DECODE_LIMIT_S = 60.0
SAME_TIME = 1.1  # so many times as fast is no saving
DECODERS = ("naive", "xla", "cudnn")
PROVERS = ("naive", "xla", "cudnn", "transformer_engine")


def mapping(p: Problem) -> None:
    """Who reads whom, for the sidebar's N and K."""
    st.markdown(f"**{p.sharing}**: {charts_heads.say_head_map(p.heads, p.kv_heads)}.")
    drawing = charts_heads.head_map(p.heads, p.kv_heads)
    panels.chart(drawing, say=charts_heads.say_head_map(p.heads, p.kv_heads), key="heads_map")


def ask_proofs(status: Any) -> Answer:
    """The lab's (2, 64, 8, 64) with K = 8, 2, 1, on every backend that can run it here."""
    here = jobs.device()
    names = [n for n in PROVERS if here is None or BACKENDS[n].why_not(heads.LAB, here) is None]
    question = {"problem": heads.LAB, "names": names}
    return jobs.ask(heads.proofs, question, slot="heads-proof", status=status, settle_s=0, label="heads")


def proofs(found: Sequence[Proof]) -> None:
    """A card for each K: shapes, cache share, and what the backends say of GQA against repeated heads."""
    with st.grid(3, min_column_width=230):
        for k in heads.LAB_KV_HEADS:
            p = heads.LAB.but(kv_heads=k)
            share = heads.LAB.heads // k
            with st.container(border=True, gap="small", height="stretch"):
                st.metric(
                    f"K = {k}, {p.sharing}: bytes of k and v",
                    heads.size(2 * p.batch * p.kv_len * k * p.head_dim * p.item_bytes),
                    delta="all of it" if share == 1 else f"1/{share} of MHA, saves {1 - 1 / share:.1%}",
                    delta_color="off" if share == 1 else "green",
                    delta_arrow="off" if share == 1 else "down",
                )
                st.markdown(f"q {p.q_shape}  \nk, v {p.kv_shape}  \noutput **{p.q_shape}**")
                for proof in (f for f in found if f.kv_heads == k):
                    st.caption(_proof_line(proof))


def _proof_line(proof: Proof) -> str:
    name = charts.label(proof.backend)
    if proof.reason or proof.difference is None:
        return f":material/block: {name}: {proof.reason}"
    if not proof.is_equal:
        return f":red[:material/error: {name}: differs by {proof.difference:.2g} from repeated heads]"
    how = "bit for bit" if proof.difference == 0 else f"to rounding ({proof.difference:.1g} of {proof.size:.2g})"
    return f":green[:material/check_circle:] {name}: equals MHA with repeated heads, {how}"


# --- the KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which cache, how long, how many, and beside which weights."""

    model: Model
    cache: Cache
    context: int
    batch: int
    weights_bytes: float

    @property
    def bytes(self) -> int:
        return self.cache.bytes(context=self.context, batch=self.batch)


def question() -> Question:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = st.selectbox(
            "Model", list(heads.MODELS), key="heads_model", bind="query-params", width=170,
            format_func=lambda key: heads.MODELS[key].label,
            help="\n".join(f"- **{m.label}**: {m.source}" for m in heads.MODELS.values()),
        )  # fmt: skip
        model = heads.MODELS[name]
        if st.session_state.get("heads_model_before") != name:  # another model brings its own layers
            if "heads_model_before" in st.session_state or "heads_layers" not in st.session_state:
                st.session_state["heads_layers"] = model.layers
            st.session_state["heads_model_before"] = name
        layers = st.number_input("Layers", 1, 1000, model.layers, key="heads_layers", bind="query-params", width=100)
        batch = st.select_slider(
            "Batch", [2**k for k in range(11)], value=1, key="heads_batch", bind="query-params", width=150
        )
        context = st.select_slider(
            "Context, tokens", CONTEXTS, value=8192, key="heads_context", bind="query-params", width=200
        )
        dtype = st.segmented_control(
            "Cache dtype", list(heads.CACHE_BYTES), default="bfloat16", key="heads_cache_dtype", bind="query-params",
            required=True,
        )  # fmt: skip
    beside = st.toggle(
        "The model's weights take their room too", value=True, key="heads_weights", bind="query-params",
        help=f"{model.parameters / 1e9:.3g} billion parameters, 2 bytes each.",
    )  # fmt: skip
    cache = Cache.of(model, dtype, layers=layers)
    weights = 2 * model.parameters if beside else 0.0
    return Question(model=model, cache=cache, context=context, batch=batch, weights_bytes=weights)


def cache_numbers(q: Question) -> None:
    """The cache in both units, a token's part, and what K saves."""
    shared = q.model.heads // q.cache.kv_heads
    sharing = "MHA" if shared == 1 else "MQA" if q.cache.kv_heads == 1 else "GQA"
    with st.grid(4, min_column_width=170):
        st.metric("KV cache", f"{q.bytes / heads.GIB:.4g} GiB", border=True, help=f"{q.bytes:,} bytes")
        st.metric("The same in GB", f"{q.bytes / heads.GB:.4g} GB", border=True, help="1 GB = 10⁹ bytes, 1 GiB = 2³⁰")
        st.metric("One more token", memory.gib(q.cache.token_bytes), border=True)
        st.metric(
            f"{sharing}, K={q.cache.kv_heads}, N={q.model.heads}", f"1/{shared}" if shared > 1 else "all",
            border=True, help="Share of what MHA with as many query heads would store.",
        )  # fmt: skip
    panels.formula(FORMULA)
    panels.formula(
        rf"2 \cdot {q.cache.layers} \cdot {q.batch} \cdot {q.context:,} \cdot {q.cache.kv_heads} "
        rf"\cdot {q.cache.head_dim} \cdot {q.cache.item_bytes} = {q.bytes:,}\ \text{{bytes}}".replace(",", "{,}")
    )


def cache_chart(q: Question) -> list[Fit]:
    """The cache over the context for K = N, the model's K and 1, with what known GPUs have room for."""
    ks = sorted({q.model.heads, q.cache.kv_heads, 1}, reverse=True)
    rows = heads.cache_curve(q.cache, heads=q.model.heads, batch=q.batch, contexts=CONTEXTS, kv_heads=ks)
    fits = heads.fits(q.cache, context=q.context, batch=q.batch, weights_bytes=q.weights_bytes)
    said = (
        f"KV cache of {q.model.label} over the context, batch {q.batch}: at {q.context:,} tokens {heads.size(q.bytes)}"
    )
    panels.chart(charts_heads.cache_curve(rows, fits, context=q.context), say=said, key="heads_cache")
    st.caption("Level lines: each GPU's memory by its datasheet" + (", less the weights" if q.weights_bytes else "") +
               "; activations and the allocator take some of it too.")  # fmt: skip
    return fits


def fits(q: Question, found: Sequence[Fit]) -> None:
    """Where it no longer fits, for each known GPU: a picture, and the calculation."""
    fitting = [fit.gpu for fit in found if fit.holds(q.bytes) and fit.room_bytes]
    said = (
        f"{heads.size(q.bytes)} of cache beside {heads.size(q.weights_bytes)} of weights fit in: {', '.join(fitting)}"
    )
    drawing = charts_heads.fit_bars(found, cache_bytes=q.bytes, weights_bytes=q.weights_bytes)
    panels.chart(drawing, say=said, key="heads_fits")
    with st.expander("Where it no longer fits, as a calculation"):
        for fit in found:
            icon = ":green[:material/check_circle:]" if fit.holds(q.bytes) else ":red[:material/cancel:]"
            st.markdown(f"{icon} {heads.explain(fit, q.cache, context=q.context, batch=q.batch)}.")


# --- a decode step


def decode_here(p: Problem, status: Any) -> Answer:
    """The Run button and what it measured; on a GPU the recorded problem, on a CPU a smaller one, each in seven K at
    most. What it runs is decided by the device, so that the button comes when the worker has told it."""
    here = jobs.device()
    if here is None:
        machine.starting()
        return Answer.of("", None)
    base = DECODE if here.is_gpu else DECODE_ON_CPU
    names = [n for n in DECODERS if BACKENDS[n].why_not(base, here) is None]
    points = heads.decode_points(base.but(seed=p.seed), names, divisors(base.heads))
    refused = {name: BACKENDS[name].why_not(base, here) for name in DECODERS if name not in names}
    answer = ask_decode(points, again=panels.was_pressed("heads_decode_run"), status=status)
    panels.run_button(answer, key="heads_decode_run", prediction=f"One query against {base.kv_len:,} keys, for each K.")
    for name, reason in refused.items():
        st.caption(f"{charts.label(name)} has no point here: {reason}")
    decode(answer.results, "Measured here and now")
    return answer


def ask_decode(points: Sequence[Point], *, again: bool, status: Any) -> Answer:
    """A turn for each point: one that runs out of time, as a compiler that does not end, costs no other."""
    calls = [sweeps.call(point, heads.DECODE) for point in points]
    options: dict[str, Any] = {"limit_s": DECODE_LIMIT_S, "lost": sweeps.lost, "status": status, "label": "decode"}
    return jobs.ask_many(calls, slot="heads-decode", auto=False, again=again, **options)


def decode(records: Sequence[Record], label: str) -> None:
    """Time of one new token against K; what has none, with its reason."""
    rows = record.rows([r for r in records if r.timing is not None])
    for each in (r for r in records if r.timing is None):
        name, reason = charts.label(each.backend), each.reason or each.status
        st.caption(f"{name} at K={each.problem.kv_heads} has no time: {reason}")
    if not rows:
        return
    clock: charts.Clock = "device_ms" if all(row["device_ms"] is not None for row in rows) else "wall_ms"
    first = records[0].problem
    st.caption(f"{label}: {panels.problem_line(first.but(kv_heads=first.heads))}")
    panels.chart(
        charts_heads.decode(rows, clock), say=charts_heads.say_decode(rows, clock), key=f"heads_decode_{label}"
    )
    st.caption(_decode_words(rows, clock))


def _decode_words(rows: Sequence[dict[str, Any]], clock: charts.Clock) -> str:
    """What sharing saves the backend that is fastest without it: two backends' times would be another question."""
    most, least = max(r["kv_heads"] for r in rows), min(r["kv_heads"] for r in rows)
    took = {(r["backend"], r["kv_heads"]): r[clock] for r in rows}
    both = [name for name, k in took if k == most and (name, least) in took]
    if most == least or not both:
        return "Nothing to compare yet: no backend has a time both at the most and at the fewest K."
    name = min(both, key=lambda each: took[each, most])
    ratio, share = took[name, most] / took[name, least], most / least
    said = (
        f"{charts.label(name)}, the fastest at K={most}, takes {charts.ms(took[name, most])} there and "
        f"{charts.ms(took[name, least])} at K={least}"
    )
    if ratio <= SAME_TIME:
        return f"{said}: nothing saved for 1/{share:g} of the cache. Something else than reading it decides here."
    if ratio > share:
        return f"{said}: {ratio:.1f} times as fast, more than 1/{share:g} of the cache explains; it may be chance."
    return (
        f"{said}: {ratio:.1f} times as fast for 1/{share:g} of the cache. One query does "
        "little arithmetic on many bytes, so reading the cache is most of the work."
    )


def left_out() -> None:
    """What the recorded chart has no bar for, and why."""
    st.caption(SETS[RECORDING].left_out)


@st.cache_data(show_spinner=False, max_entries=2)
def recorded_decode() -> tuple[str, list[Record]]:
    """The label of the shipped recording and its records; both empty where none ships."""
    if RECORDING not in recordings.names():
        return "", []
    shipped = recordings.load(RECORDING)
    return f":material/history: Not measured here: {shipped.label}", [r for r in shipped.records if heads.is_decode(r)]
