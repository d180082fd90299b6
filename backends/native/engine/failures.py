"""What is reported of a sequence that failed: to the log what happened, to the client a text that the engine wrote."""

from __future__ import annotations

import traceback

import structlog

from backends.native.engine.devices import OUT_OF_MEMORY
from backends.native.engine.sampling.sampler import NoDistribution
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.grammar.grammar import GrammarError
from backends.native.protocol.messages import Output

log = structlog.get_logger()

GRAMMAR_FAILED = "it takes more time or memory than it may"
"""What a client is sent of a grammar that the worker's checks have passed and that fails in the engine."""


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
