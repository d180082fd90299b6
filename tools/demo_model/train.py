"""Train the demo model: ``python -m tools.demo_model.train --out DIR``, on a CPU or an accelerator.

Three stages, counted in steps, so a seed and a thread count fix the result up to float rounding:

1. copying: repeated random tokens train the copy circuit that ``model.py`` wrote;
2. vision: each patch names the colour and form on it, and the image's background;
3. chats: the tower is frozen (trained on, it forgets shapes) and projector and language model learn to talk, in
   three cycles. Some batches are copying again, and the rate is halved, or copying would be lost within 100 steps.

``--resume DIR`` runs the last cycle only, from a checkpoint. With ``--minutes`` time takes the place of the steps of a
cycle, and with ``--workers`` processes draw the samples: what comes out then depends on the machine, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import structlog
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import AutoTokenizer, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from tools.demo_model.batches import IGNORED, Batch, copying_batch, to_pixels, training_batches
from tools.demo_model.checkpoint import save
from tools.demo_model.model import GRID, build_model
from tools.demo_model.samples.image_chats import IMAGE_SIZE
from tools.demo_model.samples.mix import BROAD, FILLING, TOOL_HEAVY, Mix
from tools.demo_model.samples.scenes import BACKGROUNDS, COLORS, FORMS, draw_scene, patch_classes, render
from tools.demo_model.tokenizer import train_tokenizer

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Cycle:
    """One pass of the chat stage, its rate raised and lowered once."""

    name: str
    mix: Mix
    steps: int
    peak_rate: float = 1e-3
    hold: float = 0.3
    """The share of it before the rate falls."""
    batch: int = 32
    seconds: float | None = None
    """What it takes in place of ``steps``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each stage trains and on how much per step."""

    seed: int = 0
    copying_steps: int = 250
    vision_steps: int = 1_200
    chat_cycles: tuple[Cycle, ...] = (
        Cycle("chats", BROAD, 3_800),
        Cycle("more tools", TOOL_HEAVY, 3_400),
        Cycle("schemas", FILLING, 4_712, batch=256),
        Cycle("spellings", FILLING, 729, peak_rate=4e-4, hold=0.2, batch=64),
    )
    copying_batch: int = 24
    vision_batch: int = 96
    checkpoint_every: int = 500
    device: str = "cpu"
    workers: int = 0
    """Processes that draw the samples of chats; none: this one does."""


SMOKE = Plan(
    copying_steps=2,
    vision_steps=2,
    chat_cycles=(Cycle("chats", BROAD, 2, batch=2), Cycle("schemas", FILLING, 2, batch=2)),
    copying_batch=2,
    vision_batch=2,
    checkpoint_every=2,
)
"""Two steps of each stage, to test that the script runs."""


def train(plan: Plan, out: Path) -> None:
    """Train by ``plan`` and write a checkpoint folder to ``out``, again every few hundred steps."""
    tokenizer = train_tokenizer(plan.seed)
    model = build_model(plan.seed).to(plan.device)
    train_copying(model, plan)
    train_vision(model, plan)
    for cycle in plan.chat_cycles:
        train_chats(model, tokenizer, plan, cycle, out)


def resume(plan: Plan, checkpoint: Path, out: Path) -> None:
    """Train a checkpoint by the last of ``plan``'s cycles and write it to ``out``."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    model = LlavaForConditionalGeneration.from_pretrained(checkpoint, local_files_only=True, dtype=torch.float32)
    train_chats(model.to(plan.device), tokenizer, plan, plan.chat_cycles[-1], out)


def train_copying(model: LlavaForConditionalGeneration, plan: Plan) -> None:
    """Stage 1: ``prefix S separator S`` of random tokens; only the second S is learned."""
    stage = Stage("copying", model.model.language_model.parameters(), plan.copying_steps, weight_decay=0.02)
    generator = torch.Generator().manual_seed(plan.seed)
    while stage.running:
        loss, accuracy = answer_loss(model, copying_batch(generator, plan.copying_batch))
        stage.step(loss, accuracy=accuracy)


