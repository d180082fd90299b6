"""The Ray cluster for Kubernetes: KubeRay's fields, pods that Kubernetes takes, and a configuration that they serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import parse
from tests.deploy.test_services import DEPLOY, run, tool
from tests.missing_tools import missing

Manifest = dict[str, Any]


@pytest.fixture
def manifests() -> dict[str, Manifest]:
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kuberay/cluster.yaml").read_text())}


@pytest.fixture
def groups(manifests: dict[str, Manifest]) -> dict[str, Manifest]:
    spec = manifests["RayCluster"]["spec"]
    return {"head": spec["headGroupSpec"]} | {group["groupName"]: group for group in spec["workerGroupSpecs"]}


def test_the_cluster_has_the_fields_of_kuberay(manifests: dict[str, Manifest]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason=missing("jsonschema"))
    schema = json.loads(Path(__file__).with_name("raycluster.json").read_text())
    cluster = manifests["RayCluster"]
    jsonschema.validate(cluster, schema)
    cluster["spec"]["workerGroupSpecs"][0]["maxreplicas"] = 1
    with pytest.raises(jsonschema.ValidationError, match="maxreplicas"):
        jsonschema.validate(cluster, schema)


@pytest.mark.slow
def test_kubernetes_has_the_fields_of_the_pods(
    manifests: dict[str, Manifest], groups: dict[str, Manifest], tmp_path: Path
) -> None:
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": group["template"]["spec"]}
        for name, group in groups.items()
    ]
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all([manifests["ConfigMap"], manifests["Service"], *pods]))
    shown = run(tool("kubernetes-validate"), "--strict", "--kubernetes-version", "1.37", str(file))
    assert shown.count(" passed for resource ") == 5
    assert "WARN" not in shown


def test_the_parts_of_the_cluster_belong_together(manifests: dict[str, Manifest], groups: dict[str, Manifest]) -> None:
    config = parse(manifests["ConfigMap"]["data"]["gateway.toml"])
    options = config.backends["llama"]
    assert options["ray"] == "auto"
    # Engines have room in their group, and in no other.
    engine = groups["engines"]["template"]["spec"]["containers"][0]["resources"]
    assert options["resources"]["num_gpus"] == int(engine["limits"]["nvidia.com/gpu"])
    assert options["resources"]["num_cpus"] <= int(engine["requests"]["cpu"])
    assert options["replicas"]["max"] <= groups["engines"]["replicas"]
    assert [groups[name]["rayStartParams"]["num-cpus"] for name in ("head", "gateways")] == ["0", "0"]
    # All have the secret and Ray's settings, and start a node of the cluster.
    containers = [group["template"]["spec"]["containers"][0] for group in groups.values()]
    assert all(
        each["envFrom"] == containers[0]["envFrom"] and each["env"] == containers[0]["env"] for each in containers
    )
    assert all("$KUBERAY_GEN_RAY_START_CMD" in each["args"][0] for each in containers)
    assert manifests["RayCluster"]["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    pod = groups["gateways"]["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > config.server.drain_delay + config.server.drain_timeout
    selector = manifests["Service"]["spec"]["selector"]
    assert pod["metadata"]["labels"].items() <= selector.items()
    assert selector["ray.io/cluster"] == manifests["RayCluster"]["metadata"]["name"]
