"""Answers with an echoed prompt (`echo`): split into the prompt's tokens and the completion."""

from __future__ import annotations

import msgspec

from adapters.openai.remote.encode_request import asks_echo
from adapters.openai.remote.tokens import Aligner, remote_tokens
from adapters.remote_failures import malformed
from schemas.ir import Generate, Prompt, TextPrompt, Token, TokensPrompt
from schemas.openai.remote import RemoteChoice, RemoteLogprobs, RemoteToken, RemoteUsage


def without_echo(
    request: Generate, choice: RemoteChoice, usage: RemoteUsage | None
) -> tuple[RemoteChoice, tuple[Token, ...]]:
    """The choice without the echoed prompt, and the prompt's tokens; the choice as it is if no echo was requested.

    Without log-probabilities it is unknown where the text of token ids ends: the echo stays, and there are no tokens.

    Raises:
        schemas.errors.BackendFailed: the prompt is not at the beginning of the choice.
    """
    tokens = remote_tokens(choice.logprobs)
    if not tokens or not asks_echo(request):
        return choice, ()
    prompt = request.prompts[choice.index // request.n]
    count = _prompt_count(request, prompt, choice, usage)
    # A count beyond the end of the list gives a shorter echo, which is malformed.
    echo, completion = tokens[:count], tokens[count:]
    if len(echo) < count:
        raise malformed("an echo shorter than the prompt")
    echoed = choice.text or ""
    text = _completion_text(echoed, prompt, echo, completion)
    ids = prompt.ids if isinstance(prompt, TokensPrompt) else (None,) * count
    # A beginning-of-sequence token may be listed without being part of the echoed text; the aligner makes it special.
    # The log-probabilities of the prompt's tokens are aligned with the echoed text alone, and those of the completion
    # later with the completion: tokens at the seam must not take text of the other side.
    aligned = Aligner(request.top_logprobs).feed(echo, echoed.removesuffix(text))
    if len(aligned) != count:
        raise malformed("an echo that does not fit its tokens")
    prompt_tokens = tuple(msgspec.structs.replace(token, id=id) for token, id in zip(aligned, ids, strict=True))
    return msgspec.structs.replace(choice, text=text, logprobs=RemoteLogprobs(content=completion)), prompt_tokens


def _prompt_count(request: Generate, prompt: Prompt, choice: RemoteChoice, usage: RemoteUsage | None) -> int:
    """The number of the prompt's tokens."""
    if isinstance(prompt, TokensPrompt):
        return len(prompt.ids)
    # With several prompts the usage is their sum.
    if len(request.prompts) == 1 and usage is not None:
        return usage.prompt_tokens
    offsets = choice.logprobs.text_offset if choice.logprobs is not None else None
    if offsets is None or not isinstance(prompt, TextPrompt):
        raise malformed("an echo without the place where the prompt ends")
    # `text_offset` is a token's place in the whole text: the prompt's tokens begin within the prompt. A token without
    # text at the very end of it would be counted to the completion.
    return sum(offset < len(prompt.text) for offset in offsets)


def _completion_text(
    text: str, prompt: Prompt, echo: tuple[RemoteToken, ...], completion: tuple[RemoteToken, ...]
) -> str:
    """The text after the echoed prompt.

    It is found by the prompt's own text, by the strings of the echo's tokens or by those of the completion's tokens.
    The latter two fail where a character is split between tokens, because the strings of its parts are no text.
    """
    if isinstance(prompt, TextPrompt) and text.startswith(prompt.text):
        return text.removeprefix(prompt.text)
    for tokens in (echo, echo[1:]):  # the text may lack the beginning-of-sequence token
        if text.startswith(_joined(tokens)):
            return text.removeprefix(_joined(tokens))
    for tokens in (completion, completion[:-1]):  # the text may lack the end-of-sequence token
        if tokens and text.endswith(_joined(tokens)):
            return _joined(tokens)
    raise malformed("an echo that does not fit its tokens")


def _joined(tokens: tuple[RemoteToken, ...]) -> str:
    return "".join(token.token for token in tokens)
