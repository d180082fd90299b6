"""Triton's kernels as the pretended device runs them: the same arguments, by the reference, and nothing of the host."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.native.engine.attention import accelerated
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.layers import accelerated as accelerated_layers
from backends.native.engine.layers import reference
from backends.native.engine.sampling import accelerated as accelerated_sampling
from backends.native.engine.sampling import gumbel, logits_warpers
from tests.backends.native.engine.pretended.device import PretendedDevice


def pretend_triton(patch: pytest.MonkeyPatch, device: PretendedDevice) -> None:
    """Have Triton's routines run on `device`."""

    def paged_attention(
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: Tensor,
        starts: Tensor,
        contexts: Tensor,
        sinks: Tensor | None,
        scales: tuple[Tensor, Tensor] | None,
        alibi: Tensor | None,
        **options: float,
    ) -> Tensor:
        output = queries.new_empty(*queries.shape[:2], values.shape[2])
        given = (output, queries, keys, values, tables, starts, contexts)
        more = {"sinks": sinks, "alibi": alibi} | dict(zip(("key_scales", "value_scales"), scales or (), strict=False))
        more = {name: each for name, each in more.items() if each is not None}
        device.launch("attend", _attend, *given, *more.values(), options, tuple(more))
        device.launch("combine", lambda _: None, output)
        return output

    patch.setattr(accelerated, "_routine", lambda: paged_attention)
    patch.setattr(accelerated, "is_right", lambda *_: True)
    patch.setattr(accelerated_sampling, "_routine", lambda name: partial(_sample, device, name))
    patch.setattr(accelerated_sampling, "is_right", lambda _: True)
    patch.setattr(accelerated_layers, "_routine", lambda name: partial(_launched, device, name))
    patch.setattr(accelerated_layers, "right_ones", lambda _device, _dtype, names: frozenset(names))


def _sample(device: PretendedDevice, name: str, scores: Tensor, *given: Tensor) -> None:
    """A routine of sampling as one kernel, by torch's equivalent."""

    def mask(scores: Tensor, counts: Tensor, masses: Tensor) -> None:
        logits_warpers.mask_top_k_top_p(scores, counts.tolist(), masses.tolist())

    routine = {"add_gumbel_noise": gumbel.add_gumbel_noise, "mask_top_k_top_p": mask}[name]
    device.launch(name, routine, scores, *given)


def _launched(device: PretendedDevice, name: str, *given: Any) -> Any:
    """A routine of fused layers as one kernel, by torch's equivalent."""
    routine = getattr(reference, name)
    if name == "rotate_and_store":
        *first, (query_norm, key_norm), slots, keys, values, heads, epsilon = given
        norms = () if query_norm is None else (query_norm, key_norm)

        def rotate(*raw: Any) -> None:
            routine(*raw[:3], raw[6:-2] or (None, None), *raw[3:6], *raw[-2:])

        device.launch(name, rotate, *first, slots, keys, values, *norms, heads, epsilon)
        return None
    numbers = [each for each in given if isinstance(each, Tensor)]
    plain = given[len(numbers) :]  # an epsilon
    width = given[0].shape[-1] // (2 if name.endswith("_and_mul") else 1)
    if name == "multiply_int8":
        width = len(given[1])
    made = [given[0].new_empty(*given[0].shape[:-1], width) for _ in range(2 if name == "add_rms_norm" else 1)]

    def compute(*raw: Any) -> None:
        found = routine(*raw[len(made) :])
        for target, each in zip(raw, found if isinstance(found, tuple) else (found,), strict=False):
            target.copy_(each)

    device.launch(name, compute, *made, *numbers, *plain)
    return tuple(made) if len(made) > 1 else made[0]


def _attend(*raw: Any) -> None:
    output, queries, keys, values, tables, starts, contexts, *more, options, names = raw
    by_name: dict[str, Tensor] = dict(zip(names, more, strict=True))
    scales = [by_name.pop(name) for name in ("key_scales", "value_scales") if name in by_name]
    counts = [end - begin for begin, end in pairwise(starts.tolist())]
    metadata = AttentionMetadata(torch.empty(0), counts, contexts.tolist(), tables)
    params = AttentionParams(
        options["scale"],
        int(options["window"]) or None,
        options["softcap"] or None,
        chunk=int(options["chunk"]) or None,
        **by_name,
    )
    output.copy_(reference_kernel(queries, LayerCache(keys, values, *scales), int(options["page"]), metadata, params))
