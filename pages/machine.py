"""This machine: what computes here, which versions, and which backend is ready."""

import streamlit as st

from explorer.ui import jobs, machine, panels, shell

shell.guard()
st.title("This machine")
here = jobs.device()
if here is None:
    machine.starting()
    st.stop()
machine.processor(here)
st.subheader("Backends")
st.caption(f"Asked for the lab's shape in bfloat16 ({machine.ASKED}).")
machine.readiness(here)
st.subheader("Worker and queue")
machine.queue()
st.subheader("TransformerEngine and FP8")
libraries = machine.libraries()
st.subheader("Versions")
machine.versions(here)
panels.watch(libraries)
