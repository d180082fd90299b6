"""One request on its way through the engine: into sequences, and from their outputs back into events.

No I/O: whoever drives an `Answer` sends its `submits`, feeds it outputs, and cancels the sequences it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from backends.best_of import winners
from backends.choice import ChoiceBuilder
from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.protocol.messages import Logprobs, Output, Ready, SamplingParams, Submit
from backends.native.text.codec import TextCodec
from backends.native.text.tool_parser import ToolParser, most_calls, offered
from backends.prompts import cuts, fit
from schemas.errors import BackendFailed, InvalidRequest, Overloaded
from schemas.ir import Delta, Event, Events, FinishReason, Generate, Sampling, Started, Usage

_NEUTRAL = SamplingParams()
_BACKGROUND = -1  # priority


@dataclass(slots=True, eq=False)
class _Prompt:
    """A prompt and what the engine told about it."""

    ids: tuple[int, ...]
    scores: tuple[Logprobs, ...] = ()
    cached_tokens: int = 0


class Answer:
    """The events of one request. Of an answer that is not streamed, all but the first are told at its end.

    Args:
        request: what was asked.
        prompts: its prompts' tokens and pictures.
        seed: of the first answer to each prompt; the next ones' are one more each.
        first_seq: the number of the first sequence; the others follow.
        text: the model's.
        ready: what the engine says of itself.
        grammar: what the text must be, for the engine. It ends where the grammar does, whatever else was asked.
        started: whether the first event was told already.

    Raises:
        schemas.errors.InvalidRequest: it does not fit the model.
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
        grammar: str | None = None,
        started: bool = False,
    ) -> None:
        self._request = request
        self._prompts = [_Prompt(prompt.prompt_token_ids) for prompt in prompts]
        self._first_seq = first_seq
        self._text = text
        self._grammar = grammar
        self._candidates = max(request.n, request.best_of or 1)
        self._builders: dict[int, ChoiceBuilder] = {}
        self._parsers: dict[int, ToolParser] = {}
        self._started = started
        self._holds = self._candidates > request.n or not request.stream
        self._held: list[Delta] = []
        self._completion_tokens = 0
        self.submits: list[Submit] = []
        for prompt in prompts:
            self._add_prompt(prompt, seed, ready)

    @property
    def done(self) -> bool:
        """Whether all sequences have ended."""
        return not self._builders

    def feed(self, outputs: Sequence[Output]) -> tuple[Events, list[int]]:
        """The events that these outputs are, and the sequences that need not go on.

        Raises:
            schemas.errors.Overloaded: the engine has no room.
            schemas.errors.BackendFailed: it could not do it.
        """
        touched: dict[int, FinishReason | None] = {}
        for output in outputs:
            if output.seq in self._builders:
                touched[output.seq] = self._take(output)
        stopped = [seq for seq, reason in touched.items() if reason is None and self._builders[seq].stopped]
        for seq, reason in touched.items():
            self._tell(seq, reason)
        return self._events(), stopped

    def _add_prompt(self, prompt: MultiModalInputs, seed: int, ready: Ready) -> None:
        """Make the sequences that answer a prompt."""
        ids = prompt.prompt_token_ids
        request, stopping = self._request, self._request.stopping
        _check_ids(ids, request, ready.vocab_size)
        max_new_tokens = fit(len(ids), stopping.max_new_tokens, ready.context_length, cut=cuts(request))
        scored = request.logprobs or request.top_logprobs > 0 or self._candidates > request.n
        for place in range(self._candidates):
            effective = (seed + place) % 2**64
            index = len(self.submits)
            submit = Submit(
                seq=self._first_seq + index,
                prompt=ids,
                max_new_tokens=max_new_tokens,
                sampling=sampling_params(request.sampling, effective),
                min_new_tokens=0 if self._grammar else stopping.min_new_tokens,
                eos_token_ids=() if stopping.ignore_eos and not self._grammar else ready.eos_token_ids,
                stop_token_ids=stopping.stop_token_ids,
                top_logprobs=request.top_logprobs if scored else -1,
                prompt_logprobs=request.top_logprobs if request.prompt_logprobs and place == 0 else -1,
                priority=_BACKGROUND if request.background else 0,
                grammar=self._grammar,
                features=prompt.features,
                adapter=request.adapter_id or "",
            )
            self.submits.append(submit)
            detokenizer = self._text.vocabulary.detokenizer(ids)
            self._builders[submit.seq] = ChoiceBuilder(index, stopping, detokenizer, effective)
            if request.tools and offered(request):
                self._parsers[submit.seq] = ToolParser(most_calls(request))

    def _take(self, output: Output) -> FinishReason | None:
        """Add what a sequence gained; why it ended, if it did."""
        raise_failure(output)
        prompt, place = divmod(output.seq - self._first_seq, self._candidates)
        if place == 0:  # the others share its prefix, and were not asked for scores
            self._prompts[prompt].scores += output.prompt
            self._prompts[prompt].cached_tokens += output.cached_tokens
        builder = self._builders[output.seq]
        for id, found in zip_longest(output.ids, output.logprobs):
            if builder.stopped:
                break
            builder.add(id, *(self._text.scores(found) if found is not None else ()))
        return output.reason

    def _tell(self, seq: int, reason: FinishReason | None) -> None:
        """Make the delta of what a sequence gained."""
        builder, parser = self._builders[seq], self._parsers.get(seq)
        if reason is not None or builder.stopped:
            del self._builders[seq]
            self._completion_tokens += builder.generated
            finished = builder.finish(reason or FinishReason.STOP_STRING)
            self._held.append(parser.finish(finished) if parser else finished)
        elif (
            not self._holds
            and (delta := builder.delta()) is not None
            and (told := parser.feed(delta) if parser else delta) is not None
        ):
            self._held.append(told)

    def _events(self) -> Events:
        """What may be told now: nothing before all prompts are scored, no deltas before the best are known."""
        if self._request.prompt_logprobs and not all(prompt.scores for prompt in self._prompts):
            return ()
        told: list[Event] = [] if self._started else [self._opening()]
        self._started = True
        if self._holds and not self.done:
            return tuple(told)
        choosing = self._candidates > self._request.n
        told += winners(self._held, n=self._request.n, best_of=self._candidates) if choosing else self._held
        self._held = []
        return (*told, self._usage()) if self.done else tuple(told)

    def _opening(self) -> Started:
        request = self._request
        shown = self._prompts if request.echo or request.prompt_logprobs else ()
        tokens = tuple(self._text.prompt_tokens(prompt.ids, prompt.scores) for prompt in shown)
        return Started(request.model, self._prompt_tokens, tokens)

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self._prompts)

    def _usage(self) -> Usage:
        cached = sum(prompt.cached_tokens for prompt in self._prompts)
        return Usage(self._prompt_tokens, self._completion_tokens, cached_tokens=cached)


