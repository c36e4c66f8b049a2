"""Path: the lab as questions to predict, measure and score against what was just measured; progress in a link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from explorer import experiments, heads, readings, recover, steps
from explorer.backends import BACKENDS
from explorer.experiments import Run
from explorer.problem import Problem
from explorer.readings import Answer

LAB = Problem()
LAB_VARIANTS = ("naive:float32", "xla:float32", "xla:bfloat16", "cudnn:bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row of the lab: where to look, what to predict, what to measure, and how to read it.

    state: the page's own controls by key, beside the shape. experiment runs in the worker with kwargs.
    """

    name: str
    row: int
    title: str
    page: str
    look: str
    ask: str
    choices: dict[str, str]
    experiment: Callable[..., Any]
    kwargs: dict[str, Any]
    read: Callable[[Sequence[Any]], Answer]
    problem: Problem = LAB
    backends: tuple[str, ...] = ("naive", "xla", "cudnn")
    state: dict[str, bool | int | str] = field(default_factory=dict)
    seconds_on_cpu: int = 5

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ValueError(f"a question needs two choices or more, got {list(self.choices)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A prediction against the measurement. is_right is None where the measurement could not tell."""

    is_right: bool | None
    answer: Answer
    right_labels: tuple[str, ...]


def score(question: Question, choice: str, results: Sequence[Any]) -> Score:
    """Raises ValueError for a choice that the question does not have."""
    if choice not in question.choices:
        raise ValueError(f"choice must be one of {', '.join(question.choices)}, got {choice!r}")
    answer = question.read(results)
    unknown = answer.right - set(question.choices)
    if unknown:
        raise ValueError(f"{question.name}: the answer must be among the choices, got {', '.join(sorted(unknown))}")
    labels = tuple(label for key, label in question.choices.items() if key in answer.right)
    return Score(is_right=choice in answer.right if answer.right else None, answer=answer, right_labels=labels)


# --- the lab's table of contents

FOUR = {
    "naive:float32": "Naive, float32", "xla:float32": "XLA, float32", "xla:bfloat16": "XLA, bfloat16",
    "cudnn:bfloat16": "cuDNN, bfloat16",
}  # fmt: skip
ALL, XLA = tuple(BACKENDS), ("xla",)
HEAD_DIMS = (32, 64, 100, 128)
NO_YES = (False, True)
SIXTEEN_BITS = LAB.but(batch=1, dtype="bfloat16")
CAUSAL = LAB.but(q_len=256, kv_len=256, dtype="bfloat16", causal=True)
DECODE = heads.LAB.but(batch=1, q_len=1, kv_len=4096, heads=32, kv_heads=32, head_dim=128, dtype="float32")


def _measured(read: Callable[[Sequence[Any]], Answer], specs: tuple[str, ...], *problems: Problem) -> dict[str, Any]:
    runs = [Run(problem=problem, specs=specs) for problem in problems]
    return {"experiment": experiments.measured, "kwargs": {"runs": runs}, "read": read}


QUESTIONS: tuple[Question, ...] = (
    Question(
        name="ready", row=1, title="Environment", page="machine.py",
        look="Which backends are ready here, and the exact reason for each that is not.",
        ask="Seven ways to compute attention are built in. How many run on this machine?",
        choices={"three": "Three: naive, auto and XLA", "others": "More than three, but not all", "all": "All seven"},
        **_measured(readings.read_ready, ALL, SIXTEEN_BITS), backends=ALL, problem=SIXTEEN_BITS,
    ),
    Question(
        name="bytes", row=2, title="Q, K and V", page="live.py",
        look="Name, shape, dtype, layout and bytes of the three inputs, in the table at the foot of the page.",
        ask="B=4, T=S=128, N=8, H=64, float32: how much memory do q, k and v take together?",
        choices={"1": "1 MiB", "3": "3 MiB", "12": "12 MiB"},
        **_measured(readings.read_bytes, XLA, LAB),
    ),
    Question(
        name="root", row=3, title="Naive attention, step by step", page="steps.py",
        look="The four arrays: scores, scaled, weights, output. Follow one query through them.",
        ask="What if we forget to divide the scores by √H (H = 64)? The attention weights get …",
        choices={"flatter": "flatter, over more keys", "same": "no different", "sharper": "sharper, on a few keys"},
        experiment=experiments.spread, kwargs={"problem": steps.shown(LAB, 64)}, read=readings.read_spread,
        state={"steps_scale": "1"}, seconds_on_cpu=1,
    ),
    Question(
        name="auto", row=4, title="JAX's attention against naive", page="live.py",
        look="Largest error, the budget it is held to, and the lab's allclose beside it.",
        ask="Naive and jax.nn.dot_product_attention compute the same formula in float32. Their largest difference is …",
        choices={"0": "0, bit for bit", "tiny": "below 0.00001", "tf32": "between 0.00001 and 0.001",
                 "large": "above 0.001"},
        experiment=experiments.difference, kwargs={"problem": LAB, "one": "auto", "other": "naive"},
        read=readings.read_difference, backends=("naive", "auto"),
    ),
    Question(
        name="cudnn-float32", row=5, title="cuDNN on request", page="live.py",
        look="The card that has a reason instead of a time.",
        ask="You ask for implementation=\"cudnn\" with float32 inputs. What happens?",
        choices={"falls": "It falls back to XLA without a word", "refuses": "It refuses, and says why",
                 "computes": "It computes in TF32"},
        **_measured(readings.read_refusal, ("cudnn",), LAB),
        backends=("xla", "cudnn"),
    ),
    Question(
        name="causal", row=6, title="Causal mask", page="masks.py",
        look="The mask as intended, the mask as executed, and the curve of causal against full.",
        ask="With a causal mask, query i sees keys 0 … i only. Whose output changes most?",
        choices={"first": "The first positions'", "middle": "The middle positions'", "last": "The last positions'"},
        experiment=recover.causal_difference,
        kwargs={"problem": LAB.but(batch=1, causal=True), "name": "xla"}, read=readings.read_causal,
        problem=LAB.but(q_len=48, kv_len=48, causal=True), state={"masks_window": False, "masks_padding": False},
    ),
    Question(
        name="window", row=6, title="A mask that is not obeyed", page="masks.py",
        look="Three pictures for each backend, and the verdict under them.",
        ask="A window of 16 keys to the left, without causal: do all the backends that run here obey it?",
        choices={"obey": "Yes, all of them", "not": "No, one lets later keys in"},
        experiment=recover.trap, kwargs={"name": "window"}, read=readings.read_window,
        problem=LAB.but(q_len=48, kv_len=48),
        state={"masks_window": True, "masks_left": 16, "masks_right": 0, "masks_padding": False},
    ),
    Question(
        name="no-key", row=6, title="A query that sees no key", page="masks.py",
        look="The traps: three backends, three different answers.",
        ask="All keys are padding, so the softmax is 0/0. What does XLA's attention give?",
        choices={"nan": "NaN", "zeros": "Zeros", "mean": "The mean of all values, as if nothing were masked"},
        experiment=recover.trap, kwargs={"name": "length-0"}, read=readings.read_no_key,
        problem=LAB.but(q_len=48, kv_len=48), state={"masks_padding": True, "masks_valid": 0, "masks_window": False},
    ),
    Question(
        name="fastest-128", row=7, title="Benchmark", page="live.py",
        look="Both clocks, and the spread of the samples.",
        ask="B=4, T=128, N=8, H=64. Which of the four is fastest?",
        choices=FOUR, **_measured(readings.read_fastest, LAB_VARIANTS, LAB),
    ),
    Question(
        name="fastest-2048", row=8, title="Sequence sweep", page="latency.py",
        look="Where the lines cross as T grows.",
        ask="And at T=2048 (batch 1)?", choices=FOUR,
        **_measured(readings.read_fastest, LAB_VARIANTS, LAB.but(batch=1, q_len=2048, kv_len=2048)),
        problem=LAB, seconds_on_cpu=30,
    ),
    Question(
        name="growth", row=8, title="Twice the length", page="latency.py",
        look="The slope of each line on the logarithmic axes.",
        ask="T doubles, from 512 to 1024. The time of XLA's attention grows …",
        choices={"2": "about 2 times", "4": "about 4 times", "8": "8 times or more"},
        **_measured(readings.read_growth, XLA, *(LAB.but(batch=1, q_len=t, kv_len=t) for t in (512, 1024))),
        seconds_on_cpu=8,
    ),
    Question(
        name="batch", row=9, title="Batch sweep", page="latency.py",
        look="Time for each batch, and time for one sequence of it.",
        ask="T=256. The batch grows from 1 to 16: how much longer does one call of XLA's attention take?",
        choices={"little": "Less than 4 times as long", "less": "4 to 13 times", "all": "13 times or more"},
        **_measured(readings.read_batch, XLA, *(LAB.but(batch=b, q_len=256, kv_len=256) for b in (1, 16))),
        problem=LAB.but(q_len=256, kv_len=256), seconds_on_cpu=8,
    ),
    Question(
        name="memory", row=10, title="Memory", page="memory.py",
        look="O(T²) against O(T): formula, compiler and measured peak.",
        ask="T doubles. How much more working memory does naive attention need?",
        choices={"1": "No more", "2": "Twice as much", "4": "Four times as much"},
        experiment=experiments.working,
        kwargs={"problem": LAB, "names": ["naive", "xla", "cudnn"], "lengths": [512, 1024]},
        read=readings.read_working,
    ),
    Question(
        name="sharing", row=11, title="MHA, GQA, MQA", page="heads.py",
        look="Which query head reads which key/value head; the output's shape beside the cache's size.",
        ask="Eight query heads share one key/value head (K=1 instead of 8). What does the KV cache save?",
        choices={"0": "Nothing", "1/2": "Half of it", "3/4": "Three quarters", "7/8": "Seven eighths"},
        **_measured(readings.read_sharing, XLA, *(heads.LAB.but(kv_heads=k) for k in heads.LAB_KV_HEADS)),
        problem=heads.LAB.but(kv_heads=1),
    ),
    Question(
        name="decode", row=11, title="A decode step", page="heads.py",
        look="Time of one new token against K.",
        ask="One new token against a cache of 4,096: with K=1 instead of 32, XLA's attention is …",
        choices={"no": "no faster", "some": "up to twice as fast", "much": "more than twice as fast"},
        **_measured(readings.read_decode, XLA, *(DECODE.but(kv_heads=k) for k in (32, 1))),
        problem=DECODE.but(kv_heads=1), seconds_on_cpu=8,
    ),
    Question(
        name="skip", row=12, title="Causal at T=1024", page="latency.py",
        look="Causal lines of the backends that skip the masked half, and of those that don't.",
        ask="A causal mask leaves half the arithmetic. With it, XLA's attention takes …",
        choices={"half": "about half as long", "same": "about as long", "longer": "clearly longer"},
        **_measured(readings.read_skip, XLA, *(LAB.but(batch=1, q_len=1024, kv_len=1024, causal=c) for c in NO_YES)),
        problem=LAB.but(causal=True, dtype="bfloat16"), seconds_on_cpu=8,
    ),
    Question(
        name="te", row=12, title="TransformerEngine", page="transformer_engine.py",
        look="What really ran: fused, unfused, or the reason it could not.",
        ask="TransformerEngine's attention, causal, bfloat16, T=256, on this machine:",
        choices={"fused": "runs its fused kernel", "unfused": "runs, but not fused", "no": "can't run here"},
        **_measured(readings.read_te, ("transformer_engine",), CAUSAL), problem=LAB.but(dtype="bfloat16", causal=True),
        backends=("xla", "cudnn", "transformer_engine"),
    ),
    Question(
        name="fp8", row=13, title="FP8", page="fp8.py",
        look="The precision of the kernel that ran, beside the dtype that was asked for.",
        ask="Under TransformerEngine's FP8 recipe, in which precision does the attention itself run here?",
        choices={"fp8": "FP8", "16": "bfloat16", "no": "It doesn't run here"},
        **_measured(readings.read_fp8, ("transformer_engine_fp8",), CAUSAL),
        problem=LAB.but(dtype="bfloat16", causal=True),
    ),
    Question(
        name="head-dim", row=15, title="HEAD_DIM", page="head_dim.py",
        look="Which head dimensions each backend takes, and why not the others.",
        ask="bfloat16, H = 32, 64, 100 and 128: which does cuDNN refuse here?",
        choices={"none": "None", "32": "32", "100": "100", "128": "128", "all": "All of them"},
        **_measured(readings.read_head_dims, ("cudnn",), *(LAB.but(head_dim=h, dtype="bfloat16") for h in HEAD_DIMS)),
        problem=LAB.but(dtype="bfloat16"),
    ),
)  # fmt: skip
BY_NAME = {question.name: question for question in QUESTIONS}


# --- progress, in a link


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A question that was predicted and measured. is_right None: the measurement could not tell."""

    name: str
    choice: str
    is_right: bool | None


MARKS = {True: "r", False: "w", None: "u"}


def write_progress(done: Sequence[Done]) -> str:
    """name.choice.mark, in the path's order, joined by "~": safe in a URL as it is."""
    by_name = {each.name: each for each in done}
    kept = [by_name[q.name] for q in QUESTIONS if q.name in by_name]
    return "~".join(f"{d.name}.{list(BY_NAME[d.name].choices).index(d.choice)}.{MARKS[d.is_right]}" for d in kept)


def read_progress(text: str) -> tuple[list[Done], list[str]]:
    """What the link says is done, and a sentence for each part that means nothing here."""
    marks = {mark: is_right for is_right, mark in MARKS.items()}
    done: dict[str, Done] = {}
    losses = []
    for part in filter(None, text.split("~")):
        name, _, rest = part.partition(".")
        number, _, mark = rest.partition(".")
        choices = list(BY_NAME[name].choices) if name in BY_NAME else []
        if mark in marks and number.isdecimal() and int(number) < len(choices):
            done[name] = Done(name=name, choice=choices[int(number)], is_right=marks[mark])
        else:
            losses.append(f"the path's progress needs question.choice.mark with r, w or u, got {part!r}")
    return [done[q.name] for q in QUESTIONS if q.name in done], losses


def first_open(done: Sequence[Done]) -> Question | None:
    """The first question that is not done yet."""
    known = {each.name for each in done}
    return next((q for q in QUESTIONS if q.name not in known), None)


def after(question: Question) -> Question | None:
    """The next one of the path, whether done or not; None after the last."""
    place = QUESTIONS.index(question)
    return QUESTIONS[place + 1] if place + 1 < len(QUESTIONS) else None
