"""Clock: no factor may go unnoticed. Known durations on the wall clock, a hand-made trace on the device clock."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from explorer import clock, trace
from explorer.clock import Build, Cache, Cancelled, Protocol
from explorer.sensors import Pacer, Sensors

NAP_MS = 30.0


@pytest.fixture(scope="module")
def nap() -> Build:
    """A compiled call that sleeps for NAP_MS inside the program."""
    import jax
    import jax.numpy as jnp

    def sleep(x: np.ndarray) -> np.ndarray:
        time.sleep(NAP_MS / 1e3)
        return np.asarray(x)

    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    return clock.build(lambda x: jax.pure_callback(sleep, shape, x), [shape])


def samples_of(build: Build, protocol: Protocol) -> tuple[list[float], str]:
    import jax.numpy as jnp

    found, reason = clock.steady(build.call, itertools.repeat((jnp.ones(4),)), protocol)
    return list(found.values), reason


def test_wall_clock_measures_a_known_nap(nap: Build) -> None:
    """Every sample holds the whole nap: a clock that doesn't wait would show a fraction of it."""
    times, reason = samples_of(nap, Protocol(warmup=1, repeats=7))
    assert len(times) == 7
    assert reason == "repeats"
    assert min(times) >= NAP_MS
    assert min(times) < 1.8 * NAP_MS


def test_a_known_product_takes_its_time() -> None:
    """The best of many: n³ multiply-adds against twice n, eight times the work, whatever the machine's rate is."""
    import jax
    import jax.numpy as jnp

    calls = []
    for side in (384, 768):
        a = jnp.asarray(np.random.default_rng(0).standard_normal((side, side), np.float32))
        built = clock.build(jnp.matmul, [jax.ShapeDtypeStruct(a.shape, a.dtype)] * 2)
        calls.append((built.call, itertools.repeat((a, a))))
    best = [float("inf"), float("inf")]
    for _ in range(12):  # in turns, so that another program's load meets both
        for i, (call, sets) in enumerate(calls):
            found, _ = clock.steady(call, sets, Protocol(warmup=1, repeats=6))
            best[i] = min(best[i], *found.values)
    assert best[1] / best[0] > 3.5  # no upper bound: a busy machine takes its caches from the larger one


def test_lower_and_compile_are_apart_and_the_disk_cache_is_noticed(tmp_path) -> None:
    import jax
    import jax.numpy as jnp

    shape = [jax.ShapeDtypeStruct((3, 5), jnp.float32)]
    built = clock.build(lambda x: jnp.sin(x) * 7.25, shape)
    assert built.lower_ms > 0
    assert built.compile_ms > 0
    assert not built.disk_hit
    assert "sine" in built.program


def test_time_limit_ends_it_and_says_so(nap: Build) -> None:
    times, reason = samples_of(nap, Protocol(warmup=0, repeats=1000, limit_s=0.2))
    assert reason == "time limit"
    assert 2 <= len(times) <= 8


def test_interval_rule() -> None:
    """Identical times have an interval of width 0; scattered ones have not, until the limit."""
    protocol = Protocol(repeats=20, stop="interval", limit_s=5.0)
    assert clock.ended_by([1.0] * 19, protocol, 0.1) is None
    assert clock.ended_by([1.0] * 20, protocol, 0.1) == "interval"
    scattered = [1.0, 1.5] * 10
    assert clock.ended_by(scattered, protocol, 0.1) is None
    assert clock.ended_by(scattered, protocol, 5.1) == "time limit"
    assert clock.ended_by(scattered, Protocol(repeats=20), 0.1) == "repeats"


def test_cancel_between_samples(nap: Build) -> None:
    import jax.numpy as jnp

    seen = itertools.count()
    with pytest.raises(Cancelled):
        clock.steady(nap.call, itertools.repeat((jnp.ones(4),)), Protocol(), cancelled=lambda: next(seen) > 3)


