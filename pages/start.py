"""Start: the lab as a path. Look, predict, measure, understand."""

import streamlit as st

from explorer.ui import panels, path, progress, shell

shell.guard()
st.title("Attention, measured")
left, right = st.columns([3, 2], vertical_alignment="center")
left.markdown(
    "Attention lets every token look at the others and take over what matters. Here the lab becomes a path of short "
    "questions: **predict**, then let this machine **measure**, and see why."
)
right.latex(path.FORMULA)
progress_so_far = st.container()
status = st.container()
question = path.at_hand()
answer = path.card(question, status)
with progress_so_far:  # after the card: a measurement that has just ended counts
    path.heading()

st.subheader("The whole path")
path.contents()
st.button("Start over", icon=":material/restart_alt:", type="tertiary", on_click=progress.clear, key="path_clear")
if answer:
    panels.watch(answer, into=status)
