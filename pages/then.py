"""Then and now: a result as a link tells it, beside a fresh run here."""

import streamlit as st

from explorer.ui import panels, shell, then

shell.guard()
st.title("Then and now")
st.caption(
    "A result that somebody shared, beside the same run here. Problem and backends are the link's: the sidebar plays "
    "no part."
)
found = then.told()
if found is not None:
    status = st.container()
    answer = then.fresh(found, status)
    then.show(found, answer)
    panels.watch(answer, into=status)
