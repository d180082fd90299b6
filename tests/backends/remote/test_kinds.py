"""The table of remote kinds."""

from __future__ import annotations

import runpy
from contextlib import suppress
from enum import StrEnum
from importlib.metadata import entry_points

import pytest

from adapters.base import ClientCodec
from backends import base
from backends.base import Feature
from backends.remote import kinds
from backends.remote.kinds import Kind
from schemas.errors import UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Sampling,
    TextPart,
    TextPrompt,
    TokensPrompt,
    Tool,
)
from schemas.prompts import TemplateOptions

KINDS = {name: kind for name, kind in vars(kinds).items() if isinstance(kind, Kind)}


def test_every_kind_has_an_entry_point() -> None:
    registered = [point.load() for point in entry_points(group="gateway.backends")]
    assert {id(kind) for kind in KINDS.values()} == {id(kind) for kind in registered if isinstance(kind, Kind)}


def test_a_new_feature_is_claimed_by_no_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is run again beside a `Feature` that has one member more."""
    members = {feature.name: feature.value for feature in Feature} | {"NEW": "new"}
    monkeypatch.setattr(base, "Feature", StrEnum("Feature", members))
    fresh = runpy.run_path(kinds.__file__)
    for name, kind in KINDS.items():
        assert {str(feature) for feature in fresh[name].features} == {feature.value for feature in kind.features}


@pytest.mark.parametrize("name", KINDS)
def test_a_backend_of_every_kind_can_be_made(name: str) -> None:
    backend = KINDS[name]("far", {"url": "http://host/v1", "features": ["chat", "watermark"]})
    assert backend.capabilities.features == KINDS[name].features & {Feature.CHAT, Feature.WATERMARK}
    assert backend.capabilities.embeddings == KINDS[name].embeddings


HI = ChatPrompt((Message("user", "Hi"),))
TEXT = TextPrompt("Hi")
IMAGE = ImagePart("data:image/png;base64,QUJD", "data")
SAMPLED = Sampling(temperature=0.5)
ASKS: dict[Feature, tuple[Generate, ...]] = {
    feature: tuple(Generate(id="r", model="m", **fields) for fields in each)
    for feature, each in {
        Feature.CHAT: ({"prompts": (HI,)},),
        Feature.TEMPLATE_OPTIONS: (
            {"prompts": (ChatPrompt(HI.messages, TemplateOptions(variables={"x": 1})),)},
            {"prompts": (ChatPrompt((*HI.messages, Message("assistant", "x")), TemplateOptions(False, True)),)},
        ),
        Feature.TOKEN_PROMPTS: ({"prompts": (TokensPrompt((1,)),)},),
        Feature.IMAGES: (
            {"prompts": (ChatPrompt((Message("user", (TextPart("Hi"), IMAGE)),)),)},
            {"prompts": (TextPrompt("Hi", (IMAGE,)),)},
        ),
        Feature.TOOLS: ({"prompts": (HI,), "tools": (Tool("f"),)},),
        Feature.GRAMMAR: tuple(
            {"prompts": (prompt,), "grammar": Grammar("json_schema", {"type": "object"})} for prompt in (HI, TEXT)
        ),
        Feature.LOGPROBS: tuple({"prompts": (prompt,), "logprobs": True} for prompt in (HI, TEXT)),
        Feature.TOP_LOGPROBS: tuple(
            {"prompts": (prompt,), "logprobs": True, "top_logprobs": 2} for prompt in (HI, TEXT)
        ),
        Feature.PROMPT_LOGPROBS: ({"prompts": (TEXT,), "prompt_logprobs": True, "logprobs": True},),
        Feature.LOGIT_BIAS: tuple(
            {"prompts": (prompt,), "sampling": Sampling(logit_bias=((1, 1.0),))} for prompt in (HI, TEXT)
        ),
        Feature.MIN_P: tuple({"prompts": (prompt,), "sampling": Sampling(min_p=0.1)} for prompt in (HI, TEXT)),
        Feature.BAD_WORDS: tuple(
            {"prompts": (prompt,), "sampling": Sampling(bad_words=("x",))} for prompt in (HI, TEXT)
        ),
        Feature.BEST_OF: ({"prompts": (TEXT,), "best_of": 2},),
        Feature.SUFFIX: ({"prompts": (TEXT,), "suffix": "x"},),
        Feature.WATERMARK: ({"prompts": (TEXT,), "sampling": Sampling(temperature=0.5, watermark=True)},),
        Feature.LORA: ({"prompts": (TEXT,), "lora_adapter": "a"},),
        Feature.TRUNCATION: ({"prompts": (HI,), "overflow": "drop_turns"},),
    }.items()
    for each in (tuple({"sampling": SAMPLED} | fields for fields in each),)
}


OF_THE_PROTOCOL = {
    "databricks": {Feature.BAD_WORDS, Feature.BEST_OF, Feature.LOGIT_BIAS, Feature.MIN_P, Feature.SUFFIX},
    "mindie": {Feature.PROMPT_LOGPROBS},
}
"""Features that only requests of clients of the same protocol can have."""


@pytest.mark.parametrize("name", KINDS)
def test_a_claimed_feature_can_be_expressed(name: str) -> None:
    """The router sends a request to a backend that claims its features: a false claim is a refusal."""
    kind = KINDS[name]
    codecs = [protocol.codec() for protocol in kind.protocols]
    false = {feature for feature in kind.features if not any(_encodes(codecs, asked) for asked in ASKS[feature])}
    assert false == OF_THE_PROTOCOL.get(name, set())


def _encodes(codecs: list[ClientCodec], asked: Generate) -> bool:
    for codec in codecs:
        with suppress(UnsupportedFeature):
            codec.encode(asked)
            return True
    return False
