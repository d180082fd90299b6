"""Grammars: what may be said, as llguidance writes it, and the automaton that follows one token at a time.

Used on both sides: a worker checks a grammar before the engine hears of it (`GrammarCheck`), the engine compiles it
again and follows it (`engine.grammar`). No torch here. JSON is written in one way, that of `json.dumps`: where white
space is free, a weak model writes it for ever.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import structlog
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from backends.native.grammar.regex_limits import check_regex
from backends.native.grammar.schema_limits import MOST_BYTES, check_schema
from schemas.errors import InvalidRequest
from schemas.ir import Grammar

log = structlog.get_logger()

_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_LIMITS = LLParserLimits(
    max_items_in_row=5_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,  # they would hold the text
)
_MOST_SECONDS = 1.0
"""Of computing, for a grammar; its limits keep it far below."""
_PATIENCE = 10.0
"""Seconds that a request waits for its grammar, and those before it, to be checked."""
_KEPT = 256  # verdicts
_THREADS = 2
_NICENESS = 5  # no more: a thread that hardly gets to run may hold the interpreter's lock
_SHOWN = 300


class GrammarError(ValueError):
    """A grammar cannot be compiled or followed; the text says why."""


class Grammars:
    """Compiles grammars for one tokenizer.

    Args:
        tokenizer: a fast tokenizer of transformers.
        vocab_size: width of the model's logits.
        eos_token_ids: what may end the text when the grammar lets it end.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.width = max(vocab_size, len(tokenizer))
        made = tokenizer.backend_tokenizer.to_str()
        self._tokenizer = LLTokenizer(made, n_vocab=self.width, eos_token=list(eos_token_ids))

    @classmethod
    def of(cls, tokenizer: Any, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Grammars | None:
        """As made; None if the tokenizer does not let us know its tokens' bytes, or no token ends a text."""
        if not tokenizer.is_fast or not eos_token_ids:
            return None
        try:
            return cls(tokenizer, vocab_size, eos_token_ids)
        except ValueError as error:  # llguidance's, for a tokenizer of a kind that it does not know
            log.warning("grammars.unavailable", why=str(error))
            return None

    def compile(self, source: str) -> LLMatcher:
        """A fresh automaton. Lets other threads run meanwhile.

        Raises:
            GrammarError: it cannot be followed, or is too large.
        """
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        raise_error(matcher)
        return matcher

    def idle(self) -> LLMatcher:
        """An automaton of nothing: whatever it is asked, it is done at once."""
        return LLMatcher(self._tokenizer, "", log_level=0)


class GrammarCheck:
    """Says what is wrong with a grammar before any work is done for it, and remembers what it said.

    Args:
        grammars: of the model's tokenizer.
    """

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._verdicts: OrderedDict[str, Future[str | None]] = OrderedDict()
        self._threads = background_threads(_THREADS, "grammar-check")

    async def check(self, source: str, param: str) -> None:
        """Return if the engine can follow `source`.

        Args:
            source: as `grammar_source` makes it.
            param: the request's field that it came from.

        Raises:
            schemas.errors.InvalidRequest: it cannot, or it takes too long to find out.
        """
        verdict = self._verdict(source)
        try:
            if not verdict.done():  # one that leaves must not take it away from the others
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(verdict)), _PATIENCE)
        except TimeoutError:
            raise InvalidRequest("The grammar takes too long to compile.", param=param) from None
        if (wrong := verdict.result()) is not None:
            raise InvalidRequest(f"The grammar is not supported: {wrong}", param=param)

    def _verdict(self, source: str) -> Future[str | None]:
        """What is known of it, or will be."""
        verdict = self._verdicts.pop(source, None) or self._threads.submit(self._check, source)
        self._verdicts[source] = verdict
        if len(self._verdicts) > _KEPT:
            self._verdicts.popitem(last=False)
        return verdict

    def close(self) -> None:
        """Check no more. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, source: str) -> str | None:
        """What is wrong with it."""
        began = time.thread_time()  # a busy machine is not the grammar's fault
        try:
            matcher = self._grammars.compile(source)
            matcher.compute_bitmask()  # some faults only show at the first token
            raise_error(matcher)
        except GrammarError as error:
            return str(error)
        return "it takes too long to compile." if time.thread_time() - began > _MOST_SECONDS else None


def background_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads that give way to what must go on, where the system allows it for threads."""
    return ThreadPoolExecutor(count, name, initializer=_give_way)


def _give_way() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def raise_error(matcher: LLMatcher) -> None:
    """Raise what a matcher, which never raises by itself, has run into.

    Raises:
        GrammarError: it has.
    """
    if matcher.is_error():
        raise GrammarError(" ".join(matcher.get_error().split())[:_SHOWN])


def grammar_source(grammar: Grammar, param: str = "response_format") -> str:
    """A constraint in llguidance's own form.

    Raises:
        schemas.errors.InvalidRequest: it is too large or no grammar at all.
    """
    if grammar.kind == "regex":
        if len(grammar.value.encode()) > MOST_BYTES:
            raise InvalidRequest(f"A grammar may have at most {MOST_BYTES} bytes.", param=param)
        check_regex(grammar.value, param)
        return str(LLMatcher.grammar_from_regex(grammar.value))
    schema = {"type": "object"} if grammar.kind == "json_object" else grammar.value
    check_schema(schema, param)
    return str(LLMatcher.grammar_from_json_schema(styled(schema)))


def styled(schema: dict[str, Any], *, lenient: bool = False) -> str:
    """The text of a schema for llguidance; if `lenient`, keywords that it cannot follow are left out of account."""
    return json.dumps(schema | {"x-guidance": _JSON_STYLE | {"lenient": lenient}})
