"""Parts of a message's content decoded to the IR: text, images, embeddings of images, and videos as frames."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.openai.inbound.checks import missing, not_one_of, refused
from schemas.errors import UnsupportedFeature
from schemas.ir import ImagePart, Part, TextPart
from schemas.openai import requests as wire
from schemas.origin import Unread

_REMOTE = ("http://", "https://")
_FRAMES = "data:video/jpeg;base64,"
"""vLLM's form of a video without a container: the base64 of its frames, JPEG files, with commas between them."""
_MAX_FRAMES = 1024  # each becomes a part; how many a model takes is checked later
_RELAYED = ("video_url", "audio_url", "input_audio", "file")
"""Types of parts, of OpenAI's and of vLLM's, that are left out of the IR: a server of the dialect may take them."""


def image_part(url: str, detail: str | None = None) -> ImagePart:
    """An image by reference: a URL, a `data:` URL, or (MindIE) bare base64 or a local path."""
    if url.startswith(_REMOTE):
        return ImagePart(url, "url", detail)
    # Bare base64 begins with the encoded magic number: of a PNG, or of a JPEG, which looks like an absolute path.
    if url.startswith(("data:", "iVBORw0KGgo")) or (url.startswith("/9j/") and "." not in url):
        return ImagePart(url, "data", detail)
    return ImagePart(url, "path", detail)


def read_part(part: wire.ContentPart, param: str) -> tuple[Part, ...]:
    """The IR of a part: several images for a video in frames, nothing for a part that `unread_parts` names.

    Raises:
        schemas.errors.InvalidRequest: the field of its type is missing or wrong.
        schemas.errors.UnsupportedFeature: nobody takes a part of this type.
    """
    if part.type in ("text", "refusal"):
        text = part.text if part.type == "text" else part.refusal
        if text is None:
            raise missing(f"{param}.{part.type}")
        return (TextPart(text),)
    if part.type == "image_url":
        if part.image_url is None:
            raise missing(f"{param}.image_url")
        if isinstance(part.image_url, str):
            return (image_part(part.image_url),)
        return (image_part(part.image_url.url, part.image_url.detail),)
    if part.type == "image_embeds":
        return (_embeddings(part.image_embeds, f"{param}.image_embeds"),)
    if part.type not in _RELAYED:
        raise UnsupportedFeature(_refusal(part.type), feature=part.type, param=f"{param}.type")
    return _frames(part, param) if part.type == "video_url" else ()


def unread_parts(messages: tuple[wire.ChatMessage, ...]) -> tuple[Unread, ...]:
    """The parts of messages that the IR leaves out: only a server that is sent the body can take them.

    Parts of contents, spoken answers, and calls of tools that are no functions.
    """
    rare: list[Unread] = []
    for turn, message in enumerate(messages):
        if message.audio is not None:
            rare.append(Unread(f"messages[{turn}].audio", "audio", "'audio' in messages is not supported."))
        for place, call in enumerate(message.tool_calls or ()):
            if call.type != "function":
                param = f"messages[{turn}].tool_calls[{place}].type"
                refusal = not_one_of(param, call.type, ("function",))
                rare.append(Unread(param, "tools", refusal.message, refusal.code))
    return tuple(rare) + tuple(
        [
            Unread(f"messages[{turn}].content[{place}].type", part.type, refusal)
            for turn, message in enumerate(messages)
            if isinstance(message.content, tuple)
            for place, part in enumerate(message.content)
            for refusal in _refusals(part)
        ]
    )


def _refusals(part: wire.ContentPart) -> Iterator[str]:
    """What is said of a part that the IR leaves out, if it does."""
    if part.type != "video_url":
        if part.type in _RELAYED:
            yield _refusal(part.type)
    elif not _video(part).startswith(_FRAMES):
        yield f"A video is taken as its frames only: '{_FRAMES}' and the base64 of JPEG files, separated by commas."


def _refusal(type: str) -> str:
    return (
        f"Content of type '{type}' is not supported. Supported types are: 'text', 'image_url', 'image_embeds', "
        "'video_url', 'refusal'."
    )


def _embeddings(given: str | dict[str, str] | None, param: str) -> ImagePart:
    if not given:
        raise missing(param)
    if isinstance(given, str):
        return ImagePart(given, "embeddings")
    other = next((name for name in given if name not in ("image_embeds", "image_grid_thw")), None)
    if other is not None:
        raise refused(f"{param}.{other}", f"Unknown tensor '{other}': 'image_embeds' and 'image_grid_thw' are known.")
    if "image_embeds" not in given:
        raise missing(f"{param}.image_embeds")
    return ImagePart(given["image_embeds"], "embeddings", grid=given.get("image_grid_thw"))


def _video(part: wire.ContentPart) -> str:
    video = part.video_url
    return video.url if isinstance(video, wire.VideoUrl) else video or ""


def _frames(part: wire.ContentPart, param: str) -> tuple[Part, ...]:
    video = _video(part)
    if not video:
        raise missing(f"{param}.video_url")
    if not video.startswith(_FRAMES):
        return ()
    # Counted before they are split: a body of commas alone would become millions of parts.
    if (count := video.count(",", len(_FRAMES)) + 1) > _MAX_FRAMES:
        raise refused(f"{param}.video_url", f"The video has {count} frames; at most {_MAX_FRAMES} are taken.")
    frames = video[len(_FRAMES) :].split(",")
    return tuple(ImagePart(frame, "data", frame=number) for number, frame in enumerate(frames))
