"""Latency: how the time of one attention call grows, on two clocks."""

import streamlit as st

from explorer.ui import controls, latency, panels, shell, sweeps

shell.guard()
st.title("Latency")
st.caption("How the time of one attention call grows with its size: as a caller feels it, and as the kernels need it.")
problem, backends = controls.peek()
name, timing = latency.choice()
status = st.container()
if name == latency.DUEL:
    panels.watch(latency.duel(problem, backends, timing, status), into=status)
elif (asked := latency.asked(name, problem, backends, timing)) is not None:
    made = sweeps.run(asked, page=latency.PAGE, status=status)
    latency.show(asked, made)
    panels.watch(made.answer, into=status)
