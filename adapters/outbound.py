"""What the encoders of requests for remotes share, whatever the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.errors import UnsupportedFeature
from schemas.ir import ChatPrompt, Embed, Generate, ImagePart, Message, TextPart, TextPrompt

_JPEG_BASE64 = "/9j/"
"""The first characters of every JPEG in base64."""

_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def has_body_for(protocol: str, dialect: str, request: Generate | Embed) -> bool:
    """Whether the client speaks the remote's own dialect, so that body and answer are relayed."""
    origin = request.origin
    return origin is not None and bool(origin.body) and (origin.protocol, origin.dialect) == (protocol, dialect)


def asks_for_one_text(request: Generate) -> bool:
    """Whether one text is asked for, without its tokens and its prompt."""
    is_one = request.n == 1 and len(request.prompts) == 1
    return is_one and not (request.logprobs or request.prompt_logprobs or request.echo)


def relayed_body(body: bytes, fixed: Mapping[str, Any]) -> bytes:
    """The client's own body, with the fields `fixed` instead of its own."""
    # Members stay raw: what this server does not know passes byte for byte.
    return msgspec.json.encode(_raw_fields(body) | dict(fixed))


def inexpressible(feature: str) -> UnsupportedFeature:
    """The refusal of a request for a `feature` that the remote's protocol has no field for."""
    return UnsupportedFeature(f"The backend's protocol cannot express {feature.replace('_', ' ')}.", feature=feature)


def conversation(request: Generate) -> tuple[Message, ...]:
    """The messages of a request for an API of messages alone. A text that needs the chat template is a user's message.

    Raises:
        schemas.errors.UnsupportedFeature: the prompt is a raw text, which has no chat template, or token ids.
    """
    prompt = request.prompts[0]
    if isinstance(prompt, ChatPrompt):
        return prompt.messages
    if not isinstance(prompt, TextPrompt):
        raise inexpressible("token_prompts")
    if request.raw_prompt:
        raise inexpressible("raw_text")
    return (Message("user", (*prompt.images, TextPart(prompt.text)) if prompt.images else prompt.text),)


def images_after_results(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages for a protocol whose tools' results are text alone.

    The images of results are in a user's message behind them: the results of one turn may not be parted.
    """
    if not any(message.role == "tool" and not isinstance(message.content, str | None) for message in messages):
        return messages
    written: list[Message] = []
    images: list[ImagePart] = []
    for message in messages:
        if images and message.role != "tool":
            written.append(Message("user", tuple(images)))
            images = []
        if message.role == "tool" and not isinstance(message.content, str | None):
            images += [part for part in message.content if isinstance(part, ImagePart)]
            texts = tuple(part for part in message.content if isinstance(part, TextPart))
            written.append(replace(message, content=texts or ""))
        else:
            written.append(message)
    return (*written, Message("user", tuple(images))) if images else tuple(written)


def image_url(image: ImagePart) -> str:
    """The `http:`, `https:` or `data:` URL of an image. Bare base64 is taken for a JPEG or a PNG.

    Raises:
        schemas.errors.UnsupportedFeature: the image is a path of this machine, which the remote cannot read, or has no
            pixels.
    """
    if image.kind == "embeddings":
        raise inexpressible("image_embeds")
    if image.kind == "path":
        raise inexpressible("images")
    if image.kind == "data" and not image.ref.startswith("data:"):
        # A `data:` URL needs a media type, and bare base64 comes without one. A JPEG is known by its first characters;
        # everything else is labelled as a PNG.
        return f"data:image/{'jpeg' if image.ref.startswith(_JPEG_BASE64) else 'png'};base64,{image.ref}"
    return image.ref
