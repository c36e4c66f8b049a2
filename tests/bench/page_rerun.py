"""How fast pages answer: python tests/bench/page_rerun.py. Exit 1 if a goal is missed; meant for a quiet machine.

rerun: nothing new to compute, under 60 ms of server time at the median. slider: a move to a compiled shape that was not
asked before (another seed), beyond its samples under 150 ms. steps, masks: a move there, under 100 ms. Server time is
that of the script's runs, for the slider all until the result is there; AppTest runs the frame once more (it forgets
the menu) and reads all messages back, and its whole time is printed beside it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

SMALL = {"batch": "1", "heads": "1", "head_dim": "8", "kv_heads": "1", "q_len": "16", "backend": ["naive", "xla"]}
WAIT_S = 120


def main() -> int:
    from streamlit.testing.v1 import AppTest

    from explorer.ui import jobs

    app = AppTest.from_file(str(ROOT / "streamlit_app.py"), default_timeout=WAIT_S)
    app.query_params.update(SMALL)
    app.run().switch_page("pages/live.py").run()

    def until_shown(seed: int) -> float:
        start = time.perf_counter()
        while time.perf_counter() - start < WAIT_S:
            if "live_shown" in app.session_state:
                records = app.session_state["live_shown"].records
                if len(records) == 2 and all(made.problem.seed == seed for made in records):
                    return (time.perf_counter() - start) * 1e3
            app.run()
        raise SystemExit("the result never came")

    def seeded(seed: int) -> float:
        app.sidebar.number_input(key="seed").set_value(seed).run()
        until_shown(seed)
        return sum(sum(m.timing.wall_ms.values) for m in app.session_state["live_shown"].records if m.timing)

    try:
        until_shown(0)
        rerun = timed(app, [app.run] * 30)
        slider = timed(app, [lambda s=seed: seeded(s) for seed in range(1, 11)])
        app.switch_page("pages/steps.py").run()
        steps = timed(app, [lambda v=value: app.slider(key="steps_row").set_value(v).run() for value in range(3, 13)])
        app.switch_page("pages/masks.py").run()
        app.sidebar.select_slider(key="q_len").set_value(64).run()
        app.toggle(key="masks_window").set_value(True).run()
        for left in (4, 5):  # both are compiled and checked
            app.slider(key="masks_left").set_value(left).run()
            time.sleep(5)
            app.run()
        masks = timed(app, [lambda v=value: app.slider(key="masks_left").set_value(v).run() for value in [4, 5] * 5])
    finally:
        jobs.engine().close()
    for what, (script, whole), goal in (
        ("a rerun", rerun, 60), ("a move on Steps", steps, 100), ("a move on Masks", masks, 100),
        ("a move on Live run, beyond its samples,", slider, 150),
    ):  # fmt: skip
        print(f"{what} {script:.0f} ms (goal {goal}), {whole:.0f} ms with what AppTest adds")
    return int(rerun[0] > 60 or slider[0] > 150 or steps[0] > 100 or masks[0] > 100)


def timed(app: Any, moves: Sequence[Callable[[], Any]]) -> tuple[float, float]:
    """Median times of these moves, in ms, without what a move says was spent on samples: of the script's runs, and of
    all that AppTest does."""
    from explorer.ui import shell

    run, spent, scripts, wholes = shell.run, [0.0], [], []

    def clocked() -> None:
        start = time.perf_counter()
        try:
            run()
        finally:
            spent[0] += (time.perf_counter() - start) * 1e3

    with mock.patch.object(shell, "run", clocked):
        for move in moves:
            spent[0], start = 0.0, time.perf_counter()
            made = move()
            samples = made if isinstance(made, float) else 0.0
            wholes.append((time.perf_counter() - start) * 1e3 - samples)
            scripts.append(spent[0] - samples)
            assert not app.exception, app.exception
    return statistics.median(scripts), statistics.median(wholes)


if __name__ == "__main__":
    sys.exit(main())
