"""The forms of `inputs`, and the kinds of image references."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from adapters.tgi.inputs import image_part
from schemas.errors import InvalidRequest
from schemas.ir import ChatPrompt, ImagePart, Message, TextPart, TextPrompt
from tests.adapters.tgi.scenes import IMAGES, NAMES, ask

JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(17)).decode()
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()


@pytest.mark.parametrize(
    ("ref", "kind"),
    [
        ("https://a.example/b.png", "url"),
        ("http://a.example/b.png", "url"),
        ("/xxxx/test.png", "path"),
        ("file:///a/b.jpg", "path"),
        ("a.png", "path"),
        ("data:image/jpeg;base64,/9j/", "data"),
        ("data:image/jpg;base64,/9j/", "data"),
        (JPEG, "data"),
        (PNG, "data"),
        ("/9j/a.png", "path"),
        ("/9j/4A", "path"),
        (base64.b64encode(b"GIF89a").decode(), "path"),
    ],
)
def test_kinds_of_image_references(ref: str, kind: str) -> None:
    assert JPEG.startswith("/9j/")  # an absolute path, by the looks of it
    part = image_part(ref)
    assert (part.kind, part.ref) == (kind, ref)


@pytest.mark.parametrize("name", NAMES)
def test_text(name: str) -> None:
    request = ask(name, inputs="Zoë 🙂")
    assert request.prompts == (TextPrompt("Zoë 🙂"),)
    assert request.raw_prompt


def test_a_list_is_one_user_message() -> None:
    inputs = [
        {"type": "text", "text": "My name is Olivier and I"},
        {"type": "image_url", "image_url": "/xxxx/test.png"},
        {"type": "text", "text": "?"},
    ]
    request = ask("mindie", inputs=inputs)
    parts = (TextPart("My name is Olivier and I"), ImagePart("/xxxx/test.png", "path"), TextPart("?"))
    assert request.prompts == (ChatPrompt((Message("user", parts),)),)
    assert not request.raw_prompt


def test_a_list_of_texts_is_a_user_message() -> None:
    request = ask("mindie", inputs=[{"type": "text", "text": "a"}])
    assert request.prompts == (ChatPrompt((Message("user", (TextPart("a"),)),)),)


TWO = [{"type": "image_url", "image_url": "/a.png"}] * 2


@pytest.mark.parametrize(
    ("name", "inputs", "param", "message"),
    [
        ("tgi", "", "inputs", "`inputs` cannot be empty"),
        ("mindie", "", "inputs", "Inputs length must be in (0, 4194304], but got 0"),
        ("mindie", [], "inputs", "`inputs` cannot be empty"),
        ("tgi", [{"type": "text", "text": "a"}], "inputs", "`inputs` must be a string"),
        ("mindie", [{"type": "text"}], "inputs[0].text", "Request param text must be string"),
        (
            "mindie",
            [{"type": "text", "text": ""}],
            "inputs[0].text",
            "Inputs length must be in (0, 4194304], but got 0",
        ),
        ("mindie", [{"type": "image_url"}], "inputs[0].image_url", "Request param image_url null"),
        ("mindie", TWO, "inputs", "The number of images must be no more than 1, got 2."),
        ("mindie", "x" * (4 << 20) + "x", "inputs", "Inputs length must be in (0, 4194304], but got 4194305"),
    ],
)
def test_invalid_inputs_are_refused(name: str, inputs: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask(name, inputs=inputs)
    assert (raised.value.param, raised.value.message) == (param, message)


@pytest.mark.parametrize("inputs", [5, None, [5], [{"type": "audio_url"}], {"type": "text"}])
def test_inputs_of_a_wrong_type_are_refused(inputs: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask("mindie", inputs=inputs)
    assert (raised.value.param or "").startswith("inputs")


def test_longest_text() -> None:
    assert ask("mindie", inputs="x" * (4 << 20))


def test_more_images_by_configuration() -> None:
    assert ask("mindie", inputs=TWO, knobs={"max_images": None})


class TestMarkdownImages:
    URL = "https://a.example/b.png"

    def test_are_images_for_a_model_with_images(self) -> None:
        request = ask("tgi", inputs=f"See ![]({self.URL}) and ![](data:image/png;base64,iV)!", catalog=IMAGES)
        images = (ImagePart(self.URL, "url"), ImagePart("data:image/png;base64,iV", "data"))
        assert request.prompts == (TextPrompt("See  and !", images, (4, 9)),)

    def test_are_text_for_a_model_without_images(self) -> None:
        assert ask("tgi", inputs=f"![]({self.URL})").prompts == (TextPrompt(f"![]({self.URL})"),)

    def test_are_text_in_mindies_dialect(self) -> None:
        request = ask("mindie", inputs=f"![]({self.URL})", catalog=IMAGES)
        assert request.prompts == (TextPrompt(f"![]({self.URL})"),)

    @pytest.mark.parametrize("ref", ["/etc/passwd", "file:///a", "ftp://a", "", JPEG])
    def test_only_urls_are_accepted(self, ref: str) -> None:
        with pytest.raises(InvalidRequest, match="invalid image content") as raised:
            ask("tgi", inputs=f"![]({ref})", catalog=IMAGES)
        assert ref == "" or ref not in raised.value.message
