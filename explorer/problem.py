"""Problem: one attention call in plain numbers, validated; presets with their sources."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, no_type_check

from explorer.masks import Mask

DType = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(DType)
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
INPUTS = {
    "normal": "N(0, 1), drawn on the host from NumPy's seeded generator",
    "lab": "N(0, 1) from the lab's own jax.random keys",
    "outliers": "N(0,1) + 10·N(0,1)·Bernoulli(0.001) (FlashAttention-3, section 4.3)",
    "spike": "N(0, 1) with one element of q and of k set to 10,000",
    "zeros": "all zeros",
    "nan": "N(0, 1) with one NaN in v",
}
SIZES = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
AXIS_LETTERS = {"batch": "B", "q_len": "T", "kv_len": "S", "heads": "N", "kv_heads": "K", "head_dim": "H"}
LARGEST = 2**31 - 1


def divisors(n: int) -> list[int]:
    """Every whole number that divides n, in order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


@no_type_check  # it checks its own values, in its own words, under pytest too
@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One attention call. Lengths in tokens; kv_heads < heads means grouped queries.

    q is (batch, q_len, heads, head_dim); k and v are (batch, kv_len, kv_heads, head_dim). Raises ValueError.
    """

    batch: int = 4
    q_len: int = 128
    kv_len: int = 128
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 64
    dtype: DType = "float32"
    causal: bool = False
    backward: bool = False
    window: tuple[int, int] | None = None
    kv_valid: int | None = None
    seed: int = 0
    inputs: str = "normal"
    input_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in SIZES:
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int):
                raise ValueError(f"{name} must be a whole number, got {size!r}")
            if not 1 <= size <= LARGEST:
                raise ValueError(f"{name} must be from 1 to {LARGEST}, got {size}")
        if self.heads % self.kv_heads:
            fits = ", ".join(str(k) for k in divisors(self.heads))
            raise ValueError(f"kv_heads must divide heads={self.heads}, got {self.kv_heads}; one of {fits} would do")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype}")
        if self.inputs not in INPUTS:
            raise ValueError(f"inputs must be one of {', '.join(INPUTS)}, got {self.inputs}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed <= LARGEST:
            raise ValueError(f"seed must be a whole number from 0 to {LARGEST}, got {self.seed!r}")
        if not 0 < self.input_scale < float("inf"):
            raise ValueError(f"input_scale must be a positive number, got {self.input_scale}")
        if self.window is not None and (len(self.window) != 2 or min(self.window) < 0):
            raise ValueError(f"window needs two numbers of keys, left and right, of 0 or more, got {self.window}")
        if self.kv_valid is not None and not 0 <= self.kv_valid <= self.kv_len:
            raise ValueError(f"kv_valid must be from 0 to kv_len={self.kv_len}, got {self.kv_valid}")

    @classmethod
    def of(cls, **values: Any) -> Problem:
        """A Problem in which kv_len follows q_len, and kv_heads heads, unless given (None: not given)."""
        values = {name: value for name, value in values.items() if value is not None}
        values.setdefault("kv_len", values.get("q_len", 128))
        values.setdefault("kv_heads", values.get("heads", 8))
        return cls(**values)

    def but(self, **changes: Any) -> Problem:
        """The same problem with some fields changed."""
        return replace(self, **changes)

    @property
    def mask(self) -> Mask:
        return Mask(causal=self.causal, window=self.window, kv_valid=self.kv_valid)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.q_len, self.heads, self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.kv_len, self.kv_heads, self.head_dim

    @property
    def sharing(self) -> str:
        """MHA, GQA or MQA."""
        return "MHA" if self.kv_heads == self.heads else "MQA" if self.kv_heads == 1 else "GQA"

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}  # asdict copies, and takes long
        values["window"] = list(self.window) if self.window is not None else None
        return {**values, "mask": self.mask.name}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Problem:
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in values.items() if name in known}
        if values.get("window") is not None:
            values["window"] = tuple(values["window"])
        return cls(**values)

    def __str__(self) -> str:
        letters = " ".join(f"{AXIS_LETTERS[n]}={getattr(self, n)}" for n in SIZES)
        return f"{letters} {self.dtype} {self.mask.name}{' backward' if self.backward else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named Problem and where its numbers come from. layers: transformer layers, for the KV cache."""

    label: str
    problem: Problem
    source: str
    layers: int | None = None


