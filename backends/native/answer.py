"""One request on its way through the engine: from prompts to sequences, and from their outputs to events.

Does no I/O: the caller sends an `Answer`'s `submits`, feeds it outputs, and cancels the sequences that it names.

Strategy:
- Each prompt has `max(n, best_of)` candidates; candidate i of prompt p is sequence `first_seq + p * candidates + i`.
- Each candidate has a `ChoiceBuilder` (text, stop strings) and, for calls and reasoning, an `AnswerReader`.
- Streamed requests emit, for each batch of outputs, one delta per candidate that gained text.
- Non-streamed requests and those with `best_of` emit every event after `Started` at completion.
- `Started` waits until all prompts are scored, if their log-probabilities were requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from msgspec.structs import replace

from backends.detokenization.best_of import winners
from backends.detokenization.choice import ChoiceBuilder
from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.protocol.messages import Logprobs, Output, Ready, SamplingParams, Submit
from backends.native.text.codec import TextCodec
from backends.native.tools.reader import AnswerReader
from backends.prompts import fit
from schemas.errors import BackendFailed, InvalidRequest, Overloaded
from schemas.ir import Delta, Event, Events, FinishReason, Generate, Sampling, Started, Usage

_NEUTRAL = SamplingParams()
_PARAMETERS = tuple(name for name in SamplingParams.__struct_fields__ if name in Sampling.__struct_fields__)
"""The engine's parameters, which have the names of the IR's."""
_BACKGROUND_PRIORITY = -1


@dataclass(slots=True, eq=False)
class _Prompt:
    """A prompt's tokens and, if requested, their log-probabilities."""

    ids: tuple[int, ...]
    scores: tuple[Logprobs, ...] = ()


