"""The engine: sequences in, tokens out, one step at a time.

Knows nothing of sockets, threads or text: whoever owns an `Engine` hands it the workers' messages and calls `step`
while there is work, from one thread. A fault in a step ends the sequences it is the fault of and no others: a batch
that fails is run again in halves, down to the one that fails alone.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Sequence as Seq
from itertools import count
from operator import attrgetter

import structlog
import torch

from backends.native.engine.pooling.hidden_states import HiddenStates, mean
from backends.native.engine.runner.packed import Runner
from backends.native.engine.sampling.grammar_masks import Constraints
from backends.native.engine.sampling.sampler import NoDistribution, Sample, sample
from backends.native.engine.scheduling.scheduler import Overloaded, Refused, Scheduler
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.grammar.grammar import GrammarError
from backends.native.protocol.messages import Cancel, Logprobs, Output, Ping, Pong, Step, Submit, ToEngine
from schemas.ir import FinishReason

log = structlog.get_logger()

_ADAPTER = attrgetter("sequence.request.adapter")


class Engine:
    """Runs sequences of several connections.

    Args:
        runner: the model.
        scheduler: decides what runs; made for the same blocks as the runner.
        vocab_size: token ids a prompt may hold.
        context_length: the most tokens of prompt and output.
        constraints: for grammars; None if the model has no tokenizer for them.
        hidden: the model's hidden states; None if there are no vectors to be had.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        vocab_size: int,
        context_length: int,
        constraints: Constraints | None = None,
        hidden: HiddenStates | None = None,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._constraints = constraints
        self._hidden = hidden
        self._arrivals = count()
        self._sequences: dict[tuple[int, int], Sequence] = {}
        self._outputs: defaultdict[int, list[Output]] = defaultdict(list)

    @property
    def busy(self) -> bool:
        """Whether `step` would do or tell anything."""
        return bool(self._sequences or self._outputs)

    def handle(self, connection: int, message: ToEngine) -> Pong | None:
        """Take a worker's message; the answer to a `Ping` is returned."""
        match message:
            case Submit():
                self.submit(connection, message)
            case Cancel():
                self.cancel(connection, message.seq)
            case Ping():
                return self.pong(message)
        return None

    def submit(self, connection: int, request: Submit) -> None:
        """Take a sequence, or tell in the next step why not."""
        sequence = Sequence(connection, request, next(self._arrivals), salt=request.adapter.encode())
        try:
            self._check(connection, request)
            self._begin(sequence)
        except Refused as refusal:
            self._refuse(sequence, refusal)
            return
        self._sequences[connection, request.seq] = sequence

    def cancel(self, connection: int, seq: int) -> None:
        """Free a sequence without a word. Unknown ones are ignored: they may just have ended."""
        sequence = self._sequences.get((connection, seq))
        if sequence is not None:
            self._end(sequence)

    def disconnect(self, connection: int) -> None:
        """Free all sequences of a worker that is gone."""
        for key in [key for key in self._sequences if key[0] == connection]:
            self._end(self._sequences[key])
        self._outputs.pop(connection, None)

    def pong(self, ping: Ping) -> Pong:
        """The state now."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        return Pong(
            ping.token,
            len(scheduler.running),
            len(scheduler.waiting),
            pool.free,
            pool.count,
            scheduler.preemptions,
            scheduler.prefix_queries,
            scheduler.prefix_hits,
        )

    def step(self) -> dict[int, Step]:
        """Run one step: what each connection's sequences gained.

        Raises:
            torch.AcceleratorError: the device is lost; the process had better end.
        """
        held = self._follow_grammars()
        works = self._scheduler.schedule()
        if self._runner.lora_adapters:
            works.sort(key=_ADAPTER)  # those of an adapter go through it together
        if held and not works:
            Constraints.wait(held)
        with torch.inference_mode():
            self._run(works)
        outputs, self._outputs = self._outputs, defaultdict(list)
        return {connection: Step(tuple(told)) for connection, told in outputs.items()}

    def _check(self, connection: int, request: Submit) -> None:
        if (connection, request.seq) in self._sequences:
            raise Refused(f"sequence {request.seq} is running already")
        if not request.prompt:
            raise Refused("the prompt is empty")
        if len(request.prompt) + request.max_new_tokens > self._context_length:
            raise Refused(f"prompt and max_new_tokens exceed the context of {self._context_length} tokens")
        if request.features and not self._runner.image_tokens:
            raise Refused("this model takes no images")
        if any(feature.length > self._runner.image_tokens for feature in request.features):
            raise Refused(f"an image takes more than the {self._runner.image_tokens} tokens that are made ready for")
        if request.pool and self._hidden is None:
            raise Refused("the model makes no vectors")
        if request.adapter and request.adapter not in self._runner.lora_adapters:
            raise Refused(f"there is no adapter '{request.adapter}'")
        biased = (token for token, _ in request.sampling.logit_bias)
        named = (*request.prompt, *biased, *request.stop_token_ids, *request.eos_token_ids)
        if min(named) < 0 or max(named) >= self._vocab_size:
            raise Refused(f"token ids must be from 0 to {self._vocab_size - 1}")

    def _begin(self, sequence: Sequence) -> None:
        source = sequence.request.grammar
        if source is not None and self._constraints is None:
            raise Refused("the model has no tokenizer for grammars")
        self._scheduler.add(sequence)
        if source is not None and self._constraints is not None:
            sequence.constraint = self._constraints.begin(source, len(sequence.tokens))
            sequence.held = True

    def _follow_grammars(self) -> list[Sequence]:
        """Have masks made; returns the sequences that have to be left out of the step."""
        constrained = [sequence for sequence in self._sequences.values() if sequence.constraint is not None]
        if not constrained or self._constraints is None:
            return []
        for sequence, error in self._constraints.prepare(constrained):
            self._fail(sequence, error)
        return [sequence for sequence in constrained if sequence.held]

    def _refuse(self, sequence: Sequence, refusal: Refused) -> None:
        overloaded = isinstance(refusal, Overloaded)
        self._tell(sequence, Output(sequence.request.seq, error=str(refusal), overloaded=overloaded))

    def _run(self, works: Seq[Work]) -> None:
        if not works:
            return
        try:
            samples = sample(works, self._runner.run(works))
            if self._hidden is not None:
                self._hidden.collect(works)
        except torch.AcceleratorError:
            raise
        except Exception as error:  # the engine's top: a bad sequence must not harm the others
            if len(works) == 1:
                self._fail(works[0].sequence, error)
                return
            log.warning("step.failed", sequences=len(works), error=repr(error))
            samples = None
        if samples is None:  # only now: the error held on to the failed step's memory
            half = len(works) // 2
            self._run(works[:half])
            self._run(works[half:])
            return
        for work, found in zip(works, samples, strict=True):
            self._advance(work, found)

    def _advance(self, work: Work, found: Sample) -> None:
        """Note what a work gave; tell the worker, if the sequence gained a token."""
        sequence = work.sequence
        if found.prompt:
            sequence.prompt_logprobs += found.prompt
        self._scheduler.commit(work)
        if found.token is None:
            return
        request, generated = sequence.request, sequence.generated
        ids: tuple[int, ...] = ()
        logprobs: tuple[Logprobs, ...] = ()
        reason: FinishReason | None = FinishReason.LENGTH
        if request.max_new_tokens > 0:  # else only the prompt was to be scored
            sequence.tokens.append(found.token)
            reason = finish_reason(request, found.token, generated + 1)
            ids, logprobs = (found.token,), (found.logprobs,) if found.logprobs else ()
        if generated:
            output = Output(request.seq, ids, reason, logprobs)
        else:
            vector = mean(sequence) if request.pool else ()
            prompt, cached = self._scored_prompt(sequence), sequence.cached_tokens or 0
            output = Output(request.seq, ids, reason, logprobs, prompt, cached, vector=vector)
        self._outputs[sequence.connection].append(output)
        if reason is not None:
            self._end(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        # The trace as text: a renderer given the exception might print local variables, and so the prompt.
        trace = "".join(traceback.format_tb(error.__traceback__))
        log.error("sequence.failed", tokens=len(sequence.tokens), error=repr(error), trace=trace)
        if isinstance(error, NoDistribution | GrammarError):
            why = str(error)
        elif isinstance(error, torch.OutOfMemoryError | MemoryError):
            why = "the engine ran out of memory"
        else:
            why = "the engine failed on this sequence"
        self._tell(sequence, Output(sequence.request.seq, error=why))
        self._end(sequence)

    def _tell(self, sequence: Sequence, output: Output) -> None:
        self._outputs[sequence.connection].append(output)

    def _end(self, sequence: Sequence) -> None:
        self._sequences.pop((sequence.connection, sequence.request.seq))
        if sequence.constraint is not None:
            sequence.constraint.leave()
        self._scheduler.remove(sequence)
        self._runner.forget(sequence)

    @staticmethod
    def _scored_prompt(sequence: Sequence) -> tuple[Logprobs, ...]:
        if sequence.request.prompt_logprobs < 0:
            return ()
        return (Logprobs(None), *sequence.prompt_logprobs)


def finish_reason(request: Submit, token: int, generated: int) -> FinishReason | None:
    """Why a sequence ends with its newest token, the `generated`th, if it does."""
    if generated > request.min_new_tokens:
        if token in request.eos_token_ids:
            return FinishReason.EOS
        if token in request.stop_token_ids:
            return FinishReason.STOP_TOKEN
    return FinishReason.LENGTH if generated >= request.max_new_tokens else None
