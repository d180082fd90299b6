"""The engine of models that make vectors and no text: texts in, in padded batches through an encoder, vectors out.

Takes the same messages as `loop.Engine`, and is stepped the same way. A text is run whole, in one step, and leaves
nothing behind. Each step the text that has waited longest is run, beside others of about its length.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Sequence as Seq
from typing import Any

import structlog
import torch
from torch import Tensor

from backends.native.engine.pooling.pooler import Pooler
from backends.native.protocol.messages import Cancel, Output, Ping, Pong, Step, Submit, ToEngine
from schemas.ir import FinishReason

log = structlog.get_logger()

_Key = tuple[int, int]


class EncoderEngine:
    """Runs texts of several connections.

    Args:
        model: of transformers, whose first output is its last hidden states.
        pooler: makes vectors of them.
        vocab_size: token ids a text may hold.
        context_length: the most tokens of one.
        step_tokens: the most tokens of a step, padding among them, unless a single text has more.
        max_sequences: the most texts of a step.
        max_waiting: the most texts that wait; beyond, they are refused.
    """

    def __init__(
        self,
        model: Any,
        pooler: Pooler,
        *,
        vocab_size: int,
        context_length: int,
        step_tokens: int,
        max_sequences: int,
        max_waiting: int,
    ) -> None:
        self._model = model
        self._pooler = pooler
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._step_tokens = step_tokens
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._waiting: dict[_Key, Submit] = {}
        self._outputs: defaultdict[int, list[Output]] = defaultdict(list)

    @property
    def busy(self) -> bool:
        """Whether `step` would do or tell anything."""
        return bool(self._waiting or self._outputs)

    def handle(self, connection: int, message: ToEngine) -> Pong | None:
        """Take a worker's message; the answer to a `Ping` is returned."""
        match message:
            case Submit():
                self.submit(connection, message)
            case Cancel():
                self._waiting.pop((connection, message.seq), None)
            case Ping():
                return Pong(message.token, waiting=len(self._waiting))
        return None

    def submit(self, connection: int, request: Submit) -> None:
        """Take a text, or tell in the next step why not."""
        waiting = len(self._waiting)
        if (why := self._refusal(request)) is not None:
            self._outputs[connection].append(Output(request.seq, error=why))
        elif waiting >= self._max_waiting and not request.again:
            why = f"{waiting} sequences are waiting already"
            self._outputs[connection].append(Output(request.seq, error=why, overloaded=True))
        else:
            self._waiting[connection, request.seq] = request

    def disconnect(self, connection: int) -> None:
        """Forget all texts of a worker that is gone."""
        self._waiting = {key: request for key, request in self._waiting.items() if key[0] != connection}
        self._outputs.pop(connection, None)

    def step(self) -> dict[int, Step]:
        """Run one step: the vectors that each connection gets.

        Raises:
            torch.AcceleratorError: the device is lost; the process had better end.
        """
        batch = self._batch()
        with torch.inference_mode():
            self._run([(key, self._waiting.pop(key)) for key in batch])
        outputs, self._outputs = self._outputs, defaultdict(list)
        return {connection: Step(tuple(told)) for connection, told in outputs.items()}

    def _refusal(self, request: Submit) -> str | None:
        if not request.pool or request.max_new_tokens:
            return "the model makes vectors, and no text"
        if not 0 < len(request.prompt) <= self._context_length:
            return f"a text must have from 1 to {self._context_length} tokens"
        if min(request.prompt) < 0 or max(request.prompt) >= self._vocab_size:
            return f"token ids must be from 0 to {self._vocab_size - 1}"
        return None

    def _batch(self) -> list[_Key]:
        """What to run: the oldest, and whoever costs least padding beside it."""
        if not self._waiting:
            return []
        oldest = len(next(iter(self._waiting.values())).prompt)
        lengths = {key: len(request.prompt) for key, request in self._waiting.items()}
        batch: list[_Key] = []
        longest = 0
        for key in sorted(lengths, key=lambda key: abs(lengths[key] - oldest)):
            longest = max(longest, lengths[key])
            if batch and (len(batch) == self._max_sequences or longest * (len(batch) + 1) > self._step_tokens):
                break
            batch.append(key)
        return batch

    def _run(self, batch: Seq[tuple[_Key, Submit]]) -> None:
        """Run texts together; those that fail again in halves, down to the one whose fault it is."""
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
        if vectors is None:  # only now: the error held on to the failed step's memory
            half = len(batch) // 2
            self._run(batch[:half])
            self._run(batch[half:])
            return
        for ((connection, seq), _), vector in zip(batch, vectors, strict=True):
            self._outputs[connection].append(Output(seq, reason=FinishReason.LENGTH, vector=tuple(vector)))

    def _vectors(self, requests: Seq[Submit]) -> list[list[float]]:
        lengths = [len(request.prompt) for request in requests]
        device = self._model.device
        padding = self._model.config.get_text_config().pad_token_id or 0
        ids = torch.full((len(lengths), max(lengths)), padding)
        for row, request in zip(ids, requests, strict=True):
            row[: len(request.prompt)] = torch.tensor(request.prompt)
        mask = torch.arange(ids.shape[1]) < torch.tensor(lengths).unsqueeze(1)
        states: Tensor = self._model(input_ids=ids.to(device), attention_mask=mask.long().to(device))[0]
        vectors: list[list[float]] = torch.stack(
            [
                self._pooler.vector(rows[:length], request.unpooled)
                for rows, length, request in zip(states, lengths, requests, strict=True)
            ]
        ).tolist()
        return vectors

    def _fail(self, key: _Key, error: Exception) -> None:
        # The trace as text: a renderer given the exception might print local variables, and so the text.
        trace = "".join(traceback.format_tb(error.__traceback__))
        log.error("sequence.failed", error=repr(error), trace=trace)
        memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
        why = "the engine ran out of memory" if memory else "the engine failed on this sequence"
        self._outputs[key[0]].append(Output(key[1], error=why))
