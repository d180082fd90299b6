"""Paired mode: another arm answers a sample of the control's requests again, from the same prompt and seed, and both
models score both answers by log-likelihood.

Strategy: the control's events are observed on their way to the client; once they are complete, the pair is made as
background work, so that the client's answer does not depend on it. Both arms must return token ids of one vocabulary,
which only the native engine does: a remote arm is not paired, and the report says why. Each model renders the prompt
with its own chat template, as it would for a client.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import fsum, isfinite, nan
from random import random
from time import monotonic

from msgspec.structs import replace

from backends.base import Feature
from backends.features import needs
from backends.prompts import as_asked
from gateway.experiments.background import Background, read
from gateway.experiments.experiment import Experiment
from gateway.experiments.metrics import DIVERGENCES, UNPAIRED
from gateway.experiments.pairs.agreement import Agreement, Example, Ids, Scores, Speed, agreement
from gateway.experiments.pairs.examples import shortened
from gateway.observability.metrics import Metrics
from gateway.routing.target import Plan, Target
from schemas.errors import BackendFailed, ContextLengthExceeded
from schemas.ir import (
    ChatPrompt,
    Delta,
    Events,
    Finished,
    Generate,
    Message,
    Prompt,
    Started,
    Stopping,
    TextPart,
    TextPrompt,
    Token,
    Tokenize,
    TokensPrompt,
    Usage,
)

_UNSUITABLE = {Feature.IMAGES, Feature.TOOLS, Feature.SUFFIX, Feature.LORA}
"""Features whose prompt is more than token ids, or whose answer is more than tokens."""


@dataclass(slots=True, eq=False)
class _CollectedAnswer:
    """One answer's tokens and times, collected from its events."""

    ids: list[int | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    began: float = field(default_factory=monotonic)
    first: float | None = None
    last: float = 0.0
    prompt_tokens: int = 0
    generated: int | None = None
    seed: int | None = None
    complete: bool = False

    def take(self, batch: Events) -> None:
        self.last = monotonic()
        for event in batch:
            if isinstance(event, Delta):
                if self.first is None and event.tokens:  # `Started` may come before the model has done anything
                    self.first = self.last
                self.texts.append(event.text)
                self.ids += [token.id for token in event.tokens]  # an id is None if the backend does not return ids
            elif isinstance(event, Started):
                self.prompt_tokens = event.prompt_tokens or 0
            if isinstance(event, Finished):
                self.generated, self.seed = event.generated, event.seed
            # Assigned for each event, so the last one decides: usage ends a complete answer.
            self.complete = isinstance(event, Usage)

    @property
    def speed(self) -> Speed:
        """Since it was asked. Tokens come in batches: the time between them is a mean over all after the first."""
        if self.first is None:
            return Speed()
        gaps = len(self.ids) - 1
        return Speed(self.first - self.began, (self.last - self.first) / gaps if gaps else None)

    @property
    def text(self) -> str:
        """The visible text."""
        return "".join(self.texts)

    @property
    def tokens(self) -> Ids:
        """All token ids; () if the answer is incomplete or an id is unknown."""
        # `generated` is the backend's own count: fewer ids mean that the events do not hold the whole answer.
        ids = tuple(id for id in self.ids if id is not None)
        return ids if self.complete and len(ids) == len(self.ids) == self.generated else ()


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """An answer of the control that an arm is to answer again."""

    request: Generate
    control: Target
    arm: Target
    answer: _CollectedAnswer
    seed: int
    max_tokens: int


class Pairing:
    """One worker's pairs.

    Args:
        metrics: counts them, by outcome.
        can_answer: whether a backend, by name, can answer now.
    """

    def __init__(self, metrics: Metrics, can_answer: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._background = Background(can_answer)

    def follow(
        self,
        events: AsyncGenerator[Events, None],
        request: Generate,
        plan: Plan,
        target: Target,
        experiment: Experiment,
    ) -> AsyncGenerator[Events, None]:
        """The events unchanged; if `target` is the control and an arm is drawn, observed for a pair."""
        if target is not plan.targets[0]:  # a fallback answered: the control did not
            return events
        # Each arm is drawn independently.
        drawn = tuple(arm for arm in plan.paired if arm.entity.paired and random() < arm.entity.paired.share)
        return self._observe(events, request, plan, drawn, experiment) if drawn else events

    async def aclose(self) -> None:
        """Cancel all pairs."""
        await self._background.aclose()

    async def _observe(
        self,
        events: AsyncGenerator[Events, None],
        request: Generate,
        plan: Plan,
        drawn: tuple[Target, ...],
        experiment: Experiment,
    ) -> AsyncGenerator[Events, None]:
        collected = _CollectedAnswer()
        try:
            async for batch in events:
                collected.take(batch)
                yield batch
        finally:
            await events.aclose()
        # After the `finally`, and so not reached if the client left: no pair is made of half an answer.
        if collected.complete:
            for arm in drawn:
                self._pair(collected, request, plan, arm, experiment)

    def _pair(
        self, collected: _CollectedAnswer, request: Generate, plan: Plan, arm: Target, experiment: Experiment
    ) -> None:
        control, limits = plan.targets[0], arm.entity.paired
        assert plan.unit is not None
        assert limits is not None
        ended = partial(self._ended, arm, experiment)
        if not _have_same_tokenizer(control, arm):
            ended("unlike_tokenizers")
        # Without the control's seed the arm would sample differently by chance alone.
        elif collected.seed is None or not collected.tokens or not _suitable(request):
            ended("unsuitable")
        elif collected.prompt_tokens + len(collected.tokens) > limits.max_tokens:
            ended("too_long")
        else:
            pair = _Pair(request, control, arm, collected, collected.seed, limits.max_tokens)
            work = partial(_compare, pair, plan.unit.bucket, experiment)
            self._background.begin(arm, work, ended, at_once=limits.max_concurrent_requests, seconds=limits.timeout)

    def _ended(self, arm: Target, experiment: Experiment, outcome: str) -> None:
        self._metrics.pairs.add((arm.endpoint, arm.entity.name, outcome))
        if outcome != "ok":
            why = "too_long" if outcome == ContextLengthExceeded.kind else outcome
            experiment.unpaired(arm, why if why in UNPAIRED else "failed")


async def _compare(pair: _Pair, bucket: int, experiment: Experiment) -> None:
    """Have the arm answer, have both models score both answers, and count the pair.

    Raises:
        schemas.errors.GatewayError: one of them failed.
    """
    other = await _answer_again(pair)
    answers = (pair.answer.tokens, other.tokens)
    by_control = await _scores(pair, pair.control, answers)
    by_arm = await _scores(pair, pair.arm, answers)
    found = agreement(*answers, by_control, by_arm, (pair.answer.speed, other.speed))
    experiment.paired(pair.arm, bucket, found, partial(_example, pair, other, found))


def _example(pair: _Pair, other: _CollectedAnswer, found: Agreement) -> Example:
    settings = pair.arm.entity.paired
    assert settings is not None
    texts = (_text(pair.request), pair.answer.text, other.text) if settings.text else ()
    return Example(
        pair.request.id,
        found.largest_difference,
        found.value("token_agreement"),
        DIVERGENCES[found.divergence],
        *map(shortened, texts),
    )


def _text(request: Generate) -> str:
    """The prompt as text; "" if it is token ids."""
    prompt = request.prompts[0]
    if isinstance(prompt, TextPrompt):
        return prompt.text
    if not isinstance(prompt, ChatPrompt):
        return ""
    return "\n".join(f"{message.role}: {_content(message)}" for message in prompt.messages)


def _content(message: Message) -> str:
    content = message.content or ""
    return (
        content if isinstance(content, str) else " ".join(part.text for part in content if isinstance(part, TextPart))
    )


async def _answer_again(pair: _Pair) -> _CollectedAnswer:
    """The arm's own answer; one that reaches `max_tokens` is refused later, together with its prompt."""
    stopping = pair.request.stopping
    # The same request, with the control's seed and without what costs time and is not compared.
    asked = replace(
        pair.request,
        id=f"{pair.request.id}-{pair.arm.entity.name}",  # unique: a backend may index requests by id
        sampling=replace(pair.request.sampling, seed=pair.seed),
        stopping=replace(stopping, max_new_tokens=min(stopping.max_new_tokens or pair.max_tokens, pair.max_tokens)),
        logprobs=False,
        top_logprobs=0,
        prompt_logprobs=False,
        echo=False,
        background=True,
    )
    collected = _CollectedAnswer()
    await read(asked, pair.arm, collected.take)
    if not collected.tokens:
        raise BackendFailed("The backend did not return its answer's token ids.")
    return collected


async def _scores(pair: _Pair, model: Target, answers: tuple[Ids, Ids]) -> tuple[Scores, Scores]:
    """Two answers under a model.

    Raises:
        schemas.errors.ContextLengthExceeded: prompt and answer exceed the arm's `max_tokens`.
    """
    # Prompts are rendered once per model: chat templates may differ even where the vocabulary is the same.
    prompt = await _prompt(pair.request, model)
    if len(prompt) + max(map(len, answers)) > pair.max_tokens:
        raise ContextLengthExceeded("Prompt and answer are too long to be scored.")
    # Identical answers are scored once.
    found = {answer: await _score(pair.request, model, prompt, answer) for answer in dict.fromkeys(answers)}
    return found[answers[0]], found[answers[1]]


async def _score(request: Generate, model: Target, prompt: Ids, answer: Ids) -> Scores:
    asked = Generate(
        id=f"{request.id}-score",
        model=request.model,
        # No token is generated: the answer is scored as part of a prompt, in one prefill.
        prompts=(TokensPrompt(prompt + answer),),
        stopping=Stopping(max_new_tokens=0),
        prompt_logprobs=True,
        # The most likely token at each position comes with the same prefill.
        top_logprobs=int(Feature.TOP_LOGPROBS in model.backend.capabilities.features),
        lora_adapter=request.lora_adapter,
        background=True,
    )
    scored: list[Token] = []
    await read(asked, model, lambda batch: scored.extend(_scored(batch)))
    # The prompt's own tokens are cut off. A token without a logprob makes the mean NaN, which is refused below: NaN or
    # infinity in a counter would spoil its sum for good.
    scored = scored[len(prompt) :]
    value = fsum(nan if token.logprob is None else token.logprob for token in scored) / len(answer)
    if not isfinite(value):
        raise BackendFailed("The model has no likelihood for an answer.")
    top = tuple(token.top[0].id for token in scored if token.top)
    known = tuple(id for id in top if id is not None)
    return Scores(value, known if len(known) == len(answer) else ())


def _scored(batch: Events) -> Iterator[Token]:
    return (token for event in batch if isinstance(event, Started) for token in event.prompts[0])


async def _prompt(request: Generate, model: Target) -> Ids:
    """The prompt's token ids, rendered with this model's chat template."""
    prompt, truncate = as_asked(request)[0], request.truncate_prompt_tokens
    ids = prompt.ids if isinstance(prompt, TokensPrompt) else await _tokenized(request.id, prompt, model)
    return ids[-truncate:] if truncate else ids  # the last tokens, as TGI and vLLM truncate


async def _tokenized(id: str, prompt: Prompt, model: Target) -> Ids:
    tokens = await model.backend.tokenize(Tokenize(id=id, model=model.model, prompt=prompt))
    return tuple(span.id for span in tokens.spans)


def _have_same_tokenizer(control: Target, arm: Target) -> bool:
    tokenizer = control.backend.capabilities.tokenizer
    return tokenizer is not None and tokenizer == arm.backend.capabilities.tokenizer


def _suitable(request: Generate) -> bool:
    """Whether the request asks for one choice of plain text for one plain prompt."""
    choices = len(request.prompts) * max(request.n, request.best_of or 1)
    return choices == 1 and not needs(request) & _UNSUITABLE
