"""FP8: what 8 bits can hold, what they lose, and which kernels really compute in them."""

import streamlit as st

from explorer.ui import controls, fp8, jobs, machine, panels, shell

shell.guard()
st.title("FP8")
st.caption("What 8 bits can hold, what they lose, which kernel really computes in them, and when that pays.")
problem, _ = controls.peek()
device, waiting = jobs.device(), st.container()
if device is None:
    with waiting:
        machine.starting()
st.subheader("What the formats hold")
fp8.formats()
st.subheader("What quantising does to q, k and v")
fp8.quantising(problem)
st.subheader("A recipe, and the kernel that ran")
st.caption(
    "The lab's step 13, for every way that takes FP8: an accepted recipe is no FP8 kernel. The kernel's name decides."
)
table_status = st.container()
table = fp8.table(problem, device, table_status)
st.subheader("Where FP8 pays, and where the casts eat it")
speed_status = st.container()
speed = fp8.speed(problem, device, speed_status)
st.subheader("Outliers")
fp8.outliers()
panels.watch(table, speed, into=table_status if table.is_pending else speed_status)
