"""Graphs of decode steps: a step's kernels recorded once for a batch size, and started again by one call.

A graph replays the same kernels on the same addresses. So a step's inputs are copied to where all graphs read them, the
batch is padded to one of a few sizes, and what a kernel must know of lengths it reads on the device. Padding rows have
a spare block of the cache to themselves. Steps with LoRA adapters have graphs of their own, in which each row says in
which slot its LoRA adapter is (`lora.slots`). Prompts, drafts and recurrent states run without graphs.

A graph is used only if its logits are those of the same step without it. Otherwise, or if a step cannot be captured (it
waits for the device, or asks for lengths on the host), one line of the log says why, and no graph of its kind is used.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import structlog
import torch
from torch import Tensor

from backends.native.engine.attention.interface import AttentionMetadata
from backends.native.engine.devices import ExtraArrays, refusing_waits, send
from backends.native.engine.lora.slots import NO_SLOT

log = structlog.get_logger()

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes, to which smaller batches are padded."""
VARIABLE = "INTERLINGUA_GRAPHS"
"""0: no graphs."""

Replay = Callable[[], object]
Forward = Callable[[Tensor, Tensor, AttentionMetadata, Tensor, Tensor | None], Tensor]
"""Tokens, wanted rows, metadata, positions, and the slots of LoRA adapters if there are any, to logits."""


@dataclass(slots=True, eq=False)
class DecodeInputs:
    """A decode step of one token a sequence, on the host: [sequences] each.

    Attributes:
        tokens: the tokens to run.
        places: their indexes in their sequences.
        positions: those that the model encodes: `places`, but behind images some models count otherwise.
        slots: of the cache.
        contexts: tokens of each sequence up to the end of the step.
        tables: [sequences * width], blocks.
        width: blocks of a sequence in `tables`.
        lora: the slots of LoRA adapters, of a step in which any row has one; else empty.
    """

    tokens: array[int]
    places: array[int]
    positions: array[int]
    slots: array[int]
    contexts: array[int]
    tables: array[int]
    width: int
    lora: array[int]

    @classmethod
    def nothing(cls, lora: array[int]) -> DecodeInputs:
        """A step that is all padding, with LoRA adapters."""
        none = array("q")
        return cls(none, none, none, none, none, none, width=1, lora=lora)

    def padded(self, size: int, spare_block: int, block_size: int) -> tuple[array[int], array[int]]:
        """All but the tables of a step of `size` sequences, one after the other; and the tables."""
        lacking = size - len(self.tokens)
        zeros = array("q", bytes(8 * lacking))
        joined = self.tokens + zeros + self.places + zeros + self.positions + zeros
        joined += self.slots + array("q", [spare_block * block_size]) * lacking
        joined += self.contexts + array("q", [1]) * lacking
        joined += array("q", range(size + 1))  # rows that are wanted, and with one more where sequences begin
        if self.lora:
            joined += self.lora + array("q", [NO_SLOT]) * (size - len(self.lora))
        return joined, self.tables + array("q", [spare_block]) * (lacking * self.width)


class _Unknown(list[int]):
    """Lengths that are known on the device only: what asks for them on the host cannot be in a graph."""

    def __iter__(self) -> NoReturn:
        raise NotImplementedError("its attention reads the lengths of sequences on the host")


@dataclass(slots=True, eq=False, frozen=True)
class _Graph:
    """One captured step: what starts it again, and where it leaves the logits."""

    replay: Replay
    logits: Tensor


