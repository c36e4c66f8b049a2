"""Steps: softmax(q kᵀ / √H) v taken apart, array by array, query by query, block by block."""

import streamlit as st

from explorer.ui import controls, panels, shell, steps

shell.guard()
st.title("Steps")
left, right = st.columns([1, 2], vertical_alignment="center")
left.latex(steps.FORMULA)
right.caption(
    "One head, computed here and now in float64. The sidebar sets heads, H, causal and seed; click a row to follow it."
)
problem, _ = controls.peek()
seen = steps.view(problem)
steps.arrays(seen)
st.markdown(steps.spread_line(seen))

st.subheader("One query")
steps.one_query(seen)

st.subheader("The same, block by block", help="How a fused kernel computes it without ever storing the scores.")
panels.formula(steps.ONLINE)
steps.online(seen, problem)
