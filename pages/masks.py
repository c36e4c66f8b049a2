"""Masks: which query sees which key, as meant and as run; where a backend does something else."""

import streamlit as st

from explorer import recover
from explorer.backends import BACKENDS
from explorer.ui import controls, jobs, masks, panels, shell

shell.guard()
st.title("Masks")
st.caption(
    "A mask is a promise. Here it is checked: with v = the identity, a backend's output is its attention weights, so "
    "what it really looked at can be seen."
)
masks.examples()
problem, backends = controls.current()
asked = masks.view(problem)
st.markdown(masks.mask_line(asked, problem))
status, lines, choice, drawn = st.container(), st.container(), st.container(), st.container()
answer = masks.ask(asked, backends, status)
if answer.error:
    status.error(answer.error, icon=":material/dangerous:")
with lines:
    masks.verdicts(answer.results, backends)
with choice:
    shown = masks.chosen(answer.results)
with drawn:
    masks.pictures(asked, shown)

st.subheader("Causal against full, position by position")
curve = masks.curve(asked, shown, status)

st.subheader("Where a backend does something else")
traps = masks.traps(status)

st.subheader("Every backend on every mask")
button = st.container()
pairs = jobs.ask(
    recover.every_pair, {"names": list(BACKENDS)}, slot="masks-pairs", auto=False,
    again=panels.was_pressed("masks_pairs"), limit_s=600, status=status, label="every pair",
)  # fmt: skip
with button:
    panels.run_button(pairs, key="masks_pairs", prediction="Compiles each pair: a few seconds on a GPU, more on a CPU.")
masks.every_pair(backends, pairs)
panels.watch(*[each for each in (answer, curve, *traps, pairs) if each], into=status)
