"""Taking the prompt off an answer that was asked to repeat it (`echo`), for its tokens or its log-probabilities."""

from __future__ import annotations

import msgspec

from adapters.openai.remote.encode_request import asks_echo
from adapters.openai.remote.tokens import Aligner, told_tokens
from adapters.remote_failures import malformed
from schemas.ir import Generate, TextPrompt, Token, TokensPrompt
from schemas.openai.remote import RemoteChoice, RemoteLogprobs, RemoteToken, RemoteUsage


def without_echo(
    request: Generate, choice: RemoteChoice, usage: RemoteUsage | None
) -> tuple[RemoteChoice, tuple[Token, ...]]:
    """The choice without its prompt, if that was asked for, and the prompt's tokens.

    Without log-probabilities nobody tells where the text of token ids ends: then it stays, and nothing is told.

    Raises:
        schemas.errors.BackendFailed: the prompt is not there.
    """
    told = told_tokens(choice.logprobs)
    if not told or not asks_echo(request):
        return choice, ()
    prompt = request.prompts[choice.index // request.n]
    count = _prompt_count(request, prompt, choice, usage)
    before, after = told[:count], told[count:]
    if len(before) < count:
        raise malformed("an echo shorter than the prompt")
    whole = choice.text or ""
    text = _completion_text(whole, prompt, before, after)
    ids = prompt.ids if isinstance(prompt, TokensPrompt) else (None,) * count
    # Laid against the text that was repeated: the token that begins a text may be told, but is no part of it.
    laid = Aligner(request.top_logprobs).feed(before, whole.removesuffix(text))
    if len(laid) != count:
        raise malformed("an echo that does not fit its tokens")
    tokens = tuple(msgspec.structs.replace(token, id=id) for token, id in zip(laid, ids, strict=True))
    return msgspec.structs.replace(choice, text=text, logprobs=RemoteLogprobs(content=after)), tokens


def _prompt_count(request: Generate, prompt: object, choice: RemoteChoice, usage: RemoteUsage | None) -> int:
    if isinstance(prompt, TokensPrompt):
        return len(prompt.ids)
    if len(request.prompts) == 1 and usage is not None:
        return usage.prompt_tokens
    offsets = choice.logprobs.text_offset if choice.logprobs is not None else None
    if offsets is None or not isinstance(prompt, TextPrompt):
        raise malformed("an echo that does not tell where the prompt ends")
    return sum(offset < len(prompt.text) for offset in offsets)


def _completion_text(text: str, prompt: object, before: tuple[RemoteToken, ...], after: tuple[RemoteToken, ...]) -> str:
    """What follows the prompt. The names of halves of characters make up no text: then the other side's names may."""
    if isinstance(prompt, TextPrompt) and text.startswith(prompt.text):
        return text.removeprefix(prompt.text)
    for repeated in (before, before[1:]):  # the token that begins a text may be told, but is no part of it
        if text.startswith(_names(repeated)):
            return text.removeprefix(_names(repeated))
    for generated in (after, after[:-1]):  # nor is the end token
        if generated and text.endswith(_names(generated)):
            return _names(generated)
    raise malformed("an echo that does not fit its tokens")


def _names(tokens: tuple[RemoteToken, ...]) -> str:
    return "".join(token.token for token in tokens)