class Answer:
    """The events of one request.

    Args:
        request: the request.
        prompts: its prompts' tokens and images.
        seed: of the first candidate for each prompt; each further candidate's seed is one more.
        first_seq: the number of the first sequence; the others follow.
        text: the model's text codec.
        ready: the engine's description.
        reader: makes a reader of a choice, or None where a choice is text and nothing else.
        grammar: constrains the text, in llguidance's form. Generation ends where the grammar ends; `ignore_eos` and
            `min_new_tokens` have no effect beside it.

    Raises:
        schemas.errors.InvalidRequest: the request does not fit the model.
    """

    def __init__(
        self,
        request: Generate,
        prompts: Sequence[MultiModalInputs],
        *,
        seed: int,
        first_seq: int,
        text: TextCodec,
        ready: Ready,
        reader: Callable[[], AnswerReader | None] = lambda: None,
        grammar: str | None = None,
    ) -> None:
        self._request = request
        self._prompts: list[_Prompt] = []
        self._first_seq = first_seq
        self._text = text
        self._grammar = grammar
        # `best_of` generates more candidates than are returned; `winners` selects `n` of them at the end.
        self._candidates = max(request.n, request.best_of or 1)
        self._builders: dict[int, ChoiceBuilder] = {}  # by seq, of unfinished sequences
        self._make_reader = reader
        self._readers: dict[int, AnswerReader] = {}
        self._reasoning_tokens: int | None = None
        self._started = False  # whether `Started` was emitted
        # With more candidates than choices nothing can be streamed: the winners are known only when all candidates have
        # ended.
        self._streams = request.stream and self._candidates == request.n
        self._deltas: list[Delta] = []  # to be emitted
        self._scores_prompt = _prompt_logprobs(request) >= 0
        self._ids: dict[int, list[int]] = {}  # by seq, of tokens since the last delta, if they are returned
        self._prompt_tokens = self._completion_tokens = self._cached_tokens = 0
        self.submits: list[Submit] = []
        for prompt in prompts:
            self._add_prompt(prompt, seed, ready)

    @property
    def done(self) -> bool:
        """Whether all sequences have ended."""
        return not self._builders

    def feed(self, outputs: Sequence[Output]) -> tuple[Events, list[int]]:
        """Take outputs of the engine.

        Returns:
            The events that are ready, and the sequences to cancel because a stop string ended them.

        Raises:
            schemas.errors.Overloaded: the engine has no room.
            schemas.errors.InvalidRequest: the grammar cannot be followed.
            schemas.errors.BackendFailed: the engine failed at a sequence.
        """
        # Add all tokens first, then make one delta per sequence: a slow reader gets several steps' tokens at once.
        touched: dict[int, FinishReason | None] = {}
        for output in outputs:
            if output.seq in self._builders:
                touched[output.seq] = self._add(output)
        # The engine does not know stop strings: it goes on with these sequences until they are cancelled. Those that it
        # has ended itself in the same batch need no `Cancel`.
        stopped = [seq for seq, reason in touched.items() if reason is None and self._builders[seq].stopped]
        for seq, reason in touched.items():
            builder, reader = self._builders[seq], self._readers.get(seq)
            if reason is not None or builder.stopped:
                # Ended: the last delta has all text that was held back.
                del self._builders[seq]
                self._completion_tokens += builder.generated
                finished = builder.finish(reason or FinishReason.STOP_STRING)
                self._deltas += self._with_ids(seq, reader.finish(finished) if reader else [finished])
                if reader is not None and reader.reads_reasoning:
                    self._reasoning_tokens = (self._reasoning_tokens or 0) + reader.reasoning_tokens
            # Non-streamed text stays in its builder until the end.
            elif self._streams and (delta := builder.delta()) is not None:
                self._deltas += self._with_ids(seq, reader.feed(delta) if reader else [delta])
        return self._events(), stopped

    def _add_prompt(self, prompt: MultiModalInputs, seed: int, ready: Ready) -> None:
        """Add one prompt and its candidates."""
        ids = prompt.prompt_token_ids
        request, stopping = self._request, self._request.stopping
        biased = tuple(id for id, _ in request.sampling.logit_bias)
        self._prompts.append(_Prompt(ids))
        self._prompt_tokens += len(ids)
        check_ids("prompt", ids, ready.vocab_size)
        check_ids("logit_bias", biased, ready.vocab_size)
        check_ids("stop_token_ids", stopping.stop_token_ids, ready.vocab_size)
        # The engine has no notion of an open end: the limit is resolved here to what the context leaves.
        max_new_tokens = fit(len(ids), stopping.max_new_tokens, ready.context_length, overflow=request.overflow)
        # `winners` ranks candidates by their mean log-probability, so `best_of` needs them even if they are not
        # returned.
        scored = request.logprobs or request.top_logprobs > 0 or self._candidates > request.n
        for place in range(self._candidates):
            # Each candidate needs a noise of its own; seeds are unsigned 64-bit numbers.
            effective_seed = (seed + place) % 2**64
            index = len(self.submits)
            submit = Submit(
                seq=self._first_seq + index,
                prompt=ids,
                max_new_tokens=max_new_tokens,
                sampling=sampling_params(request.sampling, effective_seed),
                # Where the grammar ends, only end tokens are allowed. `min_new_tokens` would forbid these, and with
                # `ignore_eos` the sequence would go on behind them, where the grammar has no token left.
                min_new_tokens=0 if self._grammar else stopping.min_new_tokens,
                eos_token_ids=() if stopping.ignore_eos and not self._grammar else ready.eos_token_ids,
                stop_token_ids=stopping.stop_token_ids,
                top_logprobs=request.top_logprobs if scored else -1,
                prompt_logprobs=_prompt_logprobs(request) if place == 0 else -1,
                priority=_BACKGROUND_PRIORITY if request.background else 0,
                grammar=self._grammar,
                features=prompt.features,
                lora_adapter=request.lora_adapter or "",
                flow=request.flow,
            )
            self.submits.append(submit)
            detokenizer = self._text.vocabulary.detokenizer(ids)
            self._builders[submit.seq] = ChoiceBuilder(index, stopping, detokenizer, effective_seed)
            if (reader := self._make_reader()) is not None:
                self._readers[submit.seq] = reader

    def _add(self, output: Output) -> FinishReason | None:
        """Add an output's tokens to its candidate; returns why the sequence ended, if it did."""
        if output.error is not None:
            raise failure(output, "tools" if self._request.tools else "response_format")
        # Sequences are numbered prompt by prompt (see `Strategy`).
        prompt, place = divmod(output.seq - self._first_seq, self._candidates)
        if place == 0:  # the other candidates share its prefix, and were not asked to score it
            self._prompts[prompt].scores += output.prompt
            self._cached_tokens += output.cached_tokens
        builder = self._builders[output.seq]
        # Log-probabilities come for all tokens or for none.
        for id, found in zip_longest(output.ids, output.logprobs):
            # The tokens behind a stop string in the same batch do not count as generated.
            if builder.stopped:
                break
            builder.add(id, *(self._text.scores(found) if found is not None else ()))
            if self._request.returns_ids:
                self._ids.setdefault(output.seq, []).append(id)
        return output.reason

    def _with_ids(self, seq: int, deltas: list[Delta]) -> list[Delta]:
        """The deltas of a sequence, the last one with the ids of all tokens since the last ones."""
        ids = self._ids.pop(seq, None) if deltas else None
        return [*deltas[:-1], replace(deltas[-1], ids=tuple(ids))] if ids else deltas

    def _events(self) -> Events:
        """Take the events that are ready."""
        request, prompts, done = self._request, self._prompts, not self._builders
        # `Started` has the prompts' log-probabilities and must be the first event. Deltas are collected until then.
        if self._scores_prompt and not all(prompt.scores for prompt in prompts):
            return ()
        events: list[Event] = []
        if not self._started:
            self._started = True
            shown = prompts if request.echo or self._scores_prompt or request.returns_ids else ()
            tokens = tuple(self._text.prompt_tokens(prompt.ids, prompt.scores) for prompt in shown)
            events.append(Started(request.model, self._prompt_tokens, tokens))
        if not done and not self._streams:
            return tuple(events)
        if self._candidates > request.n:
            events += winners(self._deltas, n=request.n, best_of=self._candidates)
        else:
            events += self._deltas
        self._deltas = []
        if done:
            counts = (self._prompt_tokens, self._completion_tokens, self._cached_tokens, self._reasoning_tokens)
            events.append(Usage(*counts))
        return tuple(events)


