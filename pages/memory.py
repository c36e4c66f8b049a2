"""Memory: O(T²) against O(T): by formula, by the compiler's analysis, and measured in a fresh process."""

import streamlit as st

from explorer import recordings
from explorer.ui import controls, footprint, jobs, panels, shell

shell.guard()
st.title("Memory")
st.caption("Naive attention stores T × S scores for each head; a fused kernel stores one number a row.")
problem, backends = controls.current()
status = st.container()
asked, answers = footprint.asked(problem, backends, status)
if asked is not None:
    answer = footprint.run(asked, status)
    edges = footprint.edges_of(backends, problem, asked.room_bytes)
    here, records = jobs.device(), footprint.recorded()
    is_beside = records and not (here and here.is_gpu)
    left, right = st.columns(2, gap="large") if is_beside else (st.container(), st.container())
    with left:
        st.subheader(f"Here: {here.name if here else 'this machine'}")
        footprint.view(footprint.rows_of(asked, answer.results), footprint.shape_of(problem), key="live", edges=edges)
    if records:
        with right:
            st.subheader(f"Recorded: {records[0].where}")
            st.caption(f":material/history: Not measured here: {recordings.describe(records)}.")
            shape = footprint.shape_of(records[0].problem)
            footprint.view(footprint.rows_of_records(records), shape, key="recorded", records=records)
    proof = footprint.last_fit(problem, backends, edges, status)
    panels.watch(answer, *filter(None, (*answers, proof)), into=status)
