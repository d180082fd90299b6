"""The memory of the worst step, run with dummy inputs at load, is an upper bound for requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from backends.native.engine import runners
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.errors import LoadError
from backends.native.engine.factory import load_engine
from backends.native.engine.layers import packed_linear
from backends.native.engine.loading.execution_path import choose_path
from backends.native.engine.loading.weights import load
from backends.native.engine.loop import Engine
from backends.native.engine.multimodal.peak_memory import peak_memory
from backends.native.engine.multimodal.profiling import make_embedder
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.runners import context_of
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.worst_step import _SAMPLING, step_memory
from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import SamplingParams, Submit
from tests.backends.native.engine.pretended.device import PretendedDevice
from tests.backends.native.engine.tiny import build
from tests.backends.native.multimodal.families import save_idefics3, save_llava_next
from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, save_fuyu, save_llava, save_qwen

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
MODELS: dict[str, tuple[Callable[[Path], Path], list[int]]] = {
    "llava": (save_llava, [5, IMAGE, 7]),
    "qwen2_vl": (lambda folder: save_qwen(folder, "qwen2_vl"), [5, IMAGE, 7]),
    "fuyu": (save_fuyu, [5, 7]),
    "idefics3": (save_idefics3, [5, 70, 7]),
    "llava_next": (save_llava_next, [5, 70, 7]),
}
SIDES = (4, 8, 20, 33, 64, 90, 200, 400)


def profiled(options: EngineOptions) -> int:
    """The bound that the engine measures at load, of the model as it will be run."""
    loaded = load(options.model, options.dtype)
    assert choose_path(loaded, options)
    probe = PackedRunner(loaded.model, KVCache(1, options.block_size))
    sequence = Sequence(0, Submit(0, (0,), 1), 0)
    sequence.blocks.append(0)
    with torch.inference_mode():
        probe.run([Work(sequence, 0, 1, samples=True)])
    embedder = make_embedder(loaded, options.model, options.step_tokens, options.context_length)
    return step_memory(loaded.model, probe, embedder, options, context_of(loaded, options))


class Requests:
    """Random requests: images of any size, texts of any length, and every sampling parameter."""

    def __init__(self, checkpoint: Checkpoint, ids: list[int], seed: int) -> None:
        self._checkpoint = checkpoint
        self._ids = ids
        self._rng = Random(seed)

    def submit(self, seq: int, context: int) -> Submit:
        rng, most_new = self._rng, 4
        inputs = self._with_image() if rng.random() < 0.7 else MultiModalInputs((5,))
        room = context - most_new - len(inputs.prompt_token_ids)
        if room < 0:
            return self.submit(seq, context)
        text = tuple(rng.randrange(2, 60) for _ in range(rng.choice((0, 3, room // 2, room))))
        sampling = rng.choice((SamplingParams(), _SAMPLING))
        return Submit(
            seq,
            (*inputs.prompt_token_ids, *text),
            rng.randint(1, most_new),
            sampling,
            top_logprobs=rng.choice((-1, 5)),
            prompt_logprobs=rng.choice((-1, -1, 5)),
            priority=rng.randint(0, 2),
            features=inputs.features,
        )

    def _with_image(self) -> MultiModalInputs:
        rng = self._rng
        width, height = rng.choice([(w, h) for w in SIDES for h in SIDES if max(w, h) <= 50 * min(w, h)])
        seed = 1000 * width + height + rng.choice((0, 10**6))  # two images of each size
        return self._checkpoint.processor.apply(self._ids, [self._checkpoint.item(seed, width, height)])


def serve(engine: Engine, requests: Requests, count: int, context: int) -> None:
    """Submit `count` requests, three before each step, and step until all have ended."""
    sent = 0
    for _ in range(5000):
        for _ in range(3 if sent < count else 0):
            sent += 1
            engine.submit(0, requests.submit(sent, context))
        for step in engine.step().values():
            assert not [output.error for output in step.outputs if output.error]
        if sent >= count and not engine.busy:
            return
    raise AssertionError("the requests did not end")


@pytest.fixture
def small_layers_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tiny models as many layers are packed as of large ones, and their outputs are padded."""
    for name in ("_LEAST", "_LEAST_OF_TEXT", "_LEAST_BY_ONEDNN"):
        monkeypatch.setattr(packed_linear, name, 1)


WIDE, NARROW = {"step_tokens": 64, "max_sequences": 8}, {"step_tokens": 16, "max_sequences": 16}


class Texts(Requests):
    """Requests without images."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)

    def _with_image(self) -> MultiModalInputs:
        return MultiModalInputs((7, 9))


@pytest.mark.usefixtures("small_layers_are_packed")
@pytest.mark.parametrize("family", ["llama", "lfm2", "mixtral"])
def test_texts_use_no_more(family: str, tmp_path: Path) -> None:
    """Of models with attention, with recurrent states, whose snapshots are no part of a step, and with experts."""
    build(family).save_pretrained(tmp_path)
    options = EngineOptions(str(tmp_path), threads=1, dtype="float32", kv_tokens=3200, prefix_caching=False, **WIDE)
    bound = profiled(options)
    engine, ready = load_engine(options, lambda _: None)
    with peak_memory(CPU) as used:
        serve(engine, Texts(seed=5), 30, ready.context_length)
    print(f"{family}: {used.bytes:,} of {bound:,} bytes")
    assert 0.1 * bound < used.bytes <= bound, "a bound, and not a far too large one"


def test_a_step_that_does_not_fit_beside_the_model_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator; on a CPU nothing is run for text."""
    build("llama").save_pretrained(tmp_path)

    def full(*_: Any) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runners, "step_memory", full)
    options = EngineOptions(str(tmp_path), kv_tokens=64, step_tokens=32, max_sequences=4, execution_path="packed")
    with PretendedDevice(), pytest.raises(LoadError, match="A step of 32 tokens and 4 sequences does not fit"):
        load_engine(options, lambda _: None)
    load_engine(replace(options, device="cpu"), lambda _: None)


@pytest.mark.parametrize(
    ("name", "limits", "packed"),
    [
        *((name, WIDE, False) for name in MODELS),
        ("qwen2_vl", NARROW, False),
        *((name, WIDE, True) for name in ("idefics3", "llava_next")),
    ],
)
def test_a_hundred_random_requests_use_no_more(
    name: str, limits: dict[str, int], packed: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if packed:
        request.getfixturevalue("small_layers_are_packed")
    save, ids = MODELS[name]
    folder = save(tmp_path)
    options = EngineOptions(model=str(folder), threads=1, dtype="float32", context_length=200, kv_tokens=3200, **limits)
    bound = profiled(options)
    engine, ready = load_engine(options, lambda _: None)
    requests = Requests(Checkpoint(folder), ids, seed=5)
    with peak_memory(CPU) as used:
        serve(engine, requests, 102, ready.context_length)
    print(f"{name}: {used.bytes:,} of {bound:,} bytes")
    assert 0.1 * bound < used.bytes <= bound, "a bound, and not a far too large one"