def _prompt_logprobs(request: Generate) -> int:
    """How many alternatives each token of the prompt is scored with; -1 if it is not scored."""
    if request.prompt_scores is not None:
        return request.prompt_scores
    return request.top_logprobs if request.prompt_logprobs else -1


def sampling_params(sampling: Sampling, seed: int) -> SamplingParams:
    """Resolve the request's sampling: the neutral value for everything that was not requested."""
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    given = {name: value for name in _PARAMETERS if (value := getattr(sampling, name)) is not None}
    # Of a repetition penalty 0 means off, too.
    penalty = sampling.repetition_penalty or _NEUTRAL.repetition_penalty
    own = {"temperature": 0.0 if sampling.greedy else temperature, "repetition_penalty": penalty, "seed": seed}
    return SamplingParams(**given | own)


def failure(output: Output, grammar_from: str = "response_format") -> Overloaded | InvalidRequest | BackendFailed:
    """The error of a sequence that failed: the engine has no room, or it failed at the sequence.

    Args:
        output: the sequence's last one.
        grammar_from: the request's field that its grammar came from.
    """
    if output.overloaded:
        return Overloaded("The model is overloaded.", retry_after=1.0)
    # Some grammars compile and become too large while they are followed: no less the client's error.
    if output.bad_grammar:
        return InvalidRequest(f"The grammar cannot be followed: {output.error}.", param=grammar_from)
    return BackendFailed(f"The model could not answer: {output.error}.", code="engine_sequence_failed")


def check_ids(param: str, ids: tuple[int, ...], vocab_size: int) -> None:
    """Reject token ids outside the vocabulary.

    Raises:
        schemas.errors.InvalidRequest: an id of the request's field `param` is.
    """
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise InvalidRequest(f"Token ids in {param} must be from 0 to {vocab_size - 1}.", param=param)