class DecodeGraphs:
    """The graphs of a runner.

    Args:
        forward: runs the model.
        device: where it runs.
        block_size: tokens of a block.
        spare_block: of the cache; no sequence has it.
        sequences: the most of a step.
        width: of the widest tables.
        capture: records what a function starts on the device; returns what starts it again, and its result.
    """

    def __init__(
        self,
        forward: Forward,
        device: torch.device,
        block_size: int,
        spare_block: int,
        sequences: int,
        width: int,
        capture: Callable[[Callable[[], Tensor]], tuple[Replay, Tensor]] | None = None,
    ) -> None:
        self._forward = forward
        self._device = device
        self._block_size = block_size
        self._spare_block = spare_block
        self._sizes = [size for size in SIZES if size < sequences]
        self._sizes += [size for size in SIZES if size >= sequences][:1]
        self._capture = capture or capture_on_cuda
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        """By the size, and whether rows have LoRA adapters."""
        # Where all graphs read: the numbers of `padded`, and the tables, whose rows are as long as the longest context.
        most = self._sizes[-1]
        self._numbers = torch.zeros(_numbers_of(most), dtype=torch.int64, device=device)
        self._tables = torch.zeros(most, width, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture a step of each size, so that no request waits for it."""
        self._graphs.clear()
        self._capture_each(array("q"))

    @torch.inference_mode()
    def capture_lora(self, slots: int) -> bool:
        """Capture a step of each size whose rows may have the LoRA adapters in so many slots.

        Returns:
            whether there is one of each size.
        """
        self._graphs = {key: graph for key, graph in self._graphs.items() if not key[1]}
        # If the model cannot be captured without LoRA adapters, it cannot with them.
        return bool(self._graphs and slots) and self._capture_each(array("q", range(slots)))

    def _capture_each(self, lora: array[int]) -> bool:
        """Capture a step of each size, its rows by turns with these slots, if any; keep all or none."""
        found: dict[tuple[int, bool], _Graph] = {}
        for size in reversed(self._sizes):  # the largest first: the others fit into its memory
            self._place(DecodeInputs.nothing((lora * size)[:size]), size, None)
            graph = self._captured(size, with_lora=bool(lora))
            if graph is None:
                return False
            found[size, bool(lora)] = graph
        self._graphs |= found
        return True

    def forget(self) -> None:
        """Drop what was captured."""
        self._graphs.clear()

    def run(self, given: DecodeInputs, extra: ExtraArrays | None) -> Tensor | None:
        """Logits [sequences, vocabulary]; None: the step must run without a graph, and has changed nothing."""
        size = next((size for size in self._sizes if size >= len(given.tokens)), 0)
        graph = self._graphs.get((size, bool(given.lora)))
        if graph is None:
            return None
        self._place(given, size, extra)
        graph.replay()
        # A copy: the next replay writes to the same place.
        return graph.logits[: len(given.tokens)].clone()

    def _place(self, given: DecodeInputs, size: int, extra: ExtraArrays | None) -> None:
        """Copy a step's inputs to where graphs read them, and send `extra` with them."""
        joined, tables = given.padded(size, self._spare_block, self._block_size)
        others = extra.arrays if extra is not None else ()
        numbers, blocks, *sent = send(self._device, joined, tables, *others)
        if extra is not None:
            extra.sent = sent
            extra.fill_in(numbers[: len(given.tokens)])
        self._numbers[: len(numbers)].copy_(numbers)
        self._tables[:size, : given.width].copy_(blocks.view(size, given.width))

    def _captured(self, size: int, *, with_lora: bool) -> _Graph | None:
        def step() -> Tensor:
            # Metadata anew for each run: it keeps what layers share within a step.
            return self._forward(*_parts(self._numbers, self._tables, size, with_lora=with_lora))

        try:
            step()  # compiles kernels that must be compiled
            # A step that waits is found before: within a capture that would leave torch's generator unusable.
            with refusing_waits(self._device):
                expected = step()
            replay, logits = self._capture(step)
            replay()
            error = float((logits - expected).abs().max() / expected.abs().max())
            why = None if error <= _TOLERANCES.get(logits.dtype, 0.0) else f"its logits differ by {error:.1e}"
        except Exception as raised:  # a model may do anything that cannot be captured
            if isinstance(raised, torch.AcceleratorError) and _code_of(raised) not in _CAPTURE_ERRORS:
                raise
            why = f"{type(raised).__name__}: {raised}"[:500]
        if why is not None:
            log.warning("graph.not_used", sequences=size, lora=with_lora, why=why)
            return None
        return _Graph(replay, logits)


# Of CUDA and HIP: a step did what cannot be captured, and the device is well.
_CAPTURE_ERRORS = range(900, 909)
# The same kernels on the same numbers; some products choose others within a graph.
_TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def _code_of(error: torch.AcceleratorError) -> int:
    return int(getattr(error, "error_code", 0))  # which torch's types do not have


def _numbers_of(size: int) -> int:
    """The most numbers that `DecodeInputs.padded` makes of a step of `size` sequences, beside its tables."""
    return 7 * size + 1


def _parts(
    numbers: Tensor, tables: Tensor, size: int, *, with_lora: bool
) -> tuple[Tensor, Tensor, AttentionMetadata, Tensor, Tensor | None]:
    """Views of `DecodeInputs.padded` on the device, as the arguments of `Forward`."""
    tokens, places, positions, slots, contexts = numbers[: 5 * size].view(5, size)
    starts = numbers[5 * size : 6 * size + 1]
    metadata = AttentionMetadata(slots, [1] * size, _Unknown(), tables[:size], positions=places)
    metadata.device_starts, metadata.device_contexts = starts, contexts
    return tokens, starts[:size], metadata, positions, numbers[6 * size + 1 : 7 * size + 1] if with_lora else None


def capture_on_cuda(step: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
    """Record a step with CUDA's graphs, which ROCm has, too."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool()):
        logits = step()
    return graph.replay, logits


@cache
def _pool() -> Any:
    """Memory that all graphs share: one runs at a time, and its logits are copied at once."""
    return torch.cuda.graph_pool_handle()


def are_wanted(device: torch.device) -> bool:
    """Whether graphs are to be used: on CUDA and ROCm, unless the operator says that they are not."""
    return device.type == "cuda" and os.environ.get(VARIABLE) != "0"
