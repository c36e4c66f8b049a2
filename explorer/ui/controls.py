"""Controls: the sidebar's widgets, each bound to the URL, and the Problem they describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from explorer import plain
from explorer.backends import BACKENDS
from explorer.problem import AXIS_LETTERS, DTYPES, INPUTS, LARGEST, PRESETS, Problem, divisors, parse_list
from explorer.ui import link

CUSTOM = "custom"
NOTICES = "control_notices"
MOVED = "kv_heads_moved"
DEFAULT = link.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A whole number with a slider over useful stops; any other value has a stop of its own while it is set."""

    name: str
    label: str
    stops: tuple[int, ...]
    help: str


LENGTHS = tuple(sorted({1, 16, *(2**k for k in range(5, 15)), *(3 * 2**k for k in range(4, 13))}))
Q_LEN = Size(name="q_len", label="query length", stops=LENGTHS, help="Tokens that ask.")
KV_LEN = Size(name="kv_len", label="key and value length", stops=LENGTHS, help="Tokens that are looked at.")
BATCH = Size(name="batch", label="batch", stops=(1, 2, 4, 8, 16, 32, 64, 128), help="Independent sequences.")
HEADS = Size(
    name="heads",
    label="query heads",
    stops=(1, 2, 4, 8, 12, 16, 24, 28, 32, 40, 48, 64, 96, 128),
    help="Heads of q, and of the output.",
)
HEAD_DIM = Size(
    name="head_dim", label="head dimension", stops=tuple(range(8, 264, 8)), help="Width of one head: HEAD_DIM."
)


def draw() -> None:
    """Draws every control; to be called once a run, by the shell, inside the sidebar."""
    _open_link()
    _preset()
    q_len = _size(Q_LEN)
    _kv_len(q_len)
    _size(HEAD_DIM)
    left, right = st.columns(2)
    with left:
        heads = _size(HEADS)
    with right:
        _kv_heads(heads)
    left, right = st.columns(2)
    with left:
        _size(BATCH)
    with right:
        st.number_input(
            "Seed", 0, LARGEST, DEFAULT.seed, key="seed", bind="query-params", on_change=_settle, args=("seed",),
            help="Of the random q, k and v. `seed`",
        )  # fmt: skip
        _notice("seed")
    st.segmented_control(
        "dtype", DTYPES, default=DEFAULT.dtype, key="dtype", bind="query-params", required=True, on_change=_settle,
        args=("dtype",), help="Number format of q, k and v. `dtype`", width="stretch",
    )  # fmt: skip
    _notice("dtype")
    st.pills(
        "Backends", list(BACKENDS), selection_mode="multi", default=list(link.DEFAULT_BACKENDS), key="backend",
        bind="query-params", on_change=_settle, args=("backend",),
        help="\n".join(f"- `{b.name}`: {b.about}" for b in BACKENDS.values()),
    )  # fmt: skip
    _notice("backend")
    _more()


def current() -> tuple[Problem, tuple[str, ...]]:
    """The Problem and the backends that the controls show; without any, says so and stops the page."""
    problem, names = peek()
    if not names:
        st.info("Choose at least one backend in the sidebar, and its numbers appear here.", icon=":material/tune:")
        st.stop()
    return problem, names


def peek() -> tuple[Problem, tuple[str, ...]]:
    """As current, but draws nothing and never stops; names may be empty."""
    state = st.session_state
    values = {name: state[name] for name in (*AXIS_LETTERS, "dtype", "causal", "seed", "inputs", "input_scale")}
    chosen = state["backend"] or ()
    return Problem(**values), tuple(name for name in BACKENDS if name in chosen)


def set_to(problem: Problem | None = None, backends: Sequence[str] | None = None) -> None:
    """Moves the controls; to be called in a callback (on_click=controls.set_to, kwargs={...})."""
    state = st.session_state
    state[NOTICES], state[MOVED] = {}, None
    if problem is not None:
        for name in (*AXIS_LETTERS, "dtype", "causal", "seed", "inputs", "input_scale"):
            state[name] = getattr(problem, name)
        state["kv_follows"] = problem.kv_len == problem.q_len
        state["heads_before"] = problem.heads
    if backends is not None:
        state["backend"] = list(backends)


