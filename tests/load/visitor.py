"""A simulated visitor: what a browser says to Streamlit over its WebSocket, without the browser.

It opens the Live run page, changes the seed, and reads from what the page draws whether the output is that of its own
seed. The app cannot tell it from Chromium: the same session, the same reruns, the same fragment polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.cookiejar
import json
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect

from explorer import numerics
from explorer.problem import Problem

PAGE = "live"
AGREES = 2e-3  # the page draws four significant digits
DIED = re.compile(r"The worker process died[^.]*\.|took the worker down")
SEED_LINE = re.compile(r"\*\*B=(\d+) T=(\d+) .*? N=(\d+) .*? H=(\d+)\*\*.* seed (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One question and what became of it, in the eyes of the visitor.

    outcome: right, told (the page says that the worker died, and why there is no result), wrong, or silent (nothing).
    """

    visitor: int
    seed: int
    asked: float
    seconds: float
    outcome: str
    why: str = ""


@lru_cache(maxsize=512)
def truth(problem: Problem) -> np.ndarray:
    """The first head's output, in float64 on this side."""
    drawn = numerics.cast(numerics.draw(problem), problem.dtype)
    q, k, v = (drawn[name][:1, :, 0] for name in ("q", "k", "v"))
    return numerics.exact(q, k, v, problem.mask.dense(problem.q_len, problem.kv_len))[0]


def cookie(url: str, token: str) -> str:
    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    opener.open(f"{url}/?token={token}", timeout=30).read()
    return "; ".join(f"{each.name}={each.value}" for each in jar)


def cells(chart: Any) -> Iterator[dict[str, Any]]:
    """The rows of a chart's data, which travels as Arrow beside the spec."""
    for table in [chart.data, *(each.data for each in chart.datasets)]:
        if table.data:
            with pa.ipc.open_stream(table.data) as reader:
                yield from reader.read_all().to_pylist()


@dataclass(kw_only=True)
class Drawn:
    """What the page has shown of one script run."""

    seed: int | None = None
    output: np.ndarray | None = None
    told: str = ""
    errors: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def is_answer(self) -> bool:
        return self.output is not None or bool(self.told or self.errors)