def sampling_params(sampling: Sampling, seed: int) -> SamplingParams:
    """What was asked for, and the neutral value of everything else."""
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    return SamplingParams(
        temperature=0.0 if sampling.greedy else temperature,
        top_k=sampling.top_k or _NEUTRAL.top_k,
        top_p=_NEUTRAL.top_p if sampling.top_p is None else sampling.top_p,
        min_p=sampling.min_p or _NEUTRAL.min_p,
        typical_p=_NEUTRAL.typical_p if sampling.typical_p is None else sampling.typical_p,
        repetition_penalty=sampling.repetition_penalty or _NEUTRAL.repetition_penalty,
        presence_penalty=sampling.presence_penalty or _NEUTRAL.presence_penalty,
        frequency_penalty=sampling.frequency_penalty or _NEUTRAL.frequency_penalty,
        logit_bias=sampling.logit_bias,
        seed=seed,
        watermark=sampling.watermark,
    )


def raise_failure(output: Output) -> None:
    """Raise what went wrong with a sequence, if something did.

    Raises:
        schemas.errors.Overloaded: the engine has no room.
        schemas.errors.BackendFailed: it could not do it.
    """
    if output.error is None:
        return
    if output.overloaded:
        raise Overloaded("The model is overloaded.", retry_after=1.0)
    raise BackendFailed(f"The model could not answer: {output.error}.", code="engine_sequence_failed")


def _check_ids(prompt: tuple[int, ...], request: Generate, vocab_size: int) -> None:
    """Refuse ids that no token has, under the names that clients give them."""
    biased = tuple(id for id, _ in request.sampling.logit_bias)
    for param, ids in (("prompt", prompt), ("logit_bias", biased), ("stop_token_ids", request.stopping.stop_token_ids)):
        check_ids(param, ids, vocab_size)


def check_ids(param: str, ids: tuple[int, ...], vocab_size: int) -> None:
    """Refuse ids that no token has.

    Raises:
        schemas.errors.InvalidRequest: one of those in `param`.
    """
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise InvalidRequest(f"Token ids in {param} must be from 0 to {vocab_size - 1}.", param=param)
