"""The engine: sequences in, tokens out, one step at a time.

Strategy: one step is *masks, schedule, forward, sample, advance*. The scheduler composes a new batch for every step
(continuous batching), the runner runs it, the sampler chooses one token for each sequence that reached its end, and the
outputs of a step are sent as one message per connection.

- *Single thread*: whoever owns an `Engine` passes it the workers' messages and calls `step` while it is `busy`, all
  from one thread. There are no locks here, and no sockets, threads or text.
- *Overlap*: on an accelerator a step is launched before the tokens of the one before are read (`overlap`).
- *Fault isolation by bisection*: a batch that raises is run again in halves, down to the sequence that raises alone.
  Only that sequence fails. A step can be repeated because runners keep nothing that they cannot rebuild from a
  sequence's tokens and blocks. A lost device (`torch.AcceleratorError`) or rank (`GangLost`) ends the process instead.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence as Seq
from itertools import count
from operator import attrgetter

import structlog
import torch
from msgspec.structs import replace

from backends.native.engine.draft_model import without_failing_source
from backends.native.engine.errors import GangLost
from backends.native.engine.lora.table import LoraTable
from backends.native.engine.outputs import failed, first_output
from backends.native.engine.overlap import Launched, launch
from backends.native.engine.pooling.hidden_states import HiddenStates
from backends.native.engine.runner.packed import Runner
from backends.native.engine.sampling.grammar_masks import Constraints
from backends.native.engine.sampling.sampler import NoDistribution, Sample, noise_keys, sample
from backends.native.engine.scheduling.endings import until_end
from backends.native.engine.scheduling.scheduler import Overloaded, Refused, Scheduler
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.scheduling.speculation import Speculation
from backends.native.machine import resident_memory
from backends.native.protocol.messages import (
    Cached,
    Cancel,
    Output,
    Ping,
    Pong,
    Step,
    Submit,
    ToEngine,
    Watch,
)

log = structlog.get_logger()

_LORA_ADAPTER = attrgetter("sequence.request.lora_adapter")
_NO_OUTPUTS = Step(())


class Engine:
    """Runs the sequences of all connections.

    Args:
        runner: runs the model.
        scheduler: composes the steps; has as many blocks as the runner's cache.
        vocab_size: token ids are less than this.
        context_length: the most tokens of prompt and output together.
        constraints: for grammars; None if the model has no tokenizer for them.
        hidden: collects hidden states for embeddings; None if the model makes none.
        speculation: chooses drafts; None: none are verified.
        loras: the model's LoRA adapters; None: those of the runner, and no others later.
        overlaps: whether steps overlap, unless drafts are verified, which are found on the host.
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
        speculation: Speculation | None = None,
        loras: LoraTable | None = None,
        overlaps: bool = False,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._constraints = constraints
        self._hidden = hidden
        self._speculation = speculation
        self.loras: LoraTable = LoraTable(runner.lora_adapters) if loras is None else loras
        self._overlaps = overlaps and speculation is None
        self._launched: Launched | None = None
        if constraints is not None:
            constraints.speculates = speculation is not None
        # Never reset: the order of arrival breaks ties of priority, also for sequences that return after a preemption.
        self._arrivals = count()
        self._sequences: dict[tuple[int, int], Sequence] = {}
        # Outputs made outside of a step, as refusals are, wait here for the next step; `busy` is then True, so it comes
        # at once.
        self._outputs: defaultdict[int, list[Output]] = defaultdict(list)
        self._watchers: set[int] = set()  # connections that are sent changes of the prefix cache

    @property
    def busy(self) -> bool:
        """Whether `step` would run a sequence or return an output."""
        return bool(self._sequences or self._outputs)

    def handle(self, connection: int, message: ToEngine) -> Pong | Cached | None:
        """Handle one message of a worker; return the answer to a `Ping` or a `Watch`."""
        match message:
            case Submit():
                self.submit(connection, message)
            case Cancel():
                self.cancel(connection, message.seq)
            case Ping():
                return self.pong(message)
            case Watch():
                self._watchers.add(connection)
                return Cached(self._scheduler.pool.watch())
        return None

    def submit(self, connection: int, request: Submit) -> None:
        """Queue a sequence. If it is refused, the next step returns the reason as its error."""
        lora = self.loras.keys.get(request.lora_adapter, "")  # a name that there is none of is refused below
        known = request
        if lora != request.lora_adapter:
            # One that was loaded again: the worker has named the blocks by its name, which the old one had, too.
            known = replace(request, lora_adapter=lora, block_keys=b"")
        sequence = Sequence(connection, known, next(self._arrivals), salt=lora.encode())
        sequence.submitted = time.monotonic()
        try:
            self._validate(connection, request)
            self._queue(sequence)
        except Refused as refusal:
            self._refuse(sequence, refusal)
            return
        self._sequences[connection, request.seq] = sequence

    def cancel(self, connection: int, seq: int) -> None:
        """Free a sequence without an output. Unknown ones are ignored: they may just have ended."""
        sequence = self._sequences.get((connection, seq))
        if sequence is not None:
            self._end(sequence)

    def disconnect(self, connection: int) -> None:
        """Free every sequence of a connection that was lost."""
        for key in [key for key in self._sequences if key[0] == connection]:
            self._end(self._sequences[key])
        self._outputs.pop(connection, None)
        self._watchers.discard(connection)

    def lora_keys(self) -> set[str]:
        """The keys of the LoRA adapters that sequences use."""
        return {sequence.request.lora_adapter for sequence in self._sequences.values()}

    def sleep(self) -> None:
        """Free the KV cache and forget its prefixes. There must be no sequences."""
        self._runner.sleep()
        self._scheduler.pool.clear()
        if self._speculation is not None and self._speculation.source is not None:
            self._speculation.source.sleep()

    def wake(self) -> None:
        """Make an empty KV cache."""
        self._runner.wake()
        if self._speculation is not None and self._speculation.source is not None:
            self._speculation.source.wake()

    def pong(self, ping: Ping) -> Pong:
        """Answer a `Ping` with the current queue lengths, blocks and counters."""
        # Reads only: a ping is also answered in the middle of a step, between two layers (`serving.engine_thread`).
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
            pool.touched,
            resident_memory(),
            *self._speculation_counts(),
            *((scheduler.swap.sequences, scheduler.swap.usage) if scheduler.swap is not None else (0, 0.0)),
        )

    def _speculation_counts(self) -> tuple[int, int, int]:
        found = self._speculation
        return (0, 0, 0) if found is None else (found.drafts, found.drafted, found.accepted)

    def step(self) -> dict[int, Step]:
        """Run one step and return its outputs by connection.

        Raises:
            torch.AcceleratorError: the device is lost; the process must be restarted.
            GangLost: another process of the model is, or is in another step; likewise.
        """
        # Step 1, drafts and masks: a mask is needed behind each draft, and masks decide which sequences are held, which
        # `schedule` reads.
        if self._speculation is not None:
            with without_failing_source(self._speculation):
                self._speculation.plan(self._scheduler.running)
        held = self._compute_masks()
        # Step 2, schedule. The works' order is free: each row of the forward knows its own sequence.
        works = self._scheduler.schedule()
        if self.loras.keys:
            works.sort(key=_LORA_ADAPTER)  # those of a LoRA adapter go through it together
        # Every sequence is held by its grammar. `busy` stays True, so without this wait the serving loop would spin.
        if held and not works and self._launched is None:
            Constraints.wait(held)
        # Steps 3 to 5: forward, sample, advance.
        began = time.perf_counter()
        with torch.inference_mode():
            if self._overlaps:
                self._run_overlapped(works)
            else:
                self._run(works)
        if self._speculation is not None and works:
            self._speculation.time(works, time.perf_counter() - began)
        # A new dictionary and not `clear()`: the returned one is read after this call.
        outputs, self._outputs = self._outputs, defaultdict(list)
        ended = time.monotonic() if outputs else 0.0
        steps = {connection: Step(tuple(gained), ended) for connection, gained in outputs.items()}
        if self._watchers:
            stored, removed = self._scheduler.pool.take_changes()
            for connection in self._watchers if stored or removed else ():
                steps[connection] = replace(steps.get(connection, _NO_OUTPUTS), stored=stored, removed=removed)
        return steps

    def _validate(self, connection: int, request: Submit) -> None:
        if (connection, request.seq) in self._sequences:
            raise Refused(f"sequence {request.seq} is running already")
        if not request.prompt:
            raise Refused("the prompt is empty")
        if len(request.received) >= max(1, request.max_new_tokens):
            raise Refused("max_new_tokens have been received already")
        if len(request.prompt) + request.max_new_tokens > self._context_length:
            raise Refused(f"prompt and max_new_tokens exceed the context of {self._context_length} tokens")
        if request.features and not self._runner.image_tokens:
            raise Refused("this model takes no images")
        if any(feature.length > self._runner.image_tokens for feature in request.features):
            raise Refused(f"an image takes more tokens than the engine's limit of {self._runner.image_tokens}")
        if request.pool and self._hidden is None:
            raise Refused("the model makes no embeddings")
        if request.lora_adapter and request.lora_adapter not in self.loras.keys:
            raise Refused(f"there is no LoRA adapter '{request.lora_adapter}'")
        # On a GPU an id outside of the vocabulary is a device-side assertion, which ends the process for all sequences.
        # Hence all ids that index a tensor are checked before the sequence is queued.
        biased = (token for token, _ in request.sampling.logit_bias)
        ids = (*request.prompt, *request.received, *biased, *request.stop_token_ids, *request.eos_token_ids)
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise Refused(f"token ids must be from 0 to {self._vocab_size - 1}")

    def _queue(self, sequence: Sequence) -> None:
        source = sequence.request.grammar
        if source is not None and self._constraints is None:
            raise Refused("the model has no tokenizer for grammars")
        # Before `begin`: `add` may refuse, and every `begin` takes one reference to the compiled grammar, which only
        # `_end` releases.
        self._scheduler.add(sequence)
        if source is not None and self._constraints is not None:
            sequence.constraint = self._constraints.begin(source, sequence.prompt_length)
            # Until the grammar is compiled and its first mask is there (`Constraints.prepare`).
            sequence.held = True

    def _compute_masks(self) -> list[Sequence]:
        """Compute the grammar masks of the step; return the sequences that are held because theirs is not ready."""
        constrained = [sequence for sequence in self._sequences.values() if sequence.constraint is not None]
        if not constrained or self._constraints is None:
            return []
        for sequence, error in self._constraints.prepare(constrained):
            self._fail(sequence, error)
        return [sequence for sequence in constrained if sequence.held]

    def _refuse(self, sequence: Sequence, refusal: Refused) -> None:
        overloaded = isinstance(refusal, Overloaded)
        self._emit(sequence, Output(sequence.request.seq, error=str(refusal), overloaded=overloaded))

    def _run_overlapped(self, works: Seq[Work]) -> None:
        """Launch `works`, and read the step before meanwhile; if they cannot be launched, run them after it."""
        before, self._launched = self._launched, launch(self._runner, works, self._launched)
        if before is not None:
            self._read(before)
        if self._launched is None:
            self._run([work for work in works if self._has(work.sequence)])
        elif not self._sequences:  # all have ended: nobody reads it
            self._launched = None

    def _read(self, step: Launched) -> None:
        """Wait for a step that was launched, and commit what it chose."""
        for work, sampled in zip(step.works, step.samples(), strict=True):
            sequence, end = work.sequence, work.start + work.count
            # Else it has ended or was cancelled since, and this is a token too many.
            if not self._has(sequence):
                continue
            if not sampled.tokens:
                self._scheduler.publish(work)
            elif sampled.tokens[0] < 0:
                self._fail(sequence, NoDistribution())
            else:
                sequence.tokens[end] = sampled.tokens[0]
                self._scheduler.publish(work)
                generated, seq = end - sequence.prompt_length, sequence.request.seq
                _, reason = until_end(sequence.request, sampled.tokens, generated)
                self._answer(sequence, Output(seq, sampled.tokens, reason, sampled.logprobs), first=not generated)

    def _has(self, sequence: Sequence) -> bool:
        return self._sequences.get((sequence.connection, sequence.request.seq)) is sequence

    def _run(self, works: Seq[Work]) -> None:
        """Run and sample `works`; if that raises, run both halves, so that only the faulty sequences fail."""
        if not works:
            return
        try:
            # No token is appended before all rows are sampled, so the works can be run again. The noise of a sample
            # depends on seed, position and token only: a second run draws the same token.
            if self._runner.takes_extra:
                keys = noise_keys(works)
                samples = sample(works, self._runner.run(works, keys), keys)
            else:
                samples = sample(works, self._runner.run(works))
            if self._hidden is not None:
                self._hidden.collect(works)
        except (torch.AcceleratorError, GangLost):
            raise
        except Exception as error:  # the engine's top: a bad sequence must not harm the others
            # Bisection ends here. One faulty sequence among n costs about 2 log2(n) more forwards.
            if len(works) == 1 and not works[0].drafts:
                self._fail(works[0].sequence, error)
                return
            log.warning("step.failed", sequences=len(works), error=repr(error))
            samples = None
        if samples is None:  # outside of `except`: the traceback would keep the failed step's tensors in memory
            # A draft may be at fault, which is no token of its sequence: without drafts first.
            if any(work.drafts for work in works):
                self._run([work.without_drafts for work in works])
                return
            half = len(works) // 2
            self._run(works[:half])
            self._run(works[half:])
            return
        # Outside of `try`: an error while committing would leave some sequences advanced, and a repetition would
        # advance them twice.
        self._commit(works, samples)

    def _commit(self, works: Seq[Work], samples: Seq[Sample]) -> None:
        """Commit works, and append the tokens that they sampled."""
        if self._speculation is not None:
            with without_failing_source(self._speculation):
                self._speculation.follow(works, [sampled.tokens for sampled in samples])
        for work, sampled in zip(works, samples, strict=True):
            self._advance(work, sampled)

    def _advance(self, work: Work, sampled: Sample) -> None:
        """Commit a work, and append the tokens that it sampled."""
        sequence = work.sequence
        if sampled.prompt:
            sequence.prompt_logprobs += sampled.prompt
        request, generated = sequence.request, sequence.generated
        ids, reason = until_end(request, sampled.tokens, generated)
        # Before the last token is appended: it has no keys and values yet. Those before it are drafts, which were run.
        sequence.tokens += ids[:-1]
        self._scheduler.commit(work, max(0, len(ids) - 1))
        if not sampled.tokens:
            return
        sequence.tokens += ids[-1:]
        if self._speculation is not None:
            self._speculation.count(work, len(sampled.tokens) - 1)
        self._answer(sequence, Output(request.seq, ids, reason, sampled.logprobs[: len(ids)]), first=not generated)

    def _answer(self, sequence: Sequence, output: Output, *, first: bool) -> None:
        """Emit an output with tokens, and end a finished sequence."""
        self._emit(sequence, first_output(sequence, output) if first else output)
        if output.reason is not None:
            self._end(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        self._emit(sequence, failed(sequence, error))
        self._end(sequence)

    def _emit(self, sequence: Sequence, output: Output) -> None:
        self._outputs[sequence.connection].append(output)

    def _end(self, sequence: Sequence) -> None:
        self._sequences.pop((sequence.connection, sequence.request.seq))
        # A job of the constraint may still run in a thread; it writes to the constraint only, which nobody reads.
        if sequence.constraint is not None:
            sequence.constraint.leave()
        self._scheduler.remove(sequence)
        self._runner.forget(sequence)
        self.loras.drop_unused(self.lora_keys)
        if self._speculation is not None:
            self._speculation.forget(sequence)
