"""Compose, the systemd unit, nginx and the Kubernetes manifests, each read by its own program where there is one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.check import read_file
from gateway.config import parse
from tests.missing_tools import missing

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
UNIT = DEPLOY / "systemd/interlingua.service"


def program(name: str, package: str) -> str:
    """The path of a program that a Debian package brings."""
    if (found := shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")) is None:
        pytest.skip(missing(f"{name} ({package})"))
    return found


def tool(name: str) -> str:
    """The path of a program of the environment of tools."""
    if not (found := ROOT / ".venv-tools/bin" / name).exists():
        pytest.skip(missing("make .venv-tools/.installed"))
    return str(found)


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_configuration_is_valid() -> None:
    config = read_file(DEPLOY / "gateway.toml", offline=True)
    assert list(config.endpoints) == ["chat"]


# --- compose


@pytest.fixture
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((COMPOSE / "compose.yaml").read_text()))


def test_what_compose_mounts_exists(compose: dict[str, Any]) -> None:
    named = set(compose["volumes"])
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in named or (COMPOSE / source).exists(), source


def test_compose_uses_what_it_declares(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services.keys() == {"gateway", "prometheus", "grafana"}
    build = services["gateway"]["build"]
    assert (COMPOSE / build["context"] / build["dockerfile"]).exists()
    used = {source.split(":")[0] for each in services.values() for source in each["volumes"]}
    assert set(compose["volumes"]) == {source for source in used if not source.startswith(".")}
    assert {name for each in services.values() for name in each.get("secrets", ())} == set(compose["secrets"])
    assert all(name in services for each in services.values() for name in each.get("depends_on", ()))
    for name, service in services.items():
        assert name == "gateway" or ":" in service["image"], f"{name}: the image has no version"
    for service in (services["prometheus"], services["grafana"]):  # no login, or a default one
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_compose_reads_its_file(tmp_path: Path) -> None:
    variables = {"GATEWAY_KEYS": "one,another", "METRICS_KEY": "one", "DOCKER_CONFIG": str(tmp_path)}
    command = [tool("docker-compose"), "--file", str(COMPOSE / "compose.yaml"), "config"]
    shown = json.loads(run(*command, "--format", "json", **variables))
    assert shown["services"].keys() == {"gateway", "prometheus", "grafana"}
    assert shown["services"]["gateway"]["environment"] == {"GATEWAY_KEYS": "one,another"}
    for service in shown["services"].values():
        bound = [each["source"] for each in service["volumes"] if each["type"] == "bind"]
        assert bound
        assert all(Path(source).exists() for source in bound)
    # Without keys a gateway that listens on all addresses refuses to start, so compose refuses first.
    variables["GATEWAY_KEYS"] = ""
    done = subprocess.run([*command, "--quiet"], capture_output=True, text=True, env=os.environ | variables)
    assert done.returncode != 0
    assert "set it to the API keys" in done.stderr


@pytest.mark.slow
def test_prometheus_reads_its_configuration() -> None:
    assert "SUCCESS" in run(
        program("promtool", "prometheus"), "check", "config", "--syntax-only", f"{COMPOSE}/prometheus.yml"
    )


def test_prometheus_scrapes_the_gateway(compose: dict[str, Any]) -> None:
    read = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    (job,), (rules,) = read["scrape_configs"], read["rule_files"]
    assert (DEPLOY / "prometheus" / Path(rules).name).exists()
    assert job["static_configs"] == [{"targets": ["gateway:8000"]}]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{next(iter(compose['secrets']))}"


# --- systemd


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    # The installed program is not here: any other, in its place.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/interlingua/bin/gateway", "/bin/true"))
    assert run(program("systemd-analyze", "systemd"), "verify", str(unit)) == ""


def test_the_unit_has_few_rights(tmp_path: Path) -> None:
    analyze = program("systemd-analyze", "systemd")
    shown = run(analyze, "security", "--offline=true", "--threshold=25", str(UNIT))
    assert "interlingua.service" in shown


# --- nginx


@pytest.mark.slow
def test_nginx_reads_its_configuration(tmp_path: Path) -> None:
    openssl = program("openssl", "openssl")
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    new = (
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=localhost",
    )
    run(openssl, *new, "-keyout", str(key), "-out", str(certificate))
    text = (DEPLOY / "nginx/interlingua.conf").read_text()
    text = text.replace("/etc/nginx/tls/llm.example.com.key", str(key))
    text = text.replace("/etc/nginx/tls/llm.example.com.crt", str(certificate))
    assert "/etc/nginx" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    whole = tmp_path / "nginx.conf"
    whole.write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{ access_log off;\n{text}\n}}\n")
    shown = run(program("nginx", "nginx-light"), "-t", "-e", "stderr", "-c", str(whole))
    assert "warn" not in shown


# --- Kubernetes


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_kubernetes_has_the_fields_of_the_manifests(version: str) -> None:
    files = [str(file) for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))]
    shown = run(tool("kubernetes-validate"), "--strict", "--kubernetes-version", version, *files)
    assert shown.count(" passed for resource ") == 5
    assert "WARN" not in shown


@pytest.fixture
def manifests() -> dict[str, Any]:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return {each["kind"]: each for file in files for each in yaml.safe_load_all(file.read_text())}


def test_the_manifests_belong_together(manifests: dict[str, Any]) -> None:
    assert manifests.keys() == {
        "ConfigMap",
        "Deployment",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "Service",
    }
    assert all(each["metadata"]["name"] == "interlingua" for each in manifests.values())
    spec = manifests["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    for selector in (
        spec["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector == labels
    assert manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "interlingua"
    assert manifests["HorizontalPodAutoscaler"]["spec"]["minReplicas"] >= spec["replicas"]
    assert manifests["PodDisruptionBudget"]["spec"]["minAvailable"] < spec["replicas"]


def test_the_pod_serves_its_configuration(manifests: dict[str, Any]) -> None:
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config = parse(manifests["ConfigMap"]["data"]["gateway.toml"])
    assert list(config.endpoints) == ["chat"]
    # A stream that runs as long as it may must not be killed, and a probe is answered where keys are needed.
    server = config.server
    assert pod["terminationGracePeriodSeconds"] > server.drain_delay + server.drain_timeout
    assert server.drain_delay > container["readinessProbe"]["periodSeconds"]
    paths = {probe["httpGet"]["path"] for key, probe in container.items() if key.endswith("Probe")}
    assert paths == {"/health", "/health/ready"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert pod["securityContext"]["runAsUser"] == 10001
