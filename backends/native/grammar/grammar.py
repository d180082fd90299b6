"""Grammars for constrained decoding, compiled by llguidance.

Used on both sides: the worker checks a grammar before the engine receives it (`GrammarCheck`); the engine compiles it
again and advances it token by token (`engine.sampling.grammar_masks`). Imports no torch. JSON has the canonical
whitespace of `json.dumps`: if whitespace is free, a weak model generates it without end.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import structlog
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from backends.native.grammar.regex_limits import check_regex
from backends.native.grammar.schema_limits import MAX_BYTES, check_schema
from backends.native.grammar.schema_text import schema_text
from schemas.errors import InvalidRequest, Overloaded
from schemas.ir import Grammar

log = structlog.get_logger()

_LIMITS = LLParserLimits(
    max_items_in_row=5_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,  # they would contain the request's text
)
_MAX_CPU_SECONDS = 1.0
"""Of one grammar's compilation; the limits above keep it far below."""
_CHECK_TIMEOUT = 10.0
"""Seconds that a request waits until its grammar, and those queued before it, are checked."""
_CACHED_RESULTS = 256
_THREADS = 2
_NICENESS = 5  # no more: a starved thread may hold the interpreter's lock
_MAX_ERROR_LENGTH = 300
_MAX_BAD_CHARACTERS = 4096


class GrammarError(ValueError):
    """A grammar cannot be compiled or advanced; the text says why."""


