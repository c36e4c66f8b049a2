"""Compare: two recordings, point by point."""

import streamlit as st

from explorer.ui import compare, shell

shell.guard()
st.title("Compare")
st.caption(
    "Two recordings point by point, B against A: two GPUs, two versions, before and after. Points match on problem and "
    "backend; the sidebar plays no part."
)
a, b = compare.choose()
slower_than = compare.threshold()
if a is None or b is None:
    st.info("Choose two recordings, and each point they share appears here.", icon=":material/compare_arrows:")
else:
    compare.show(a, b, slower_than)
