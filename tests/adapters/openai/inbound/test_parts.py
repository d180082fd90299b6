"""Parts of a message beside text and images: embeddings, videos in frames, and what only an upstream may take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, Generate, ImagePart, Part, TextPart
from tests.adapters.openai.scenes import chat, client

TEXT = {"type": "text", "text": "What?"}


def asked(*parts: dict[str, Any]) -> Generate:
    return chat(messages=[{"role": "user", "content": list(parts)}])


def content(*parts: dict[str, Any]) -> tuple[Part, ...]:
    (prompt,) = asked(*parts).prompts
    assert isinstance(prompt, ChatPrompt)
    assert isinstance(prompt.messages[0].content, tuple)
    return prompt.messages[0].content


@pytest.mark.parametrize("form", [lambda url: {"url": url}, str])
def test_a_video_in_frames_is_several_images(form: Any) -> None:
    video = {"type": "video_url", "video_url": form("data:video/jpeg;base64,/9j/AA==,/9j/BB==")}
    assert content(video, TEXT) == (
        ImagePart("/9j/AA==", "data", frame=0),
        ImagePart("/9j/BB==", "data", frame=1),
        TextPart("What?"),
    )
    assert not asked(video, TEXT).unread


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("QUJD", ImagePart("QUJD", "embeddings")),
        ({"image_embeds": "QUJD"}, ImagePart("QUJD", "embeddings")),
        ({"image_embeds": "QUJD", "image_grid_thw": "RA=="}, ImagePart("QUJD", "embeddings", grid="RA==")),
    ],
)
def test_embeddings(given: Any, part: ImagePart) -> None:
    assert content({"type": "image_embeds", "image_embeds": given}) == (part,)


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_embeds"}, "image_embeds"),
        ({"type": "image_embeds", "image_embeds": None, "uuid": "a"}, "image_embeds"),
        ({"type": "image_embeds", "image_embeds": {"image_grid_thw": "A"}}, "image_embeds.image_embeds"),
        ({"type": "image_embeds", "image_embeds": {"image_embeds": "A", "other": "B"}}, "image_embeds.other"),
        ({"type": "video_url"}, "video_url"),
        ({"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + "," * 2000}}, "video_url"),
    ],
)
def test_wrong_parts(part: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(TEXT, part)
    assert refused.value.param == f"messages[0].content[1].{param}"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,QUJD"}},
        {"type": "video_url", "video_url": {"url": "https://a.example/b.mp4"}},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "https://a.example/b.wav"}},
        {"type": "file", "file": {"file_id": "f"}},
    ],
)
def test_parts_for_an_upstream_of_the_dialect(part: dict[str, Any]) -> None:
    """They are named for whoever is not sent the body, and sent on with it."""
    request = asked(TEXT, part)
    (unread,) = request.unread
    assert (unread.param, unread.feature) == ("messages[0].content[1].type", part["type"])
    assert content(TEXT, part) == (TextPart("What?"),)
    codec = client()
    assert codec.ignored(request) == ()
    assert json.loads(codec.encode(request).body)["messages"][0]["content"] == [TEXT, part]
    assert client("mindie-openai").ignored(request) == ("messages[0].content[1].type",)


def test_a_part_that_nobody_knows() -> None:
    with pytest.raises(UnsupportedFeature, match="'hologram' is not supported"):
        asked({"type": "hologram"})
