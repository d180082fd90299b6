"""Unregistered families are served with transformers' logits, or rejected at load with the reason."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

from backends.native.backend import NativeBackend
from backends.native.engine.errors import LoadError
from backends.native.engine.factory import load_engine
from backends.native.engine.loading.weights import load
from backends.native.engine.multimodal.self_check import find_unchunked
from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.multimodal.models.generic import GenericModel
from backends.native.multimodal.processing import NotServed
from backends.native.multimodal.prompts import load_processor
from backends.native.multimodal.registry import GENERIC, Registered
from backends.native.protocol.engine_options import EngineOptions
from schemas.errors import InvalidRequest
from schemas.ir import Generate, Stopping, TextPrompt
from tests.backends import laws
from tests.backends.images import files
from tests.backends.native.multimodal import families
from tests.backends.native.multimodal.families import WORDS
from tests.backends.native.multimodal.test_generate import generated, run
from tests.backends.native.multimodal.tiny import Checkpoint

pytestmark = pytest.mark.torch

IMAGE = WORDS
TOLERANCE = 1e-5


def _with_package(save: Callable[[Path], Path], package: str) -> Any:
    here = find_spec(package) is not None
    return pytest.param(save, marks=pytest.mark.skipif(not here, reason=f"needs {package}"), id=save.__name__)


FAMILIES = (
    *(pytest.param(save, id=save.__name__) for save in families.SERVED),
    *(_with_package(save, package) for save, package in families.WITH_PACKAGE.items()),
)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("family"))
    return made


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(folder)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_logits_in_a_mixed_batch(checkpoint: Checkpoint, chunk: int) -> None:
    one, other = checkpoint.item(1), checkpoint.item(2, 60, 20)
    asked: list[tuple[list[int], tuple[Any, ...]]] = [
        ([5, IMAGE, 7, 8], (one,)),
        ([5, 6, 7], ()),
        ([3, IMAGE, 4, IMAGE, 9], (other, other)),
    ]
    prompts = [checkpoint.processor.apply(ids, items) for ids, items in asked]
    found = checkpoint.packed(prompts, chunk)
    for logits, inputs, (_, items) in zip(found, prompts, asked, strict=True):
        expected = checkpoint.plain(inputs, items)
        assert (logits - expected).abs().max() < TOLERANCE * expected.abs().max()
    swapped = checkpoint.processor.apply(asked[0][0], [checkpoint.item(4)])
    (wrong,) = checkpoint.packed([swapped])
    assert (wrong[-1] - checkpoint.plain(prompts[0], [one])[-1]).abs().max() > 100 * TOLERANCE


def test_tokens_are_those_of_generate(folder: Path, checkpoint: Checkpoint) -> None:
    options = EngineOptions(model=str(folder), threads=1, dtype="float32", step_tokens=9, max_sequences=4)
    engine, ready = load_engine(options, lambda _: None)
    assert (ready.images, ready.execution_path) == (True, "packed")
    items = [(checkpoint.item(1),), (checkpoint.item(2, 60, 20),), ()]
    prompts = [checkpoint.processor.apply([5, IMAGE, 7] if given else [5, 7], given) for given in items]
    expected = [generated(checkpoint, prompt, given) for prompt, given in zip(prompts, items, strict=True)]
    assert run(engine, prompts) == expected
    assert run(engine, prompts, first=10) == expected


def test_mistral3_lays_tokens_out_in_rows(tmp_path: Path) -> None:
    """As `PixtralProcessor.replace_image_token` of transformers 5.23, which cannot be imported without torchvision."""
    checkpoint = Checkpoint(families.save_mistral3(tmp_path))
    # 60 x 20 pixels become 64 x 32: two rows of four tokens of 16 x 16.
    (wide, tall) = (checkpoint.item(1, 60, 20), checkpoint.item(2, 20, 60))
    row, end = IMAGE + 1, IMAGE + 2
    given = checkpoint.processor.apply([5, IMAGE, 7, IMAGE], [wide, tall])
    expected = [5, *[IMAGE] * 4, row, *[IMAGE] * 4, end, 7, *[IMAGE, IMAGE, row] * 3, IMAGE, IMAGE, end]
    assert list(given.prompt_token_ids) == expected
    assert [feature.length for feature in given.features] == [10, 12]


REFUSED = {"both directions": (families.save_unregistered, "gives other logits when packed")}
if find_spec("num2words") is None:
    REFUSED["smolvlm"] = (families.save_smolvlm, "Package `num2words` is required")


@pytest.mark.parametrize(("save", "words"), REFUSED.values(), ids=REFUSED)
def test_unsupported_models_are_rejected_at_load(save: Callable[[Path], Path], words: str, tmp_path: Path) -> None:
    options = {"model": str(save(tmp_path)), "threads": 1, "dtype": "float32"}
    with pytest.raises(LoadError, match=f"cannot be served rightly here: .*{words}.* text_only = true"):
        load_engine(EngineOptions(**options), lambda _: None)
    engine, ready = load_engine(EngineOptions(**options, text_only=True), lambda _: None)
    assert not ready.images
    assert run(engine, [MultiModalInputs((5, 6, 7))])[0]


def test_a_model_on_the_per_sequence_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected if the engine chose the path, served as a text model if the options did."""
    options = {"model": str(families.save_llava_next(tmp_path)), "threads": 1, "dtype": "float32"}
    monkeypatch.setattr(
        "backends.native.engine.loading.execution_path.why_not_packed", lambda *_, **__: "of its layers"
    )
    with pytest.raises(LoadError, match=r"rightly here: it takes the per-sequence execution path.* text_only = true"):
        load_engine(EngineOptions(**options), lambda _: None)
    for option in ({"text_only": True}, {"execution_path": "per_sequence"}):
        _, ready = load_engine(EngineOptions(**options, **option), lambda _: None)
        assert (ready.execution_path, ready.images) == ("per_sequence", False)


