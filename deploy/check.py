"""Deploy check: every overlay, the Dockerfile and the Terraform through the real tools that can run without a cloud.

`make deploy-check` runs it. tests/test_deploy.py uses the same functions and asks further: who reaches whom, say.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OVERLAYS = tuple(sorted(path.parent.name for path in (HERE / "k8s" / "overlays").glob("*/kustomization.yaml")))
# GKE's regular channel lies between these two.
KUBERNETES = ("1.33", "1.36")
# No tool here knows these kinds' schemas; the guide says how they were looked at.
CUSTOM = {
    ("cert-manager.io/v1", "Certificate"),
    ("cert-manager.io/v1", "Issuer"),
    ("cloud.google.com/v1", "BackendConfig"),
    ("monitoring.googleapis.com/v1", "PodMonitoring"),
    ("networking.gke.io/v1", "ManagedCertificate"),
    ("networking.gke.io/v1beta1", "FrontendConfig"),
}
FRAMEWORKS = ("kubernetes", "dockerfile", "terraform", "secrets")
LINTER = ROOT / ".venv-deploy"

Manifest = dict[str, Any]
Finding = tuple[str, str]


def tool(name: str) -> str:
    """A command that a wheel of requirements-dev.txt brought, else the machine's own."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is needed; `make deploy-check` installs it from requirements-dev.txt")
    return found


def output(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def render(folder: str) -> str:
    """What `kubectl apply -k` would send, for a folder under k8s/ such as overlays/one-gpu."""
    return output(tool("kubectl"), "kustomize", HERE / "k8s" / folder)


def manifests(text: str) -> list[Manifest]:
    import yaml

    return [document for document in yaml.safe_load_all(text) if document]


def is_custom(manifest: Manifest) -> bool:
    return (manifest["apiVersion"], manifest["kind"]) in CUSTOM


def validate(found: Iterable[Manifest], version: str) -> int:
    """How many passed the schema of that Kubernetes version; unknown fields and unknown kinds raise."""
    import kubernetes_validate

    passed = 0
    for manifest in found:
        if not is_custom(manifest):
            kubernetes_validate.validate(manifest, version, strict=True)
            passed += 1
    return passed


def parse_terraform() -> dict[str, dict[str, Any]]:
    """By file; raises where HCL is broken."""
    import hcl2

    parsed = {}
    for path in sorted((HERE / "terraform").glob("*.tf")):
        with path.open() as file:
            parsed[path.name] = hcl2.load(file)
    return parsed


def linter() -> Path:
    """checkov's environment, made at the first call and again when its requirements change."""
    wanted = (ROOT / "requirements-deploy.txt").read_text()
    stamp = LINTER / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("Installing checkov (about 300 MB, once)", flush=True)
        shutil.rmtree(LINTER, ignore_errors=True)
        output(sys.executable, "-m", "venv", LINTER)
        output(LINTER / "bin" / "pip", "install", "--quiet", "-r", ROOT / "requirements-deploy.txt")
        stamp.write_text(wanted)
    return LINTER / "bin" / "checkov"


def findings(checkov: Path, rendered: dict[str, str]) -> tuple[Counter[str], set[Finding]]:
    """How many checks passed of each framework, and what failed as (id, resource). Asks no server."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, text in rendered.items():
            (place / f"{name}.yaml").write_text(text)
        shutil.copy(HERE / "Dockerfile", place)
        shutil.copytree(
            HERE / "terraform", place / "terraform", ignore=shutil.ignore_patterns(".terraform*", "*.tfvars")
        )
        done = subprocess.run(
            [checkov, "-d", place, "--framework", *FRAMEWORKS, "--skip-download", "--quiet", "--compact", "-o", "json"],
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if not name.startswith(("BC_", "PRISMA_", "CKV_"))},
        )
    try:
        reports = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise RuntimeError(f"checkov failed:\n{done.stdout}{done.stderr}".rstrip()) from None
    passed: Counter[str] = Counter()
    failed: set[Finding] = set()
    for report in reports if isinstance(reports, list) else [reports]:
        passed[report["check_type"]] += report["summary"]["passed"]
        failed |= {(check["check_id"], _bare(check["resource"])) for check in report["results"]["failed_checks"]}
    return passed, failed


def _bare(resource: str) -> str:
    """Without the folder that checkov puts before a Dockerfile's instruction."""
    return resource.rsplit("/", 1)[-1]


def accepted() -> set[Finding]:
    listed = tomllib.loads((HERE / "accepted.toml").read_text())["finding"]
    if bare := [each["id"] for each in listed if not each.get("why", "").strip()]:
        raise ValueError(f"accepted.toml: each finding needs its why; {', '.join(bare)} has none")
    return {(each["id"], resource) for each in listed for resource in each["on"]}


def complaints(failed: set[Finding], allowed: set[Finding]) -> list[str]:
    """What stands between these findings and a pass, a sentence each."""
    new = [f"{id} on {resource}: mend it, or explain it in deploy/accepted.toml" for id, resource in failed - allowed]
    old = [
        f"{id} on {resource}: explained in deploy/accepted.toml, but no longer found"
        for id, resource in allowed - failed
    ]
    return sorted(new) + sorted(old)


def main() -> int:
    rendered = {overlay: render(f"overlays/{overlay}") for overlay in OVERLAYS}
    for overlay, text in rendered.items():
        found = manifests(text)
        counts = {version: validate(found, version) for version in KUBERNETES}
        custom = sum(map(is_custom, found))
        print(f"{overlay}: {len(found)} manifests, {custom} of custom kinds (no schema here); valid: {counts}")
    output(tool("hadolint"), HERE / "Dockerfile")
    print("Dockerfile: hadolint finds nothing")
    print(f"terraform: {len(parse_terraform())} files parse")
    if shutil.which("terraform"):
        output("terraform", "fmt", "-check", "-recursive", HERE / "terraform")
        print("terraform: formatted")
    passed, failed = findings(linter(), rendered)
    problems = complaints(failed, accepted())
    problems += [
        f"checkov looked at nothing of {kind}" for kind in ("kubernetes", "dockerfile", "terraform") if not passed[kind]
    ]
    print(f"checkov: passed {dict(passed)}, {len(failed)} findings, {len(failed) - len(failed - accepted())} explained")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
