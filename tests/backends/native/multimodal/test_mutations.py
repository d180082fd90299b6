"""The tests of logits are sensitive: each of these mistakes moves the logits far beyond their tolerance.

A table of mistakes by models. What is right is run beside each, with the bound of `test_logits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backends.native.engine.runner.embedder import Embedder
from backends.native.engine.scheduling.sequence import Work
from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.protocol.messages import Feature
from tests.backends.native.multimodal.test_logits import TOLERANCE, far
from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, mutated, save_fuyu, save_llava, save_qwen

pytestmark = pytest.mark.torch

MODELS: dict[str, Callable[[Path], Path]] = {
    "llava": save_llava,
    "fuyu": save_fuyu,
    "qwen2_vl": lambda folder: save_qwen(folder, "qwen2_vl"),
    "qwen2_5_vl": lambda folder: save_qwen(folder, "qwen2_5_vl"),
}
Packed = Callable[[Checkpoint, MultiModalInputs], Tensor]


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(MODELS[request.param](tmp_path_factory.mktemp(request.param)))


def one_image(checkpoint: Checkpoint, seed: int) -> MultiModalInputs:
    ids = [5, 6] if checkpoint.model.config.model_type == "fuyu" else [5, 6, IMAGE, 7, 8, 9]
    return checkpoint.processor.apply(ids, [checkpoint.item(seed, 47, 33)])


def _with_features(change: Callable[[Feature], Feature]) -> Packed:
    def packed(checkpoint: Checkpoint, inputs: MultiModalInputs) -> Tensor:
        wrong = MultiModalInputs(inputs.prompt_token_ids, tuple(map(change, inputs.features)))
        return checkpoint.packed([wrong])[0]

    return packed


def _with_embedder(kind: type[Embedder]) -> Packed:
    return lambda checkpoint, inputs: checkpoint.packed([inputs], embedder=kind(checkpoint.wrapper, 1000))[0]


def _not_merged(checkpoint: Checkpoint, inputs: MultiModalInputs) -> Tensor:
    return checkpoint.packed([MultiModalInputs(inputs.prompt_token_ids)])[0]


def _swapped(checkpoint: Checkpoint, inputs: MultiModalInputs) -> Tensor:
    """Another image's embeddings under this one's digest, as from a cache with a bad key."""
    embedder = Embedder(checkpoint.wrapper, 1000)
    (feature,), (other,) = inputs.features, one_image(checkpoint, 2).features
    with torch.inference_mode():
        embedder.cache.put(feature.identifier, embedder.encode(other))
    return checkpoint.packed([inputs], embedder=embedder)[0]


def _is_embed(feature: Feature) -> list[int]:
    return list(feature.is_embed or b"\1" * feature.length)


def _one_less(feature: Feature) -> Feature:
    """The first token of the image keeps its own embedding."""
    return mutated(feature, is_embed=bytes([0, *_is_embed(feature)[1:]]))


def _one_later(feature: Feature) -> Feature:
    """Embeddings are shifted by one token within the image."""
    flags = _is_embed(feature)
    return mutated(feature, is_embed=bytes([0, *flags[:-1]]))


class _Rolled(Embedder):
    def encode(self, feature: Feature) -> Tensor:
        return super().encode(feature).roll(1, 0)


class _Reversed(Embedder):
    def encode(self, feature: Feature) -> Tensor:
        return super().encode(feature).flip(0)


class _Plain(Embedder):
    """One-dimensional positions."""

    def positions(self, works: Sequence[Work]) -> None:
        return None


class _FromStart(Embedder):
    """Every chunk begins with the image's first embedding."""

    def _part(self, feature: Feature, work: Work) -> tuple[list[int], Tensor] | None:
        found = super()._part(feature, work)
        return found and (found[0], self.encode(feature)[: len(found[0])])


def _in_chunks(kind: type[Embedder]) -> Packed:
    return lambda checkpoint, inputs: checkpoint.packed([inputs], 7, kind(checkpoint.wrapper, 1000))[0]


MISTAKES: dict[str, Packed] = {
    "not merged": _not_merged,
    "another image": _swapped,
    "features rolled": _with_embedder(_Rolled),
    "features reversed": _with_embedder(_Reversed),
    "one place before": _with_features(lambda feature: mutated(feature, offset=feature.offset - 1)),
    "one place after": _with_features(lambda feature: mutated(feature, offset=feature.offset + 1)),
    "one embedding less": _with_features(_one_less),
    "embeddings one later": _with_features(_one_later),
    "chunks begin anew": _in_chunks(_FromStart),
    "plain positions": _with_embedder(_Plain),
}


UNPLACED = ("one embedding less", "embeddings one later")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_moves_the_logits(checkpoint: Checkpoint, mistake: str) -> None:
    kind = checkpoint.model.config.model_type
    if mistake == "plain positions" and not kind.startswith("qwen"):
        pytest.skip("its positions are plain")
    if mistake == "one place before" and kind == "fuyu":
        pytest.skip("its images come first")
    inputs = one_image(checkpoint, 1)
    expected = checkpoint.plain(inputs, [checkpoint.item(1, 47, 33)])
    assert far(checkpoint.packed([inputs], 7)[0], expected) < TOLERANCE
    if mistake in UNPLACED and kind.startswith("qwen"):
        with pytest.raises(RuntimeError, match="expanded size"):  # of positions, which are counted by image
            MISTAKES[mistake](checkpoint, inputs)
    else:
        assert far(MISTAKES[mistake](checkpoint, inputs), expected) > 100 * TOLERANCE