class _Rolled(GenericModel):
    def get_multimodal_embeddings(self, **kwargs: Tensor) -> list[Tensor]:
        return [super().get_multimodal_embeddings(**kwargs)[0].roll(1, 0)]


class _Blind(GenericModel):
    def get_multimodal_embeddings(self, **kwargs: Tensor) -> list[Tensor]:
        return [torch.zeros_like(super().get_multimodal_embeddings(**kwargs)[0])]


class _Short(GenericModel):
    def get_multimodal_embeddings(self, **kwargs: Tensor) -> list[Tensor]:
        return [super().get_multimodal_embeddings(**kwargs)[0][1:]]


class _Flat(GenericModel):
    def get_mrope_input_positions(self, *_: Any) -> None:
        return None


WRONG = [(_Rolled, "other logits"), (_Blind, "other logits"), (_Short, "embeddings for"), (_Flat, "other logits")]


@pytest.mark.parametrize(("wrapper", "words"), WRONG)
def test_the_check_notices_mistakes(folder: Path, wrapper: type[GenericModel], words: str) -> None:
    loaded = load(str(folder), "float32", "cpu")
    processor = load_processor(str(folder))
    if loaded.model.config.model_type == "paligemma":
        return  # registered, and not checked
    wrong = Registered(wrapper, GENERIC.processor, GENERIC.info, GENERIC.dummy_inputs)
    ahead = find_unchunked(loaded.model, GENERIC, processor)
    assert ahead == ("image" if loaded.model.config.model_type == "gemma3" else "nothing")
    if wrapper is _Flat and not hasattr(loaded.model.model, "get_rope_index"):
        assert find_unchunked(loaded.model, wrong, processor) == ahead, "its positions are flat"
    else:
        with pytest.raises(NotServed, match=words):
            find_unchunked(loaded.model, wrong, processor)


def test_a_model_of_ordinary_size_is_checked_as_well(tmp_path: Path) -> None:
    """With the widths of GLM-4.1V-9B: the check runs a copy with few layers and heads."""
    families.save_glm4v(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
    config = AutoConfig.for_model("glm4v", text_config={"rope_parameters": rope}, image_token_id=WORDS)
    config.save_pretrained(tmp_path)
    Glm4vImageProcessorPil().save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    assert sum(each.numel() for each in model.parameters()) > 9_000_000_000
    assert find_unchunked(model, GENERIC, load_processor(str(tmp_path))) == "nothing"


async def test_an_unregistered_model_in_a_backend(tmp_path: Path) -> None:
    """From the image file to the answer; an image beyond the limit is rejected."""
    backend = NativeBackend(
        "native", {"engine": "inprocess", "threads": 1, "model": str(families.save_llava_next(tmp_path))}
    )
    await backend.start()
    wide = files.part(files.file(size=(60, 20)))
    raw = TextPrompt("w5 w6 w7", (files.part(files.file()),), (3,))
    asked = Generate(id="r", model="m", prompts=(raw,), echo=True, stopping=Stopping(max_new_tokens=3))
    answer = laws.check(await laws.collect(backend.generate(asked)), asked)
    ids = [token.id for token in answer.prompts[0]]
    assert (ids[0], ids[-2:], set(ids[1:-2])) == (5, [6, 7], {IMAGE})
    assert answer.usage.prompt_tokens == len(ids)
    assert backend._images is not None
    backend._images._max_tokens = 30
    with pytest.raises(InvalidRequest, match=r"takes .* tokens; the limit is 30"):
        await laws.collect(backend.generate(msgspec.structs.replace(asked, prompts=(TextPrompt("w5", (wide,)),))))
    await backend.aclose()
