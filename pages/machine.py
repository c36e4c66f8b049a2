"""This machine."""

import streamlit as st

from explorer.ui import shell

shell.guard()
st.title("This machine")
