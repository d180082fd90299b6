"""Image URLs and refusals of the requests for remotes."""

from __future__ import annotations

import pytest

from adapters.outbound import image_url, images_after_results, inexpressible
from schemas.errors import UnsupportedFeature
from schemas.ir import ImagePart, Message, TextPart


@pytest.mark.parametrize(
    ("image", "url"),
    [
        (ImagePart("https://example.com/a.png", "url"), "https://example.com/a.png"),
        (ImagePart("data:image/gif;base64,R0lG", "data"), "data:image/gif;base64,R0lG"),
        (ImagePart("/9j/4AAQ", "data"), "data:image/jpeg;base64,/9j/4AAQ"),
        (ImagePart("iVBORw0KGgo=", "data"), "data:image/png;base64,iVBORw0KGgo="),
    ],
)
def test_an_image_has_a_url_that_a_remote_can_read(image: ImagePart, url: str) -> None:
    assert image_url(image) == url


def test_an_image_by_local_path_is_refused() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        image_url(ImagePart("/tmp/a.png", "path"))
    assert caught.value.feature == "images"


def test_a_refusal_names_the_feature() -> None:
    error = inexpressible("token_prompts")
    assert (str(error), error.feature) == ("The backend's protocol cannot express token prompts.", "token_prompts")


def test_images_of_results_follow_the_last_result_of_their_turn() -> None:
    first, second = ImagePart("QQ==", "data"), ImagePart("Qg==", "data")
    seen = TextPart("seen")
    called = Message("assistant", "Look.")
    messages = (
        called,
        Message("tool", (seen, first), tool_call_id="a"),
        Message("tool", (second,), tool_call_id="b"),
        Message("user", "Well?"),
        called,
        Message("tool", (first,), tool_call_id="c"),
    )
    assert images_after_results(messages) == (
        called,
        Message("tool", (seen,), tool_call_id="a"),
        Message("tool", "", tool_call_id="b"),
        Message("user", (first, second)),
        Message("user", "Well?"),
        called,
        Message("tool", "", tool_call_id="c"),
        Message("user", (first,)),
    )
    assert images_after_results(messages[3:5]) == messages[3:5]
