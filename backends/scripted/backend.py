"""The scripted backend: the model's name selects the answer and the faults to inject."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec

from backends.base import Capabilities, Feature, Health
from backends.detokenization.best_of import winners
from backends.detokenization.detokenizer import Detokenizer
from backends.prompts import as_asked, fit
from backends.scripted.answer import answer, prompt_text
from backends.scripted.play import play, scored_token
from backends.scripted.script import ERRORS, HANG, InjectedFault, Script, script_for
from backends.scripted.tokenizer import ToyTokenizer
from backends.truncation import encode_fitting
from schemas.ir import (
    ChatPrompt,
    Delta,
    Embed,
    Embeddings,
    Events,
    Finished,
    Generate,
    Prompt,
    Started,
    Token,
    Tokenize,
    Tokens,
    TokensPrompt,
    Usage,
)


class ScriptedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of a scripted backend.

    Attributes:
        scripts: scripts by model name; other names select what `script_for` returns.
        context_length: tokens of prompt and answer together.
        features: the features that the backend claims.
        embeddings: whether the backend answers embedding requests.
    """

    scripts: dict[str, Script] = {}
    context_length: int = 4096
    features: frozenset[Feature] = frozenset(Feature)
    embeddings: bool = True


class ScriptedBackend:
    """Answers from scripts.

    For tests: `active` counts the running generators, `cancelled` those that were closed before their end, and `health`
    is what `healthy` returns.

    Args:
        name: the backend's name.
        options: a `ScriptedOptions`, or its fields.

    Raises:
        msgspec.ValidationError: the options are wrong.
    """

    Options = ScriptedOptions

    def __init__(self, name: str, options: ScriptedOptions | Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._options = msgspec.convert(options or {}, ScriptedOptions)
        self._tokenizer = ToyTokenizer()
        self.health = Health("ready")
        self.active = 0
        self.cancelled = 0
        self.capabilities = Capabilities(
            features=self._options.features,
            embeddings=self._options.embeddings,
            tokenize=True,
            context_length=self._options.context_length,
            vocab_size=self._tokenizer.size,
            tokenizer="toy",
            dtype="none",
            device="none",
        )

    async def start(self) -> None:
        """Do nothing: the backend is ready at once."""

    async def aclose(self) -> None:
        """Do nothing: there is nothing to free."""

    async def healthy(self) -> Health:
        """The value of `health`."""
        return self.health

    async def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        """Play the script that the request's model selects."""
        script = self._script(request.model)
        with self._counted():
            await asyncio.sleep(script.delay)
            # Before `Started`: the gateway may still answer with an error status or try another backend.
            if script.fault is not None and script.fault.after is None:
                await _inject_fault(script.fault)
                return
            prompts = [await self._encode_fitting(prompt, request) for prompt in as_asked(request)]
            # Checks the limits of all prompts before `Started`, so that a refusal becomes a status.
            choices = self._choices(request, script, prompts)
            prompt_tokens = sum(map(len, prompts))
            yield (Started(request.model, prompt_tokens, self._echoed_prompts(request, prompts)),)
            generated: list[Delta] = []
            choosing = len(choices) > len(prompts) * request.n  # `best_of`: no delta before all candidates ended
            for deltas in _batches(choices, script):
                await asyncio.sleep(script.interval)
                generated += deltas  # of all candidates: `_usage` counts those that `best_of` drops, too
                if deltas and not choosing:
                    yield deltas
            # A truncated answer returns here without `Usage`.
            if script.fault is not None:
                await _inject_fault(script.fault)
                return
            best = winners(generated, n=request.n, best_of=len(choices) // len(prompts)) if choosing else ()
        yield (*best, _usage(prompt_tokens, generated))

    async def embed(self, request: Embed) -> Embeddings:
        """Make up one unit vector per input; equal inputs get equal vectors."""
        script = self._script(request.model)
        await self._begin(script)
        texts = [prompt_text(prompt, self._tokenizer) for prompt in request.inputs]
        counts = [len(self._tokenizer.encode(text)) for text in texts]
        for count in counts:
            fit(count, 0, self._options.context_length)  # checks only; nothing is generated
        vectors = tuple(_vector((request.instruction or "") + text, request.dimensions or 8) for text in texts)
        return Embeddings(request.model, vectors, Usage(sum(counts), 0))

    async def tokenize(self, request: Tokenize) -> Tokens:
        """The prompt's tokens by the toy tokenizer."""
        await self._begin(self._script(request.model))
        text = prompt_text(request.prompt, self._tokenizer)
        return Tokens(self._tokenizer.spans(text), text)

    def _script(self, model: str) -> Script:
        return self._options.scripts.get(model) or script_for(model)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.active += 1
        try:
            yield
        # `GeneratorExit`: the consumer closed the generator at a yield. `CancelledError`: its task was cancelled at an
        # await.
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise
        finally:
            self.active -= 1

    def _choices(
        self, request: Generate, script: Script, prompts: list[tuple[int, ...]]
    ) -> list[Iterator[Delta | None]]:
        seed = request.sampling.seed
        # Derived from the id: `hash` of a string differs from process to process.
        first = zlib.crc32(request.id.encode()) if seed is None else seed
        count = max(request.n, request.best_of or 1)
        choices: list[Iterator[Delta | None]] = []
        for prompt, ids in zip(request.prompts, prompts, strict=True):
            limit = fit(
                len(ids), request.stopping.max_new_tokens, self._options.context_length, overflow=request.overflow
            )
            for place in range(count):
                effective = (first + place) % 2**64  # each choice has its own seed, so that choices differ
                scripted = answer(script, request, prompt, effective, self._tokenizer)
                choices.append(play(scripted, request, limit, len(choices), effective, self._tokenizer))
        return choices

    async def _begin(self, script: Script) -> None:
        await asyncio.sleep(script.delay)
        if script.fault is not None:
            await _inject_fault(script.fault)

    async def _encode_fitting(self, prompt: Prompt, request: Generate) -> tuple[int, ...]:
        """The prompt's token ids; the oldest turns of a conversation are left out if that was asked for."""
        if request.overflow != "drop_turns" or not isinstance(prompt, ChatPrompt):
            return self._encode(prompt, request.truncate_prompt_tokens)
        room = self._options.context_length - (request.stopping.max_new_tokens or 1)

        async def encode(form: ChatPrompt) -> tuple[int, ...]:
            return self._encode(form, None)

        return await encode_fitting(prompt, encode, lambda ids: len(ids) <= room)

    def _encode(self, prompt: Prompt, truncate: int | None) -> tuple[int, ...]:
        if isinstance(prompt, TokensPrompt):
            ids = prompt.ids
        else:
            ids = self._tokenizer.encode(prompt_text(prompt, self._tokenizer))
        return ids[-truncate:] if truncate else ids  # the end of a prompt is kept, as in TGI

    def _echoed_prompts(self, request: Generate, prompts: list[tuple[int, ...]]) -> tuple[tuple[Token, ...], ...]:
        """The prompts' tokens, if the request asks for them."""
        if not request.echo and not request.prompt_logprobs:
            return ()
        top = request.top_logprobs if request.prompt_logprobs else None
        return tuple(self._prompt_tokens(ids, top) for ids in prompts)

    def _prompt_tokens(self, ids: tuple[int, ...], top: int | None) -> tuple[Token, ...]:
        detokenizer = Detokenizer(self._tokenizer)
        tokens: list[Token] = []
        for position, id in enumerate(ids):
            # The first token has no log-probability: nothing precedes it.
            scores = () if top is None or position == 0 else scored_token(id, position, top, self._tokenizer)
            tokens += detokenizer.feed(id, *scores)
        return (*tokens, *detokenizer.close())


async def _inject_fault(fault: InjectedFault) -> None:
    """Raise, or never return; a truncated answer needs neither, because its caller returns."""
    if fault.what == HANG:
        await asyncio.Event().wait()  # ends by cancellation alone
    elif fault.what in ERRORS:
        raise fault.error()


def _batches(choices: list[Iterator[Delta | None]], script: Script) -> Iterator[tuple[Delta, ...]]:
    """The deltas of all choices in batches, up to the script's fault."""
    steps = _round_robin(choices)
    if script.fault is not None:
        # Counts the tokens of all choices together.
        steps = islice(steps, script.fault.after)
    # None stands for a token that is held back. A batch of only such tokens is yielded empty, and takes its interval.
    while batch := tuple(islice(steps, script.burst * len(choices))):
        yield tuple([delta for delta in batch if delta is not None])


def _round_robin(choices: list[Iterator[Delta | None]]) -> Iterator[Delta | None]:
    """One step of each choice in turn, until all have ended."""
    waiting = deque(choices)
    while waiting:
        choice = waiting.popleft()
        for step in islice(choice, 1):  # no turn, and no return to the queue, once the choice has ended
            yield step
            waiting.append(choice)


def _usage(prompt_tokens: int, deltas: list[Delta]) -> Usage:
    completion = sum(delta.generated or 0 for delta in deltas if isinstance(delta, Finished))
    reasoning = sum(bool(delta.reasoning) for delta in deltas)
    return Usage(prompt_tokens, completion, reasoning_tokens=reasoning or None)


def _vector(text: str, dimensions: int) -> tuple[float, ...]:
    # A string as seed is hashed with SHA-512, so equal texts give equal vectors in all processes.
    source = random.Random(text)
    values = [source.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = sum(value * value for value in values) ** 0.5
    return tuple(value / length for value in values)
