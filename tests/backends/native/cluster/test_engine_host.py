"""What can be wrong on a node before an engine is started; the rest is in tests/application/test_ray.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from backends.autoscaling import Scaling
from backends.native.cluster.engine_host import EngineHost
from backends.native.cluster.placement import ModelSpec, Resources
from backends.native.protocol.engine_options import EngineOptions

SECRET = "SECRET_OF_THE_TEST"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    monkeypatch.setenv(SECRET, "a secret that nobody guesses")
    return ModelSpec("llama", EngineOptions(str(tmp_path)), Resources(), SECRET, 30.0, Scaling())


async def failure(spec: ModelSpec, host: str = "127.0.0.2") -> str:
    engine = EngineHost(spec, host)
    assert engine.report().state == "loading"
    await engine.start()
    report = engine.report()
    await engine.aclose()
    assert (report.state, report.pid) == ("failed", 0)
    return report.detail


async def test_a_node_says_what_it_lacks(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(spec, version="0.0.1")
    assert (await failure(other)).endswith("of Interlingua, and the gateway 0.0.1")
    absent = replace(spec, options=EngineOptions("/nowhere"))
    assert await failure(absent) == "127.0.0.2: there is no model /nowhere"
    assert "10.255.255.1" in await failure(spec, "10.255.255.1"), "no address of this machine"
    monkeypatch.delenv(SECRET)
    assert f"the environment variable {SECRET} is not set" in await failure(spec)


def test_the_key_names_what_runs(spec: ModelSpec) -> None:
    same = [replace(spec, name="other"), replace(spec, scaling=Scaling(max=4)), replace(spec, hung_after=1.0)]
    assert {each.key for each in same} == {spec.key}
    others = [
        replace(spec, options=EngineOptions("/nowhere")),
        replace(spec, resources=Resources(num_gpus=1)),
        replace(spec, version="0.0.1"),
        replace(spec, secret_env="OTHER"),
    ]
    assert len({each.key for each in [spec, *others]}) == 5