def sizes(text: str, axis: str, *, usual: str, most: int, called: str) -> tuple[tuple[int, ...], str | None]:
    """A field's list of sizes along an axis; if it can't be had, the usual one and a sentence that says why."""
    try:
        found = parse_list(text)
        if len(found) > most:
            raise ValueError(f"at most {most} {called} fit here, got {len(found)}")
        for size in found:
            Problem.of(**{axis: size})
    except ValueError as error:
        return parse_list(usual), str(error)
    return found, None


def held(key: str, low: int, high: int, default: int) -> int:
    """The value of a bound widget that is drawn later, within low … high.

    On a session's first run Streamlit fills the widget from the link when it is drawn, which is too late for what
    stands above it, and skips a value equal to the widget's own default: so the link is read here too.
    """
    if key not in st.session_state:
        text = st.query_params.get(key, "")
        st.session_state[key] = int(text) if text.isdecimal() and low <= int(text) <= high else default
    if not low <= st.session_state[key] <= high:
        st.session_state[key] = max(low, min(st.session_state[key], high))
    return st.session_state[key]


def share_link() -> str:
    """The whole address that opens what is shown now, in any browser that reaches this server."""
    problem, names = peek()
    return f"{(st.context.url or '').split('?')[0]}?{link.write(problem, names)}"


def _open_link() -> None:
    """On a session's first run: takes over what the link asks for, and keeps a sentence for what can't be had."""
    state = st.session_state
    if NOTICES in state:
        return
    values, state[NOTICES] = link.read({name: st.query_params.get_all(name) for name in st.query_params})
    for name, value in values.items():
        state[name] = value
    state["heads_before"] = state.get("heads", DEFAULT.heads)
    # Values equal to their default are left out of the URL, so the link says which defaults it means.
    st.query_params["v"] = link.VERSION


def _preset() -> None:
    problem = Problem(**{name: st.session_state.get(name, getattr(DEFAULT, name)) for name in AXIS_LETTERS} | {
        name: st.session_state.get(name, getattr(DEFAULT, name)) for name in ("dtype", "causal")
    })  # fmt: skip
    matches = [key for key, preset in PRESETS.items() if preset.problem == problem]
    st.session_state["preset"] = matches[0] if matches else CUSTOM
    options = [*([] if matches else [CUSTOM]), *PRESETS]
    st.selectbox(
        "Preset", options, key="preset", on_change=_preset_chosen,
        format_func=lambda key: "Custom" if key == CUSTOM else PRESETS[key].label,
        help="\n".join(f"- **{p.label}**: {p.source}" for p in PRESETS.values()),
    )  # fmt: skip
    _notice("preset")


def _preset_chosen() -> None:
    if (key := st.session_state["preset"]) in PRESETS:
        set_to(PRESETS[key].problem)


def _size(size: Size, *, disabled: bool = False, bound: bool = True) -> int:
    """A slider, and below it a field for any other value if exact sizes are switched on."""
    name, default = size.name, getattr(DEFAULT, size.name)
    now = st.session_state.get(name, default)
    value = st.select_slider(
        f"{AXIS_LETTERS[name]} · {size.label}", sorted({*size.stops, default, now}), value=default, key=name,
        disabled=disabled, bind="query-params" if bound else None, on_change=_settle, args=(name,),
        help=f"{size.help} `{name}`",
    )  # fmt: skip
    exact = st.empty()  # a place of its own, as for every notice: see tests/test_places.py
    if _is_exact() and not disabled:
        st.session_state[f"{name}_exact"] = value
        exact.number_input(
            f"{name}, exact", 1, LARGEST, key=f"{name}_exact", label_visibility="collapsed", on_change=_exact_given,
            args=(name,),
        )  # fmt: skip
    _notice(name)
    return value


def _is_exact() -> bool:
    """Its switch stands below; on a session's first run it is filled from the link only when it is drawn."""
    return st.session_state.get("exact", st.query_params.get("exact") == "true")


