"""TransformerEngine's library: why it can't be used, in one exact sentence each, on a machine that has none of it."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from explorer import backends, te
from explorer.device import Device
from explorer.problem import Problem

PIP = "/venv/lib/python3.12/site-packages/nvidia/cudnn/lib"
SYSTEM = "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError("libcuda.so.1: cannot open shared object file: No such file or directory"),
            "TransformerEngine 2.20.2 is installed, but it needs the NVIDIA driver's libcuda.so.1, which is not on "
            "this machine",
        ),
        (
            ImportError(f"{SYSTEM}/libx.so: undefined symbol: cudnnBackendFinalize_v2"),
            "TransformerEngine 2.20.2 can't be loaded: undefined symbol cudnnBackendFinalize_v2; another version of a "
            f"library it links was loaded first ({PIP}/libcudnn.so.9); TransformerEngine must be imported before JAX "
            "opens the GPU",
        ),
        (
            RuntimeError("Transformer Engine requires cuDNN 9.12.0 or later, but the cuDNN runtime is 9.1.0."),
            "TransformerEngine 2.20.2 can't be used: Transformer Engine requires cuDNN 9.12.0 or later, but the cuDNN "
            "runtime is 9.1.0.",
        ),
        (
            FileNotFoundError("Could not find shared object file for Transformer Engine jax lib."),
            "TransformerEngine 2.20.2 is installed without its JAX part (Could not find shared object file for "
            f"Transformer Engine jax lib.); {te.INSTALL}",
        ),
        (
            RuntimeError("cudnn shared object not found."),
            "TransformerEngine 2.20.2 can't be loaded, a library is missing: cudnn shared object not found.",
        ),
        (
            KeyError("surprise"),
            "TransformerEngine 2.20.2 can't be imported: KeyError: 'surprise'",
        ),
    ],
)
def test_each_failure_has_its_sentence(error: Exception, sentence: str) -> None:
    assert te.classify(error, "2.20.2", [f"{PIP}/libcudnn.so.9"]) == sentence


def test_the_doctor_s_rows() -> None:
    found = {
        "version": "2.20.2",
        "reason": None,
        "cudnn_versions": {f"{PIP}/libcudnn.so.9": "9.14.0", f"{SYSTEM}/libcudnn.so.9.14.0": "9.14.0"},
        "recipes": {
            "DelayedScaling": {"supported": True, "reason": None},
            "MXFP8BlockScaling": {"supported": False, "reason": "Device compute capability 9.9 or higher required"},
        },
    }
    assert te.rows(found) == {
        "TransformerEngine": "2.20.2, ready",
        "cuDNN loaded here": f"9.14.0 ({PIP}/libcudnn.so.9; {SYSTEM}/libcudnn.so.9.14.0)",
        "DelayedScaling recipe": "supported here",
        "MXFP8BlockScaling recipe": "not here: Device compute capability 9.9 or higher required",
    }
    mixed = {f"{PIP}/libcudnn.so.9": "9.19.0", f"{SYSTEM}/libcudnn.so.9.14.0": "9.14.0"}
    assert te.rows(found | {"cudnn_versions": mixed})["cuDNN loaded here"].startswith("2 versions, 9.14.0 and 9.19.0 (")
    assert te.rows(te.facts())["cuDNN loaded here"] == "none"


def test_a_hidden_module_can_t_be_imported_meanwhile_and_a_loaded_one_stays() -> None:
    sys.modules.pop("pickletools", None)
    with te.hidden("pickletools"), te.hidden("sys"):
        with pytest.raises(ImportError):
            importlib.import_module("pickletools")
        assert importlib.import_module("sys") is sys
    assert importlib.import_module("pickletools").dis


def test_too_old() -> None:
    assert te.too_old("2.11.0") == "TransformerEngine 2.12 or later is needed, got 2.11.0"
    assert te.too_old("2.12") is None
    assert te.too_old("2.20.2+abc") is None
    assert te.too_old("3.0.0.dev0") is None


def test_cudnn_of_one_place_is_not_mixed() -> None:
    files = [f"{PIP}/libcudnn.so.9", f"{PIP}/libcudnn_graph.so.9", f"{PIP}/libcudnn_ops.so.9"]
    assert te.mixed_cudnn(files) is None
    assert te.mixed_cudnn([]) is None


def test_cudnn_of_two_places_names_both() -> None:
    sentence = te.mixed_cudnn(
        [f"{PIP}/libcudnn_graph.so.9", f"{PIP}/libcudnn.so.9", f"{SYSTEM}/libcudnn_ops.so.9.19.0"]
    )
    assert sentence is not None
    assert f"{PIP}/libcudnn.so.9 and {SYSTEM}/libcudnn_ops.so.9.19.0" in sentence
    assert "two cuDNN libraries are loaded in one process" in sentence


def test_the_maps_of_a_process_with_two_copies_tell_both(tmp_path: Path) -> None:
    """Two copies of a real library under cuDNN's name, really loaded: what /proc/self/maps then says."""
    library = next(
        (p for p in map(Path, (f"{SYSTEM}/libm.so.6", "/lib/x86_64-linux-gnu/libm.so.6")) if p.exists()), None
    )
    if library is None:
        pytest.skip("no libm.so.6 at its Debian place to copy")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(library, tmp_path / name / "libcudnn.so.9")
    code = (
        "import ctypes, sys; from explorer import te; "
        f"[ctypes.CDLL(f'{tmp_path}/{{d}}/libcudnn.so.9') for d in 'ab']; print(te.mixed_cudnn())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f"{tmp_path}/a/libcudnn.so.9 and {tmp_path}/b/libcudnn.so.9" in said


def fake_install(folder: Path, version: str, body: str) -> None:
    """A package of TransformerEngine's name that fails in its own way when imported."""
    (folder / "transformer_engine").mkdir(parents=True)
    (folder / "transformer_engine" / "__init__.py").write_text("")
    (folder / "transformer_engine" / "jax.py").write_text(body)
    info = folder / f"transformer_engine-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformer-engine\nVersion: {version}\n")


