"""Where a sequence ends: at an end or stop token, or at the most tokens that it may have. Imports no torch."""

from __future__ import annotations

from backends.native.protocol.messages import Submit
from schemas.ir import FinishReason


def until_end(request: Submit, tokens: tuple[int, ...], generated: int) -> tuple[tuple[int, ...], FinishReason | None]:
    """Those of `tokens`, which follow `generated` others, up to the sequence's end, and the reason for it, if any."""
    if tokens and request.max_new_tokens == 0:  # the request was for the prompt's logprobs or embedding only
        return (), FinishReason.LENGTH
    for length, token in enumerate(tokens, 1):
        reason = finish_reason(request, token, generated + length)
        if reason is not None:
            return tokens[:length], reason
    return tokens, None


def finish_reason(request: Submit, token: int, generated: int) -> FinishReason | None:
    """The reason for which a sequence ends with `token`, its `generated`th new token; None if it goes on."""
    # The first `min_new_tokens` tokens cannot be end tokens: `logits_processors` bans them while fewer are generated.
    # This check follows the same count.
    if generated > request.min_new_tokens:
        if token in request.eos_token_ids:
            return FinishReason.EOS
        if token in request.stop_token_ids:
            return FinishReason.STOP_TOKEN
    return FinishReason.LENGTH if generated >= request.max_new_tokens else None
