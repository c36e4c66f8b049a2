"""cudnn_fp8: cuDNN's FP8 attention through JAX's private call."""

from __future__ import annotations

from typing import Any

from explorer.masks import Mask


def attend(q: Any, k: Any, v: Any, *, mask: Mask) -> Any:
    raise NotImplementedError("cuDNN's FP8 attention is not built in yet")
