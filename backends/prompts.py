"""Prompts for backends: which texts are chats, which images they have, whether they fit the context,
and which conversation they are of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from schemas.errors import ContextLengthExceeded, InvalidRequest
from schemas.ir import (
    ChatPrompt,
    Generate,
    ImagePart,
    Message,
    Overflow,
    Part,
    Prompt,
    TextPart,
    TextPrompt,
    TokensPrompt,
)


def as_asked(request: Generate) -> tuple[Prompt, ...]:
    """The request's prompts. Unless `raw_prompt` is set, a text becomes a chat with one user message."""
    if request.raw_prompt:
        return request.prompts
    return tuple(_as_chat(prompt) if isinstance(prompt, TextPrompt) else prompt for prompt in request.prompts)


def images_of(prompt: Prompt) -> tuple[ImagePart, ...]:
    """The images of a prompt, in order."""
    if isinstance(prompt, TextPrompt):
        return prompt.images
    if isinstance(prompt, TokensPrompt):
        return ()
    images: list[ImagePart] = []  # across all messages, in reading order
    for message in prompt.messages:
        if isinstance(message.content, tuple):
            images += [part for part in message.content if isinstance(part, ImagePart)]
    return tuple(images)


def fit(prompt_tokens: int, max_new_tokens: int | None, context_length: int, *, overflow: Overflow = "refuse") -> int:
    """The number of tokens to generate after a prompt.

    Args:
        prompt_tokens: length of the prompt.
        max_new_tokens: the requested limit; None is all that the context leaves.
        context_length: limit of prompt and answer together.
        overflow: "truncate" lowers a `max_new_tokens` that does not fit, but never below 1.

    Raises:
        schemas.errors.ContextLengthExceeded: prompt and answer do not fit.
        schemas.errors.InvalidRequest: there is no prompt.
    """
    if prompt_tokens == 0:
        raise InvalidRequest("The prompt is empty.", param="prompt")
    # An answer without a limit needs room for one token; a limit of 0 asks for the prompt's scores alone and needs
    # none.
    asked = 1 if max_new_tokens is None else max_new_tokens
    # Never below 1: a prompt that fills the context is refused below, in this mode as well.
    if overflow == "truncate" and max_new_tokens:
        asked = max_new_tokens = max(1, min(max_new_tokens, context_length - prompt_tokens))
    if prompt_tokens + asked > context_length:
        # The words are OpenAI's: clients search them to shorten a conversation and try again.
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_length} tokens. However, you requested "
            f"{prompt_tokens + asked} tokens ({prompt_tokens} in the prompt, {asked} for the completion)."
        )
    return context_length - prompt_tokens if max_new_tokens is None else max_new_tokens


def _as_chat(prompt: TextPrompt) -> ChatPrompt:
    # Images come before the text, as in the prompts that vision models are trained on.
    parts: tuple[Part, ...] = (*prompt.images, TextPart(prompt.text))
    return ChatPrompt((Message("user", parts if prompt.images else prompt.text),))


def texts_of(prompt: Prompt) -> Iterator[str]:
    """The texts of a prompt in order, each message's behind its role; none of a prompt of token ids."""
    if isinstance(prompt, TextPrompt):
        yield prompt.text
    elif isinstance(prompt, ChatPrompt):
        for message in prompt.messages:
            yield _with_role(message)


def conversation_of(request: Generate) -> str | None:
    """A digest of the messages up to the user's first one, which all turns share; None: there are no messages."""
    prompt = request.prompts[0]  # several prompts in one request are of one conversation
    if not isinstance(prompt, ChatPrompt):
        return None
    text = ""
    for message in prompt.messages:
        content = message.content
        # As `_with_role`, without the calls: the usual content is a text.
        text += f"{message.role}\0{content}\0" if isinstance(content, str) else _with_role(message)
        # Later turns differ, and the answers of a model are among them.
        if message.role == "user":
            break
    if not text:  # a prompt that the server has
        return None
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _with_role(message: Message) -> str:
    return f"{message.role}\0{_text(message)}\0"


def _text(message: Message) -> str:
    content = message.content or ""
    if isinstance(content, str):
        return content
    return "\0".join(part.text for part in content if isinstance(part, TextPart))
