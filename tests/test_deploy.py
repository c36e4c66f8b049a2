"""deploy/: what its manifests, Dockerfile, Terraform and scripts promise. Policy linting is `make deploy-check`."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import check

DEPLOY = Path(check.__file__).parent
ROOT = DEPLOY.parent
GPU_OVERLAYS = ("many-gpus", "one-gpu", "public")
SCALED = ("many-gpus", "public")
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
Manifest = dict[str, Any]
each_overlay = pytest.mark.parametrize("overlay", check.OVERLAYS)


@cache
def manifests(overlay: str) -> tuple[Manifest, ...]:
    return tuple(check.manifests(check.render(f"overlays/{overlay}")))


def find(overlay: str, kind: str, name: str | None = None) -> list[Manifest]:
    return [m for m in manifests(overlay) if m["kind"] == kind and name in (None, m["metadata"]["name"])]


def one(overlay: str, kind: str, name: str) -> Manifest:
    (found,) = find(overlay, kind, name)
    return found


def workloads(overlay: str) -> dict[str, Manifest]:
    return {m["metadata"]["name"]: m for m in manifests(overlay) if m["kind"] in ("Deployment", "StatefulSet")}


def pod(workload: Manifest) -> Manifest:
    return workload["spec"]["template"]["spec"]


def containers(workload: Manifest) -> list[Manifest]:
    return [*pod(workload).get("initContainers", []), *pod(workload)["containers"]]


def labels(workload: Manifest) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"]["labels"]


def environment(container: Manifest) -> dict[str, str | None]:
    return {each["name"]: each.get("value") for each in container.get("env", [])}


# --- what the tools say


def test_the_issue_s_overlays_are_there() -> None:
    assert set(check.OVERLAYS) == {"cpu-demo", "many-gpus", "one-gpu", "public"}


@each_overlay
@pytest.mark.parametrize("version", check.KUBERNETES)
def test_overlay_is_valid(overlay: str, version: str) -> None:
    found = manifests(overlay)
    assert check.validate(found, version) == sum(not check.is_custom(m) for m in found) > 10


def test_a_misspelt_field_is_seen() -> None:
    import kubernetes_validate

    broken = yaml.safe_load(yaml.safe_dump(one("cpu-demo", "Deployment", "app")))
    broken["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        check.validate([broken], check.KUBERNETES[0])


def test_base_holds_built_in_kinds_and_plain_files_only() -> None:
    """Custom kinds, patches and generators are for overlays/ and components/."""
    found = check.manifests(check.render("base"))
    assert check.validate(found, check.KUBERNETES[0]) == len(found)
    assert set(yaml.safe_load((DEPLOY / "k8s/base/kustomization.yaml").read_text())) == {
        "apiVersion",
        "kind",
        "resources",
    }


def test_dockerfile_passes_hadolint() -> None:
    check.output(check.tool("hadolint"), DEPLOY / "Dockerfile")


def test_a_finding_needs_an_explanation_and_an_explanation_a_finding() -> None:
    known, new, gone = ("A", "x"), ("B", "y"), ("C", "z")
    assert check.complaints({known}, {known}) == []
    told = check.complaints({known, new}, {known, gone})
    assert len(told) == 2
    assert re.match(r"B on y: mend it, or explain", told[0])
    assert re.match(r"C on z: explained .* no longer found", told[1])


def test_every_accepted_finding_is_explained() -> None:
    assert check.accepted()


# --- Kubernetes


@each_overlay
def test_containers_are_shut_in(overlay: str) -> None:
    for name, workload in workloads(overlay).items():
        spec = pod(workload)
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] >= 10000, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}, name
        for container in containers(workload):
            safe = container["securityContext"]
            assert safe["readOnlyRootFilesystem"] is True, container["name"]
            assert safe["allowPrivilegeEscalation"] is False, container["name"]
            assert safe["capabilities"] == {"drop": ["ALL"]}, container["name"]
            for part in ("requests", "limits"):
                assert {"cpu", "memory"} <= container["resources"][part].keys(), container["name"]
            assert {"livenessProbe", "readinessProbe"} <= container.keys(), container["name"]
            assert container["image"].startswith("REGISTRY/explorer-") or DIGEST.search(container["image"])


@each_overlay
def test_what_is_mounted_exists(overlay: str) -> None:
    """Secrets come from cert-manager where the overlay has it, else from certificates.sh, which makes one a role."""
    made = {m["spec"]["secretName"] for m in find(overlay, "Certificate")} - {"dask-ca"}
    assert made == ({"scheduler-tls", "worker-tls", "app-tls"} if overlay in SCALED else set())
    for name, workload in workloads(overlay).items():
        claims = {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])}
        volumes = {each["name"]: each for each in pod(workload)["volumes"]}
        for container in containers(workload):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys() | claims
        assert volumes["tls"]["secret"]["secretName"] == f"{name}-tls"
        for volume in volumes.values():
            if "configMap" in volume:
                assert find(overlay, "ConfigMap", volume["configMap"]["name"])


@each_overlay
def test_selectors_and_ports_meet(overlay: str) -> None:
    of = {
        name: (labels(w), {p["name"] for c in containers(w) for p in c.get("ports", [])})
        for name, w in workloads(overlay).items()
    }
    for service in find(overlay, "Service"):
        own, ports = of[service["metadata"]["name"]]
        assert service["spec"]["selector"].items() <= own.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for budget in find(overlay, "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"].items() <= of[budget["metadata"]["name"]][0].items()
        assert budget["spec"]["maxUnavailable"] == 1
    for workload in workloads(overlay).values():
        for container in containers(workload):
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                if action := container.get(probe, {}).get("httpGet") or container.get(probe, {}).get("tcpSocket"):
                    assert action["port"] in ports, (container["name"], probe)


@each_overlay
def test_a_worker_has_one_gpu_or_none(overlay: str) -> None:
    worker = one(overlay, "StatefulSet", "worker")
    (container,) = containers(worker)
    wanted = "1" if overlay in GPU_OVERLAYS else None
    for part in ("requests", "limits"):
        got = container["resources"][part].get("nvidia.com/gpu")
        assert wanted == (None if got is None else str(got))
    on_l4 = pod(worker).get("nodeSelector") == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert on_l4 is (overlay in GPU_OVERLAYS)
    assert ("explorer-gpu" in container["image"]) is (overlay in GPU_OVERLAYS)
    assert "--name=$(EXPLORER_WORKER)" in container["args"]


@each_overlay
def test_dask_links_use_tls(overlay: str) -> None:
    parts = workloads(overlay)
    (scheduler,) = containers(parts["scheduler"])
    assert {"--tls-ca-file=/tls/ca.crt", "--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key"} <= set(scheduler["args"])
    assert environment(scheduler)["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "true"
    for name in ("worker", "app"):
        container = pod(parts[name])["containers"][0]
        given = environment(container)
        assert given["EXPLORER_TLS_CA"] == "/tls/ca.crt"
        assert given["EXPLORER_TLS_CERT"] == "/tls/tls.crt"
        assert given["EXPLORER_TLS_KEY"] == "/tls/tls.key"
        assert "tls://scheduler:8786" in (*container["args"], *given.values())
    assert "tcp://" not in check.render(f"overlays/{overlay}")


@each_overlay
def test_nothing_is_open_but_the_guarded_ingress(overlay: str) -> None:
    assert {m["spec"].get("type", "ClusterIP") for m in find(overlay, "Service")} == {"ClusterIP"}
    given = environment(pod(one(overlay, "Deployment", "app"))["containers"][0])
    if overlay != "public":
        assert not find(overlay, "Ingress")
        assert given["EXPLORER_ACCESS"] == "token"
        return
    (ingress,) = find(overlay, "Ingress")
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"]
    notes = one(overlay, "Service", backend)["metadata"]["annotations"]
    config = re.search(r'"default": "([a-z]+)"', notes["cloud.google.com/backend-config"])
    assert config
    guard = one(overlay, "BackendConfig", config[1])["spec"]
    assert guard["iap"]["enabled"] is True
    assert guard["sessionAffinity"]["affinityType"] == "GENERATED_COOKIE"
    assert guard["timeoutSec"] >= 3600  # also a WebSocket's longest life
    assert given["EXPLORER_ACCESS"] == "proxy"
    assert given["STREAMLIT_BROWSER_SERVER_ADDRESS"] == ingress["spec"]["rules"][0]["host"]
    (front,) = find(overlay, "FrontendConfig")
    assert front["spec"]["redirectToHttps"]["enabled"] is True


def test_the_scaler_counts_workers_by_the_queue() -> None:
    for overlay in SCALED:
        (scaler,) = find(overlay, "HorizontalPodAutoscaler")
        target = scaler["spec"]["scaleTargetRef"]
        worker = one(overlay, target["kind"], target["name"])
        assert "replicas" not in worker["spec"]  # an apply would undo what the scaler did
        assert scaler["spec"]["maxReplicas"] == 2
        (metric,) = scaler["spec"]["metrics"]
        assert metric["external"]["metric"]["name"] == "prometheus.googleapis.com|explorer_queue_length|gauge"
        (scrape,) = find(overlay, "PodMonitoring")
        assert scrape["spec"]["endpoints"][0]["port"] == "ops"


# --- who reaches whom, worked out from the network policies as Kubernetes defines them

OUTSIDE = "203.0.113.7"
GOOGLE_FRONT = "35.191.10.20"
OTHERS = {
    "dns": ("kube-system", {"k8s-app": "kube-dns"}),
    "monitoring": ("gke-gmp-system", {"app": "collector"}),
    "stranger": ("default", {"app.kubernetes.io/name": "app"}),
}
PORTS = {
    "http": 8080,
    "streamlit": 8501,
    "ops": 9400,
    "dask": 8786,
    "worker": 8788,
    "nanny": 8789,
    "health": 8787,
    "whealth": 8790,
    "dns": 53,
}


def _selects(selector: Manifest | None, own: dict[str, str]) -> bool:
    assert selector is None or set(selector) <= {"matchLabels"}, "only matchLabels is understood here"
    return (selector or {}).get("matchLabels", {}).items() <= own.items()


def _peer(peer: Manifest, namespace: str, own: dict[str, str], address: str | None) -> bool:
    if "ipBlock" in peer:
        return address is not None and ipaddress.ip_address(address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
    if address is not None:
        return False
    if "namespaceSelector" in peer:
        at_home = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": namespace})
    else:
        at_home = namespace == "explorer"
    return at_home and _selects(peer.get("podSelector"), own)


def _allows(
    policies: list[Manifest], way: str, own: dict[str, str], other: tuple[str, dict[str, str], str | None], port: int
) -> bool:
    governing = [
        p["spec"]
        for p in policies
        if way.title() in p["spec"]["policyTypes"] and _selects(p["spec"]["podSelector"], own)
    ]
    if not governing:
        return True
    side = "from" if way == "ingress" else "to"
    for rule in (rule for spec in governing for rule in spec.get(way, [])):
        fits_port = "ports" not in rule or any(each["port"] == port for each in rule["ports"])
        if fits_port and (side not in rule or any(_peer(each, *other) for each in rule[side])):
            return True
    return False


def reach(overlay: str) -> set[tuple[str, str, int]]:
    """Every (from, to, port) that the policies let through; what is outside the namespace lets everything through."""
    policies = find(overlay, "NetworkPolicy")
    inside = {name: ("explorer", labels(workload), None) for name, workload in workloads(overlay).items()}
    ends = {
        **inside,
        **{name: (*other, None) for name, other in OTHERS.items()},
        "internet": ("", {}, OUTSIDE),
        "google": ("", {}, GOOGLE_FRONT),
    }
    open_ways = set()
    for source, one_end in ends.items():
        for target, other_end in ends.items():
            if source == target or not inside.keys() & {source, target}:
                continue
            for port in PORTS.values():
                out = source not in inside or _allows(policies, "egress", one_end[1], other_end, port)
                into = target not in inside or _allows(policies, "ingress", other_end[1], one_end, port)
                if out and into:
                    open_ways.add((source, target, port))
    return open_ways


@each_overlay
def test_who_reaches_whom(overlay: str) -> None:
    way_of_a_job = {
        ("app", "scheduler", 8786),
        ("worker", "scheduler", 8786),
        ("scheduler", "worker", 8788),
        ("scheduler", "worker", 8789),
    }
    names = {(role, "dns", 53) for role in ("app", "scheduler", "worker")}
    watched = {("monitoring", "app", 9400)} if overlay in SCALED else set()
    visited = {("google", "app", 8080)} if overlay == "public" else set()
    assert reach(overlay) == way_of_a_job | names | watched | visited


# --- the rest of the folder


def test_certificates_are_signed_and_private(tmp_path: Path) -> None:
    where = tmp_path / "tls"
    check.output(DEPLOY / "certificates.sh", where)
    for role in ("scheduler", "worker", "app"):
        check.output("openssl", "verify", "-CAfile", where / "ca.crt", where / role / "tls.crt")
        assert (where / role / "tls.key").stat().st_mode & 0o077 == 0
    assert (where / "ca.key").stat().st_mode & 0o077 == 0
    with pytest.raises(RuntimeError, match=r"is there already.*name another directory"):
        check.output(DEPLOY / "certificates.sh", where)


def instructions() -> list[str]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def stages() -> dict[str, tuple[str, list[str]]]:
    """By name: what it is built on, and its instructions."""
    found: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in instructions():
        if match := re.match(r"FROM (\S+) AS (\S+)", line):
            name = match[2]
            found[name] = (match[1], [])
        elif name:
            found[name][1].append(line)
    return found


def lineage(name: str) -> list[str]:
    found, lines = stages(), []
    while name in found:
        name, own = found[name]
        lines += own
    return lines


def test_base_image_is_pinned_by_a_digest_argument() -> None:
    outside = {base for base, _ in stages().values()} - stages().keys()
    assert outside == {"docker.io/library/python:${PYTHON_VERSION}@${PYTHON_DIGEST}"}
    assert any(re.fullmatch(r"ARG PYTHON_DIGEST=sha256:[0-9a-f]{64}", line) for line in instructions())


@pytest.mark.parametrize("target", ["cpu", "gpu", "gpu-te"])
def test_image_ships_no_build_tools_and_no_root(target: str) -> None:
    lines = lineage(target)
    assert not any("apt-get" in line for line in lines)
    assert any("pip uninstall -y pip" in line for line in lines)
    assert "USER 10001:10001" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    assert "VOLUME /cache" in lines
    source = {"cpu": "cpu-environment", "gpu": "gpu-environment", "gpu-te": "te-environment"}[target]
    assert f"COPY --from={source} /venv /venv" in lines


def test_compiler_is_in_the_transformer_engine_stage_only() -> None:
    assert [name for name, (_, own) in stages().items() if any("g++" in line for line in own)] == ["te-environment"]


def test_everything_copied_exists_and_reaches_the_builder() -> None:
    ignored = [
        line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    let_in = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert ignored[0] == "*"
    copied = [
        part
        for line in instructions()
        if line.startswith("COPY ") and "--from" not in line
        for part in line.split()[1:-1]
    ]
    assert "requirements-te.txt" in copied
    for path in copied:
        assert (ROOT / path).exists(), path
        assert any(fnmatch.fnmatch(path, pattern) for pattern in let_in), path


def test_compose_is_for_this_machine_only() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["environment"]["EXPLORER_ACCESS"] == "token"
        assert service["build"]["target"] in stages()
        assert any(volume.endswith(":/cache") for volume in service["volumes"])
    (device,) = services["explorer"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def blocks(kind: str) -> dict[str, Manifest]:
    """Terraform's blocks of one kind by name, of all files."""
    found: dict[str, Manifest] = {}
    for parsed in check.parse_terraform().values():
        for block in parsed.get(kind, []):
            for name, body in block.items():
                found[name.strip('"')] = body
    return found


