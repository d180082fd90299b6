"""Whole engines on the machine's accelerator or a pretended one: the CPU's tokens, few waits and few copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from backends.native.demo import WEIGHTS
from backends.native.engine import loop, overlap
from backends.native.engine.loop import Engine
from backends.native.engine.overlap import Launched
from backends.native.grammar.grammar import grammar_source
from backends.native.protocol.messages import Cancel, Submit
from schemas.ir import Grammar
from tests.backends.native import encoders
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.lora.folders import TARGETS
from tests.backends.native.engine.lora.folders import save as save_lora
from tests.backends.native.engine.pretended.device import PretendedDevice
from tests.backends.native.engine.pretended.engines import (
    SAMPLING,
    WIDE,
    Heard,
    accelerator,
    assert_same,
    counted,
    decode_steps,
    drive,
    load,
    requests,
    save,
    wide,
)
from tests.backends.native.engine.tiny import ADAPTED, FAMILIES, RECURRENT, build, prompt
from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, save_llava

pytestmark = [pytest.mark.torch, needs_compiler]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[defaultdict[str, Path]]:
    """Folders of families, made when they are asked for."""

    class Folders(defaultdict[str, Path]):
        def __missing__(self, family: str) -> Path:
            self[family] = save(family, tmp_path_factory.mktemp(family))
            return self[family]

    threads = torch.get_num_threads()
    yield Folders()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", (*FAMILIES, *ADAPTED, *RECURRENT) if WIDE else ("llama",))
def test_every_kind_of_request_gets_the_tokens_of_the_cpu(folders: dict[str, Path], family: str) -> None:
    expected = drive(load(folders[family], "cpu")[0], requests())
    with accelerator() as device:
        engine, ready = load(folders[family], "auto")
        assert ready.device.endswith(":0")
        assert ready.execution_path == "packed"
        assert_same(drive(engine, requests()), expected)
        assert device is None or device.trace.kernels


@counted
def test_nothing_says_cuda(folders: dict[str, Path]) -> None:
    asked = [replace(each, top_logprobs=-1) for each in requests()[1:4]]  # steps that overlap
    expected = drive(load(folders["llama"], "cpu")[0], asked)
    with PretendedDevice("xpu"):
        engine, ready = load(folders["llama"], "auto", execution_path="packed")
        assert ready.device == "xpu:0"
        assert_same(drive(engine, asked), expected)


@counted
def test_a_decode_step_waits_once_however_tokens_are_chosen(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the step before, when it was launched, unless what was chosen is needed on the host."""
    launches: list[tuple[bool, int]] = []

    def launched(*given: Any) -> Launched | None:
        step = overlap.launch(*given)
        launches.append((step is not None, device.trace.waits.total()))
        return step

    monkeypatch.setattr(loop, "launch", launched)
    with PretendedDevice() as device:
        for kind, trace in decode_steps(device, folders["llama"], SAMPLING):
            why = "tolist" if kind == "bias and watermark" else "an event"
            waits = [(wait, times) for (wait, _), times in trace.waits.items()]
            assert waits == [(why, 1)], f"{kind}: {trace.report()}"
            assert launches[-1] == (why == "an event", 0)


@wide
def test_preempted_sequences_and_cancelled_ones(folders: dict[str, Path]) -> None:
    """A cache of 4 blocks for three sequences of up to 3 blocks each."""
    asked = [Submit(seq, prompt(15, seq), 20, SAMPLING["sampled" if seq % 2 else "penalties"]) for seq in range(3)]
    heard = []
    for kind in ("cpu", "auto"):
        with accelerator():
            engine, _ = load(folders["llama"], kind, kv_tokens=64, execution_path="packed")
            assert isinstance(engine, Engine)

            def cancel(found: dict[int, Heard], engine: Engine = engine) -> None:
                if len(found[1].ids) == 12:
                    engine.handle(0, Cancel(1))

            heard.append(drive(engine, asked, cancel))
            assert engine._scheduler.preemptions
            assert engine._scheduler.pool.free == engine._scheduler.pool.count
    assert_same(heard[1], heard[0])
    assert not heard[0][1].ended


@wide
def test_lora_adapters(folders: dict[str, Path], tmp_path: Path) -> None:
    adapters = {
        name: str(save_lora(tmp_path / name, build("llama"), TARGETS["llama"], seed))
        for seed, name in enumerate(("first", "second"))
    }
    asked = [
        Submit(seq, prompt(9 + seq, seq), 6, lora_adapter=name) for seq, name in enumerate((*adapters, "", "first"))
    ]
    expected = drive(load(folders["llama"], "cpu", lora_adapters=adapters)[0], asked)
    assert len({tuple(each.ids) for each in expected.values()}) == 4
    with accelerator():
        assert_same(drive(load(folders["llama"], "auto", lora_adapters=adapters)[0], asked), expected)


@wide
def test_grammars() -> None:
    source = grammar_source(Grammar("json_schema", {"type": "array", "items": {"enum": ["x", 17, None]}}))
    asked = [
        Submit(seq, (5, 6, seq), 12, params, eos_token_ids=(1,), grammar=source)
        for seq, params in enumerate(SAMPLING.values())
    ]
    expected = drive(load(WEIGHTS, "cpu", text_only=True, dtype="float32")[0], asked)
    assert all(each.error is None and each.ids for each in expected.values())
    with accelerator():
        assert_same(drive(load(WEIGHTS, "auto", text_only=True, dtype="float32")[0], asked), expected)


@wide
def test_images(tmp_path: Path) -> None:
    folder = save_llava(tmp_path / "llava")
    checkpoint = Checkpoint(folder)
    prompts = [checkpoint.processor.apply([5, 6, IMAGE, 7], [checkpoint.item(seed)]) for seed in (1, 2)]
    asked = [Submit(seq, each.prompt_token_ids, 6, features=each.features) for seq, each in enumerate(prompts)]
    expected = drive(load(folder, "cpu", dtype="float32")[0], asked)
    with accelerator():
        assert_same(drive(load(folder, "auto", dtype="float32")[0], asked), expected)


@wide
def test_encoders(tmp_path: Path) -> None:
    folder = encoders.build(tmp_path / "bert", encoders.CASES["bert, mean"])
    asked = [Submit(seq, prompt(5 + 7 * seq, seq), 0, pool=True) for seq in range(4)]
    expected = drive(load(folder, "cpu")[0], asked)
    with accelerator():
        assert_same(drive(load(folder, "auto")[0], asked), expected)