def _model(q_len: int, heads: int, kv_heads: int, head_dim: int, causal: bool = True) -> Problem:
    return Problem.of(
        batch=1, q_len=q_len, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype="bfloat16", causal=causal
    )


_LAB = "the lab, step 2: B=4, T=S=128, N=8, H=64, float32"
_META = "Grattafiori et al., The Llama 3 Herd of Models (2024), table 3"
PRESETS: dict[str, Preset] = {
    "lab": Preset(label="Lab defaults", problem=Problem(), source=_LAB),
    "lab-causal": Preset(
        label="Lab, causal bfloat16", problem=Problem(dtype="bfloat16", causal=True), source="the lab, steps 5 and 6"
    ),
    "gpt2": Preset(
        label="GPT-2 small",
        problem=_model(1024, 12, 12, 64),
        source="openai/gpt-2, model 124M hparams.json: n_head 12, n_embd 768, n_ctx 1024",
        layers=12,
    ),
    "llama3-8b": Preset(label="Llama-3 8B", problem=_model(2048, 32, 8, 128), source=_META, layers=32),
    "llama3-70b": Preset(label="Llama-3 70B", problem=_model(2048, 64, 8, 128), source=_META, layers=80),
    "gemma2-9b": Preset(
        label="Gemma-2 9B",
        problem=_model(2048, 16, 8, 256),
        source="Gemma Team, Gemma 2 (2024), table 1 (its logit soft-capping is left out here)",
        layers=42,
    ),
    "qwen2.5-7b": Preset(
        label="Qwen2.5 7B",
        problem=_model(2048, 28, 4, 128),
        source="Qwen Team, Qwen2.5 Technical Report (2024), table 1; config.json: hidden_size 3584, 28 heads",
        layers=28,
    ),
    "decode": Preset(
        label="Decode step (Llama-3 8B)",
        problem=Problem(
            batch=8, q_len=1, kv_len=4096, heads=32, kv_heads=8, head_dim=128, dtype="bfloat16", causal=False
        ),
        source=f"{_META}; one new token against a cache of 4,096",
        layers=32,
    ),
}


def parse_length(text: str) -> int:
    """A whole number, in which a trailing k means 1,024: "2k" is 2048."""
    number, factor = (text[:-1], 1024) if text[-1:] in ("k", "K") else (text, 1)
    try:
        return int(number) * factor
    except ValueError:
        raise ValueError(
            f"a length is a whole number, or one with k for 1,024, such as 128 or 2k, got {text!r}"
        ) from None


def parse_list(text: str) -> tuple[int, ...]:
    """Lengths by commas or start:stop:step (stop included): "64,1k" or "8:256:8"; sorted, each once."""
    values: set[int] = set()
    for part in text.split(","):
        part = part.strip()
        if not part:
            continue
        if ":" not in part:
            values.add(parse_length(part))
            continue
        ends = part.split(":")
        if len(ends) not in (2, 3):
            raise ValueError(f"a range is start:stop or start:stop:step, such as 8:256:8, got {part!r}")
        start, stop, step = (*map(parse_length, ends), 1)[:3]
        if step < 1 or stop < start:
            raise ValueError(f"a range needs start <= stop and a step of 1 or more, got {part!r}")
        if (stop - start) // step >= 10_000:
            raise ValueError(f"a range may name at most 10,000 values, got {part!r}")
        values.update(range(start, stop + 1, step))
    if not values:
        raise ValueError(f"a list needs at least one value, such as 64,128,256, got {text!r}")
    return tuple(sorted(values))
