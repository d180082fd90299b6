"""Which features a request needs, and which requests a backend refuses."""

from __future__ import annotations

from typing import Any

import pytest

from backends import features
from backends.base import Capabilities, Feature
from backends.features import check, needs
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Prompt,
    Sampling,
    TemplateOptions,
    TextPart,
    TextPrompt,
    TokensPrompt,
    Tool,
    ToolChoice,
)

IMAGE = ImagePart("data:,", "data")
ALL = Capabilities(features=frozenset(Feature))


def request(*prompts: Prompt, **fields: Any) -> Generate:
    return Generate(id="r", model="m", prompts=prompts or (TextPrompt("Hi"),), **fields)


@pytest.mark.parametrize(
    ("asked", "features"),
    [
        (request(), set()),
        (request(ChatPrompt((Message("user", "Hi"),))), {Feature.CHAT}),
        (request(ChatPrompt((Message("user", (TextPart("Hi"),)),))), {Feature.CHAT}),
        (request(ChatPrompt((Message("user", (TextPart("Hi"), IMAGE)),))), {Feature.CHAT, Feature.IMAGES}),
        (
            request(ChatPrompt((Message("user", "Hi"),), TemplateOptions(add_generation_prompt=False))),
            {Feature.CHAT, Feature.TEMPLATE_OPTIONS},
        ),
        (request(ChatPrompt((Message("user", "Hi"),)), sampling=Sampling(min_p=0.1)), {Feature.CHAT, Feature.MIN_P}),
        (request(ChatPrompt((Message("user", "Hi"),)), tools=(Tool("f"),)), {Feature.CHAT, Feature.TOOLS}),
        (request(*[ChatPrompt((Message("user", "Hi"),))] * 2), {Feature.CHAT}),
        (request(TextPrompt("Hi", (IMAGE,))), {Feature.IMAGES}),
        (request(TokensPrompt((1,)), TextPrompt("Hi")), {Feature.TOKEN_PROMPTS}),
        (request(tools=(Tool("f"),)), {Feature.TOOLS}),
        (request(tools=(Tool("f"),), tool_choice=ToolChoice("none")), set()),
        (request(grammar=Grammar("json_object")), {Feature.GRAMMAR}),
        (request(logprobs=True, top_logprobs=2), {Feature.LOGPROBS, Feature.TOP_LOGPROBS}),
        (request(prompt_logprobs=True), {Feature.PROMPT_LOGPROBS}),
        (request(sampling=Sampling(logit_bias=((7, -1.0),))), {Feature.LOGIT_BIAS}),
        (request(sampling=Sampling(min_p=0.0)), {Feature.MIN_P}),
        (request(sampling=Sampling(watermark=True)), {Feature.WATERMARK}),
        (request(n=2, best_of=2), set()),
        (request(n=2, best_of=3), {Feature.BEST_OF}),
        (request(suffix="end"), {Feature.SUFFIX}),
    ],
)
def test_needed_features(asked: Generate, features: set[Feature]) -> None:
    assert needs(asked) == features
    check(asked, ALL, "m")


def test_the_first_missing_feature_is_named() -> None:
    asked = request(ChatPrompt((Message("user", (IMAGE,)),)), tools=(Tool("f"),))
    with pytest.raises(UnsupportedFeature, match="does not support images yet") as raised:
        check(asked, Capabilities(features=frozenset({Feature.CHAT})), "m")
    assert raised.value.feature == "images"


@pytest.mark.parametrize(("fields", "total"), [({"n": 3}, 6), ({"n": 1, "best_of": 3}, 6)])
def test_choices_are_bounded_over_all_prompts(fields: dict[str, int], total: int) -> None:
    asked = request(TextPrompt("a"), TextPrompt("b"), **fields)
    check(asked, Capabilities(features=frozenset(Feature), max_choices=total), "m")
    with pytest.raises(InvalidRequest, match=f"asks for {total} choices") as raised:
        check(asked, Capabilities(features=frozenset(Feature), max_choices=total - 1), "m")
    assert raised.value.param == "n"


def test_a_backend_for_embeddings_refuses_all_text() -> None:
    with pytest.raises(UnsupportedFeature, match="makes embeddings"):
        check(request(), Capabilities(generates=False, features=frozenset(Feature)), "m")


CHATS = [
    request(ChatPrompt((Message("user", "Hi"),)), **fields)
    for fields in (
        {},
        {"n": 2},
        {"sampling": Sampling(min_p=0.1)},
        {"tools": (Tool("f"),)},
        {"logprobs": True},
        {"lora_adapter": "absent"},
        {"overflow": "drop_turns"},
    )
] + [
    request(TextPrompt("Hi")),
    request(ChatPrompt((Message("user", (IMAGE,)),))),
    request(ChatPrompt((Message("user", None), Message("user", (TextPart("Hi"),))))),
    request(ChatPrompt((Message("user", "Hi"),), TemplateOptions(add_generation_prompt=False))),
    request(*[ChatPrompt((Message("user", "Hi"),))] * 2),
]
CAPABILITIES = [
    Capabilities(features=frozenset(features), max_choices=choices, generates=generates, lora_adapters=("known",))
    for features in ((), (Feature.CHAT,), Feature)
    for choices in (1, 2)
    for generates in (True, False)
]


@pytest.mark.parametrize("asked", CHATS)
def test_the_fast_path_decides_as_the_full_one(asked: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcomes() -> list[str]:
        found = []
        for capabilities in CAPABILITIES:
            try:
                found.append(str(check(asked, capabilities, "m")))
            except InvalidRequest as refused:
                found.append(str(refused))
        return found

    fast = outcomes()
    monkeypatch.setattr(features, "_is_usual", lambda _: False)
    assert fast == outcomes()
