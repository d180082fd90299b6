"""Outputs beside tokens: what a sequence's first one says of the prompt, and what is reported of a failure."""

from __future__ import annotations

import traceback

import structlog
from msgspec.structs import replace

from backends.native.engine.devices import OUT_OF_MEMORY
from backends.native.engine.pooling.hidden_states import embedding_of
from backends.native.engine.sampling.sampler import NoDistribution
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.grammar.grammar import GrammarError
from backends.native.protocol.messages import Logprobs, Output

log = structlog.get_logger()

GRAMMAR_FAILED = "it takes more time or memory than it may"
"""What a client is sent of a grammar that the worker's checks have passed and that fails in the engine."""


def first_output(sequence: Sequence, output: Output) -> Output:
    """The first output of a sequence, with the facts about its prompt; later ones are as small as they can be."""
    prompt: tuple[Logprobs, ...] = ()
    if sequence.request.prompt_logprobs >= 0:
        # No token precedes the first, so it has no logprob; OpenAI's legacy completions (`echo`) and vLLM report null
        # for it, too.
        prompt = (Logprobs(None), *sequence.prompt_logprobs)
    return replace(
        output,
        prompt=prompt,
        cached_tokens=sequence.cached_tokens or 0,
        vector=embedding_of(sequence) if sequence.request.pool else (),
        times=(sequence.submitted, sequence.admitted),
    )


def failed(sequence: Sequence, error: Exception) -> Output:
    """Log the failure of a sequence; its last output."""
    # The trace as text: a log renderer that gets the exception may print local variables, and with them the prompt.
    trace = "".join(traceback.format_tb(error.__traceback__))
    log.error("sequence.failed", tokens=len(sequence.tokens), error=repr(error), trace=trace)
    # Only texts that the engine wrote for clients are passed on. Other errors may hold tensors' contents or paths.
    if isinstance(error, GrammarError):
        why = GRAMMAR_FAILED  # llguidance's own text is in the log
    elif isinstance(error, NoDistribution):
        why = str(error)
    elif isinstance(error, OUT_OF_MEMORY):
        why = "the engine ran out of memory"
    else:
        why = "the engine failed on this sequence"
    return Output(sequence.request.seq, error=why, bad_grammar=isinstance(error, GrammarError))
