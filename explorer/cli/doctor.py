"""doctor: what this machine has, and for each backend "ready" or the reason it is not."""

from __future__ import annotations

import argparse
import json
from typing import Any

from explorer import backends, device, te
from explorer.device import Device
from explorer.memory import gib
from explorer.problem import Problem

HELP = "what this machine has, and which backends are ready on it"
ASKED = Problem(dtype="bfloat16")  # the lab's shape in the dtype that every backend but FP8's own takes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one object")


def readiness(here: Device) -> list[dict[str, Any]]:
    """One row a backend, asked for the lab's shape in bfloat16."""
    return [{"backend": b.name, "ready": (why := b.why_not(ASKED, here)) is None, "reason": why}
            for b in backends.BACKENDS.values()]  # fmt: skip


def main(args: argparse.Namespace) -> int:
    here = device.here()
    answer = {
        **here.to_json(),
        "cudnn_files": device.loaded_libraries("libcudnn"),
        "transformer_engine": te.facts(),  # after the device: it is open by now
        "backends": readiness(here),
    }
    if args.json:
        print(json.dumps(answer, ensure_ascii=False))
        return 0
    kind = f"GPU: {here.name}, compute capability {here.capability_text}" if here.is_gpu else f"CPU: {here.name}"
    print(f"{kind}, {gib(here.memory_bytes)}")
    if not here.is_gpu:
        print(f"no NVIDIA GPU: {here.missing['gpu']}")
    print("\n".join(f"  {name:20} {found or 'not found'}" for name, found in here.versions.items()))
    print("TransformerEngine and cuDNN:")
    for what, how in te.rows(answer["transformer_engine"]).items():
        print(f"  {what:24} {how}")
    print(f"backends, asked for {ASKED}:")
    for row in answer["backends"]:
        print(f"  {row['backend']:22} {'ready' if row['ready'] else row['reason']}")
    return 0