def resources() -> set[str]:
    return {
        f"{kind.strip(chr(34))}.{name.strip(chr(34))}"
        for parsed in check.parse_terraform().values()
        for block in parsed.get("resource", [])
        for kind, named in block.items()
        for name in named
    }


def test_terraform_makes_what_the_guide_cleans_up() -> None:
    assert resources() == {
        "google_artifact_registry_repository.images",
        "google_artifact_registry_repository_iam_member.nodes",
        "google_compute_firewall.nothing_in",
        "google_compute_global_address.public",
        "google_compute_network.this",
        "google_compute_router.this",
        "google_compute_router_nat.this",
        "google_compute_subnetwork.nodes",
        "google_container_cluster.this",
        "google_container_node_pool.cpu",
        "google_container_node_pool.gpu",
        "google_iap_web_iam_member.visitors",
        "google_project_iam_member.metrics_adapter",
        "google_project_iam_member.nodes",
        "google_project_service.needed",
        "google_service_account.nodes",
    }
    assert {"get_credentials", "registry", "public_address"} == set(blocks("output"))


def test_every_variable_but_a_switch_is_validated() -> None:
    for name, body in blocks("variable").items():
        assert body.get("description"), name
        assert "validation" in body or "bool" in str(body["type"]), name


@pytest.mark.skipif(
    shutil.which("terraform") is None, reason="needs the terraform command, which no package registry has"
)
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"project_id": "my-project-123"}, None),
        ({"project_id": "My Project"}, "project_id must be a project's ID"),
        ({"project_id": "my-project-123", "zone": "us-central1"}, "zone must be a zone such as us-central1-a"),
        ({"project_id": "my-project-123", "gpu_machine": "g2-standard-4"}, "room for a worker's 6 cores"),
        ({"project_id": "my-project-123", "gpu_nodes_max": "0"}, "whole number from 1 to 16"),
        ({"project_id": "my-project-123", "visitors": '["allUsers"]'}, "allUsers is not taken"),
        ({"project_id": "my-project-123", "visitors": '["user:a@example.com"]'}, None),
    ],
)
def test_terraform_says_what_is_wrong_with_a_value(
    tmp_path: Path, given: dict[str, str], complaint: str | None
) -> None:
    """The variables alone need no provider, so the real command judges them without a network."""
    shutil.copy(DEPLOY / "terraform" / "variables.tf", tmp_path)
    command = ["terraform", f"-chdir={tmp_path}", "plan", "-input=false", "-no-color", "-refresh=false", "-lock=false"]
    done = subprocess.run(
        [*command, *(f"-var={name}={value}" for name, value in given.items())],
        capture_output=True,
        text=True,
        check=False,
    )
    said = re.sub(r"[│\s]+", " ", done.stderr)
    assert (done.returncode == 0) is (complaint is None), said
    assert complaint is None or complaint in said