class Visitor:
    """One session. `async with visitor.session(): visit = await visitor.ask(seed)`."""

    def __init__(self, number: int, url: str, pass_: str, problem: Problem) -> None:
        self.number, self.url, self.pass_, self.problem = number, url, pass_, problem
        self._heard, self._last, self._is_closed = 0.0, "nothing", False
        self._drawn = Drawn()
        self._changed = asyncio.Event()
        self._seed_widget: str | None = None
        self._page = ""
        self._fragments: dict[str, asyncio.Task[None]] = {}
        self._cached: dict[str, ForwardMsg] = {}
        self._wanted: int | None = None
        self._ws: ClientConnection | None = None

    @contextlib.asynccontextmanager
    async def session(self, seed: int) -> AsyncIterator[None]:
        """Opens the page at a seed; leaving closes the tab."""
        address = f"{self.url.replace('http', 'ws', 1)}/_stcore/stream"
        async with connect(
            address,
            subprotocols=["streamlit"],  # pyright: ignore[reportArgumentType]
            additional_headers={"Cookie": self.pass_},
            max_size=None,
            open_timeout=60,
            ping_interval=None,
        ) as self._ws:
            reading = asyncio.create_task(self._read())
            try:
                self._wanted = seed
                await self._rerun(query=self._link(seed))
                yield
            finally:
                self._forget_fragments()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    def _link(self, seed: int) -> str:
        p = self.problem
        sizes = f"batch={p.batch}&q_len={p.q_len}&heads={p.heads}&head_dim={p.head_dim}"
        return f"v=1&{sizes}&dtype={p.dtype}&backend=naive&seed={seed}"

    async def ask(self, seed: int, patience_s: float) -> Visit:
        """Move the seed (unless the page was opened at it) and wait for its output."""
        asked = time.time()
        if self._wanted != seed:
            await self.move(seed)
        outcome, why = "right", ""
        try:
            async with asyncio.timeout(patience_s):
                while not (self._drawn.seed == seed and self._drawn.is_answer):
                    self._changed.clear()
                    await self._changed.wait()
            if self._drawn.output is not None:
                why = self._compare(seed, self._drawn.output) or ""
                outcome = "wrong" if why else "right"
            else:
                why = self._drawn.told or "; ".join(self._drawn.errors)
                outcome = "told" if self._drawn.told else "wrong"
        except TimeoutError:
            outcome, why = "silent", f"no answer within {patience_s:g} s; {self._state()}"
        return Visit(visitor=self.number, seed=seed, asked=asked, seconds=time.time() - asked, outcome=outcome, why=why)

    async def read(self, pattern: str, patience_s: float) -> str:
        """Wait until the page says something; the line in which it did. Fails when it can't say it any more."""
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    for text in self._drawn.texts:
                        if re.search(pattern, text):
                            return text
                    assert not self._is_closed, (
                        f"closed before it said {pattern!r}: {self._state()}, {self._drawn.texts}"
                    )
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"did not say {pattern!r}: {self._state()}, {self._drawn.texts}") from None

    async def move(self, seed: int) -> None:
        """As when a slider is moved on before its answer came."""
        self._wanted = seed
        await self._rerun(seed=seed)

    def _compare(self, seed: int, shown: np.ndarray | None) -> str | None:
        expected = truth(self.problem.but(seed=seed))
        if shown is None or shown.shape != expected.shape:
            return f"an output of {expected.shape} was due, got {None if shown is None else shown.shape}"
        off = float(np.max(np.abs(shown - expected)))
        return None if off <= AGREES * float(np.max(np.abs(expected))) else f"the output is off by {off:.3g}"

    def _state(self) -> str:
        """Where it got stuck, for who reads the figures."""
        quiet_s = time.time() - self._heard
        return f"{self._last}, {quiet_s:.0f} s ago; drawn seed {self._drawn.seed}, {len(self._fragments)} watchers"

    # --- the protocol

    async def _rerun(self, *, query: str = "", seed: int | None = None, fragment: str | None = None) -> None:
        message = BackMsg()
        if self._page:
            message.rerun_script.page_script_hash = self._page
        else:
            message.rerun_script.page_name = PAGE
        message.rerun_script.query_string = query or self._link(self._wanted or 0)
        if seed is not None:
            assert self._seed_widget is not None, "the page has not drawn its seed yet"
            state = message.rerun_script.widget_states.widgets.add()
            state.id, state.int_value = self._seed_widget, seed
        if fragment is not None:
            message.rerun_script.fragment_id = fragment
            message.rerun_script.is_auto_rerun = True
        assert self._ws is not None
        await self._ws.send(message.SerializeToString())

    async def _read(self) -> None:
        assert self._ws is not None
        try:
            async for raw in self._ws:
                self._heard = time.time()
                message = ForwardMsg()
                message.ParseFromString(raw if isinstance(raw, bytes) else raw.encode())
                if message.WhichOneof("type") == "ref_hash":
                    message = self._cached.get(message.ref_hash, message)
                elif message.metadata.cacheable:
                    self._cached[message.hash] = message
                self._take(message)
                self._changed.set()
            self._last = f"closed: {self._ws.close_code} {self._ws.close_reason}"
        except Exception as error:  # a connection that broke, or a message that could not be read
            self._last = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._is_closed = True
            self._changed.set()

    def _take(self, message: ForwardMsg) -> None:
        kind = message.WhichOneof("type")
        self._last = f"{kind} {message.script_finished}" if kind == "script_finished" else str(kind)
        if kind == "navigation":
            self._page = message.navigation.page_script_hash
        elif kind == "auto_rerun":
            self._start_fragment(message.auto_rerun.fragment_id, message.auto_rerun.interval)
        elif kind == "stop_auto_rerun":
            self._forget_fragments()
        elif kind == "delta" and message.delta.WhichOneof("type") == "new_element":
            self._take_element(message.delta.new_element, message.delta.fragment_id)

    def _take_element(self, element: Any, fragment: str) -> None:
        kind = element.WhichOneof("type")
        if kind in ("markdown", "alert", "progress"):
            one = getattr(element, kind)
            self._drawn.texts.append(one.text if kind == "progress" else one.body)
        if kind == "number_input" and element.number_input.label == "Seed":
            self._seed_widget = element.number_input.id
        elif kind == "markdown" and (found := SEED_LINE.search(element.markdown.body)):
            # The page's first line of a full run: what came before belongs to an older one.
            self._forget_fragments()
            self._drawn = Drawn(seed=int(found[5]))
            self._drawn.texts.append(element.markdown.body)
        elif kind == "markdown" and (found := DIED.search(element.markdown.body)):
            self._drawn.told = found[0]
        elif kind == "exception":
            self._drawn.errors.append(f"{element.exception.type}: {element.exception.message}")
        elif kind == "alert" and element.alert.format == element.alert.Format.Value("ERROR"):
            if died := DIED.search(element.alert.body):
                self._drawn.told = died[0]
            else:
                self._drawn.errors.append(element.alert.body)
        elif kind in ("arrow_vega_lite_chart", "vega_lite_chart") and not fragment:
            self._take_chart(getattr(element, kind))

    def _take_chart(self, chart: Any) -> None:
        if "Output of" not in json.dumps(json.loads(chart.spec).get("title", "")):
            return
        output = np.full((self.problem.q_len, self.problem.head_dim), np.nan)
        for cell in cells(chart):
            output[cell["r"], cell["c"]] = float(cell["v"])
        self._drawn.output = output

    def _start_fragment(self, id: str, interval_s: float) -> None:
        async def again() -> None:
            while True:
                await asyncio.sleep(interval_s)
                await self._rerun(fragment=id)

        if id in self._fragments:
            self._fragments[id].cancel()
        self._fragments[id] = asyncio.create_task(again())

    def _forget_fragments(self) -> None:
        for task in self._fragments.values():
            task.cancel()
        self._fragments.clear()
