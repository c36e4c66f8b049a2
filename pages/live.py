"""Live run: each chosen backend computes the same attention, here and now."""

import functools

import streamlit as st

from explorer import measure
from explorer.ui import controls, exports, jobs, live, panels, share, shell

shell.guard()
st.title("Live run")
st.caption("Every chosen backend computes the same attention, here and now, and is checked against the exact result.")
problem, backends = controls.current()
st.markdown(panels.problem_line(problem))
live.notice()

plan = live.plan(problem, backends)
button, status, comparison, result = st.container(), st.container(), st.container(), st.container()
st.subheader("Inputs")
panels.table(panels.tensors(problem), alt_text="Shape, dtype, layout and size of q, k, v and the output")

answer = jobs.ask(
    measure.run,
    live.question(problem, backends),
    slot="live",
    auto=plan.is_small,
    again=panels.was_pressed("live_run"),
    limit_s=live.LIMIT_S,
    lost=functools.partial(jobs.lost_records, here=jobs.device()),
    label="live run",
    status=status,
)
with button:
    panels.run_button(answer, key="live_run", prediction=live.told(plan, answer))
if answer.error:
    status.error(answer.error, icon=":material/dangerous:")
records, before, second = answer.results, st.session_state.get("live_shown"), None
if answer.results or not before:
    with comparison:
        baseline, clock = live.compared(backends, records)
    with result:
        live.grid(backends, records, baseline, clock, is_asked=answer.job is not None)
        live.bars(records, clock)
        if answer.is_over:
            second = live.outputs(problem, records, status)
            with st.container(horizontal=True):
                share.popover(records)
                exports.popover(records, "live-run", drawing=live.drawing(records, clock))
            st.session_state["live_shown"] = live.Shown(
                problem=problem, names=backends, records=records, baseline=baseline, clock=clock
            )
else:
    with result:
        live.earlier(before, answer)
panels.watch(*filter(None, (answer, second)), into=status)