def _exact_given(name: str) -> None:
    st.session_state[name] = st.session_state[f"{name}_exact"]
    _settle(name)


def _settle(name: str) -> None:
    """Whatever was complained about at a control is over once it is touched."""
    st.session_state[NOTICES].pop(name, None)
    if name == "heads":
        _heads_changed()


def _kv_len(q_len: int) -> None:
    """S follows T unless unlocked; while it follows, it is greyed and not in the URL."""
    follows = st.session_state.get("kv_follows", True)
    if follows:
        st.session_state["kv_len"] = q_len
    _size(KV_LEN, disabled=follows, bound=not follows)
    with st.container(horizontal=True, horizontal_alignment="distribute"):
        st.toggle(
            "S follows T", value=True, key="kv_follows", bind="query-params", on_change=_settle, args=("kv_len",),
            width="content",
        )  # fmt: skip
        st.toggle(
            "causal", value=DEFAULT.causal, key="causal", bind="query-params", on_change=_settle, args=("causal",),
            help="Query i sees keys 0 … i only (top-left, also when T ≠ S). `causal`", width="content",
        )  # fmt: skip
    _notice("kv_follows", "causal")


def _heads_changed() -> None:
    """K = N stays so; another K that no longer divides N moves to the next divisor below, and that is said."""
    state = st.session_state
    heads, before, kv_heads = state["heads"], state["heads_before"], state["kv_heads"]
    state["heads_before"] = heads
    state[NOTICES].pop("kv_heads", None)
    state[MOVED] = None
    if kv_heads == before:
        state["kv_heads"] = heads
    elif heads % kv_heads:
        state["kv_heads"] = max(k for k in divisors(heads) if k <= kv_heads)
        state[MOVED] = f"K was {kv_heads}, which does not divide N={heads}; it is {state['kv_heads']} now"


def _kv_heads_chosen() -> None:
    st.session_state[MOVED] = None
    _settle("kv_heads")


def _kv_heads(heads: int) -> None:
    options = divisors(heads)
    if st.session_state.get("kv_heads") not in options:
        st.session_state["kv_heads"] = heads
    st.select_slider(
        "K · k/v heads", options if len(options) > 1 else [1, 1], value=heads, key="kv_heads", bind="query-params",
        disabled=len(options) == 1, on_change=_kv_heads_chosen,
        help="Divisors of N. K = N: multi-head (MHA); between: grouped queries (GQA); 1: multi-query (MQA). `kv_heads`",
    )  # fmt: skip
    moved = st.empty()
    if sentence := st.session_state.get(MOVED):
        moved.caption(sentence)
    _notice("kv_heads")


def _more() -> None:
    with st.expander("Inputs and exact sizes", icon=":material/tune:"):
        st.toggle(
            "Exact sizes", value=False, key="exact", bind="query-params",
            help="A number field below each slider, for values between its stops.",
        )  # fmt: skip
        st.selectbox(
            "Inputs", list(INPUTS), key="inputs", bind="query-params", on_change=_settle, args=("inputs",),
            help="\n".join(f"- `{name}`: {about}" for name, about in INPUTS.items()),
        )  # fmt: skip
        st.number_input(
            "Scale of q and k", 1e-6, 1e6, DEFAULT.input_scale, format="%g", key="input_scale", bind="query-params",
            on_change=_settle, args=("input_scale",),
            help="q and k are multiplied by it. At 60, float16 scores overflow in the naive backend. `input_scale`",
        )  # fmt: skip
        _notice("inputs", "input_scale")


def _notice(*names: str) -> None:
    """The sentence at the control that could not be set as asked."""
    place, found = st.empty(), st.session_state[NOTICES]
    if said := [f":red[:material/error: {plain.markdown(found[name])}]" for name in names if found.get(name)]:
        place.markdown("  \n".join(said))


def notices() -> list[str]:
    """What a link asked for and can't have: the page says it too, since the sidebar may be closed."""
    return list(st.session_state[NOTICES].values())
