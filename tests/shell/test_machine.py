"""The shell blocks that need another machine, a cluster or other programs, run by bash on a stand-in of a machine.

Gateways, engines and environments are real. Docker, kubectl and Ray are stand-ins that know the options of the real
ones (`stand_in.py`); what their words name must be there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from litestar import Litestar

from backends.native.demo import WEIGHTS
from gateway.app import create_app
from gateway.config import parse
from tests.deploy.images import instructions
from tests.gateway.serving import chat, figures, listening, running
from tests.missing_tools import missing, needs_engine
from tests.shell.blocks import ROOT, Block, blocks
from tests.shell.machine import Machine

MANY_MACHINES = "docs/guides/many-machines.md"

TOOLS = ROOT / ".venv-tools/bin"
KEY = "key-of-an-admin"
_RUN: set[str] = set()


def runs(page: str, argument: str = "found") -> pytest.MarkDecorator:
    """Give a test the blocks of a page that are run here."""
    _RUN.add(page)
    found = [block for block in blocks("sh") if block.page == page and block.why is not None]
    return pytest.mark.parametrize(argument, [found], ids=[Path(page).stem])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


def test_every_block_that_is_left_to_this_module_is_run() -> None:
    assert {block.page for block in blocks("sh") if block.why is not None} == _RUN


# --- the engine


@pytest.mark.torch
@pytest.mark.slow
@runs("docs/accelerators.md")
def test_the_examination(found: list[Block], machine: Machine) -> None:
    from tests.backends.native.engine.pretended.engines import save

    (block,) = found
    config = save("llama", machine.here / "Llama-3.1-8B") / "config.json"
    # It decodes 64 tokens, and again to measure: more than the tests' models have room for.
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 1024}))
    text, brace, report = machine.run(block).stdout.partition("\n{")
    assert f"Decode of {WEIGHTS}" in text
    found_out = json.loads(brace + report)
    assert (found_out["model"], found_out["faults"]) == ("Llama-3.1-8B", [])
    assert [each["sequences"] for each in found_out["decoding"]] == [1, 8, 32]


LORA = """
[server]
admin_keys_env = "ADMIN_KEY"
[backends.local]
kind = "native"
engine = "inprocess"
threads = 1
model = "{model}"
lora_folder = "{folder}"
[endpoints.demo]
served_entities = [{{ name = "base", backend = "local" }}]
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason=missing("curl"))
@runs("docs/lora.md")
async def test_lora_adapters_are_loaded(
    found: list[Block], machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForImageTextToText

    from tests.backends.native.engine.lora.folders import save
    from tests.backends.native.test_controls import TARGETS

    (block,) = found
    model = AutoModelForImageTextToText.from_pretrained(WEIGHTS, local_files_only=True, dtype=torch.float32)
    save(tmp_path / "lora/team/sql", model, TARGETS, 0)
    monkeypatch.setenv("ADMIN_KEY", KEY)
    app = create_app(parse(LORA.format(model=WEIGHTS, folder=tmp_path / "lora")))
    async with listening(app) as port:
        done = await asyncio.to_thread(machine.run, block, {"localhost:8000": f"127.0.0.1:{port}"})
    assert done.stdout.splitlines() == [
        "Success: LoRA adapter 'sql' added successfully.",
        "Success: LoRA adapter 'sql' removed successfully.",
    ]


@needs_engine
@pytest.mark.slow
@runs(MANY_MACHINES)
async def test_an_engine_on_another_machine(
    found: list[Block], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, _ = found
    monkeypatch.setenv("ENGINE_SECRET", "a secret of this test")
    (machine.folder / "models").mkdir()
    (machine.folder / "models/llama-8b").symlink_to(WEIGHTS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    (text,) = (block.code for block in blocks("toml") if "10.0.0.7:7000" in block.code)
    text = text.replace('"tcp://10.0.0.7:7000", "tcp://10.0.0.8:7000"', f'"tcp://{address}"')
    text = text.replace("/models", f"{machine.folder}/models")
    app = create_app(parse(f'{text}[endpoints.chat]\nserved_entities = [{{ name = "llama", backend = "llama" }}]\n'))
    addresses = {"ENGINE_SECRET=...": "ENGINE_SECRET=$ENGINE_SECRET", "10.0.0.7:7000": address}
    with machine.running(block, addresses, machine.folder / "log"):
        async with running(app) as client:
            answer = await chat(client, max_tokens=4, temperature=0)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] > 0


# --- experiments

GATEWAY = """
[server]
state_file = "{folder}/state.json"
export = {{ folder = "{folder}/requests", text = true }}
[backends.s]
kind = "scripted"
[endpoints.{endpoint}]
served_entities = [
  {{ name = "current", backend = "s", model = "echo" }},
  {{ name = "challenger", backend = "s", model = "scripted", traffic_percentage = 0 }},
]
"""


def gateway(folder: Path, endpoint: str = "chat") -> Litestar:
    """A gateway that keeps its figures and requests in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return create_app(parse(GATEWAY.format(folder=folder, endpoint=endpoint)))


@pytest.mark.slow
@runs("docs/experiments.md")
async def test_figures_are_added_and_requests_exported_and_replayed(found: list[Block], machine: Machine) -> None:
    add, export, replay = found
    own, other = machine.folder / "var/lib/interlingua", machine.folder / "mnt/replica-2"
    for folder, requests in ((own, 3), (other, 4)):
        async with running(gateway(folder)) as client:
            for _ in range(requests):
                assert (await chat(client)).status_code == 200
    assert "files of counters" in machine.run(add).stdout
    assert machine.run(export).stdout.splitlines() == ["3 requests in chat.jsonl", "3 requests in all.parquet"]
    async with listening(gateway(own)) as port, listening(gateway(machine.folder / "far", "llama")) as far:
        addresses = {"127.0.0.1:8000": f"127.0.0.1:{port}", "10.0.0.7:8000": f"127.0.0.1:{far}"}
        done = await asyncio.to_thread(machine.run, replay, addresses)
    assert [line for line in done.stdout.splitlines() if " requests on " in line] == [
        "3 requests on chat:challenger",
        "3 requests on llama",
    ]
    async with running(gateway(own)) as client:
        assert (await figures(client))["current"]["exposures"] == 3 + 4


# --- environments and services


@pytest.fixture
def sources(machine: Machine) -> Machine:
    """A machine where blocks are run in a checkout, whose `pip` takes what a package requires from this environment."""
    listed = ["git", "ls-files", "adapters", "backends", "gateway", "schemas", "pyproject.toml", "README.md", "LICENSE"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        (machine.here / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.here / name).symlink_to(ROOT / name)
    here = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    machine.environment |= {"PYTHONPATH": here, "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_COMPILE": "1"}
    machine.environment |= {"PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return machine


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemctl") is None, reason=missing("systemctl (systemd)"))
@pytest.mark.skipif(shutil.which("openssl") is None, reason=missing("openssl"))
@runs("docs/guides/systemd.md", "install")
@runs("docs/guides/upgrading.md", "upgrade")
def test_a_service_is_installed_and_upgraded(
    install: list[Block], upgrade: list[Block], sources: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installing,), (upgrading,) = install, upgrade
    root = sources.folder
    (root / "etc/systemd/system").mkdir(parents=True)
    sources.program("sudo", 'exec "$@"')
    # Without a running systemd, a unit can be enabled, and not started.
    sources.program("systemctl", f'test "$2" = --now && exec {shutil.which("systemctl")} --root={root} "$1" "$3"')
    sources.run(installing)
    wanted = root / "etc/systemd/system/multi-user.target.wants/interlingua.service"
    assert os.readlink(wanted) == "/etc/systemd/system/interlingua.service"
    unit = (root / "etc/systemd/system/interlingua.service").read_text()
    (start,) = re.findall(r"^ExecStart=(.*)", unit, re.MULTILINE)
    (variables,) = re.findall(r"^EnvironmentFile=-(.*)", unit, re.MULTILINE)
    program, *words = shlex.split(start)
    # The service that the unit starts reads the files that the block has written.
    name, _, keys = (root / variables.lstrip("/")).read_text().strip().partition("=")
    file = root / words[words.index("--config") + 1].lstrip("/")
    assert (parse(file.read_text()).server.keys_env, len(keys)) == (name, 48)
    assert (root / variables.lstrip("/")).stat().st_mode & 0o777 == 0o600
    command = [root / program.lstrip("/"), *words, "--help"]
    done = subprocess.run(command, env=os.environ | sources.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv(name, keys)
    (root / "var/lib/interlingua").mkdir(parents=True)
    file.write_text(file.read_text().replace("/var/lib", f"{root}/var/lib"))
    assert "chat" in sources.run(upgrading).stdout


# --- containers and clusters


@runs("docs/guides/docker.md")
def test_a_container(found: list[Block], machine: Machine) -> None:
    run, _ = found
    machine.stand_in("docker")
    machine.run(run)
    built, started = machine.calls()
    image = instructions(machine.here / built.options["file"][0])
    assert (built.command, built.arguments, built.options["tag"]) == ("docker build", ["."], started.arguments)
    assert (started.command, started.arguments) == ("docker run", ["interlingua"])
    # The image serves the file that is mounted, on the port that is published, with the keys that are passed.
    served = json.loads(next(each.rest for each in reversed(image) if each.name == "CMD"))
    ((source, target, mode),) = (each.split(":") for each in started.options["volume"])
    assert (served[served.index("--config") + 1], mode) == (target, "ro")
    (port,) = started.options["publish"]
    assert served[served.index("--port") + 1] == port.split(":")[1]
    assert started.options["env"] == [parse((machine.here / source).read_text()).server.keys_env]
    assert started.environment[started.options["env"][0]]


@runs("docs/guides/docker.md")
def test_compose_reads_its_words_and_files(found: list[Block], machine: Machine) -> None:
    _, block = found
    if not (compose := TOOLS / "docker-compose").exists():
        pytest.skip(missing("make .venv-tools/.installed"))
    machine.program("docker", f'shift\nexec {compose} "$@"')
    machine.environment |= {"DOCKER_HOST": f"unix://{machine.folder}/absent", "DOCKER_CONFIG": str(machine.folder)}
    assert "failed to connect to the docker API" in machine.run(block, status=1).stderr
    machine.program("docker", f'shift\nexec {compose} "$@" --no-such-option')
    assert "unknown flag" in machine.run(block, status=1).stderr


@runs("docs/observability.md")
def test_prometheus_and_grafana(found: list[Block], machine: Machine) -> None:
    (block,) = found
    machine.stand_in("docker")
    machine.run(block)
    services = yaml.safe_load((machine.here / "deploy/compose/compose.yaml").read_text())["services"]
    images = {service["image"].partition(":")[0] for service in services.values()}
    mounted: dict[str, Path] = {}
    for call in machine.calls():
        assert call.command == "docker run"
        assert set(call.arguments) <= images
        mounted |= {target: Path(source) for source, target in (each.split(":") for each in call.options["volume"])}
    # Where these images look for their files by default.
    assert (mounted["/etc/prometheus"] / "prometheus.yml").is_file()
    (provider,) = (mounted["/etc/grafana/provisioning"] / "dashboards").iterdir()
    (folder,) = (each["options"]["path"] for each in yaml.safe_load(provider.read_text())["providers"])
    assert (mounted[folder] / "interlingua.json").is_file()


@runs("docs/guides/kubernetes.md")
def test_a_deployment(found: list[Block], machine: Machine) -> None:
    (block,) = found
    machine.stand_in("kubectl")
    machine.run(block)
    secret, apply, rollout = machine.calls()
    assert [call.command for call in (secret, apply, rollout)] == [
        "kubectl create secret generic",
        "kubectl apply",
        "kubectl rollout status",
    ]
    (folder,) = apply.options["filename"]
    files = (machine.here / folder).glob("*.yaml")
    manifests = {each["kind"]: each for file in files for each in yaml.safe_load_all(file.read_text())}
    deployment = manifests["Deployment"]
    assert rollout.arguments == [f"deployment/{deployment['metadata']['name']}"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert secret.arguments == [each["secretRef"]["name"] for each in container["envFrom"]]
    config = parse(manifests["ConfigMap"]["data"]["gateway.toml"])
    assert [each.partition("=")[0] for each in secret.options["from-literal"]] == [config.server.keys_env]


@runs(MANY_MACHINES)
def test_a_ray_cluster(found: list[Block], machine: Machine) -> None:
    """The commands of the gateway in it are run by `make test-ray`; here their words are read."""
    _, block = found
    machine.stand_in("ray")
    machine.program("gateway", ":")
    machine.run(block)
    head, node = machine.calls()
    assert (head.command, node.command) == ("ray start", "ray start")
    assert [head.options.keys(), node.options.keys()] == [{"head", "port", "num-cpus"}, {"address"}]
    assert node.options["address"][0].endswith(f":{head.options['port'][0]}")
    # The variables are those of the cluster for Kubernetes.
    cluster = yaml.safe_load_all((machine.here / "deploy/kuberay/cluster.yaml").read_text())
    (spec,) = (each["spec"] for each in cluster if each["kind"] == "RayCluster")
    (container,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
    for call in (head, node):
        assert {each["name"]: call.environment.get(each["name"]) for each in container["env"]} == {
            each["name"]: each["value"] for each in container["env"]
        }