def train_vision(model: LlavaForConditionalGeneration, plan: Plan) -> None:
    """Stage 2: the tower with a linear head per patch, which is discarded afterwards."""
    tower = model.model.vision_tower
    sizes = (len(COLORS) + 1, len(FORMS) + 1, len(BACKGROUNDS))
    head = nn.Linear(tower.config.hidden_size, sum(sizes)).to(plan.device)
    stage = Stage("vision", [*tower.parameters(), *head.parameters()], plan.vision_steps)
    rng = Random(f"{plan.seed}:vision")
    while stage.running:
        scenes = [draw_scene(rng) for _ in range(plan.vision_batch)]
        pixels = to_pixels([render(scene, rng, IMAGE_SIZE, IMAGE_SIZE) for scene in scenes]).to(plan.device)
        classes = torch.from_numpy(np.stack([patch_classes(scene, GRID) for scene in scenes]))
        truth = classes.flatten(0, 1).to(plan.device)
        guesses = head(tower(pixels).last_hidden_state[:, 1:]).flatten(0, 1).split(sizes, dim=-1)
        covered = truth[:, 0] > 0
        right = (guesses[1].argmax(-1) == truth[:, 1])[covered].float().mean()
        stage.step(_patch_loss(guesses, truth, covered), form_accuracy=right)


def train_chats(
    model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, plan: Plan, cycle: Cycle, out: Path
) -> None:
    """Stage 3: all chats and completions; loss on the answers."""
    model.model.vision_tower.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batches = iter(_batches(tokenizer, plan, cycle))
    stage = Stage(cycle.name, trained, cycle.steps, peak_rate=cycle.peak_rate, hold=cycle.hold, seconds=cycle.seconds)
    while stage.running:
        batch = next(batches)
        loss, accuracy = answer_loss(model, batch)
        stage.step(loss, **{f"{batch.kind}_accuracy": accuracy})
        if stage.done % plan.checkpoint_every == 0 or not stage.running:
            save(model, tokenizer, out)


class _Samples(IterableDataset[Batch]):
    """Batches of one cycle; each process that iterates draws others."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, plan: Plan, cycle: Cycle) -> None:
        self._tokenizer, self._plan, self._cycle = tokenizer, plan, cycle

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        seed = f"{self._plan.seed}:{self._cycle.name}" + (f":{worker.id}" if worker else "")
        return training_batches(self._tokenizer, Random(seed), self._cycle.mix, self._cycle.batch)


def _batches(tokenizer: PreTrainedTokenizerFast, plan: Plan, cycle: Cycle) -> DataLoader[Batch]:
    samples = _Samples(tokenizer, plan, cycle)
    if not plan.workers:
        return DataLoader(samples, batch_size=None)
    # Some batches take much longer than others: whichever is there is next.
    return DataLoader(samples, batch_size=None, num_workers=plan.workers, prefetch_factor=6, in_order=False)


def answer_loss(model: LlavaForConditionalGeneration, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy and accuracy over the labelled tokens only; logits of others are never computed.

    Where a grammar held the answer, the tokens that it did not allow take no part in either.
    """
    device = model.device
    labels = functional.pad(batch.labels[:, 1:], (0, 1), value=IGNORED).flatten()
    learnt = (labels != IGNORED).nonzero().squeeze(1)  # found on the CPU: an accelerator would have to be waited for
    pixels = None if batch.pixels is None else batch.pixels.to(device)
    hidden = model.model(input_ids=batch.ids.to(device), pixel_values=pixels, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden.flatten(0, 1)[learnt.to(device)])
    labels = labels[learnt].to(device)
    if batch.allowed is not None:
        bits = batch.allowed.to(device).unsqueeze(-1) >> torch.arange(32, device=device) & 1
        logits = logits.masked_fill(bits.flatten(1) == 0, -torch.inf)
    return functional.cross_entropy(logits, labels), (logits.argmax(-1) == labels).float().mean()


