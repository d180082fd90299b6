"""The kernels against attention written out, for every option alone and all together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams, Kernel
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.attention.registry import best_kernel

pytestmark = pytest.mark.torch

SIZE = 4
QUERIES = (1, 5, 9, 1, 3, 1, 1)
CONTEXTS = (1, 5, 14, 30, 17, 30, 21)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, params: AttentionParams) -> torch.Tensor:
    """One sequence, one head, one query at a time, in float64."""
    tokens, heads, _ = q.shape
    out = torch.empty(tokens, heads, v.shape[-1], dtype=torch.float64)
    for token in range(tokens):
        position = len(k) - tokens + token
        first = 0 if params.sliding_window is None else max(0, position - params.sliding_window + 1)
        for head in range(heads):
            shared = head // (heads // k.shape[1])
            scores = (k[first : position + 1, shared].double() @ q[token, head].double()) * params.scale
            if params.softcap is not None:
                scores = params.softcap * torch.tanh(scores / params.softcap)
            weights = scores.exp()
            total = weights.sum() + (params.sinks[head].double().exp() if params.sinks is not None else 0)
            out[token, head] = (weights / total) @ v[first : position + 1, shared].double()
    return out.float()


@pytest.mark.parametrize("kernel", [reference_kernel, best_kernel])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sliding_window": 6},
        {"sliding_window": 1},
        {"softcap": 2.0},
        {"sinks": True},
        {"sliding_window": 6, "softcap": 2.0, "sinks": True},
    ],
)
@pytest.mark.parametrize("value_width", [8, 12])
def test_it_equals_attention_written_out(
    kernel: Kernel, heads: tuple[int, int], options: dict[str, Any], value_width: int
) -> None:
    torch.manual_seed(0)
    sinks = torch.randn(heads[0]) if options.get("sinks") else None
    params = AttentionParams(**{"scale": 0.4, **options, "sinks": sinks})
    queries = [torch.randn(count, heads[0], 8) for count in QUERIES]
    keys = [torch.randn(count, heads[1], 8) for count in CONTEXTS]
    values = [torch.randn(count, heads[1], value_width) for count in CONTEXTS]

    most = -(-max(CONTEXTS) // SIZE)
    tables = torch.randperm(len(CONTEXTS) * most).view(len(CONTEXTS), most)
    slots = [
        torch.tensor([int(row[p // SIZE]) * SIZE + p % SIZE for p in range(n)])
        for row, n in zip(tables, CONTEXTS, strict=True)
    ]
    layer = KVCache(tables.numel(), SIZE).layer(0, keys[0], values[0])
    layer.keys.fill_(float("nan"))  # what was never written must not be read into the result
    layer.values.fill_(float("nan"))
    layer.write(torch.cat(slots), torch.cat(keys), torch.cat(values))

    metadata = AttentionMetadata(torch.empty(0), list(QUERIES), list(CONTEXTS), tables)
    found = kernel(torch.cat(queries), layer, SIZE, metadata, params)
    expected = torch.cat([dense(q, k, v, params) for q, k, v in zip(queries, keys, values, strict=True)])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
