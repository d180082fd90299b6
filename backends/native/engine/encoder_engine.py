"""The engine of encoders (BERT and the like): padded batches of texts in, embeddings, other vectors or scores out.

It handles the same messages as `loop.Engine` and is stepped the same way (`steps.Steps`). A text is run whole, in one
step, and leaves no state. Each step runs the text that is first in fair order, beside those that cost least padding.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Sequence as Seq
from itertools import islice
from typing import Any

import structlog
import torch
from torch import Tensor

from backends.fairness import FairQueue, Place
from backends.native.engine.pooling.pooler import Pooler
from backends.native.engine.pooling.sparse import SparsePooler
from backends.native.protocol.messages import Cancel, Output, Ping, Pong, Step, Submit, ToEngine
from schemas.ir import FinishReason

log = structlog.get_logger()

_Key = tuple[int, int]


class EncoderEngine:
    """Runs the texts of all connections.

    Args:
        model: a model of transformers whose first output is its last hidden states, [texts, tokens, hidden], with a
            classification head its scores, [texts, labels], or its logits for masked tokens, [texts, tokens, ids].
        pooler: makes a vector from the rows of a text; None: the model has a classification head.
        vocab_size: token ids are less than this.
        context_length: the most tokens of a text.
        step_tokens: the most tokens of a step, padding included; a single longer text is run alone.
        max_sequences: the most texts of a step.
        max_waiting: the most waiting texts; more are refused as overload.
        short_first: whether short texts do not wait for long ones (`FairClock`).
    """

    def __init__(
        self,
        model: Any,
        pooler: Pooler | SparsePooler | None,
        *,
        vocab_size: int,
        context_length: int,
        step_tokens: int,
        max_sequences: int,
        max_waiting: int,
        short_first: bool = False,
    ) -> None:
        self._model = model
        self._pooler = pooler
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._step_tokens = step_tokens
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._queue: FairQueue[tuple[_Key, Submit]] = FairQueue(short_first=short_first)
        self._waiting: dict[_Key, Place[tuple[_Key, Submit]]] = {}
        self._running = 0  # texts of the present step
        self._outputs: defaultdict[int, list[Output]] = defaultdict(list)

    @property
    def busy(self) -> bool:
        """Whether `step` would run a text or return an output."""
        return bool(self._waiting or self._outputs)

    def handle(self, connection: int, message: ToEngine) -> Pong | None:
        """Handle one message of a worker; return the answer to a `Ping`."""
        match message:
            case Submit():
                self.submit(connection, message)
            case Cancel():
                self._drop((connection, message.seq))
            case Ping():
                return Pong(message.token, self._running, len(self._waiting))
        return None

    def submit(self, connection: int, request: Submit) -> None:
        """Queue a text. If it is refused, the next step returns the reason as its error."""
        waiting = len(self._waiting)
        if (why := self._refusal(request)) is not None:
            self._outputs[connection].append(Output(request.seq, error=why))
        elif waiting >= self._max_waiting and not request.again:
            why = f"{waiting} sequences are waiting already"
            self._outputs[connection].append(Output(request.seq, error=why, overloaded=True))
        else:
            key = connection, request.seq
            self._waiting[key] = self._queue.put((key, request), request.flow, len(request.prompt))

    def disconnect(self, connection: int) -> None:
        """Drop every text of a connection that was lost."""
        for key in [key for key in self._waiting if key[0] == connection]:
            self._drop(key)
        self._outputs.pop(connection, None)

    def step(self) -> dict[int, Step]:
        """Run one step and return its outputs by connection.

        Raises:
            torch.AcceleratorError: the device is lost; the process must be restarted.
        """
        # Texts leave the queue before they are run: one that fails gets an error as its output and is not tried again.
        batch = self._batch()
        self._running = len(batch)  # for pings that are answered within the step
        with torch.inference_mode():
            self._run([self._queue.take(self._waiting.pop(key)) for key in batch])
        self._running = 0
        outputs, self._outputs = self._outputs, defaultdict(list)
        return {connection: Step(tuple(made)) for connection, made in outputs.items()}

    def _drop(self, key: _Key) -> None:
        if (place := self._waiting.pop(key, None)) is not None:
            self._queue.drop(place)

    loras: None = None  # none are applied to encoders

    def lora_keys(self) -> set[str]:
        """The keys of the LoRA adapters that sequences use."""
        return set()

    def sleep(self) -> None:
        """Do nothing: there are no caches."""

    def wake(self) -> None:
        """Do nothing."""

    def _refusal(self, request: Submit) -> str | None:
        # Refused here, for every client: an encoder has no output layer to make logits with.
        if not request.pool or request.max_new_tokens:
            return f"the model makes {'embeddings' if self._pooler else 'scores'} and no text"
        if not 0 < len(request.prompt) <= self._context_length:
            return f"a text must have from 1 to {self._context_length} tokens"
        if min(request.prompt) < 0 or max(request.prompt) >= self._vocab_size:
            return f"token ids must be from 0 to {self._vocab_size - 1}"
        return None

    def _batch(self) -> list[_Key]:
        """Choose the texts of a step: the first, then those closest to it in length, which cost least padding."""
        if not self._waiting:
            return []
        key, first = self._queue.first.item
        # Those of equal length in the order of arrival.
        lengths = {key: len(first.prompt)} | {key: place.tokens for key, place in self._waiting.items()}
        batch: list[_Key] = []
        longest = 0
        # The sort is stable and the first text has distance 0, so it is always first and no text starves.
        for key in sorted(lengths, key=lambda key: abs(lengths[key] - len(first.prompt))):
            # The cost of a padded batch is its longest text times its number of texts. Later texts are ever further
            # from the first in length, so the first that does not fit ends the batch.
            longest = max(longest, lengths[key])
            if batch and (len(batch) == self._max_sequences or longest * (len(batch) + 1) > self._step_tokens):
                break
            batch.append(key)
        return batch

    def _run(self, batch: Seq[tuple[_Key, Submit]]) -> None:
        """Run texts as a batch; if that raises, run both halves, so that only the faulty text fails."""
        if not batch:
            return
        try:
            vectors = self._vectors([request for _, request in batch])
        except torch.AcceleratorError:
            raise
        except Exception as error:  # the engine's top: a bad text must not harm the others
            if len(batch) == 1:
                self._fail(batch[0][0], error)
                return
            vectors = None
        if vectors is None:  # outside of `except`: the traceback would keep the failed step's tensors in memory
            half = len(batch) // 2
            self._run(batch[:half])
            self._run(batch[half:])
            return
        for ((connection, seq), _), vector in zip(batch, vectors, strict=True):
            # LENGTH, as the generating engine reports for a request with `max_new_tokens` 0.
            self._outputs[connection].append(Output(seq, reason=FinishReason.LENGTH, vector=tuple(vector)))

    def _vectors(self, requests: Seq[Submit]) -> list[list[float]]:
        """The vectors of a padded batch, one a request."""
        lengths = [len(request.prompt) for request in requests]
        device = self._model.device
        padding = self._model.config.get_text_config().pad_token_id or 0
        ids = torch.full((len(lengths), max(lengths)), padding)
        for row, request in zip(ids, requests, strict=True):
            row[: len(request.prompt)] = torch.tensor(request.prompt)
        # Padding is on the right, so the positions of a text do not depend on the other texts' lengths.
        seen = [length - request.unattended for length, request in zip(lengths, requests, strict=True)]
        mask = torch.arange(ids.shape[1]) < torch.tensor(seen).unsqueeze(1)
        inputs = {"input_ids": ids.to(device), "attention_mask": mask.long().to(device)}
        if any(request.second for request in requests):
            inputs["token_type_ids"] = _token_types(requests, ids.shape[1]).to(device)
        # Output 0 is `last_hidden_state` or `logits`, whether the model returns a tuple or a `ModelOutput`.
        found: Tensor = self._model(**inputs)[0]
        pooled = [
            rows
            if self._pooler is None
            else rows[:length].flatten()
            if asked.each_token
            else self._pooler.vector(rows[:length], asked.unpooled)
            for rows, length, asked in zip(found, lengths, requests, strict=True)
        ]
        # One transfer from the device for all.
        numbers = iter(torch.cat(pooled).float().tolist())
        return [list(islice(numbers, len(vector))) for vector in pooled]

    def _fail(self, key: _Key, error: Exception) -> None:
        # The trace as text: a log renderer that gets the exception may print local variables, and with them the text.
        trace = "".join(traceback.format_tb(error.__traceback__))
        log.error("sequence.failed", error=repr(error), trace=trace)
        memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
        why = "the engine ran out of memory" if memory else "the engine failed on this sequence"
        self._outputs[key[0]].append(Output(key[1], error=why))


def _token_types(requests: Seq[Submit], width: int) -> Tensor:
    """[texts, width]: 1 for the tokens of a pair's second text, 0 elsewhere; padding's have no effect."""
    second = torch.tensor([request.second or width for request in requests])
    return (torch.arange(width) >= second.unsqueeze(1)).long()