class Grammars:
    """Compiles grammars for one tokenizer.

    Args:
        tokenizer: a fast tokenizer of transformers.
        vocab_size: width of the model's logits.
        eos_token_ids: the tokens that are allowed where the grammar may end.

    Attributes:
        tags: the added tokens that no text of a grammar contains, by name.
        text_tags: those of them that are no control tokens, such as `<think>`: a free text may have them.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        # Both directions occur: logits padded beyond the tokenizer's tokens, and added tokens beyond the logits.
        self.width = max(vocab_size, len(tokenizer))
        serialized = tokenizer.backend_tokenizer.to_str()
        self._tokenizer = LLTokenizer(serialized, n_vocab=self.width, eos_token=list(eos_token_ids))
        added = tokenizer.added_tokens_decoder.items()
        # Some added tokens are special to llguidance, whatever their tokenizer says: those whose names look like tags.
        tags = {id: token for id, token in added if id < self.width and self._tokenizer.is_special_token(id)}
        self.tags = {token.content: id for id, token in tags.items()}
        self.text_tags = tuple(token.content for token in tags.values() if not token.special)

    @classmethod
    def of(cls, tokenizer: Any, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Grammars | None:
        """The compiler; None if the tokenizer is slow or of an unknown kind, or if no token ends a text."""
        if not tokenizer.is_fast or not eos_token_ids:
            return None
        try:
            return cls(tokenizer, vocab_size, eos_token_ids)
        except ValueError as error:  # llguidance does not know this kind of tokenizer
            log.warning("grammars.unavailable", why=str(error))
            return None

    def compile(self, source: str) -> LLMatcher:
        """Compile a grammar to a new matcher. Releases the interpreter's lock meanwhile.

        Raises:
            GrammarError: the grammar is not supported, or too large.
        """
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        raise_error(matcher)
        return matcher

    def idle(self) -> LLMatcher:
        """A matcher of the empty grammar, whose masks take no time."""
        return LLMatcher(self._tokenizer, "", log_level=0)


class GrammarCheck:
    """Checks grammars before any work is done for their requests, and caches the results.

    Args:
        grammars: the compiler for the model's tokenizer.
    """

    def __init__(self, grammars: Grammars) -> None:
        self.grammars = grammars
        self._results: OrderedDict[str, Future[str | None]] = OrderedDict()
        self._threads = background_threads(_THREADS, "grammar-check")

    async def check(self, source: str, param: str) -> None:
        """Compile a grammar and discard it.

        Args:
            source: a grammar in llguidance's form (`grammar_source`).
            param: the request's field that it came from, for the error.

        Raises:
            schemas.errors.InvalidRequest: the grammar is not supported, or takes too long to compile.
            schemas.errors.Overloaded: it waited too long for a thread.
        """
        # Compiled here although the engine compiles it again: the engine's threads see only grammars that are known to
        # compile, and the client gets its 400 before a stream begins.
        result = self._result(source)
        try:
            # The fast path for a known grammar does not suspend.
            if not result.done():  # shielded: other requests may wait for the same result
                async with asyncio.timeout(_CHECK_TIMEOUT):
                    await asyncio.shield(asyncio.wrap_future(result))
        except TimeoutError:
            # Whether it is the grammar's fault is decided by CPU time (`_check`), and cached for the next request.
            raise Overloaded("The server is too busy to check the grammar.", retry_after=1.0) from None
        if (reason := result.result()) is not None:
            raise InvalidRequest(f"The grammar is not supported: {reason}", param=param)

    def _result(self, source: str) -> Future[str | None]:
        """The cached or pending result for a grammar."""
        # Popped and inserted again, the entry is the most recently used one. Requests that wait for an evicted result
        # keep the future.
        result = self._results.pop(source, None) or self._threads.submit(self._check, source)
        self._results[source] = result
        if len(self._results) > _CACHED_RESULTS:
            self._results.popitem(last=False)
        return result

    def close(self) -> None:
        """Stop the threads, and drop pending checks. Idempotent."""
        # A compilation in progress cannot be interrupted; its limits end it.
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, source: str) -> str | None:
        """Why a grammar is not supported; None if it is."""
        # The compiler runs without the interpreter's lock, so the event loop goes on.
        began = time.thread_time()  # CPU time: a busy machine does not count against the grammar
        try:
            matcher = self.grammars.compile(source)
            matcher.compute_bitmask()  # some errors appear only at the first token
            raise_error(matcher)
        except GrammarError as error:
            return str(error)
        return "it takes too long to compile." if time.thread_time() - began > _MAX_CPU_SECONDS else None


def background_threads(count: int, name: str) -> ThreadPoolExecutor:
    """A pool of threads of low priority, where the system supports a priority per thread."""
    return ThreadPoolExecutor(count, name, initializer=_lower_priority)


def _lower_priority() -> None:
    if sys.platform == "linux":
        # On Linux the nice value belongs to the thread, unlike in POSIX, and `PRIO_PROCESS` takes a thread id
        # (setpriority(2)).
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def raise_error(matcher: LLMatcher) -> None:
    """Raise a matcher's error; a matcher itself never raises.

    Raises:
        GrammarError: the matcher is in an error state.
    """
    if matcher.is_error():
        # On one line and shortened: the text becomes part of an error message to the client.
        raise GrammarError(" ".join(matcher.get_error().split())[:_MAX_ERROR_LENGTH])


def grammar_source(grammar: Grammar, param: str = "response_format") -> str:
    """A request's grammar in llguidance's form.

    Raises:
        schemas.errors.InvalidRequest: the grammar is too large or invalid.
    """
    if grammar.kind == "ebnf":
        return _from_ebnf(grammar.value, param)
    if grammar.kind == "regex":
        if len(grammar.value.encode()) > MAX_BYTES:
            raise InvalidRequest(f"A grammar may have at most {MAX_BYTES} bytes.", param=param)
        # llguidance's own limits do not cover repetitions, which it expands.
        check_regex(grammar.value, param)
        return str(LLMatcher.grammar_from_regex(grammar.value))
    # OpenAI's `json_object` mode: any JSON object.
    schema = {"type": "object"} if grammar.kind == "json_object" else grammar.value
    check_schema(schema, param)
    return str(LLMatcher.grammar_from_json_schema(schema_text(schema)))


def _from_ebnf(text: str, param: str) -> str:
    """A grammar in GBNF, or in Lark's notation, as Lark."""
    if len(text.encode()) > MAX_BYTES:
        raise InvalidRequest(f"A grammar may have at most {MAX_BYTES} bytes.", param=param)
    try:
        return str(any_to_lark(text))
    except Exception as error:  # the converter of llguidance raises whatever its parser meets
        raise InvalidRequest(f"The grammar cannot be read: {str(error)[:_MAX_ERROR_LENGTH]}", param=param) from None


def text_without(words: Sequence[str], text_tokens: Sequence[str], param: str) -> str:
    """A grammar for any text without some words, in llguidance's Lark.

    Args:
        words: what no text contains.
        text_tokens: special tokens that the text may have, but for those that contain a word.
        param: the request's field, for the error.

    Raises:
        schemas.errors.InvalidRequest: the words are too long together.
    """
    if sum(map(len, words)) > _MAX_BAD_CHARACTERS:
        raise InvalidRequest(f"'{param}' may have at most {_MAX_BAD_CHARACTERS} characters together.", param=param)
    # As code points, since a word may have characters that mean something in a regular expression or in Lark.
    literals = "|".join("".join(f"\\x{{{ord(character):X}}}" for character in word) for word in words)
    # The regular expression sees no special token.
    text_tokens = [token for token in text_tokens if not any(word in token for word in words)]
    before = f"(TEXT ({' | '.join(text_tokens)}))* " if text_tokens else ""
    return f"start: {before}TEXT\nTEXT: /(?s:.*)/ & ~/(?s:.*)({literals})(?s:.*)/\n"
