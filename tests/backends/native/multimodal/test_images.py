"""The bundled model names images, alone and in batches, with and without caches; bad images are rejected."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from io import BytesIO
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image
from transformers.utils import chat_template_utils

from backends.base import Feature
from backends.native.backend import NativeBackend
from backends.native.multimodal import prompts
from schemas.completion import Completion
from schemas.errors import GatewayError, InvalidRequest
from schemas.ir import ChatPrompt, Generate, ImagePart, Message, Sampling, TextPart, TextPrompt
from tests.backends import laws
from tools.demo_model.samples.scenes import COLORS, FORMS, Scene, draw_scene, render

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

QUESTION = "What is in the picture?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[NativeBackend]:
    backend = NativeBackend("native", {"engine": "inprocess", "threads": 1, "images": {"max_images": 4}})
    await backend.start()
    yield backend
    await backend.aclose()


def drawn_image(seed: int, size: tuple[int, int] = (300, 200), format: str = "PNG") -> tuple[Scene, ImagePart]:
    rng = Random(f"fresh {seed}")
    scene = draw_scene(rng, 1)
    return scene, as_part(render(scene, rng, *size), format)


def as_part(image: Image.Image, format: str = "PNG") -> ImagePart:
    out = BytesIO()
    image.save(out, format)
    return ImagePart(f"data:image/{format.lower()};base64,{base64.b64encode(out.getvalue()).decode()}", "data")


def chat(*parts: ImagePart | str) -> ChatPrompt:
    return ChatPrompt((Message("user", tuple(TextPart(p) if isinstance(p, str) else p for p in parts)),))


async def ask(backend: NativeBackend, *prompts: Any, **fields: Any) -> Completion:
    asked = Generate(id="r", model="demo", prompts=prompts, sampling=Sampling(temperature=0.0), **fields)
    return laws.check(await laws.collect(backend.generate(asked)), asked)


async def say(backend: NativeBackend, *parts: ImagePart | str) -> str:
    return (await ask(backend, chat(*parts))).choices[0].text


def named(scene: Scene) -> str:
    (shape,) = scene.shapes
    return f"A {shape.color} {shape.form}." if shape.color != "orange" else f"An {shape.color} {shape.form}."


async def test_capabilities_include_images(backend: NativeBackend) -> None:
    assert Feature.IMAGES in backend.capabilities.features


async def test_new_images_in_one_batch(backend: NativeBackend) -> None:
    sizes = ((300, 200), (256, 256), (640, 480))
    drawn = [drawn_image(seed, sizes[seed % 3], ("PNG", "JPEG")[seed % 2]) for seed in range(60)]
    said = await asyncio.gather(*(say(backend, part, QUESTION) for _, part in drawn))
    right = sum(answer == named(scene) for (scene, _), answer in zip(drawn, said, strict=True))
    assert right >= 54
    assert len({color for color in COLORS for answer in said if color in answer}) == len(COLORS)
    assert len({form for form in FORMS for answer in said if form in answer}) == len(FORMS)


async def test_an_answer_does_not_depend_on_the_batch(backend: NativeBackend) -> None:
    drawn = [drawn_image(seed)[1] for seed in range(8)]
    alone = [await say(backend, part, QUESTION) for part in drawn]
    texts = ["What is the capital of France?", "Tell me a story."]
    plain = [await say(backend, text) for text in texts]
    company = await asyncio.gather(
        *(say(backend, part, QUESTION) for part in drawn), *(say(backend, text) for text in texts)
    )
    assert company == [*alone, *plain]


async def test_images_larger_than_a_frame_are_rejected(backend: NativeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    _, part = drawn_image(1)
    monkeypatch.setattr(prompts, "_MAX_PROMPT_BYTES", 10_000)
    with pytest.raises(InvalidRequest, match="bytes when processed"):
        await say(backend, part, part, QUESTION)


async def test_no_cache_confuses_images(backend: NativeBackend) -> None:
    shown = {}
    for color, name in (((35, 70, 220), "blue"), ((220, 30, 30), "red"), ((30, 160, 50), "green")):
        image = Image.new("RGB", (200, 200), "white")
        image.paste(color, (50, 50, 150, 150))
        shown[name] = as_part(image)
    for name in ("blue", "red", "blue", "green", "red", "green", "blue"):
        assert await say(backend, shown[name], QUESTION) == f"A {name} square."


async def test_the_prefix_cache_distinguishes_images(backend: NativeBackend) -> None:
    _, part = drawn_image(101)
    _, other = drawn_image(102)
    first = await ask(backend, chat(part, QUESTION))
    again = await ask(backend, chat(part, QUESTION))
    longer = await ask(backend, chat(part, QUESTION), chat(part, "How many shapes are in the picture?"))
    different = await ask(backend, chat(other, QUESTION))
    assert first.usage.cached_tokens == 0
    assert again.usage.cached_tokens == 32, "36 placeholders and a few tokens: two blocks of 16"
    assert again.choices[0].text == first.choices[0].text
    assert longer.usage.cached_tokens is not None
    assert longer.usage.cached_tokens >= 64
    assert different.usage.cached_tokens == 0
    assert different.usage.prompt_tokens == first.usage.prompt_tokens


RAW = "<|user|>{}What is in the picture?<|end|><|assistant|>"


async def test_placeholders_in_raw_prompts(backend: NativeBackend) -> None:
    scene, part = drawn_image(7)
    marked = TextPrompt(RAW.format("<image>"), (part,))
    placed = TextPrompt(RAW.format(""), (part,), (len("<|user|>"),))
    said = TextPrompt(QUESTION, (part,))
    assert (await ask(backend, marked)).choices[0].text == named(scene)
    assert (await ask(backend, placed)).choices[0].text == named(scene)
    assert (await ask(backend, said, raw_prompt=False)).choices[0].text == named(scene)
    alone = (await ask(backend, TextPrompt("Hello"))).usage.prompt_tokens
    first = await ask(backend, TextPrompt("Hello", (part,)), echo=True)
    assert first.usage.prompt_tokens == 36 + alone
    assert [token.text for token in first.prompts[0][:36]] == ["<image>"] * 36, "without a place it comes first"


async def test_a_typed_placeholder_is_text(backend: NativeBackend) -> None:
    _, part = drawn_image(7)
    _, other = drawn_image(8)
    if not hasattr(chat_template_utils, "mark_control_tokens"):  # before transformers 5.20
        with pytest.raises(InvalidRequest, match="the name of a control token"):
            await ask(backend, chat("<image>", part, QUESTION))
        return
    answer = await ask(backend, chat("<image>", part, QUESTION))
    assert answer.usage.prompt_tokens > (await ask(backend, chat(part, QUESTION))).usage.prompt_tokens
    assert (await ask(backend, chat("<image>" * 3))).usage.prompt_tokens < 36
    two = await ask(backend, chat(part, "and <image>", other))
    assert two.usage.prompt_tokens > 72


async def test_several_choices_for_an_image(backend: NativeBackend) -> None:
    scene, part = drawn_image(7)
    answer = await ask(backend, chat(part, QUESTION), n=3)
    assert [choice.text for choice in answer.choices] == [named(scene)] * 3


REFUSED: dict[str, tuple[tuple[ImagePart | str, ...], dict[str, Any], str]] = {
    "too many": ((drawn_image(1)[1],) * 5, {}, "At most 4 images"),
    "too many and none of them good": ((ImagePart("data:,", "data"),) * 5, {}, "At most 4 images"),
    "no image": ((ImagePart("data:image/png;base64,aGk=", "data"),), {}, "not a JPEG or PNG"),
    "a damaged one": ((ImagePart(drawn_image(1)[1].ref[:-400], "data"),), {}, "damaged|base64"),
    "by its address": ((ImagePart("https://a.example/b.png", "url"),), {}, "not fetched"),
    "by its path": ((ImagePart("/etc/hostname", "path"),), {}, "no such image"),
    "cut": ((drawn_image(1)[1], "Hi"), {"truncate_prompt_tokens": 5}, "cannot be truncated"),
}


@pytest.mark.parametrize(("parts", "fields", "words"), REFUSED.values(), ids=REFUSED)
async def test_bad_requests_are_rejected(
    backend: NativeBackend, parts: Any, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        await ask(backend, chat(*parts), **fields)
    assert "a.example" not in refused.value.message
    assert "hostname" not in refused.value.message


@pytest.mark.parametrize(
    "bad", [ImagePart("data:,", "data"), ImagePart(as_part(Image.new("RGB", (64, 64))).ref[:-40], "data")]
)
async def test_the_error_names_the_bad_image(backend: NativeBackend, bad: ImagePart) -> None:
    _, good = drawn_image(1)
    with pytest.raises(InvalidRequest) as refused:
        await ask(backend, chat(good, "and", good), chat(QUESTION), chat(good, bad))
    assert refused.value.param == "images[3]"


async def test_more_images_than_the_context_holds() -> None:
    backend = NativeBackend("native", {"engine": "inprocess", "threads": 1, "context_length": 64})
    await backend.start()
    _, part = drawn_image(3)
    assert await say(backend, part, QUESTION)
    with pytest.raises(GatewayError, match="maximum context length is 64"):
        await say(backend, part, part)
    await backend.aclose()


async def test_without_a_prefix_cache_and_in_small_steps() -> None:
    options = {"engine": "inprocess", "threads": 1, "prefix_caching": False, "step_tokens": 5, "max_sequences": 4}
    backend = NativeBackend("native", options)
    await backend.start()
    drawn = [drawn_image(seed) for seed in range(20, 28)]
    said = await asyncio.gather(*(say(backend, part, QUESTION) for _, part in drawn))
    assert said == [named(scene) for scene, _ in drawn]
    await backend.aclose()


async def test_images_over_a_socket() -> None:
    backend = NativeBackend("native", {"threads": 1})
    await backend.start()
    scene, part = drawn_image(7)
    assert await say(backend, part, QUESTION) == named(scene)
    await backend.aclose()