class Stage:
    """AdamW over some parameters with warm-up and linear decay, and a log line every 50 steps."""

    def __init__(
        self,
        name: str,
        parameters: Iterable[nn.Parameter],
        steps: int,
        peak_rate: float = 2e-3,
        weight_decay: float = 0.05,
        hold: float = 0.0,
        seconds: float | None = None,
    ) -> None:
        """``hold`` is the share before the decay begins, of ``steps`` or else of ``seconds``."""
        self.done = 0
        self._name, self._steps, self._peak_rate, self._hold = name, steps, peak_rate, hold
        self._seconds = seconds
        self._parameters = list(parameters)
        matrices = [parameter for parameter in self._parameters if parameter.ndim >= 2]
        others = [parameter for parameter in self._parameters if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=peak_rate, betas=(0.9, 0.98), fused=True)
        self._seen: dict[str, list[Tensor]] = {}
        self._started = (time.monotonic(), time.process_time())

    @property
    def running(self) -> bool:
        """Whether steps, or seconds, are left."""
        return self._progress < 1

    def step(self, loss: Tensor, **metrics: Tensor) -> None:
        """One update of the parameters; ``metrics`` are averaged into the log."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self.done += 1
        for name, value in {"loss": loss, **metrics}.items():
            self._seen.setdefault(name, []).append(value.detach())
        if self.done % 50 == 0 or not self.running:
            self._report()

    @property
    def _progress(self) -> float:
        if self._seconds is None:
            return self.done / self._steps
        return (time.monotonic() - self._started[0]) / self._seconds

    def _rate(self) -> float:
        progress = self._progress
        warm_up = min(1.0, (self.done + 1) / 100)
        decay = 1.0 if progress < self._hold else max(0.01, (1 - progress) / (1 - self._hold))
        return self._peak_rate * warm_up * decay

    def _report(self) -> None:
        wall, cpu = time.monotonic() - self._started[0], time.process_time() - self._started[1]
        means = {name: round(torch.stack(values).mean().item(), 4) for name, values in self._seen.items()}
        log.info("stage.advanced", stage=self._name, step=self.done, wall_s=round(wall), cpu_s=round(cpu), **means)
        self._seen.clear()


def _patch_loss(guesses: tuple[Tensor, ...], truth: Tensor, covered: Tensor) -> Tensor:
    """Cross-entropy of colour, form and background; empty patches, the easy majority, count less."""
    weights = torch.where(covered, 1.0, 0.15)
    losses = [
        functional.cross_entropy(guess, answer, reduction="none")
        for guess, answer in zip(guesses, truth.unbind(-1), strict=True)
    ]
    return (torch.stack(losses).sum(0) * weights).sum() / weights.sum()


def main(arguments: list[str] | None = None, run: Callable[[Plan, Path], None] = train) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train Interlingua's demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the checkpoint to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", type=Path, help="checkpoint to train by the last cycle only")
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw the samples of chats")
    parser.add_argument("--batch", type=int, help="chats per step, in place of each cycle's")
    parser.add_argument("--minutes", type=float, help="what each cycle of chats takes, in place of its steps")
    parser.add_argument("--smoke", action="store_true", help="two tiny steps of each stage")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")  # TF32, where a device has it
    plan = SMOKE if options.smoke else Plan(seed=options.seed)
    changed = {"batch": options.batch, "seconds": options.minutes and options.minutes * 60}
    changed = {name: value for name, value in changed.items() if value is not None}
    cycles = tuple(replace(cycle, **changed) for cycle in plan.chat_cycles)
    plan = replace(plan, chat_cycles=cycles, device=options.device, workers=options.workers)
    if options.resume:
        resume(plan, options.resume, options.out)
    else:
        run(plan, options.out)


if __name__ == "__main__":
    main()