def test_sets_are_rotated_for_a_cold_cache() -> None:
    """Warm-up and samples go on through the sets; none comes again before its turn."""
    used: list[int] = []
    sets = itertools.cycle([(0,), (1,), (2,)])
    clock.steady(used.append, sets, Protocol(warmup=2, repeats=5))
    assert used == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"warmup": -1}, "warmup >= 0"),
        ({"repeats": 0}, "repeats >= 1"),
        ({"mode": "fast"}, "burst or sustained, got 'fast'"),
        ({"stop": "soon"}, "repeats or interval, got 'soon'"),
        ({"limit_s": 0.0}, "more than 0 seconds"),
    ],
)
def test_wrong_protocols(wrong: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Protocol(**wrong)


def test_cache_throws_the_least_recently_used_out() -> None:
    cache = Cache(most=2)

    def made() -> Build:
        return Build(call=None, program="", lower_ms=1.0, compile_ms=1.0)

    for key in ("a", "b", "a", "c"):
        cache.get(key, made)
    assert list(cache.builds) == ["a", "c"]
    assert cache.info() == {"hits": 1, "misses": 3, "size": 2, "most": 2}


class FakeGPU(Sensors):
    """Sensors of a GPU whose clock comes back after so many readings. Only NVML is replaced; nothing else is."""

    def __init__(self, clocks: list[int]) -> None:
        self.handle, self.readings, self.highest_mhz = object(), [], 1980
        self.clocks = clocks

    def sm_clock(self) -> int:
        return self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0]


def test_pauses_follow_the_load() -> None:
    """Long calls get a pause each, 10 times their length, 0.3 s at most; short ones share one after 10 ms."""
    naps: list[float] = []
    pacer = Pacer(pause_s=0.3, sensors=FakeGPU([1980]), sleep=naps.append)
    for _ in range(99):
        pacer.rest(0.1)
    assert naps == []
    pacer.rest(0.11)
    assert naps == pytest.approx([10 * 10.01e-3])
    pacer.rest(5.0)
    pacer.rest(50.0)
    assert naps[1:] == pytest.approx([0.05, 0.3])


def test_pause_goes_on_until_the_clock_is_back() -> None:
    naps: list[float] = []
    Pacer(pause_s=0.3, sensors=FakeGPU([1665, 1700, 1950]), sleep=naps.append).rest(4.0)
    assert naps == pytest.approx([0.04, 0.005, 0.005])


def test_without_a_clock_to_read_the_pause_stays() -> None:
    """Burst mode must not become sustained because NVML is missing."""
    naps: list[float] = []
    sensors = Sensors()
    sensors.handle = None
    Pacer(pause_s=0.3, sensors=sensors, sleep=naps.append).rest(5.0)
    assert naps == pytest.approx([0.05])


def xspace(events: list[tuple[str, str, float, float]], plane: str = "/device:GPU:0") -> str:
    """(line, kernel, start in µs, duration in µs) as the text form of the profiler's file."""
    names = sorted({kernel for _, kernel, _, _ in events})
    lines = sorted({line for line, *_ in events})
    text = f'planes {{ name: "{plane}"\n'
    for number, line in enumerate(lines):
        text += f'  lines {{ id: {number} name: "{line}" timestamp_ns: 1000\n'
        for on, kernel, start, duration in events:
            if on == line:
                text += (
                    f"    events {{ metadata_id: {names.index(kernel) + 1} "
                    f"offset_ps: {int(start * 1e6)} duration_ps: {int(duration * 1e6)} }}\n"
                )
        text += "  }\n"
    for number, name in enumerate(names, start=1):
        text += f'  event_metadata {{ key: {number} value {{ id: {number} name: "{name}" }} }}\n'
    return text + "}\n"


def read(text: str) -> list[trace.Event]:
    import jax

    return trace.kernels(jax.profiler.ProfileData.from_text_proto(text))


