"""Makes .venv hold what the requirement files ask for, and does nothing where it already does.

    scripts/setup [--quick] [--print] [dev] [te]

`dev` adds what tests and lint need, `te` builds TransformerEngine on top. `--print` says what would be installed.
What is installed stands in .venv/installed.txt: written last, removed first, so a half-finished install never counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
from pathlib import Path

TYPE_CHECKING = False  # the check of a second run imports as little as it can: it is in the way of every make
if TYPE_CHECKING:
    from typing import NoReturn

VENV = Path(".venv")
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.txt"
LOG = Path(".venv.log")
LOCK = Path(".venv.lock")
PROGRESS_S = 15.0  # a silent install longer than this looks like one that hangs
PYTHON_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
FILES = {
    "cuda": ["requirements.txt", "requirements-common.txt"],
    "cpu": ["requirements-cpu.txt", "requirements-common.txt"],
    "dev": ["requirements-dev.txt"],
    "te": ["requirements-te-build.txt", "requirements-te.txt"],
}
SIZES = {
    "cuda": "JAX with CUDA: about 3 GB to download",
    "cpu": "JAX for the CPU: about 250 MB to download",
    "dev": "the tools for tests and lint: about 200 MB",
    "te": "TransformerEngine: 730 MB, then built here in 4 to 20 minutes",
}


COMPILE = r"""
import compileall, re, sysconfig
compileall.compile_dir(
    sysconfig.get_path("purelib"), quiet=2, workers=0, rx=re.compile(r"/(tests|pip|setuptools|pkg_resources)/")
)
"""


def fail(sentence: str) -> NoReturn:
    sys.exit(sentence)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def digest(part: str) -> str:
    return hashlib.sha256(b"\0".join(Path(name).read_bytes() for name in FILES[part])).hexdigest()


def installed() -> dict[str, str]:
    """Part -> hash of its files when it was installed; "python" -> version. Empty where no install was finished."""
    try:
        return dict(line.split() for line in STAMP.read_text().splitlines())
    except (OSError, ValueError):
        return {}


def has_gpu() -> bool:
    """Whether nvidia-smi works: there is a GPU and its driver."""
    if not any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in os.get_exec_path()):
        return False
    import subprocess

    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def wanted(extras: list[str], have: dict[str, str]) -> list[str]:
    """The parts to have. A CUDA set stays where it is; what was added once is kept up to date."""
    base = "cuda" if "cuda" in have or has_gpu() else "cpu"
    return [base, *(part for part in ("dev", "te") if part in extras or (part == "dev" and part in have))]


def is_current(parts: list[str], have: dict[str, str]) -> bool:
    return have.get("python") == PYTHON_VERSION and all(have.get(part) == digest(part) for part in parts)


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Runs with its output in the log; a failure prints the log's end."""
    import subprocess

    start = time.monotonic()
    with LOG.open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)
    while True:
        try:
            code = process.wait(PROGRESS_S)
            break
        except subprocess.TimeoutExpired:
            say(f"  {time.monotonic() - start:.0f} s: {last_line()[:100]}")
    if code:
        say("\n".join(LOG.read_text(errors="replace").splitlines()[-15:]))
        fail(f"The install stopped (exit {code}); the lines above end {LOG}. The next make starts it again.")


def last_line() -> str:
    lines = LOG.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "working")


def pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    quiet = ["--progress-bar=off", "--disable-pip-version-check", "--no-compile"]
    run(VENV_PYTHON, "-m", "pip", "install", *quiet, *arguments, env=env)


def compile_modules() -> None:
    """Bytecode on every core, without the packages' own tests: done by pip it takes longer than all else."""
    with LOG.open("a") as log:
        log.write("Compiling the modules, so that the first start is quick\n")
    run(VENV_PYTHON, "-c", COMPILE)


def make_venv() -> None:
    import shutil
    import subprocess

    if VENV.exists():
        say(f"Making {VENV} anew with Python {PYTHON_VERSION}")
    base = getattr(sys, "_base_executable", sys.executable)  # this may run in the venv that goes
    if subprocess.run([base, "-c", "import venv, ensurepip"], capture_output=True).returncode:
        fail(f"Python's venv module is missing ({base}); on Debian: apt-get install python{PYTHON_VERSION}-venv.")
    shutil.rmtree(VENV, ignore_errors=True)
    run(base, "-m", "venv", VENV)


def install(parts: list[str], have: dict[str, str]) -> None:
    start = time.monotonic()
    LOG.unlink(missing_ok=True)
    STAMP.unlink(missing_ok=True)
    if have.get("python") != PYTHON_VERSION:
        make_venv()
        have = {}
    say(f"Installing into {VENV}: {'; '.join(SIZES[part] for part in parts if have.get(part) != digest(part))}")
    plain = [part for part in parts if part != "te"]
    pip(*(word for part in plain for word in ("-r", FILES[part][0])))
    done = {part: digest(part) for part in parts}
    if "te" in parts:
        build, engine = FILES["te"]
        pip("-r", build)
        wheels = {**os.environ, "NVTE_BUILD_USE_NVIDIA_WHEELS": "1"}  # CUDA's headers from pip, no toolkit needed
        pip("--no-build-isolation", "-r", engine, env=wheels)
    elif "te" in have and have.get("cuda") == digest("cuda"):
        done["te"] = have["te"]
    elif "te" in have:
        say("TransformerEngine stays as it was built; `make te` brings it up to date.")
    compile_modules()
    new = STAMP.with_suffix(".new")
    new.write_text("".join(f"{part} {value}\n" for part, value in {"python": PYTHON_VERSION, **done}.items()))
    new.replace(STAMP)
    LOG.unlink(missing_ok=True)
    say(f"Installed in {time.monotonic() - start:.0f} s")


def main(words: list[str]) -> None:
    extras = [word for word in words if not word.startswith("--")]
    have = installed()
    if "--print" in words:
        for part in wanted(extras, {}):
            print("\n".join(FILES[part]))
        return
    if "--quick" in words:
        # In the venv's own Python: is all there? nvidia-smi is asked only where a CUDA set may still have to come.
        sys.exit(0 if is_current(wanted(extras, have), have) else 1)
    with LOCK.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another make is installing; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        have = installed()
        parts = wanted(extras, have)
        if "te" in extras and parts[0] != "cuda":
            fail("TransformerEngine needs an NVIDIA GPU and its driver; nvidia-smi does not work here.")
        if not is_current(parts, have):
            install(parts, have)


if __name__ == "__main__":
    main(sys.argv[1:])
