"""Graphs of decode steps: a step's kernels recorded once for a batch size, and started again by one call.

A graph replays the same kernels on the same addresses. So a step's inputs are copied to where the graph reads them, the
batch is padded to one of a few sizes, and what a kernel must know of lengths it reads on the device. Padding rows have
a spare block of the cache to themselves. Prompts, drafts, images, LoRA adapters and recurrent states run without
graphs.

A graph is used only if its logits are those of the same step without it. Otherwise, or if a step cannot be captured (it
waits for the device, or asks for lengths on the host), one line of the log says why, and no graph is used.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import structlog
import torch
from torch import Tensor

from backends.native.engine.attention.interface import AttentionMetadata
from backends.native.engine.devices import ExtraArrays, send

log = structlog.get_logger()

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes, to which smaller batches are padded."""
VARIABLE = "INTERLINGUA_GRAPHS"

Replay = Callable[[], object]
Forward = Callable[[Tensor, Tensor, AttentionMetadata], Tensor]
"""Tokens, wanted rows and metadata to logits."""


@dataclass(slots=True, eq=False)
class DecodeInputs:
    """A decode step of one token a sequence, on the host: [sequences] each.

    Attributes:
        tokens: the tokens to run.
        positions: their indexes in their sequences.
        slots: of the cache.
        contexts: tokens of each sequence up to the end of the step.
        tables: [sequences * width], blocks.
        width: blocks of a sequence in `tables`.
    """

    tokens: array[int]
    positions: array[int]
    slots: array[int]
    contexts: array[int]
    tables: array[int]
    width: int

    def padded(self, size: int, spare_block: int, block_size: int) -> array[int]:
        """All inputs of a step of `size` sequences, one after the other."""
        lacking = size - len(self.tokens)
        zeros = array("q", bytes(8 * lacking))
        joined = self.tokens + zeros + self.positions + zeros
        joined += self.slots + array("q", [spare_block * block_size]) * lacking
        joined += self.contexts + array("q", [1]) * lacking
        joined += array("q", range(size + 1))  # rows that are wanted, and with one more where sequences begin
        return joined + self.tables + array("q", [spare_block]) * (lacking * self.width)


class _Graph:
    """One captured step: where it reads its inputs, and where it leaves the logits."""

    def __init__(self, inputs: Tensor, replay: Replay, logits: Tensor) -> None:
        self.inputs = inputs
        self.replay = replay
        self.logits = logits


class DecodeGraphs:
    """The graphs of a runner.

    Args:
        forward: runs the model.
        block_size: tokens of a block.
        spare_block: of the cache; no sequence has it.
        capture: records what a function starts on the device; returns what starts it again, and its result.
    """

    def __init__(
        self,
        forward: Forward,
        block_size: int,
        spare_block: int,
        capture: Callable[[Callable[[], Tensor]], tuple[Replay, Tensor]] | None = None,
    ) -> None:
        self._forward = forward
        self._block_size = block_size
        self._spare_block = spare_block
        self._capture = capture or capture_on_cuda
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._usable = True

    def run(self, given: DecodeInputs, device: torch.device, extra: ExtraArrays | None) -> Tensor | None:
        """Logits [sequences, vocabulary]; None: the step must run without a graph, and has changed nothing."""
        size = next((size for size in SIZES if size >= len(given.tokens)), None)
        if size is None or not self._usable:
            return None
        joined = given.padded(size, self._spare_block, self._block_size)
        inputs, *others = send(device, joined, *(extra.arrays if extra is not None else ()))
        found = self._graphs.get((size, given.width))
        if found is None:
            found = self._captured(inputs, size, given.width)
            if found is None:
                return None
            self._graphs[size, given.width] = found
        found.inputs.copy_(inputs)
        found.replay()
        if extra is not None:
            extra.sent = others
        # A copy: the next replay writes to the same place.
        return found.logits[: len(given.tokens)].clone()

    def _captured(self, inputs: Tensor, size: int, width: int) -> _Graph | None:
        held = inputs.clone()

        def step() -> Tensor:
            # Metadata anew for each run: it keeps what layers share within a step.
            return self._forward(*_parts(held, size, width))

        try:
            expected = step()  # without a graph; kernels that must be compiled are compiled here
            replay, logits = self._capture(step)
            replay()
            error = float((logits - expected).abs().max() / expected.abs().max())
            why = None if error <= _TOLERANCES.get(logits.dtype, 0.0) else f"its logits differ by {error:.1e}"
        except torch.AcceleratorError:
            raise
        except Exception as raised:  # a model may do anything that cannot be captured
            why = f"{type(raised).__name__}: {raised}"[:500]
        if why is not None:
            self._usable = False
            self._graphs.clear()
            log.warning("graph.not_used", sequences=size, why=why)
            return None
        return _Graph(held, replay, logits)


# The same kernels on the same numbers; some products choose others within a graph.
_TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def _parts(inputs: Tensor, size: int, width: int) -> tuple[Tensor, Tensor, AttentionMetadata]:
    """Views of `DecodeInputs.padded` on the device."""
    ends = [size, 2 * size, 3 * size, 4 * size, 5 * size + 1]
    tokens, positions, slots, contexts, starts, tables = inputs.tensor_split(ends)
    # Without lengths on the host: what asks for them there cannot be in a graph, and fails.
    metadata = AttentionMetadata(slots, [1] * size, [], tables.view(size, width), positions=positions)
    metadata.device_starts, metadata.device_contexts = starts, contexts
    return tokens, starts[:size], metadata


def capture_on_cuda(step: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
    """Record a step with CUDA's graphs, which ROCm has, too. Never run on real hardware yet."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool()):
        logits = step()
    return graph.replay, logits


@cache
def _pool() -> Any:
    """Memory that all graphs share: one runs at a time, and its logits are copied at once."""
    return torch.cuda.graph_pool_handle()


def are_wanted(device: torch.device) -> bool:
    """Whether graphs are to be used: on CUDA and ROCm, if the operator says so."""
    return device.type == "cuda" and os.environ.get(VARIABLE) == "1"


def can_be_replayed(counts: Sequence[int]) -> bool:
    """Whether a step with so many tokens of each sequence has a shape of which there are graphs."""
    return 0 < len(counts) <= SIZES[-1] and all(count == 1 for count in counts)
