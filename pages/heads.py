"""Heads: which query head reads which key/value head, and what sharing saves in memory and in time."""

import streamlit as st

from explorer.ui import controls, heads, jobs, panels, shell

shell.guard()
st.title("Heads")
st.caption("N query heads can share K key/value heads: the output keeps its shape, the cache shrinks to K/N.")
problem, _ = controls.peek()
status = st.container()
heads.mapping(problem)

st.subheader("The lab's shapes: the output stays, the cache shrinks")
proved = heads.ask_proofs(status)
heads.proofs(proved.results)

st.subheader("KV cache")
asked = heads.question()
heads.cache_numbers(asked)
fits = heads.cache_chart(asked)
heads.fits(asked, fits)

st.subheader("One new token: time against K")
timed = heads.decode_here(problem, status)
label, kept = heads.recorded_decode()
here = jobs.device()
if kept and not (here and here.is_gpu):
    heads.decode(kept, label)
    heads.left_out()
for answer in (proved, timed):
    if answer.error:
        status.error(answer.error, icon=":material/dangerous:")
panels.watch(proved, timed, into=status)
