"""Live run: each chosen backend, run here and now."""

import streamlit as st

from explorer.ui import controls, shell

shell.guard()
st.title("Live run")
problem, backends = controls.current()
st.caption(str(problem))
