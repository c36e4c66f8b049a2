"""HEAD_DIM: which head_dims each backend accepts, why not the others, and how fast they are."""

import streamlit as st

from explorer import backends
from explorer.ui import controls, limits, panels, shell

shell.guard()
st.title("HEAD_DIM")
st.caption("What each backend accepts: by rule for any GPU, proven by a run on this one. Green only where it ran.")
problem, _ = controls.peek()
with st.container():  # what comes and goes in it moves nothing below
    asked = limits.question(problem)

here = asked.gpu == limits.THIS
able = [(name, p) for name, p in asked.cells if backends.BACKENDS[name].why_not(p, asked.where) is None]
looked = limits.look(asked)
before = limits.proving(asked, able, slot="limits-prove", again=False)
with st.container(horizontal=True, vertical_alignment="center"):
    busy = not here or not able or before.is_pending
    pressed = limits.button("Prove all here", key="limits_prove", icon=":material/verified:", disabled=busy)
    known = "in the queue, with progress; what is proven already is not run again"
    st.caption(f"{len(able)} cells are not refused: each is compiled, run and checked, {known}." if here else
               "Only the GPU at hand can be proven; for another one the rules and JAX's own check answer.")  # fmt: skip
with st.container():
    proved = limits.proving(asked, able, slot="limits-prove", again=True) if pressed else before
status, trouble = st.container(), st.container()
with trouble:
    limits.trouble(looked)

found = limits.verdicts(asked, looked, proved)
left, right = st.columns([3, 2], gap="large")
with right:
    verdict = limits.chosen(found, asked)
    limits.cell(verdict, found)
with left:
    limits.drawing(found, verdict)
timed = limits.latency(asked)
if proved.is_over and proved.error:
    status.error(proved.error, icon=":material/dangerous:")
panels.watch(*[each for each in (proved, timed, looked) if each], into=status)
