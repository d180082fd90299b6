"""Engines on the nodes of a real Ray cluster, whose parts are killed. Every stream's text is that of a run without a
fault.

One cluster for all: the tests run in their order, and each leaves what the next one needs.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.application.test_cluster import MANY, STREAMS, Text, all_at_once, samples, stream
from tests.gateway.processes import LIMIT, Gateway, alive, serving, until
from tests.missing_tools import missing

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(find_spec("ray") is None, reason=missing("Ray, the extra `cluster`")),
]

START = 150
"""Seconds until Ray's own processes must have started; a cluster takes nine alone on two cores."""
ENVIRONMENT = {
    "ENGINE_SECRET": "a secret that nobody guesses",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": str(START),
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",  # nodes and engines wait for a head that is away
}
CONFIG = """
[backends.local]
kind = "native"
replicas = {{ min = 1, max = 2, per_queue = 2.0, up_after = 0.5, down_after = 3600.0 }}
kv_tokens = 8192
heartbeat = 0.25
[endpoints.interlingua]
served_entities = [{{ name = "demo", backend = "local" }}]
"""
HEAD, NODES = "127.0.0.2", ("127.0.0.3", "127.0.0.4")


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, Any]]:
    """A cluster: its process, the address of its head, and the pids of each node."""
    # Not pytest's folder: Ray makes Unix sockets in it, whose paths have 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.application.ray_nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": paths, "RAY_TMPDIR": str(folder)},
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline() if select.select([process.stdout], [], [], START)[0] else b""
        if not line:  # nothing of ours has run so far
            why = (folder / "log").read_text().strip().rpartition("\n")[2]
            pytest.skip(f"Ray starts no cluster here: {why}")
        yield {"pid": process.pid, **json.loads(line)}
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(LIMIT)
        shutil.rmtree(folder)


def descendants(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    children = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            children[parent].append(int(folder.name))
    found = [pid]
    for parent in found:
        found += children[parent]
    return found


def engines(nodes: dict[str, Any]) -> dict[str, int]:
    """The engine's process on each node."""
    found = {}
    for pid in descendants(nodes["pid"]):
        with suppress(FileNotFoundError, ProcessLookupError):
            line = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "backends.native.engine.serving" in line and alive(pid):
                (address,) = (each for each in line if each.startswith("--listen=tcp://"))
                found[address.removeprefix("--listen=tcp://").split(":")[0]] = pid
    return found


def up(gateway: Gateway) -> int:
    return int(sum(samples(gateway, "gw_engine_up").values()))


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tmp_path_factory.mktemp("ray") / "gateway.toml"
    config.write_text(CONFIG.format())
    return config


@pytest.fixture(scope="module")
def gateway(nodes: dict[str, Any], configuration: Path) -> Iterator[Gateway]:
    arguments = ("--config", str(configuration), "--ray", nodes["address"])
    with serving(*arguments, env=ENVIRONMENT, log=configuration.with_name("log")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def expected(gateway: Gateway) -> list[Text]:
    """The texts without a fault, one stream at a time."""
    return [stream(gateway, number) for number in range(MANY)]


def test_a_queue_starts_an_engine_on_another_node(
    nodes: dict[str, Any], gateway: Gateway, expected: list[Text]
) -> None:
    assert up(gateway) == 1
    texts: list[Text] = []

    def asked() -> bool:
        texts.extend(all_at_once(gateway, lambda: None, STREAMS)[0])
        return len(engines(nodes)) == 2

    until(asked, gateway.log)
    assert texts == expected[:STREAMS] * (len(texts) // STREAMS)
    until(lambda: up(gateway) == 2, gateway.log)
    assert set(engines(nodes)) == set(NODES)


def test_streams_of_a_killed_engine_go_on_and_it_is_started_again(
    nodes: dict[str, Any], gateway: Gateway, expected: list[Text]
) -> None:
    before = engines(nodes)
    texts, pause = all_at_once(gateway, lambda: os.kill(before[NODES[0]], signal.SIGKILL))
    print(f"the longest pause after the kill of an engine: {pause:.3f} s")
    assert texts == expected
    until(lambda: up(gateway) == 2, gateway.log)
    after = engines(nodes)
    assert after[NODES[1]] == before[NODES[1]]
    assert after[NODES[0]] != before[NODES[0]]


@pytest.mark.skipif(not os.environ.get("INTERLINGUA_WIDE"), reason="part of `make test-ray`")
def test_another_gateway_finds_the_engines(
    nodes: dict[str, Any], gateway: Gateway, configuration: Path, expected: list[Text]
) -> None:
    before = engines(nodes)
    arguments = ("--config", str(configuration), "--ray", nodes["address"])
    with serving(*arguments, env=ENVIRONMENT, log=configuration.with_name("other")) as other:
        until(lambda: up(other) == 2, other.log)
        assert stream(other, 0) == expected[0]
        command = [str(Path(sys.executable).parent / "gateway"), "cluster", "status", "--ray", nodes["address"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=os.environ | ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        print(done.stdout)
        assert re.search(rf"^  {HEAD} +alive    0 CPUs", done.stdout, re.MULTILINE)
        assert "weights: 2 engines wanted (1 to 2), gateways: 2" in done.stdout
        for host in NODES:
            assert re.search(rf"^  {host}:\d+/\w+ +ready    running 0, waiting 0$", done.stdout, re.MULTILINE)
    assert engines(nodes) == before, "they outlive a gateway"


def test_streams_of_a_stopped_machine_go_on(nodes: dict[str, Any], gateway: Gateway, expected: list[Text]) -> None:
    machine = descendants(nodes["pids"][NODES[0]]["raylet"])
    assert engines(nodes)[NODES[0]] in machine
    lost = gateway.log.read_text().count("engine.silent")

    def send(number: int) -> None:
        for pid in machine:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def missed() -> bool:
        """Whether the machine had streams when it was stopped: while this process waits for a core, they can end."""
        try:
            texts, pause = all_at_once(gateway, lambda: send(signal.SIGSTOP))
        finally:
            send(signal.SIGCONT)
        print(f"the longest pause after the stop of a machine: {pause:.3f} s")
        assert texts == expected
        return gateway.log.read_text().count("engine.silent") > lost

    until(missed, gateway.log)
    until(lambda: up(gateway) == 2, gateway.log)
    assert set(engines(nodes)) == set(NODES)


def test_streams_of_a_killed_raylet_go_on(nodes: dict[str, Any], gateway: Gateway, expected: list[Text]) -> None:
    texts, pause = all_at_once(gateway, lambda: os.kill(nodes["pids"][NODES[0]]["raylet"], signal.SIGKILL))
    print(f"the longest pause after the kill of a raylet: {pause:.3f} s")
    assert texts == expected
    until(lambda: set(engines(nodes)) == {NODES[1]}, gateway.log)
    assert stream(gateway, 0) == expected[0]


def test_losing_the_head_fails_no_request(nodes: dict[str, Any], gateway: Gateway, expected: list[Text]) -> None:
    def kill() -> None:
        for pid in nodes["pids"][HEAD].values():
            os.kill(pid, signal.SIGKILL)

    texts, pause = all_at_once(gateway, kill)
    print(f"the longest pause after the loss of the head: {pause:.3f} s")
    assert texts == expected
    assert [stream(gateway, number) for number in range(STREAMS)] == expected[:STREAMS]
