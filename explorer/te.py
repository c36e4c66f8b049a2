"""te: TransformerEngine's library, imported before JAX opens the GPU, or the exact reason why it can't be used.

The order matters: JAX's CUDA plugin loads cuDNN when it opens the GPU, and TransformerEngine then binds to that one or
fails; and with two cuDNN versions in one process it runs its unfused path without a word.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

NEEDED = (2, 12)  # te.autocast came in 2.9; from 2.12 on its fused attention was tried with cuDNN 9.12 and later
INSTALL = "`make te` builds it, README says how by hand"


def version() -> str | None:
    for name in ("transformer-engine", "transformer_engine"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return None


def loaded_libraries(stem: str = "libcudnn") -> list[str]:
    """Paths of the shared libraries of that name mapped into this process, from /proc/self/maps."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines() if f"/{stem}" in line}
    return sorted(paths)


def cudnn_homes(paths: list[str]) -> dict[str, str]:
    """Directory -> one file of it that stands for the cuDNN there, its main library if that is loaded."""
    homes: dict[str, str] = {}
    for path in sorted(paths, key=lambda p: not re.search(r"/libcudnn\.so", p)):
        homes.setdefault(str(PurePosixPath(path).parent), path)
    return homes


def cudnn_version(path: str) -> str | None:
    """The version that a loaded cuDNN tells of itself; None where it has no such function."""
    try:
        number = int(ctypes.CDLL(path).cudnnGetVersion())
    except (OSError, AttributeError):
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def mixed_cudnn(paths: list[str] | None = None) -> str | None:
    """None where every loaded cuDNN library is of one version, else a sentence with the paths.

    Two places alone prove nothing: a pip package's libcudnn.so.9 is a shim that loads the system's parts, works, and
    tells their version.
    """
    homes = cudnn_homes(loaded_libraries("libcudnn") if paths is None else paths)
    versions = {path: cudnn_version(path) for path in homes.values()}
    if len(homes) < 2 or (len(set(versions.values())) == 1 and None not in versions.values()):
        return None
    named = [f"{path} ({found})" if found else path for path, found in versions.items()]
    return (
        f"two cuDNN libraries are loaded in one process, {' and '.join(named)}: TransformerEngine would run unfused; "
        "start without the second one in LD_LIBRARY_PATH, or remove one of the two packages"
    )


def classify(error: BaseException, found: str | None, libraries: list[str]) -> str:
    """Why the import failed, as one sentence. found: TransformerEngine's version; libraries: the cuDNN files loaded."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    name = f"TransformerEngine {found}"
    if "libcuda.so" in text:
        return f"{name} is installed, but it needs the NVIDIA driver's libcuda.so.1, which is not on this machine"
    if "undefined symbol" in text:
        symbol = text.split("undefined symbol:")[-1].strip(" :")
        where = " and ".join(libraries) or "no cuDNN yet"
        return (
            f"{name} can't be loaded: undefined symbol {symbol}; another version of a library it links was loaded "
            f"first ({where}); TransformerEngine must be imported before JAX opens the GPU"
        )
    if "Could not find shared object file" in text:
        return f"{name} is installed without its JAX part ({text}); {INSTALL}"
    if "shared object not found" in text or "cannot open shared object file" in text:
        return f"{name} can't be loaded, a library is missing: {text}"
    if "requires cuDNN" in text or "version mismatch" in text:
        return f"{name} can't be used: {text}"
    return f"{name} can't be imported: {type(error).__name__}: {text[:300]}"


def too_old(found: str) -> str | None:
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers >= NEEDED:
        return None
    return f"TransformerEngine {'.'.join(map(str, NEEDED))} or later is needed, got {found}"


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@functools.cache
def prepare() -> str | None:
    """Import TransformerEngine where it can work; None: it is there, else why not. Call before JAX opens the GPU."""
    found = version()
    if found is None:
        return f"TransformerEngine is not installed ({INSTALL})"
    if (sentence := too_old(found)) is not None:
        return sentence
    if not has_driver():
        return classify(OSError("libcuda.so.1"), found, [])
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return None  # it would not be used; the rules say that there is no GPU
    try:
        with warnings.catch_warnings(), hidden("torch"):  # of JAX's old names: nothing to do with us
            warnings.simplefilter("ignore")
            importlib.import_module("transformer_engine.jax")
    except Exception as error:  # noqa: BLE001 - a library that fails to load raises many classes; each becomes a sentence
        return classify(error, found, loaded_libraries("libcudnn"))
    return None


@contextlib.contextmanager
def hidden(name: str) -> Iterator[None]:
    """Meanwhile this module can't be imported. TransformerEngine tries PyTorch too, which takes seconds, and goes on
    without it."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # pyright: ignore[reportArgumentType] - what Python itself documents for this
    try:
        yield
    finally:
        del sys.modules[name]


def facts() -> dict[str, Any]:
    """What the doctor tells: version, cuDNN files and whether they are of one version, and FP8 recipes with
    TransformerEngine's own reason. Call it after the GPU is open."""
    files = loaded_libraries("libcudnn")
    why = prepare() or mixed_cudnn(files)
    answer: dict[str, Any] = {
        "version": version(),
        "reason": why,
        "cudnn_files": files,
        "cudnn_versions": {path: cudnn_version(path) for path in cudnn_homes(files).values()},
        "recipes": {},
    }
    if why is None and "transformer_engine.jax" in sys.modules:
        answer["recipes"] = {name: recipe_support(name) for name in ("DelayedScaling", "MXFP8BlockScaling")}
    return answer


def rows(found: dict[str, Any]) -> dict[str, str]:
    """The facts, each as a name and a sentence."""
    lines = {"TransformerEngine": found["reason"] or f"{found['version']}, ready"}
    places = found["cudnn_versions"]
    which = sorted({each or "one that tells no version" for each in places.values()})
    said = "none" if not places else which[0] if len(which) == 1 else f"{len(which)} versions, {' and '.join(which)}"
    where = "; ".join(places)
    lines["cuDNN loaded here"] = f"{said} ({where})" if places else said
    for name, each in found["recipes"].items():
        lines[f"{name} recipe"] = "supported here" if each["supported"] else f"not here: {each['reason']}"
    return lines


def recipe_support(name: str) -> dict[str, Any]:
    """Whether this GPU takes the recipe, with TransformerEngine's own reason where it does not."""
    from transformer_engine.jax.quantize import helper  # pyright: ignore[reportMissingImports]

    modes = helper.ScalingMode
    mode = modes.MXFP8_1D_SCALING if name.startswith("MXFP8") else modes.DELAYED_TENSOR_SCALING
    is_supported, reason = helper.is_scaling_mode_supported(mode)
    return {"supported": bool(is_supported), "reason": reason or None}
