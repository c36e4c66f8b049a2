"""TransformerEngine: the lab's step 12: its attention against cuDNN and XLA, and which kernel it really called."""

import streamlit as st

from explorer.ui import controls, jobs, panels, shell, transformer_engine

shell.guard()
st.title("TransformerEngine")
st.caption(
    "`te.flax.DotProductAttention`, causal, against cuDNN and XLA. Its times are cuDNN's where it calls cuDNN's "
    "kernel; where it does not, it says so in a warning alone, and here in the evidence."
)
transformer_engine.here(jobs.device())
problem, _ = controls.peek()
base = transformer_engine.base_of(problem)
st.markdown(panels.problem_line(base).replace(f"T={base.q_len} S={base.kv_len}", "T and S vary"))
lengths = transformer_engine.lengths()
status, button = st.container(), st.container()
with button:
    answer = transformer_engine.ask(base, lengths, status)
if answer.error:
    status.error(answer.error, icon=":material/dangerous:")
records, label = transformer_engine.shown(answer, base)
if records:
    transformer_engine.results(records, label)
else:
    st.caption(f"{panels.MISSING} Not measured yet.")
panels.watch(answer, into=status)
