"""Embeddings that a client sends in place of an image: merged like the encoder's own, and checked first."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from backends.images import EmbeddingsFile, ImageLoader, ImageOptions
from backends.native.backend import NativeBackend
from backends.native.multimodal.inputs import ImageItem
from backends.native.multimodal.processing import BaseMultiModalProcessor
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import Generate, ImagePart, Sampling, Stopping, TextPrompt
from tests.backends import laws
from tests.backends.images import files
from tests.backends.native.multimodal.test_tensors import npy
from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, save_fuyu, save_llava, save_qwen

pytestmark = pytest.mark.torch

WIDTH = 48


def saved(values: Any) -> bytes:
    file = BytesIO()
    torch.save(values, file)
    return file.getvalue()


def encoded(checkpoint: Checkpoint, item: ImageItem) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The embeddings of an image by the model's own encoder, and its grid."""
    arrays = {name: torch.from_numpy(np.array(array)) for name, array in item.arrays.items()}
    with torch.inference_mode():
        (embeddings,) = checkpoint.wrapper.get_multimodal_embeddings(**arrays) or ()
    return embeddings.clone(), arrays.get("image_grid_thw")


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp(request.param)
    return Checkpoint(save_llava(folder) if request.param == "llava" else save_qwen(folder, request.param))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1000, 5])
def test_logits_are_those_of_the_image(checkpoint: Checkpoint, chunk: int) -> None:
    ids = [5, IMAGE, 7, IMAGE, 3]
    items = [checkpoint.item(1), checkpoint.item(2, 40, 70)]
    sent = []
    for number, item in enumerate(items):
        embeddings, grid = encoded(checkpoint, item)
        file = EmbeddingsFile(saved(embeddings[None]), None if grid is None else saved(grid[0]), bytes([number]))
        sent.append(checkpoint.processor.process_embeddings(file))
    as_pixels, prompt = checkpoint.processor.apply(ids, items), checkpoint.processor.apply(ids, sent)
    assert prompt.prompt_token_ids == as_pixels.prompt_token_ids
    (expected,), (found,) = checkpoint.packed([as_pixels], chunk), checkpoint.packed([prompt], chunk)
    assert torch.allclose(found, expected, atol=1e-6)
    sent[1] = checkpoint.processor.process_embeddings(EmbeddingsFile(saved(-embeddings), file.grid, b"-"))
    (other,) = checkpoint.packed([checkpoint.processor.apply(ids, sent)], chunk)
    assert not torch.allclose(other, expected, atol=1e-2), "the embeddings matter"


def refused(processor: BaseMultiModalProcessor[Any], match: str, values: Any, grid: Any = None) -> None:
    file = EmbeddingsFile(npy(values), None if grid is None else npy(np.array(grid)), b"")
    with pytest.raises(InvalidRequest, match=match):
        processor.apply([5, IMAGE], [processor.process_embeddings(file)])


def test_wrong_tensors_are_refused(tmp_path: Path) -> None:
    processor = Checkpoint(save_llava(tmp_path)).processor
    good = np.ones((9, WIDTH), np.float32)
    refused(processor, r"shape \[9, 47\].*\[tokens, 48\]", good[:, 1:])
    refused(processor, r"shape \[2, 9, 48\]", np.stack([good, good]))
    refused(processor, r"shape \[0, 48\]", good[:0])
    refused(processor, "integers", good.astype(int))
    for value in (np.nan, np.inf, -2e4):
        refused(processor, "not finite", good * value)
    refused(processor, "takes no 'image_grid_thw'", good, [1, 2, 2])
    mixed = [processor.process_embeddings(EmbeddingsFile(npy(good), None, b"")), Checkpoint(tmp_path).item(1)]
    with pytest.raises(InvalidRequest, match="mixed"):
        processor.apply([5, IMAGE, IMAGE], mixed)


def test_a_grid_says_how_many_embeddings_there_are(tmp_path: Path) -> None:
    processor = Checkpoint(save_qwen(tmp_path, "qwen2_vl")).processor
    good = np.ones((6, WIDTH), np.float32)
    processor.apply(
        [5, IMAGE], [processor.process_embeddings(EmbeddingsFile(npy(good), npy(np.array([1, 4, 6])), b""))]
    )
    refused(processor, "needs 'image_grid_thw'", good)
    for grid in ([1, 4, 4], [1, 5, 5], [1, 2**15, 2**15]):
        refused(processor, "does not make", good, grid)
    for grid in ([2, 4, 6], [1, -4, -6], [1, 2**60, 16], [1, 4], [1.0, 4.0, 6.0], [[1, 4, 6], [1, 4, 6]]):
        refused(processor, "three integers", good, grid)


def test_a_model_without_the_field_takes_none(tmp_path: Path) -> None:
    processor = Checkpoint(save_fuyu(tmp_path)).processor
    with pytest.raises(UnsupportedFeature, match="no 'image_embeds'"):
        processor.process_embeddings(EmbeddingsFile(npy(np.ones((6, WIDTH), np.float32)), None, b""))


@pytest_asyncio.fixture
async def backend(tmp_path: Path) -> AsyncIterator[NativeBackend]:
    options = {"engine": "inprocess", "threads": 1, "model": str(save_llava(tmp_path)), "dtype": "float32"}
    backend = NativeBackend("native", options | {"images": {"max_bytes": 10_000}})
    await backend.start()
    yield backend
    await backend.aclose()


async def answer(backend: NativeBackend, *images: ImagePart) -> tuple[int | None, ...]:
    request = Generate(
        id="r",
        model="m",
        prompts=(TextPrompt("w5 <image> w6", images),),
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(max_new_tokens=8),
    )
    events = await laws.collect(backend.generate(request))
    return tuple(token.id for token in laws.check(events, request).choices[0].tokens)


@pytest.mark.slow
async def test_a_whole_backend(backend: NativeBackend, tmp_path: Path) -> None:
    checkpoint, image = Checkpoint(tmp_path), files.part(files.file(size=(30, 20)))
    loader = ImageLoader(ImageOptions())
    (file,) = await loader.read([image])
    assert not isinstance(file, EmbeddingsFile)
    embeddings, _ = encoded(checkpoint, checkpoint.processor.process(await loader.decode(file)))
    await loader.aclose()

    def part(values: Any) -> ImagePart:
        return ImagePart(base64.b64encode(saved(values)).decode(), "embeddings")

    expected = await answer(backend, image)
    assert await answer(backend, part(embeddings)) == expected
    assert await answer(backend, part(-embeddings)) != expected
    assert await answer(backend, part(embeddings[:5])), "fewer patches than the tower makes"
    for wrong, match in (
        (part(embeddings[:, 1:].contiguous()), "shape"),
        (ImagePart("AAAA", "embeddings"), "cannot be read"),
        (ImagePart("?", "embeddings"), "base64"),
        (part(torch.zeros(200, 48)), "larger than 10000 bytes"),
    ):
        with pytest.raises(InvalidRequest, match=match) as refusal:
            await answer(backend, wrong)
        assert refusal.value.param == "images[0]"
    with pytest.raises(InvalidRequest, match="takes 20 tokens"):
        await answer(backend, part(torch.zeros(20, 48)))
