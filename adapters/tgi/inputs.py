"""The field `inputs` to a prompt: a string, with images as markdown (TGI), or a list of parts (MindIE)."""

from __future__ import annotations

import base64
import binascii
import re
from itertools import accumulate

from adapters.tgi.dialects import Dialect
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, ImagePart, Message, Part, Prompt, TextPart, TextPrompt
from schemas.tgi import InputPart

_MARKDOWN_IMAGE = re.compile(r"!\[\]\(([^)]*)\)")
_EMBEDDED_IMAGE = "![](data:image/"
_REMOTE = ("http://", "https://")
_BASE64_MAGIC = ("/9j/", "iVBORw0KGgo")
"""The first characters of any JPEG and any PNG in base64. An absolute path may start with the first, too."""


def read_inputs(dialect: Dialect, inputs: str | tuple[InputPart, ...], *, images: bool) -> Prompt:
    """The prompt. `images`: whether the model accepts images.

    Raises:
        schemas.errors.InvalidRequest: `inputs` is empty, too long, or of a form that the dialect does not have.
    """
    if isinstance(inputs, str):
        _check_length(dialect, inputs, "inputs")
        # MindIE has its own form for images, so markdown is text.
        if dialect.requests.list_inputs:
            return TextPrompt(inputs)
        return _with_markdown_images(inputs) if images else _without_images(inputs)
    if not dialect.requests.list_inputs:
        raise InvalidRequest("`inputs` must be a string", param="inputs")
    if not inputs:
        raise InvalidRequest("`inputs` cannot be empty", param="inputs")
    count = sum(part.type == "image_url" for part in inputs)
    if dialect.limits.max_images is not None and count > dialect.limits.max_images:
        message = f"The number of images must be no more than {dialect.limits.max_images}, got {count}."
        raise InvalidRequest(message, param="inputs")
    parts = tuple(_part(dialect, part, f"inputs[{index}]") for index, part in enumerate(inputs))
    return ChatPrompt((Message("user", parts),))


def image_part(ref: str) -> ImagePart:
    """An image given as one string: a URL, a `data:` URI, bare base64, or else a local path."""
    if ref.startswith(_REMOTE):
        return ImagePart(ref, "url")
    if ref.startswith("data:") or _is_base64_image(ref):
        return ImagePart(ref, "data")
    return ImagePart(ref, "path")


def _is_base64_image(ref: str) -> bool:
    # Cheap test first: decoding an image takes milliseconds, and most references are URLs.
    if not ref.startswith(_BASE64_MAGIC):
        return False
    try:
        # A path such as /9j/photo.jpg has a ".", which is not in the alphabet.
        base64.b64decode(ref, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _part(dialect: Dialect, part: InputPart, where: str) -> Part:
    if part.type == "text":
        if part.text is None:
            raise InvalidRequest("Request param text must be string", param=f"{where}.text")
        _check_length(dialect, part.text, f"{where}.text")
        return TextPart(part.text)
    if not part.image_url:
        raise InvalidRequest("Request param image_url null", param=f"{where}.image_url")
    return image_part(part.image_url)


def _check_length(dialect: Dialect, text: str, where: str) -> None:
    limit = dialect.limits.max_input_chars
    if limit is not None and not 0 < len(text) <= limit:
        raise InvalidRequest(f"Inputs length must be in (0, {limit}], but got {len(text)}", param=where)
    if not text:
        raise InvalidRequest("`inputs` cannot be empty", param=where)


def _without_images(text: str) -> TextPrompt:
    """The prompt of a model without images. A link to an image is ordinary text; an embedded image is refused."""
    if _EMBEDDED_IMAGE in text:
        raise UnsupportedFeature("The model does not support images.", feature="images")
    return TextPrompt(text)


def _with_markdown_images(text: str) -> TextPrompt:
    """The prompt with images as markdown, `![](url)`; TGI, too, reads it for models with images only.

    The images keep their order and places; the text around them is joined.
    """
    found = list(_MARKDOWN_IMAGE.finditer(text))
    images = tuple(image_part(match[1]) for match in found)
    # A path in a prompt would make this server read a file of its own.
    if not all(image.ref.startswith((*_REMOTE, "data:")) for image in images):
        raise InvalidRequest("invalid image content: only http, https and data URLs are read", param="inputs")
    # Each place moves left by the markdown removed before it: running sums of the lengths, from 0.
    removed = accumulate((len(match[0]) for match in found), initial=0)
    places = tuple(match.start() - before for match, before in zip(found, removed, strict=False))
    return TextPrompt(_MARKDOWN_IMAGE.sub("", text), images, places)
