"""The set-up: which requirements are picked, when an install is done again, and what the settings promise."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFIG = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
THEME = CONFIG["theme"]
REQUIREMENTS = sorted(ROOT.glob("requirements*.txt"))


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def setup(
    project: Path, *words: str, first_on_path: Path | None = None, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Runs scripts/setup as make does; python="" leaves the choice to it."""
    path = os.environ["PATH"] if first_on_path is None else f"{first_on_path}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHON": str(python)}
    return subprocess.run([project / "scripts" / "setup", *words], env=env, capture_output=True, text=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The set-up in a folder of its own, with requirement files that ask for nothing, so that pip stays offline."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for file in REQUIREMENTS:
        (tmp_path / file.name).write_text("# nothing\n")
    return tmp_path


@pytest.fixture
def setup_module(monkeypatch: pytest.MonkeyPatch, project: Path) -> ModuleType:
    monkeypatch.chdir(project)
    spec = importlib.util.spec_from_file_location("setup_under_test", project / "scripts" / "setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("nvidia_smi", "picked"),
    [("exit 0", "requirements.txt"), ("exit 9", "requirements-cpu.txt")],
    ids=["works", "fails"],
)
def test_cuda_set_where_nvidia_smi_works(project: Path, tmp_path: Path, nvidia_smi: str, picked: str) -> None:
    script(tmp_path / "bin" / "nvidia-smi", nvidia_smi)
    done = setup(project, "--print", first_on_path=tmp_path / "bin")
    assert done.stdout.splitlines()[0] == picked, done.stderr


def test_cpu_set_where_there_is_no_nvidia_smi(
    setup_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup_module.wanted([], {}) == ["cpu"]


def test_a_cuda_set_stays_where_the_gpu_went_away(setup_module: ModuleType) -> None:
    assert setup_module.wanted(["dev"], {"python": "3.11", "cuda": "x"})[0] == "cuda"


def test_python_out_of_range_is_one_sentence(project: Path, tmp_path: Path) -> None:
    old = script(tmp_path / "python3.10", 'case "$2" in *print*) echo 3.10 ;; *) exit 1 ;; esac')
    done = setup(project, python=old)
    assert done.returncode == 1
    assert re.fullmatch(r"Python 3\.11, 3\.12 or 3\.13 is needed, got 3\.10 \(.+\); .+\n", done.stderr)
    assert not (project / ".venv").exists()


def test_python_that_does_not_run_is_one_sentence(project: Path) -> None:
    done = setup(project, python="no-such-python")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "got no-such-python, which does not run" in done.stderr


def test_missing_venv_module_names_debians_package(
    setup_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "_base_executable", str(script(tmp_path / "bare-python", "exit 1")), raising=False)
    with pytest.raises(SystemExit, match=r"venv module is missing .*apt-get install python3\.\d+-venv"):
        setup_module.make_venv()


def test_te_needs_a_gpu(project: Path, tmp_path: Path) -> None:
    script(tmp_path / "bin" / "nvidia-smi", "exit 9")
    done = setup(project, "te", first_on_path=tmp_path / "bin")
    assert done.returncode == 1
    assert "TransformerEngine needs an NVIDIA GPU" in done.stderr


def test_a_command_that_fails_shows_why(setup_module: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"The install stopped \(exit 3\)"):
        setup_module.run(sys.executable, "-c", "print('no space left'); raise SystemExit(3)")
    assert "no space left" in capfd.readouterr().err


def test_two_makes_at_once_install_once(project: Path) -> None:
    """Really makes a venv."""
    command = [project / "scripts" / "setup", "dev"]
    env = {**os.environ, "PYTHON": sys.executable}
    both = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted("Installing into" in text for text in said) == [False, True]
    assert setup(project, python="").stderr == ""
    assert setup(project, "dev").stderr == ""


class Installs:
    """Stands for the commands that set-up runs: a venv that is only a folder, and what pip was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.breaks = False

    def __call__(self, *command: str | Path, env: dict[str, str] | None = None) -> None:
        words = [str(word) for word in command]
        if "venv" in words:
            Path(".venv").mkdir()
            self.asked.append("venv")
            return
        self.asked.extend(word for word in words if word.startswith("requirements"))
        if self.breaks:
            sys.exit("interrupted")


@pytest.fixture
def installs(setup_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Installs:
    commands = Installs()
    monkeypatch.setattr(setup_module, "run", commands)
    monkeypatch.setattr(setup_module, "has_gpu", lambda: False)
    return commands


def test_what_is_installed_stays_until_it_changes(setup_module: ModuleType, installs: Installs) -> None:
    setup_module.main(["dev"])
    assert installs.asked == ["venv", "requirements-cpu.txt", "requirements-dev.txt"]
    for words in (["dev"], [], ["dev"]):
        setup_module.main(words)
    assert len(installs.asked) == 3
    Path("requirements-common.txt").write_text("# changed\n")
    setup_module.main([])
    assert installs.asked[3:] == ["requirements-cpu.txt", "requirements-dev.txt"], "in place; dev stays up to date"


def test_another_python_makes_the_venv_anew(setup_module: ModuleType, installs: Installs) -> None:
    setup_module.main([])
    stamp = setup_module.STAMP
    stamp.write_text(re.sub(r"python 3\.\d+", "python 3.10", stamp.read_text()))
    setup_module.main([])
    assert installs.asked == ["venv", "requirements-cpu.txt"] * 2


def test_an_interrupted_install_does_not_count(setup_module: ModuleType, installs: Installs) -> None:
    setup_module.main([])
    Path("requirements-cpu.txt").write_text("# changed\n")
    installs.breaks = True
    with pytest.raises(SystemExit):
        setup_module.main([])
    assert not setup_module.STAMP.exists()
    installs.breaks = False
    installs.asked.clear()
    setup_module.main([])
    assert installs.asked == ["venv", "requirements-cpu.txt"]


def test_te_comes_after_cuda_and_its_build_tools(
    setup_module: ModuleType, installs: Installs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_module, "has_gpu", lambda: True)
    setup_module.main(["te"])
    te = ["requirements-te-build.txt", "requirements-te.txt"]
    assert installs.asked == ["venv", "requirements.txt", *te]
    setup_module.main(["dev"])
    setup_module.main(["te"])
    assert installs.asked.count(te[1]) == 1, "TransformerEngine takes minutes to build"


def requirement_lines(name: str) -> list[str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize("file", REQUIREMENTS, ids=lambda file: file.name)
def test_every_requirement_is_bounded(file: Path) -> None:
    for line in requirement_lines(file.name):
        assert line.startswith("-r ") or re.fullmatch(r"[\w\-\[\]]+>=[\d.]+,<[\d.]+", line), line


def test_cpu_set_is_the_gpu_set_without_cuda() -> None:
    gpu, cpu = requirement_lines("requirements.txt"), requirement_lines("requirements-cpu.txt")
    assert [line.replace("[cuda12]", "") for line in gpu] == cpu


def test_fonts_are_bundled_with_their_licence() -> None:
    urls = [face["url"] for face in THEME["fontFaces"]]
    assert urls
    for url in urls:
        assert (ROOT / url.removeprefix("app/")).is_file(), url
    assert "SIL OPEN FONT LICENSE" in (ROOT / "static" / "fonts" / "OFL.txt").read_text()
    assert CONFIG["server"]["enableStaticServing"]


def test_settings_name_no_other_host() -> None:
    assert "://" not in (ROOT / ".streamlit" / "config.toml").read_text()
    assert CONFIG["browser"] == {"gatherUsageStats": False, "serverAddress": "localhost"}


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_by_hand() -> None:
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("part", ["main", "sidebar"])
def test_text_has_contrast(mode: str, part: str) -> None:
    colours = THEME[mode] if part == "main" else {**THEME[mode], **THEME[mode]["sidebar"]}
    text = [key for key in colours if key in {"textColor", "linkColor"} or re.fullmatch(r"[a-z]+TextColor", key)]
    assert len(text) >= 9
    for key in text:
        for behind in ("backgroundColor", "secondaryBackgroundColor"):
            assert contrast(colours[key], colours[behind]) >= 4.5, (mode, part, key, behind)
    primary = colours["primaryColor"]
    assert contrast(primary, colours["backgroundColor"]) >= (4.5 if part == "sidebar" else 3), "chosen options"
    assert contrast(primary, "#FFFFFF") >= (4.5 if part == "main" else 3), "labels on filled buttons are white"


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_chart_colours(mode: str) -> None:
    theme = THEME[mode]
    assert len(set(theme["chartCategoricalColors"])) >= 7, "one for each backend"
    for colour in theme["chartCategoricalColors"]:
        assert contrast(colour, theme["backgroundColor"]) >= 4.5, colour
    assert len(theme["chartSequentialColors"]) == len(theme["chartDivergingColors"]) == 10, "Streamlit takes just ten"
    steps = [contrast(colour, theme["backgroundColor"]) for colour in theme["chartSequentialColors"]]
    assert steps == sorted(steps), "from the background outwards"


def test_shape_checks_load_no_jax() -> None:
    """The import hook decorates every function of the package; JAX must not come along."""
    code = "import sys, conftest, explorer.masks; print('jax' in sys.modules, 'jaxtyping' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_ci_runs_lint_and_tests() -> None:
    ci = ROOT / ".ci" / "run"
    subprocess.run(["bash", "-n", ci], check=True)
    targets = [line.split()[-1] for line in ci.read_text().splitlines() if line.startswith("make")]
    assert "lint" in targets
    assert targets[-1] == "test", "pytest's closing line is CI's last"
