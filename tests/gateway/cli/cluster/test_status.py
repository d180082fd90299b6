from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from backends.autoscaling import Scaling
from backends.native.cluster.placement import EngineStatus, ModelStatus, NodeStatus, Report
from gateway.cli import main
from gateway.cli.cluster.status import lines


def test_nodes_and_engines_with_their_states() -> None:
    ready = Report("tcp://10.0.0.2:7000", "ab12", "ready", pid=7, running=3, waiting=1)
    loading = Report("tcp://10.0.0.3:7000", "cd34", "loading", "weights 40%")
    engines = (
        EngineStatus("k-1", ready, leaving=False, silent=False),
        EngineStatus("k-2", ready, leaving=True, silent=False),
        EngineStatus("k-3", loading, leaving=False, silent=False),
        EngineStatus("k-4", None, leaving=False, silent=False),
    )
    models = [ModelStatus("llama", "/models/llama", 2, 4, Scaling(min=1, max=4), engines, "10.0.0.4: no memory", 9)]
    nodes = [NodeStatus("10.0.0.2", True, 8.0, 1.0), NodeStatus("10.0.0.4", False, 0.0, 0.0)]
    assert [*lines(nodes, models)] == [
        "Nodes",
        "  10.0.0.2              alive    8 CPUs, 1 GPUs",
        "  10.0.0.4              dead     0 CPUs, 0 GPUs",
        "llama: 4 engines wanted (1 to 4), gateways: 2, waiting for an engine: 9",
        "  10.0.0.2:7000/ab12             ready    running 3, waiting 1",
        "  10.0.0.2:7000/ab12             leaving  running 3, waiting 1",
        "  10.0.0.3:7000/cd34             loading  weights 40%",
        "  k-4                            waits for a node with its resources",
        "  the latest that ended: 10.0.0.4: no memory",
    ]
    assert [*lines(nodes[:1], [])][-1] == "No engines: no gateway asks for any."


def test_without_ray_the_commands_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it was not installed
    for words in (["cluster", "status"], ["serve", "--ray"], ["serve", "--ray=10.0.0.1:6379"]):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 1
        assert "pip install 'interlingua[cluster]'" in done.output


def test_an_address_of_a_cluster_is_no_model() -> None:
    done = CliRunner().invoke(main, ["serve", "--ray", "./model"])
    assert done.exit_code == 2
    assert "--ray takes HOST:PORT or auto, not './model'" in done.output
    done = CliRunner().invoke(main, ["serve", "--backend", "http://127.0.0.1:1", "--ray"])
    assert "--ray places native models" in done.output
