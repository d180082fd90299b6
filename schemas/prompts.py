"""The prompts of the IR: texts, token ids and conversations, with images by reference."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """A piece of text in a message."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image"):
    """An image by reference; adapters do not read its bytes.

    `ref` is a URL (`kind` "url"), a `data:` URI or bare base64 ("data"), a local path ("path"), or the base64 of a file
    with the tensor that the model's encoder made of it ("embeddings"). `grid` is the base64 of a file with the tensor
    `image_grid_thw`, which some models need beside embeddings. `frame` counts the frames of a video that the client
    sent as one part; None: the image is a part of its own.
    """

    ref: str
    kind: Literal["url", "data", "path", "embeddings"]
    detail: str | None = None
    grid: str | None = None
    frame: int | None = None


Part = TextPart | ImagePart


class ToolCall(msgspec.Struct, frozen=True):
    """A complete tool call; `arguments` is the JSON text exactly as generated.

    `signature` is what the model's server wants back with the call (Google's thought signature).
    """

    id: str
    name: str
    arguments: str
    signature: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation. `role` is the client's: system, developer, user, assistant or tool."""

    role: str
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """Raw text, tokenized with the model's special tokens and without a chat template.

    `image_places` are the indices of the characters that the images precede; () for images beside the text.
    """

    text: str
    images: tuple[ImagePart, ...] = ()
    image_places: tuple[int, ...] = ()


class TokensPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """Token ids, used as they are."""

    ids: tuple[int, ...]


class TemplateOptions(msgspec.Struct, frozen=True):
    """How the chat template is used: whether the text ends where an answer begins, or within the last message.

    `variables` are the client's own variables of the template, such as `enable_thinking`.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """Messages, rendered by the model's own chat template."""

    messages: tuple[Message, ...]
    template: TemplateOptions = TemplateOptions()


Prompt = TextPrompt | TokensPrompt | ChatPrompt


class Conversation(msgspec.Struct, frozen=True):
    """A stored conversation that a request continues, by its id; `items` is the JSON of the items that it adds."""

    id: str
    items: bytes
