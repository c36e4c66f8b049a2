"""The path: every question can be asked, measured and scored; what the measurement says decides, not what is stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from explorer import experiments, job, path, readings, recover
from explorer.backends import BACKENDS
from explorer.experiments import Difference, Spread, Working
from explorer.path import BY_NAME, QUESTIONS, Done
from explorer.problem import Problem
from explorer.record import Record, Samples, Timing
from explorer.recover import Recovered
from explorer.ui import shell

QUICK_HERE = [q for q in QUESTIONS if q.seconds_on_cpu <= 5]


def timed(ms: Sequence[float], *, device_ms: float | None = None, **changes: Any) -> Record:
    name, _, dtype = changes.pop("spec", "xla:float32").partition(":")
    problem = changes.pop("problem", Problem()).but(dtype=dtype)
    timing = Timing(
        lower_ms=1.0, compile_ms=1.0, cache_hit=False, first_call_ms=1.0, wall_ms=Samples(tuple(map(float, ms))),
        device_ms=None if device_ms is None else Samples((device_ms,)),
        device_reason="a CPU has no device clock",
    )  # fmt: skip
    parts: dict[str, Any] = {"memory": {}, "cost": {"flops": 10**9}, "evidence": {}} | changes
    return Record(problem=problem, backend=name, status="ok", timing=timing, **parts)


def refused(spec: str = "cudnn:bfloat16", reason: str = "needs a GPU", **changes: Any) -> Record:
    name, _, dtype = spec.partition(":")
    problem = Problem(**changes).but(dtype=dtype)
    return Record(problem=problem, backend=name, status="refused", reason=reason)


def four(naive: float, xla: float, xla16: float, cudnn: float | None) -> list[Record]:
    specs = {"naive:float32": naive, "xla:float32": xla, "xla:bfloat16": xla16}
    records = [timed([ms, ms * 1.001, ms * 1.002], spec=spec) for spec, ms in specs.items()]
    return [*records, refused() if cudnn is None else timed([cudnn] * 3, spec="cudnn:bfloat16")]


# --- the questions as data


def test_there_are_enough_and_every_row_with_something_to_learn_has_one() -> None:
    assert len(QUESTIONS) >= 12
    assert {q.row for q in QUESTIONS} == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15}  # 14 is the deployment
    assert [q.row for q in QUESTIONS] == sorted(q.row for q in QUESTIONS)
    assert len(BY_NAME) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.name)
def test_a_question_is_whole(question: path.Question) -> None:
    assert question.ask
    assert question.look.endswith(".")
    assert re.fullmatch(r"[a-z0-9-]+", question.name)  # it stands in a link
    assert set(question.backends) <= set(BACKENDS)
    assert question.page in {entry.file for entries in shell.MENU.values() for entry in entries}
    job.Call(question.experiment, question.kwargs).payload()  # can be sent to the worker


@pytest.mark.parametrize("question", QUICK_HERE, ids=lambda q: q.name)
def test_the_measurement_answers_the_question(question: path.Question) -> None:
    """The real experiment, here: some choice is right, and the others are not all right too."""
    found = question.experiment(**question.kwargs)
    results = list(found) if hasattr(found, "__next__") else [found]
    right = [choice for choice in question.choices if path.score(question, choice, results).is_right]
    assert 0 < len(right) < len(question.choices)
    assert path.score(question, right[0], results).right_labels == tuple(question.choices[c] for c in right)
    assert len(question.read(results).says) > 30


def test_a_foreign_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="choice must be one of 1, 3, 12, got '7'"):
        path.score(BY_NAME["bytes"], "7", [])


def test_an_answer_outside_the_choices_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="the answer must be among the choices, got xla:float16"):
        path.score(BY_NAME["fastest-128"], "xla:float32", [timed([1.0], spec="xla:float16")])


# --- fresh numbers decide


@pytest.mark.parametrize(("numbers", "right"), [
    ((1, 2, 3, 0.5), "cudnn:bfloat16"),
    ((1, 2, 3, None), "naive:float32"),
    ((3, 2, 1, None), "xla:bfloat16"),
])  # fmt: skip
def test_the_fastest_is_what_was_measured(numbers: tuple[Any, ...], right: str) -> None:
    results = four(*numbers)
    for choice in path.FOUR:
        assert path.score(BY_NAME["fastest-128"], choice, results).is_right is (choice == right)


def test_times_that_cannot_be_told_apart_are_both_right() -> None:
    noisy = [
        timed(np.linspace(1, 2, 9).tolist(), spec="naive:float32"),
        timed(np.linspace(1.1, 2.1, 9).tolist(), spec="xla:float32"),
    ]
    found = path.score(BY_NAME["fastest-128"], "xla:float32", noisy)
    assert found.is_right
    assert found.right_labels == ("Naive, float32", "XLA, float32")
    assert "each counts as right" in found.answer.says


def test_the_launch_share_is_explained_where_it_is_known() -> None:
    fast = timed([0.137], device_ms=0.0065, spec="cudnn:bfloat16")
    assert "95% of the wall clock is host and launch" in readings.read_fastest([fast]).says
    assert "There is no device clock here" in readings.read_fastest([timed([0.1])]).says


def test_nothing_measured_is_undecided_never_wrong() -> None:
    found = path.score(BY_NAME["fastest-128"], "xla:float32", [refused()])
    assert found.is_right is None
    assert "needs a GPU" in found.answer.says


@pytest.mark.parametrize(("name", "ratio", "right"), [
    ("growth", 2.1, "2"), ("growth", 4.2, "4"), ("growth", 9, "8"),
    ("batch", 1.5, "little"), ("batch", 9, "less"), ("batch", 16, "all"),
    ("skip", 0.5, "half"), ("skip", 1.02, "same"), ("skip", 1.8, "longer"),
    ("decode", 0.3, "much"), ("decode", 0.7, "some"), ("decode", 1.1, "no"),
])  # fmt: skip
def test_ratios_decide(name: str, ratio: float, right: str) -> None:
    assert BY_NAME[name].read([timed([2.0]), timed([2.0 * ratio])]).right == {right}


@pytest.mark.parametrize(("ran", "right"), [(3, "three"), (5, "others"), (7, "all")])
def test_how_many_are_ready(ran: int, right: str) -> None:
    names = list(BACKENDS)
    results = [timed([1.0], spec=f"{n}:bfloat16") if i < ran else refused(f"{n}:bfloat16") for i, n in enumerate(names)]
    assert readings.read_ready(results).right == {right}
    assert readings.read_ready(results[:2]).right == set()


@pytest.mark.parametrize(("largest", "right"), [(0.0, "0"), (3e-7, "tiny"), (6.5e-4, "tf32"), (0.2, "large")])
def test_differences_have_their_bands(largest: float, right: str) -> None:
    found = Difference(largest=largest, allclose=largest < 1e-3, where="here", precision="default")
    assert readings.read_difference([found]).right == {right}


@pytest.mark.parametrize(("without", "right"), [(2.0, "sharper"), (10.0, "same"), (20.0, "flatter")])
def test_spreads(without: float, right: str) -> None:
    found = [Spread(scale="1/√H", keys=10.0), Spread(scale="1", keys=without)]
    assert readings.read_spread(found).right == {right}


@pytest.mark.parametrize(("status", "right"), [("refused", {"refuses"}), ("failed", set())])
def test_a_refusal_is_not_a_failure(status: str, right: set[str]) -> None:
    record = Record(problem=Problem(), backend="cudnn", status=status, reason="why")
    assert readings.read_refusal([record]).right == right


def test_cudnn_that_computes_float32_would_be_seen() -> None:
    assert readings.read_refusal([timed([1.0], spec="cudnn:float32", evidence={"note": "tf32"})]).right == {"computes"}


@pytest.mark.parametrize(("shape", "right"), [
    (np.linspace(3, 0, 30), "first"), (np.linspace(0, 3, 30), "last"), (np.r_[0:10, 30:20:-1, 10:0:-1] * 1.0, "middle"),
])  # fmt: skip
def test_causal_thirds(shape: np.ndarray, right: str) -> None:
    assert readings.read_causal([shape]).right == {right}


def test_causal_refused_is_undecided() -> None:
    assert readings.read_causal(["needs a GPU"]) == readings.Answer(right=frozenset(), says="needs a GPU")


@pytest.mark.parametrize(("ratio", "right"), [(1, "1"), (2, "2"), (4, "4")])
def test_memory_grows(ratio: int, right: str) -> None:
    found = [Working(backend="naive", q_len=n, temp_bytes=b) for n, b in ((512, 1000), (1024, 1000 * ratio))]
    assert ("as T² does" in readings.read_working(found).says) == (ratio > 2.8)
    assert readings.read_working([*found, Working(backend="cudnn", q_len=512, temp_bytes=None, reason="no")]).right == {
        right
    }


def test_sharing_is_read_from_the_compiled_programs() -> None:
    base = Problem.of(batch=1, q_len=4, heads=8, head_dim=2, dtype="bfloat16")
    q_bytes = 4 * 8 * 2 * 2
    results = [
        timed(
            [1.0], spec="xla:bfloat16", problem=base.but(kv_heads=k), memory={"argument_bytes": q_bytes + 2 * 4 * k * 4}
        )
        for k in (8, 2, 1)
    ]
    assert readings.read_sharing(results).right == {"7/8"}
    assert readings.read_sharing(results[:2]).right == {"3/4"}


@pytest.mark.parametrize(("fused", "right"), [(True, "fused"), (False, "unfused")])
def test_transformer_engine_by_its_evidence(fused: bool, right: str) -> None:
    evidence = {"fused": fused, "verdict": "x", "kernels": []}
    assert readings.read_te([timed([1.0], spec="transformer_engine:bfloat16", evidence=evidence)]).right == {right}
    assert readings.read_te([refused("transformer_engine:bfloat16")]).right == {"no"}


@pytest.mark.parametrize(("note", "right"), [("fp8", "fp8"), ("bf16", "16")])
def test_fp8_by_its_evidence(note: str, right: str) -> None:
    found = timed([1.0], spec="transformer_engine_fp8:bfloat16", evidence={"note": note})
    assert readings.read_fp8([found]).right == {right}


def test_head_dims() -> None:
    ok = [timed([1.0], spec="cudnn:bfloat16", problem=Problem(head_dim=h)) for h in (32, 64, 128)]
    assert readings.read_head_dims([*ok, refused(head_dim=100)]).right == {"100"}
    assert readings.read_head_dims(ok).right == {"none"}
    assert readings.read_head_dims([refused(head_dim=h) for h in (32, 64, 100, 128)]).right == {"all"}


def verdict(backend: str, said: str, no_key: str | None = None) -> Recovered:
    return Recovered(problem=Problem(), backend=backend, verdict=said, sentence=said, no_key=no_key)


def test_windows_by_the_weights() -> None:
    ran = [verdict("naive", "as meant"), verdict("xla", "as meant")]
    assert readings.read_window([*ran, verdict("cudnn", "refused")]).right == {"obey"}
    assert readings.read_window([*ran, verdict("cudnn", "leaks")]).right == {"not"}
    assert readings.read_window([verdict("cudnn", "refused")]).right == set()


@pytest.mark.parametrize(("gives", "right"), [("nan", {"nan"}), ("mean of v", {"mean"}), ("something else", set())])
def test_rows_without_keys(gives: str, right: set[str]) -> None:
    assert readings.read_no_key([verdict("xla", "undefined", gives)]).right == right


# --- experiments that the questions' tests above do not reach


def test_measured_goes_through_all_runs_and_stops_when_asked() -> None:
    runs = [
        experiments.Run(problem=Problem.of(batch=1, q_len=n, heads=1, head_dim=4), specs=("naive", "xla"))
        for n in (3, 5)
    ]
    found = list(experiments.measured(runs))
    assert [(r.problem.q_len, r.backend) for r in found] == [(3, "naive"), (3, "xla"), (5, "naive"), (5, "xla")]
    assert not list(experiments.measured(runs, cancelled=lambda: True))


def test_working_memory_of_a_refused_backend_has_its_reason() -> None:
    found = list(experiments.working(Problem.of(batch=1, q_len=8, heads=1, head_dim=7), ["naive", "cudnn"], [8]))
    assert found[0].temp_bytes is not None
    assert found[1].temp_bytes is None
    assert found[1].reason


# --- progress


def test_progress_survives_a_link() -> None:
    done = [
        Done(name="growth", choice="4", is_right=True), Done(name="ready", choice="all", is_right=False),
        Done(name="fp8", choice="16", is_right=None),
    ]  # fmt: skip
    text = path.write_progress(done)
    assert text == "ready.2.w~growth.1.r~fp8.1.u"
    assert re.fullmatch(r"[A-Za-z0-9._~-]*", text)  # needs no escapes in a URL
    found, losses = path.read_progress(text)
    assert found == [done[1], done[0], done[2]]
    assert not losses


@pytest.mark.parametrize(
    "part", ["ready", "ready.9.r", "ready.0.x", "ready.-1.r", "magic.0.r", "ready.0.r.r", "..", "ready.²"]
)
def test_bad_progress_is_named_and_the_rest_loads(part: str) -> None:
    found, losses = path.read_progress(f"{part}~bytes.1.r")
    assert [each.name for each in found] == ["bytes"]
    assert len(losses) == 1
    assert repr(part) in losses[0]


def test_the_order_of_the_path() -> None:
    assert path.first_open([]) is QUESTIONS[0]
    assert path.first_open([Done(name=q.name, choice="", is_right=True) for q in QUESTIONS]) is None
    assert path.after(QUESTIONS[0]) is QUESTIONS[1]
    assert path.after(QUESTIONS[-1]) is None


def test_the_traps_of_the_questions_exist() -> None:
    assert {q.kwargs["name"] for q in QUESTIONS if q.experiment is recover.trap} <= set(recover.TRAPS)


def test_a_question_without_a_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="a question needs two choices or more"):
        path.Question(
            name="x", row=1, title="", page="", look="", ask="", choices={"a": "a"}, experiment=recover.trap, kwargs={},
            read=readings.read_window,
        )  # fmt: skip
