"""What only a GPU can show about the clocks: python scripts/check_gpu.py clock | sweep | script FOLDER.

clock: two runs of the same kernels agree; which kernels ran, at which precision; NVIDIA's points beside its figures.
sweep: the lab's sequence sweep from a cold start and from the compile cache.
script: exported scripts on their own, beside records made at that moment and those in FOLDER.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def clock_check() -> bool:
    from explorer import ceilings, clock, measure, worker
    from explorer.problem import Problem
    from explorer.record import Record
    from explorer.recordings.sets import NVIDIA_TFLOPS

    worker.set_environment()
    worker.load_libraries()
    start = time.perf_counter()
    found = ceilings.here()
    datasheet = measure.device.datasheet(found.where)
    say("ceilings", found.tflops, f"copy {found.copy_tb_s:.2f} TB/s", f"{time.perf_counter() - start:.1f} s", datasheet)
    is_good = True

    def once(p: Problem, name: str, protocol: clock.Protocol = clock.LAB_SWEEP) -> Record:
        start = time.perf_counter()
        made = measure.measure(p, name, protocol=protocol)
        timing, proof = made.timing, made.evidence or {}
        if timing is None or timing.device_ms is None:
            say("NO DEVICE TIME", p, name, made.status, made.reason)
            return made
        d, w = timing.device_ms, timing.wall_ms
        say(
            f"{name:6} {p}: device {d.median:.5f} ms ({len(d.values)} samples, {d.p10:.5f} to {d.p90:.5f})",
            f"wall {w.median:.4f} ({w.p10:.4f} to {w.p90:.4f}, {timing.stopped_by})",
            f"{made.cost['tflops']:.0f} TFLOP/s" if made.cost else "",
            f"kernel {timing.kernel_ms.median:.5f}" if timing.kernel_ms else "",
            f"SM {min(timing.sm_clock_mhz or [0])} to {max(timing.sm_clock_mhz or [0])} MHz",
            f"{proof.get('verdict')} {proof.get('note')} {'proven' if proof.get('proven') else 'NOT PROVEN'}",
            proof.get("custom_calls"),
            [(k["name"][:90], k["count"], round(k["share"], 3)) for k in proof.get("kernels", [])][:6],
            f"suspect: {made.cost['suspect']}" if made.cost else "",
            f"{time.perf_counter() - start:.1f} s in all",
        )
        return made

    base = Problem()
    for dtype, names in (
        ("float32", ("naive", "xla")),
        ("bfloat16", ("naive", "auto", "xla", "cudnn")),
        ("float16", ("xla", "cudnn")),
    ):
        for name in names:
            once(base.but(dtype=dtype), name)
    for q_len in (1024, 2048, 4096):
        for name in ("naive", "cudnn"):
            p = base.but(q_len=q_len, kv_len=q_len, dtype="bfloat16")
            first, second = (once(p, name) for _ in range(2))
            is_good &= within(first, second, 0.01)
    for causal in (False, True):
        for q_len, published in NVIDIA_TFLOPS.items():
            p = Problem(
                batch=1, q_len=q_len, kv_len=q_len, heads=64, kv_heads=8, head_dim=128, dtype="bfloat16", causal=causal
            )
            made = once(p, "cudnn")
            if made.cost and made.cost["tflops"]:
                say(f"    ratio to NVIDIA's {published[causal]}: {made.cost['tflops'] / published[causal]:.3f}")
    p = Problem(batch=1, q_len=16384, kv_len=16384, heads=64, kv_heads=8, head_dim=128, dtype="bfloat16")
    once(p, "cudnn", replace(clock.LAB_SWEEP, mode="sustained", repeats=60, trace_calls=60))
    once(base.but(dtype="bfloat16"), "cudnn", replace(clock.LAB_SWEEP, cold_l2=True))
    return is_good


def within(first: Any, second: Any, share: float) -> bool:
    a, b = first.timing.device_ms.median, second.timing.device_ms.median
    say(
        f"    two runs: {a:.5f} and {b:.5f} ms, {abs(a / b - 1):.2%} apart",
        "" if abs(a / b - 1) <= share else "TOO FAR",
    )
    return abs(a / b - 1) <= share


def sweep_check() -> bool:
    """Two processes with one empty cache folder: the first is cold."""
    command = [
        *(sys.executable, "-m", "explorer", "sweep", "--axis", "q_len", "--values", "64,128,256,512,1024"),
        *("--backend", "naive:float32,xla:float32,xla:bfloat16,cudnn:bfloat16", "--json"),
    ]
    took = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "warm"):
            start = time.perf_counter()
            done = subprocess.run(
                command, env={**os.environ, "EXPLORER_CACHE_DIR": folder}, capture_output=True, text=True, check=False
            )
            took.append(time.perf_counter() - start)
            records = [json.loads(line) for line in done.stdout.splitlines()]
            compiled_s = sum(r["timing"]["compile_ms"] for r in records if r["timing"]) / 1e3
            hits = sum(bool(r["timing"] and r["timing"]["disk_hit"]) for r in records)
            say(
                f"{name} sweep: {took[-1]:.1f} s, {len(records)} records, exit {done.returncode},",
                f"{compiled_s:.1f} s of compiling added up, {hits} from disk, {[r['status'] for r in records]}",
                done.stderr[-500:],
            )
    return took[0] <= 25 and took[1] <= 8


def script_check(folder: str) -> bool:
    """Exported scripts on their own: each of the lab's benchmark beside a record made just before it, since the wall
    clock of so short a call follows the host's moods; the long calls of FOLDER's "memory" beside what was recorded."""
    from explorer import export, measure, record, worker
    from explorer.clock import LAB
    from explorer.recordings.sets import SETS

    worker.set_environment()
    recorded, _ = record.read_lines(Path(folder) / "memory.jsonl")
    long = [made for made in recorded if made.timing is not None and made.timing.wall_ms.median > 1.0]
    short = (measure.measure(p.problem, p.backend, protocol=LAB) for p in SETS["lab-benchmark"].points)  # one by one
    is_good = True
    for made in itertools.chain(long[-4:], short):
        assert made.timing is not None, made.reason
        with tempfile.TemporaryDirectory() as elsewhere:
            path = Path(elsewhere) / "script.py"
            path.write_text(export.script(made), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, str(path)], capture_output=True, text=True, cwd=elsewhere, check=False
            )
        say(f"{made.backend} {made.problem} of {made.time}: {done.stdout} {done.stderr[-300:]}")
        if done.returncode == 0:
            share = float(done.stdout.split("wall median ")[1].split(" ms")[0]) / made.timing.wall_ms.median
            say(f"    {share:.3f} of the record's", "" if abs(share - 1) <= 0.1 else "TOO FAR")
            is_good &= abs(share - 1) <= 0.1
        else:
            is_good = False
    return is_good


def say(*words: Any) -> None:
    print(*words, flush=True)


def main() -> int:
    name, *rest = sys.argv[1:] or ["clock"]
    checks = {"clock": clock_check, "sweep": sweep_check, "script": lambda: script_check(*rest)}
    start = time.perf_counter()
    is_good = checks[name]()
    say(f"{name}: {'good' if is_good else 'NOT GOOD'}, {time.perf_counter() - start:.0f} s")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
