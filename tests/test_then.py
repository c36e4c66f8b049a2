"""Then: figures come out of a link as they went in; whatever else a link holds is named, never shown as a figure."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer import recordings
from explorer.problem import Problem
from explorer.record import Record, Samples, Timing
from explorer.then import LONGEST, MOST_FIGURES, Then, sources

TIMES = (1.0, 1.01, 0.99, 1.0, 1.02, 1.0)


def made(factor: float = 1.0, **changes: Any) -> Record:
    timing = Timing(
        lower_ms=1.0, compile_ms=2.0, cache_hit=False, first_call_ms=3.0, mode=changes.pop("mode", "burst"),
        wall_ms=Samples(tuple(factor * t for t in TIMES)),
        device_ms=Samples(tuple(factor * t / 10 for t in TIMES)) if changes.pop("device", False) else None,
    )  # fmt: skip
    values: dict[str, Any] = {"problem": Problem(), "backend": "naive", "status": "ok", "timing": timing}
    environment = {"gpu": "NVIDIA H200", "jax": "0.11.2", "cudnn": "9.14.0"}
    return Record(**{**values, "environment": environment, "time": "2026-12-02T14:02:00+00:00", **changes})


def refused(**changes: Any) -> Record:
    return made(backend="cudnn", **changes).but(status="refused", reason="takes no float32", timing=None)


def packed(values: Any) -> str:
    return "1." + base64.urlsafe_b64encode(zlib.compress(json.dumps(values).encode())).decode()


def unpacked(text: str) -> dict[str, Any]:
    part = text.partition(".")[2]
    return json.loads(zlib.decompress(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


def test_figures_come_back() -> None:
    records = [made(device=True), made(2.0, backend="xla", problem=Problem(dtype="bfloat16")), refused()]
    told = Then.of(records)
    found = Then.read(told.write())
    assert (found.problem, found.mode, found.time) == (Problem(), "burst", "2026-12-02T14:02:00+00:00")
    assert found.environment == {"where": "NVIDIA H200", "jax": "0.11.2", "cudnn": "9.14.0"}
    naive, xla, cudnn = found.figures
    assert naive.wall is not None
    assert naive.device is not None
    assert (naive.wall.median, naive.wall.count, naive.device.median) == (1.0, 6, 0.1)
    assert (xla.spec, cudnn.reason, cudnn.wall) == ("xla:bfloat16", "takes no float32", None)
    assert Then.read(found.write()) == found


def test_now_over_then_as_compare_has_it() -> None:
    (figure,) = Then.read(Then.of([made()]).write()).figures
    clock, ratio = figure.ratio(made(2.0)) or ("", None)
    assert ratio is not None
    assert (clock, ratio.verdict) == ("wall", "slower")
    assert ratio.value == pytest.approx(2)
    again = figure.ratio(made())
    assert again is not None
    assert again[1].verdict == "too close to call"
    assert figure.ratio(refused()) is None


def test_the_device_clock_where_both_have_it() -> None:
    (figure,) = Then.of([made(device=True)]).figures
    assert (figure.ratio(made(device=True)) or ("",))[0] == "device"
    assert (figure.ratio(made()) or ("",))[0] == "wall"


@pytest.mark.parametrize("name", recordings.names())
def test_every_shipped_record_fits_into_a_link_and_is_found_again(name: str) -> None:
    records = recordings.load(name).records
    every = {name: records}
    for record in records:
        text = Then.of([record]).write()
        assert len(text) < 900
        found = Then.read(text)
        assert sources(found, every) == ([name] if record.status == "ok" else [])


def test_a_forged_figure_is_in_no_recording() -> None:
    told = Then.of([made()])
    assert sources(told, {"a": [made()]}) == ["a"]
    assert sources(told, {"a": [made(1.01)], "b": [made(problem=Problem(seed=1))], "c": [made(time=None)]}) == []


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "1 to 16 records, got 0"),
        ([made()] * (MOST_FIGURES + 1), "1 to 16 records, got 17"),
        ([made(), made(problem=Problem(seed=1))], "of one problem"),
        ([made(), made(mode="sustained")], "one timing mode, got burst and sustained"),
    ],
)
def test_what_a_link_can_t_hold(records: list[Record], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Then.of(records)


GOOD = unpacked(Then.of([made(device=True)]).write())
TOLD = GOOD["f"][0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.abc", "must be of schema 1, got 0; they can't be read here"),
        ("abc", "must be of schema 1, got none"),
        ("", "must be of schema 1, got none"),
        ("1.", "cut off"),
        ("1.!!!", "damaged"),
        (Then.of([made()]).write()[:-9], "cut off"),
        ("1." + "A" * LONGEST, "take up to"),
        (packed("x" * 200_000), "cut off or too long"),
        (packed([]), "another kind"),
        (packed({}), "lack a part"),
        (packed(GOOD | {"p": GOOD["p"] | {"q_len": 0}}), "q_len must be from 1 to 2147483647, got 0"),
        (packed(GOOD | {"p": GOOD["p"] | {"kv_heads": 3}}), "kv_heads must divide heads=8, got 3"),
        (packed(GOOD | {"p": GOOD["p"] | {"causal": [1]}}), "another kind"),
        (packed(GOOD | {"m": "idle"}), "timing mode must be one of"),
        (packed(GOOD | {"f": []}), "1 to 16 records, got 0"),
        (packed(GOOD | {"f": [TOLD] * 17}), "1 to 16 records, got 17"),
        (packed(GOOD | {"f": [[*TOLD[:2], "fine", *TOLD[3:]]]}), "status must be one of"),
        (packed(GOOD | {"f": [[*TOLD[:2], "refused", *TOLD[3:]]]}), "exactly if status is ok"),
        (packed(GOOD | {"f": [[TOLD[0], "float8", *TOLD[2:]]]}), "dtype must be one of"),
        (packed(GOOD | {"f": [[7, *TOLD[1:]]]}), "a text is needed, got 7"),
        *((packed(GOOD | {"f": [[*TOLD[:4], time, *TOLD[5:]]]}), "positive median")
          for time in ([-1, 5, 0.1], [0, 5, 0.1], ["1", 5, 0.1], [1, 0, 0.1], [1, 5, -1], [float("inf"), 5, 0.1],
                       [True, 5, 0.1], [1, 5.5, 0.1])),
    ],
)  # fmt: skip
def test_what_can_t_be_read_is_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Then.read(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@settings(deadline=None, max_examples=80)
@given(st.one_of(st.text(), st.binary().map(lambda b: "1." + base64.urlsafe_b64encode(zlib.compress(b)).decode()),
                 st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=8).map(
                     lambda value: packed(GOOD | {"f": value}))))  # fmt: skip
def test_no_link_breaks_it(text: str) -> None:
    try:
        Then.read(text)
    except ValueError:
        pass
    else:
        raise AssertionError(f"{text} was taken as figures")


def test_an_unknown_backend_stays_named() -> None:
    text = packed(GOOD | {"f": [["flash4", *TOLD[1:]]]})
    assert [each.backend for each in Then.read(text).figures] == ["flash4"]
