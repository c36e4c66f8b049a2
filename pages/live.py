"""Live run: each chosen backend computes the same attention, here and now."""

import streamlit as st

from explorer import measure
from explorer.ui import controls, jobs, live, panels, shell

shell.guard()
st.title("Live run")
st.caption("Every chosen backend computes the same attention, here and now, and is checked against the exact result.")
problem, backends = controls.current()
st.markdown(panels.problem_line(problem))

question = live.question(problem, backends)
plan = live.plan(problem, backends)
pressed = panels.run_button(jobs.look(measure.run, question), key="live_run", prediction=plan.sentence)
status, comparison, result = st.container(), st.container(), st.container()
st.subheader("Inputs")
panels.table(panels.tensors(problem), alt_text="Shape, dtype, layout and size of q, k, v and the output")

answer = jobs.ask(
    measure.run,
    question,
    slot="live",
    auto=plan.is_small,
    again=pressed,
    limit_s=live.LIMIT_S,
    lost=jobs.lost_records,
    label="live run",
    status=status,
)
records, shown = answer.results, st.session_state.get("live_shown")
if answer.is_over and answer.error:
    status.error(answer.error, icon=":material/dangerous:")
second = None
if records or not shown:
    with comparison:
        baseline, clock = live.compared(backends, records)
    with result:
        against = next((found for found in records if found.backend == baseline), None)
        live.grid(backends, records, against, clock, key="")
        live.bars(records, clock)
        if answer.is_over:
            second = live.outputs(problem, records, status)
            panels.exports(records, "live-run")
            st.session_state["live_shown"] = (problem, backends, records)
else:
    with result:
        panels.stale_note(shown[0], answer)
        with panels.stale("live"):
            live.grid(shown[1], shown[2], None, "wall_ms", key="-stale")
panels.watch(*[each for each in (answer, second) if each], into=status)
