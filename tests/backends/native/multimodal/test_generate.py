"""Whole engines over multimodal checkpoints generate what `generate` of transformers does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from backends.native.backend import NativeBackend
from backends.native.engine.factory import load_engine
from backends.native.engine.loop import Engine
from backends.native.multimodal.inputs import ImageItem, MultiModalInputs
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Ready, Submit
from schemas.errors import InvalidRequest
from schemas.ir import Generate, TextPrompt
from tests.backends import laws
from tests.backends.images import files
from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, save_fuyu, save_llava, save_qwen

pytestmark = pytest.mark.torch

NEW = 12


@pytest.fixture(scope="module", params=["llava", "qwen2_vl", "qwen2_5_vl"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return save_llava(folder) if request.param == "llava" else save_qwen(folder, request.param)


def start(folder: Path, **options: int | bool) -> tuple[Engine, Ready]:
    return load_engine(EngineOptions(model=str(folder), threads=1, dtype="float32", **options), lambda _: None)


def run(engine: Engine, prompts: Sequence[MultiModalInputs], first: int = 0) -> list[list[int]]:
    for index, prompt in enumerate(prompts):
        engine.submit(0, Submit(first + index, prompt.prompt_token_ids, NEW, features=prompt.features))
    said: list[list[int]] = [[] for _ in prompts]
    for _ in range(2000):
        if not engine.busy:
            return said
        for step in engine.step().values():
            for output in step.outputs:
                assert output.error is None
                said[output.seq - first] += output.ids
    raise AssertionError("it never ended")


def generated(checkpoint: Checkpoint, inputs: MultiModalInputs, items: Sequence[ImageItem]) -> list[int]:
    arrays = checkpoint.arrays(items) | checkpoint.kinds(inputs)
    checkpoint.model.generation_config.eos_token_id = None
    with torch.inference_mode():
        ids = checkpoint.model.generate(
            torch.tensor([inputs.prompt_token_ids]), **arrays, max_new_tokens=NEW, do_sample=False
        )
    found: list[int] = ids[0, len(inputs.prompt_token_ids) :].tolist()
    return found


@pytest.mark.parametrize("options", [{}, {"step_tokens": 5, "max_sequences": 3}, {"kv_tokens": 128, "block_size": 4}])
def test_tokens_are_those_of_generate(folder: Path, options: dict[str, int]) -> None:
    engine, ready = start(folder, **options)
    assert (ready.images, ready.execution_path) == (True, "packed")
    checkpoint = Checkpoint(folder)
    items = [checkpoint.item(1), checkpoint.item(2, 40, 70), checkpoint.item(3, 64, 20)]
    asked: list[tuple[list[int], tuple[ImageItem, ...]]] = [
        ([5, 6, IMAGE, 7, 8], (items[0],)),
        ([9, 10, 11], ()),
        ([5, IMAGE, 7, IMAGE, 3], (items[1], items[2])),
        ([5, 6, IMAGE, 7, 8], (items[1],)),
        ([5, 6, IMAGE, 7, 8], (items[0],)),
    ]
    prompts = [checkpoint.processor.apply(ids, images) for ids, images in asked]
    expected = [generated(checkpoint, prompt, images) for prompt, (_, images) in zip(prompts, asked, strict=True)]
    assert len({tuple(ids) for ids in expected}) == 4, "the images matter"
    assert run(engine, prompts) == expected
    assert run(engine, prompts, first=10) == expected, "with all that is cached"


def test_a_checkpoint_without_an_image_processor_is_a_text_model(tmp_path: Path) -> None:
    save_llava(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    prompt = checkpoint.processor.apply([5, IMAGE], [checkpoint.item(1)])
    for file in ("preprocessor_config.json", "processor_config.json"):
        (tmp_path / file).unlink(missing_ok=True)
    engine, ready = start(tmp_path)
    assert not ready.images
    assert run(engine, [MultiModalInputs((5, 6, 7))])[0]
    engine.submit(0, Submit(20, prompt.prompt_token_ids, 3, features=prompt.features))
    (output,) = engine.step()[0].outputs
    assert output.error == "this model takes no images"


def test_fuyus_tokens_are_those_of_generate(tmp_path: Path) -> None:
    save_fuyu(tmp_path)
    engine, ready = start(tmp_path, step_tokens=7, max_sequences=3)
    assert (ready.images, ready.execution_path) == (True, "packed")
    checkpoint = Checkpoint(tmp_path)
    items = [(checkpoint.item(1, 47, 33),), (checkpoint.item(2, 90, 60),), ()]
    prompts = [checkpoint.processor.apply([5, 6, 7], images) for images in items]
    expected = [generated(checkpoint, prompt, images) for prompt, images in zip(prompts, items, strict=True)]
    assert run(engine, prompts) == expected
    assert run(engine, prompts, first=10) == expected


async def test_an_image_that_the_image_processor_does_not_accept(tmp_path: Path) -> None:
    """Fuyu's would resize it to a width of 0."""
    backend = NativeBackend("native", {"engine": "inprocess", "threads": 1, "model": str(save_fuyu(tmp_path))})
    await backend.start()
    prompt = TextPrompt("w5", (files.part(files.file(size=(1, 64))),))
    with pytest.raises(InvalidRequest, match="does not accept an image of 1x64"):
        await laws.collect(backend.generate(Generate(id="r", model="m", prompts=(prompt,))))
    await backend.aclose()