# --- the guide


GUIDE = (DEPLOY / "README.md").read_text()


def test_every_step_that_needs_a_cloud_is_marked_as_not_run() -> None:
    """☁ in the heading, in the paragraph before the command, or on its line."""
    heading = paragraph = ""
    commands = 0
    for line in GUIDE.splitlines():
        if line.startswith("#"):
            heading, paragraph = line, ""
        elif line.startswith("    "):
            if re.match(r" +(gcloud|terraform|docker|kubectl) ", line) and "kubectl kustomize" not in line:
                commands += 1
                assert "☁" in heading + paragraph + line, line
        elif line.strip():
            paragraph = line if not paragraph else f"{paragraph} {line}"
        else:
            paragraph = "" if not paragraph.endswith(":") and "☁" not in paragraph else paragraph
    assert commands > 30


def test_what_the_guide_names_exists() -> None:
    paths = set(re.findall(r"\bdeploy/[\w./-]*\w", GUIDE)) | {
        f"deploy/k8s/components/{name}" for name in ("gpu", "cert-manager", "autoscale", "public", "images")
    }
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).exists() or path.startswith("deploy/production"), path
    for overlay in check.OVERLAYS:
        assert f"`{overlay}`" in GUIDE


def test_the_guide_knows_every_setting_and_no_other() -> None:
    named = re.compile(r"\bEXPLORER_[A-Z_]*[A-Z]\b")
    given = {name for overlay in check.OVERLAYS for name in named.findall(check.render(f"overlays/{overlay}"))}
    given |= set(named.findall((DEPLOY / "compose.yaml").read_text()))
    settings = set(named.findall(GUIDE.partition("## Settings")[2].partition("\n## ")[0]))
    assert given - {"EXPLORER_HOST"} <= settings  # the public name that step 11 puts in its place
    sources = [*(ROOT / "explorer").rglob("*.py"), DEPLOY / "serve.py"]
    assert settings <= {name for path in sources for name in named.findall(path.read_text())}


def test_the_guide_cleans_up_every_kind_that_terraform_makes() -> None:
    for kind in (
        "clusters",
        "instances",
        "disks",
        "networks",
        "routers",
        "addresses",
        "service-accounts",
        "repositories",
    ):
        assert re.search(rf"gcloud [\w -]*{kind} list", GUIDE), kind


def test_the_guide_enables_the_lab_s_apis() -> None:
    for api in ("container", "compute", "iam", "cloudresourcemanager", "logging", "monitoring"):
        assert f"{api}.googleapis.com" in GUIDE


def test_the_guide_and_terraform_enable_the_same_apis() -> None:
    """But for the proxy's, which only a public app needs."""
    api = re.compile(r"\w+\.googleapis\.com")
    (line,) = re.findall(r"gcloud services enable container(?:.|\n)*?(?=\n\n)", GUIDE)
    made = set(api.findall((DEPLOY / "terraform" / "apis.tf").read_text()))
    assert set(api.findall(line)) == made - {"iap.googleapis.com"}