def test_trace_reads_streams_only_in_order_and_in_ms() -> None:
    """6.5 µs is 0.0065 ms. What XLA repeats on lines of its own must not count twice."""
    found = read(
        xspace(
            [
                ("Stream #13(Compute)", "second", 10.0, 6.5),
                ("Stream #14(MemcpyD2D)", "first", 2.0, 1.5),
                ("XLA Modules", "jit_attend", 2.0, 99.0),
            ]
        )
        + xspace([("python", "host", 0.0, 500.0)], plane="/host:CPU")
    )
    assert found == [("first", pytest.approx(0.0015)), ("second", pytest.approx(0.0065))]


def test_each_call_has_its_own_sum() -> None:
    taken = trace.Trace(calls=3, events=(("qk", 1.0), ("pv", 2.0), ("qk", 1.5), ("pv", 2.0), ("qk", 1.0), ("pv", 3.0)))
    every, qk = taken.samples(), taken.samples(lambda name: name == "qk")
    assert every is not None
    assert qk is not None
    assert every.values == (3.0, 3.5, 4.0)
    assert qk.values == (1.0, 1.5, 1.0)


def test_calls_that_cannot_be_told_apart_give_one_mean() -> None:
    """7 events of 2 calls: whatever the kernels were, a call took half of the sum."""
    found = trace.Trace(calls=2, events=tuple(("k", 1.0) for _ in range(7))).samples()
    assert found is not None
    assert found.values == (3.5,)


def test_no_kernel_is_none_and_never_zero() -> None:
    assert trace.Trace(calls=4, events=()).samples() is None
    assert trace.Trace(calls=1, events=(("k", 1.0),)).samples(lambda name: False) is None


@pytest.mark.gpu
class TestOnGPU:
    """The device clock against work of known size."""

    def test_device_clock_of_a_known_product(self) -> None:
        """8192³ in bfloat16: between a third of the datasheet's rate and all of it; the wall clock can't be faster."""
        import jax
        import jax.numpy as jnp

        from explorer import device

        sheet = device.datasheet(device.here().name)
        if sheet is None or sheet.bf16_tflops is None:
            pytest.skip(f"no datasheet of {device.here().name} to compare with")
        side = 8192
        a = jnp.asarray(np.random.default_rng(0).standard_normal((side, side), np.float32), jnp.bfloat16)
        built = clock.build(jnp.matmul, [jax.ShapeDtypeStruct(a.shape, a.dtype)] * 2)
        sets = itertools.repeat((a, a))
        wall, _ = clock.steady(built.call, sets, Protocol(warmup=3, repeats=10))
        found = trace.take(built.call, sets, calls=10).samples()
        assert found is not None
        assert len(found.values) == 10
        tflops = 2 * side**3 / found.median / 1e9
        assert sheet.bf16_tflops / 3 < tflops < sheet.bf16_tflops
        assert found.median <= 1.02 * wall.median

    def test_two_runs_agree_to_one_per_cent(self) -> None:
        from explorer import measure
        from explorer.problem import Problem

        for q_len in (1024, 4096):
            p = Problem(q_len=q_len, kv_len=q_len, dtype="bfloat16")
            first, second = (measure.measure(p, "cudnn", protocol=clock.LAB_SWEEP) for _ in range(2))
            assert first.timing is not None
            assert second.timing is not None
            assert first.timing.device_ms is not None
            assert second.timing.device_ms is not None
            assert first.timing.device_ms.median == pytest.approx(second.timing.device_ms.median, rel=0.01)
            assert first.timing.sm_clock_mhz


def test_jax_forgets_what_the_cache_throws_out(monkeypatch: pytest.MonkeyPatch, nap: Build) -> None:
    """tests/bench/many_shapes.py measures the memory; here only that it happens, and that a build outlives it."""
    times = []
    forget = clock.forget
    monkeypatch.setattr(clock, "forget", lambda: times.append(forget()))
    cache = clock.Cache(most=2)
    for number in range(2 + 2 * clock.FORGET_EVERY):
        assert len(times) == max(0, number - 2) // clock.FORGET_EVERY
        cache.get(number, lambda: nap)
    assert len(times) == 2
    import jax.numpy as jnp

    clock.once(nap.call, (jnp.ones(4),))
