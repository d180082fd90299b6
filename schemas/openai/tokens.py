"""What vLLM has beside the OpenAI API: `/tokenize`, `/detokenize`, `/tokenizer_info` and `/version`."""

from __future__ import annotations

import msgspec

from schemas.openai.requests import ChatMessage, Tool


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/tokenize`: a text (`prompt`) or a conversation (`messages`)."""

    model: str | None = None
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    tools: tuple[Tool, ...] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class TokenList(msgspec.Struct, frozen=True):
    """Answer of `/tokenize`."""

    count: int
    max_model_len: int | None
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: tuple[int, ...]


class TokenizerDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of `/tokenizer_info`. The special tokens are fields beside these, by their names (`eos_token`)."""

    model_max_length: int | None = None
    chat_template: str | None = None


class DetokenizedText(msgspec.Struct, frozen=True):
    """Answer of `/detokenize`."""

    prompt: str


class ServerVersion(msgspec.Struct, frozen=True):
    """Answer of `/version`."""

    version: str
