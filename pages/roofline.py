"""Roofline: how near measured attention comes to what this device can do."""

import streamlit as st

from explorer.ui import controls, panels, roofline, shell, sweeps

shell.guard()
st.title("Roofline")
st.caption(
    "Measured points under measured ceilings: the rate of a large matrix product, and the speed of a large copy."
)
problem, backends = controls.peek()
name = roofline.choice()
status = st.container()
if (asked := roofline.asked(name, problem, backends)) is not None:
    made = sweeps.run(asked, page=roofline.PAGE, status=status)
    found, others = roofline.known(made, status)
    roofline.show(asked, made, found)
    panels.watch(made.answer, *others, into=status)