def prepared(folder: Path, *, driver: bool) -> str:
    """te.prepare() in a fresh process that finds this TransformerEngine."""
    code = f"from explorer import te; te.has_driver = lambda: {driver}; print(te.prepare())"
    env = {"PYTHONPATH": f"{folder}:{Path(te.__file__).parents[1]}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    ).stdout.strip()


def test_installed_without_a_driver(tmp_path: Path) -> None:
    fake_install(tmp_path, "2.20.2", "raise AssertionError('must not be imported')")
    assert "needs the NVIDIA driver's libcuda.so.1" in prepared(tmp_path, driver=False)


def test_installed_and_broken(tmp_path: Path) -> None:
    fake_install(tmp_path, "2.20.2", "raise ImportError('x.so: undefined symbol: nvte_x')")
    assert "undefined symbol nvte_x" in prepared(tmp_path, driver=True)


def test_installed_and_too_old(tmp_path: Path) -> None:
    fake_install(tmp_path, "2.8.0", "raise AssertionError('must not be imported')")
    assert prepared(tmp_path, driver=True) == "TransformerEngine 2.12 or later is needed, got 2.8.0"


def test_installed_and_fine(tmp_path: Path) -> None:
    fake_install(tmp_path, "2.20.2", "")
    assert prepared(tmp_path, driver=True) == "None"


@pytest.mark.skipif(te.version() is not None, reason="TransformerEngine is installed here")
def test_not_installed() -> None:
    assert te.prepare() == f"TransformerEngine is not installed ({te.INSTALL})"


@pytest.mark.parametrize("name", ["transformer_engine", "transformer_engine_fp8"])
def test_the_reason_is_the_backends_answer(name: str) -> None:
    here = Device(platform="gpu", name="x", capability=(9, 0), missing={"transformer_engine": "because"})
    assert backends.BACKENDS[name].why_not(Problem(dtype="bfloat16"), here) == "because"
