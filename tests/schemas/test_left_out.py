"""What of a request does not reach its server."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.ir import ChatPrompt, Embed, Generate, ImagePart, Message, TextPrompt, Tool
from schemas.left_out import DETAIL, NAME, PLACES, STRICT, left_out


def asking(*messages: Message, **fields: Any) -> Generate:
    return Generate(id="r", model="m", prompts=(ChatPrompt(messages or (Message("user", "Hi"),)),), **fields)


def seen(detail: str | None) -> Message:
    return Message("user", (ImagePart("https://a.example/b.png", "url", detail),))


@pytest.mark.parametrize(
    ("request_", "places"),
    [
        (asking(), ()),
        (asking(unknown=("temprature",)), ("temprature",)),
        (asking(hints={"verbosity": "low", "metadata": {"a": "b"}, "prompt_cache_key": "x"}), ("verbosity",)),
        (asking(hints={"service_tier": "auto"}), ()),
        (asking(hints={"service_tier": "flex"}), ("service_tier",)),
        (asking(Message("user", "Hi", name="ann")), (NAME,)),
        (asking(Message("tool", "20", name="f", tool_call_id="c")), ()),
        (asking(tools=(Tool("f"), Tool("g", strict=True))), (STRICT,)),
        (asking(seen("auto")), ()),
        (asking(seen("low")), (DETAIL,)),
    ],
)
def test_what_is_asked_for_and_not_sent(request_: Generate, places: tuple[str, ...]) -> None:
    assert left_out(request_) == places
    assert left_out(request_, ("verbosity", "service_tier", *PLACES)) == request_.unknown


def test_of_embeddings_the_unknown_fields() -> None:
    assert left_out(Embed(id="r", model="m", inputs=(TextPrompt("x"),), unknown=("x",))) == ("x",)
