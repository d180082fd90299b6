"""The reference attention kernel, in plain torch: gather the keys and values that a sequence sees from its pages, then
scaled dot-product attention.

It supports every option on every device, and all other kernels must equal it. Sequences in decode (one new token each)
are attended to in batches of similar length; prompts one by one. Padding repeats a slot of the sequence itself: no
sequence ever reads the numbers of another, which might be NaN, not even to multiply them by zero.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.devices import index_tensor

# The most bytes of keys that are gathered at once for sequences in decode. On a CPU as many as stay in its caches:
# larger copies would be made in memory newly mapped by the system, whose page faults took four times as long.
_CPU_BYTES = 1024 * 1024
_DEVICE_BYTES = 64 * 1024 * 1024


@dataclass(slots=True, eq=False, frozen=True)
class Group:
    """Sequences that are attended to in one call; all have equally many new tokens.

    Attributes:
        tokens: [sequences * new], where their new tokens stand in the pack.
        slots: [sequences * keys], where their keys and values stand in the cache.
        mask: [sequences, 1, query heads per key head * new, keys] (or what broadcasts to it), True where a query sees a
            key; None: it sees all, or what `causal` says.
        sequences: how many.
        causal: the group is one whole prompt, for which torch is faster with `is_causal` than with a mask.
    """

    tokens: Tensor
    slots: Tensor
    mask: Tensor | None
    sequences: int
    causal: bool = False

    def split(self, most: int) -> list[Group]:
        """The group in groups of at most `most` sequences; only for sequences of one new token."""
        if self.sequences <= most:
            return [self]
        # Views, no copies: a plan is made once a step and its groups are used in every layer.
        masks = torch.split(self.mask, most) if self.mask is not None else repeat(None)
        slots = torch.split(self.slots.view(self.sequences, -1), most)
        parts = zip(torch.split(self.tokens, most), slots, masks, strict=False)
        return [Group(tokens, rows.flatten(), mask, len(tokens)) for tokens, rows, mask in parts]

    def split_rows(self, rows: Tensor) -> Tensor:
        """Rows of all sequences, as [sequences, rows of each, heads, width]."""
        return rows.view(self.sequences, -1, *rows.shape[1:])


def reference_kernel(
    queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
) -> Tensor:
    """Implements `interface.Kernel`."""
    output = queries.new_empty(*queries.shape[:2], cache.values.shape[2])
    fill(output, queries, cache, block_size, metadata, params)
    return output


def fill(
    output: Tensor,
    queries: Tensor,
    cache: LayerCache,
    block_size: int,
    metadata: AttentionMetadata,
    params: AttentionParams,
    only: tuple[int, ...] | None = None,
) -> None:
    """Write attention's result to `output`, for all sequences or for those whose indices are in `only`."""
    # Query heads for each key head: more than 1 in grouped-query attention (GQA, arXiv 2305.13245).
    sharing = queries.shape[1] // cache.keys.shape[1]
    # Other than plain scores are computed explicitly, which needs a mask even for a whole prompt.
    masked = not params.has_plain_scores
    most_bytes = _CPU_BYTES if queries.device.type == "cpu" else _DEVICE_BYTES
    most_keys = most_bytes // (cache.keys.stride(0) * queries.itemsize)
    # Models may alternate kinds of layers (Gemma: sliding and full attention), so a step can have several plans.
    key = (params.sliding_window, params.chunk, sharing, masked, most_keys, only)
    if key not in metadata.plans:
        metadata.plans[key] = plan(metadata, block_size, *key)
    for group in metadata.plans[key]:
        attended = _attend(
            group.split_rows(queries.index_select(0, group.tokens)),
            group.split_rows(cache.select_keys(group.slots, queries.dtype)),
            group.split_rows(cache.select_values(group.slots, queries.dtype)),
            group,
            params,
        )
        output.index_copy_(0, group.tokens, attended.flatten(0, 1))


def plan(
    metadata: AttentionMetadata,
    block_size: int,
    window: int | None,
    chunk: int | None,
    sharing: int,
    masked: bool,
    most_keys: int,
    only: tuple[int, ...] | None,
) -> list[Group]:
    """Group sequences in decode whose lengths are within a factor of two, up to `most_keys` keys; prompts stay single.

    All sequences, or those whose indices are in `only`.
    """
    alone: list[list[int]] = []
    together: defaultdict[int, list[int]] = defaultdict(list)
    furthest = window or chunk or max(metadata.context_lengths)
    for index in range(len(metadata.query_lengths)) if only is None else only:
        context = metadata.context_lengths[index]
        if metadata.query_lengths[index] > 1:
            alone.append([index])
        else:
            # 2^(bits - 1) < keys <= 2^bits: within a group at most half of what is gathered is padding.
            together[(min(context, furthest) - 1).bit_length()].append(index)
    groups = [_group(metadata, indices, block_size, window, chunk, sharing, masked) for indices in alone]
    for bits, indices in together.items():
        # Each of the sequences gathers up to 2^bits keys, so `most_keys >> bits` of them stay within the bound.
        group = _group(metadata, indices, block_size, window, chunk, sharing, masked)
        groups += group.split(max(1, most_keys >> bits))
    return groups


def _group(
    metadata: AttentionMetadata,
    indices: list[int],
    size: int,
    window: int | None,
    chunk: int | None,
    sharing: int,
    masked: bool,
) -> Group:
    device = metadata.block_tables.device
    new = metadata.query_lengths[indices[0]]
    contexts = [metadata.context_lengths[index] for index in indices]
    # Position of the first key of the block that each sequence's oldest query reaches back to, and the keys from there.
    firsts = []
    if window:
        firsts = [max(0, context - new - window + 1) // size * size for context in contexts]
    elif chunk:
        firsts = [(context - new) // chunk * chunk // size * size for context in contexts]
    lengths = [context - first for context, first in zip(contexts, firsts, strict=True)] if firsts else contexts

    starts = metadata.starts
    tokens = [starts[index] + offset for offset in range(new) for index in indices]  # one index, or one new token
    last = metadata.last_keys.get(indices[0]) if new > 1 else None
    # A chunk that continues a prompt has more keys than queries; torch's `is_causal` aligns the mask at the upper left
    # and would hide the earlier keys.
    causal = last is None and not masked and 1 < new == contexts[0] <= (window or chunk or new)
    own = _own(lengths, device)
    mask = None
    if last is not None:
        mask = _last_key_mask(last.to(device), contexts[0], firsts[0] if firsts else 0, window, sharing)
    elif chunk and not causal:
        mask = _chunk_mask(lengths, firsts, new, chunk, sharing, device)
    elif not causal:
        mask = _mask(lengths, own, new, window, sharing, device)
    tables = metadata.block_tables
    if len(indices) < len(tables):  # else they are all, in order
        tables = tables[index_tensor(indices, device)]
    return Group(
        tokens=index_tensor(tokens, device),
        slots=_slots(tables, firsts, max(lengths), own, size).flatten(),
        mask=mask,
        sequences=len(indices),
        causal=causal,
    )


def _own(lengths: list[int], device: torch.device) -> Tensor | None:
    """[sequences, most keys], True for a key and False for padding; None if nothing is padded."""
    most = max(lengths)
    if min(lengths) == most:
        return None
    return torch.arange(most, device=device) < index_tensor(lengths, device).unsqueeze(1)


def _slots(tables: Tensor, firsts: list[int], most: int, own: Tensor | None, size: int) -> Tensor:
    """[sequences, most keys]: slots from position `firsts` (0 if empty) on; padding repeats a sequence's first slot."""
    device = tables.device
    # A sliding window: drop the blocks that lie wholly before it. `columns` numbers the remaining blocks of each table;
    # the clamp keeps the padding of shorter sequences inside the table.
    if any(firsts):
        columns = index_tensor([first // size for first in firsts], device).unsqueeze(1)
        columns = columns + torch.arange(-(-most // size), device=device)
        tables = tables.gather(1, columns.clamp_(max=tables.shape[1] - 1))
    # Block numbers to slots: every block becomes `size` consecutive ones.
    slots = (tables.unsqueeze(2) * size + torch.arange(size, device=device)).flatten(1)[:, :most]
    return slots if own is None else torch.where(own, slots, slots[:, :1])


def _mask(
    lengths: list[int], own: Tensor | None, new: int, window: int | None, sharing: int, device: torch.device
) -> Tensor | None:
    """See `Group.mask`, for the last `new` tokens of sequences of `lengths` keys."""
    most = max(lengths)
    # Decode without a window sees all of its own keys: only padding has to be hidden.
    if new == 1 and most <= (window or most):
        return None if own is None else own.unsqueeze(1).unsqueeze(1)
    key = torch.arange(most, device=device)
    # Positions count from the first gathered key. The queries are the last `new` positions of each sequence.
    query = index_tensor(lengths, device).view(-1, 1, 1) + torch.arange(-new, 0, device=device).view(1, -1, 1)
    visible = key <= query
    if window is not None:
        visible &= key > query - window
    # Rows repeat for the query heads that `_attend` stacks over one key head.
    return visible.repeat(1, sharing, 1).unsqueeze(1)


def _last_key_mask(last: Tensor, context: int, first: int, window: int | None, sharing: int) -> Tensor:
    """See `Group.mask`, for one sequence whose new tokens see the keys up to `last`; the first gathered is `first`."""
    key = torch.arange(first, context, device=last.device)
    visible = key <= last.unsqueeze(1)
    if window is not None:
        visible &= key > torch.arange(context - len(last), context, device=last.device).unsqueeze(1) - window
    return visible.repeat(sharing, 1).unsqueeze(0).unsqueeze(0)


def _chunk_mask(
    lengths: list[int], firsts: list[int], new: int, chunk: int, sharing: int, device: torch.device
) -> Tensor:
    """See `Group.mask`, for sequences that attend within chunks, whose first gathered keys have positions `firsts`."""
    first = index_tensor(firsts, device).view(-1, 1, 1)
    key = first + torch.arange(max(lengths), device=device)
    query = first + index_tensor(lengths, device).view(-1, 1, 1) + torch.arange(-new, 0, device=device).view(1, -1, 1)
    visible = (key <= query) & (key // chunk == query // chunk)
    return visible.repeat(1, sharing, 1).unsqueeze(1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, group: Group, params: AttentionParams) -> Tensor:
    """[sequences, new or keys, heads, width] each, to [sequences, new, query heads, value width]."""
    if group.causal:
        q, k, v = (rows.transpose(1, 2) for rows in (queries, keys, values))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=params.scale, enable_gqa=True)
        return out.transpose(1, 2)
    count, new, heads, width = queries.shape
    sharing = heads // keys.shape[2]
    # Query heads that share a key head become rows of one matrix: [sequences, key heads, sharing * new, width].
    q = queries.view(count, new, -1, sharing, width).permute(0, 2, 3, 1, 4).flatten(2, 3)
    # Keys and values need no copy for each query head: heads are a batch dimension of torch's function.
    k, v = keys.transpose(1, 2), values.transpose(1, 2)
    if params.has_plain_scores:
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=group.mask, scale=params.scale)
    else:
        out = _explicit(q, k, v, group.mask, params)
    return out.view(count, -1, sharing, new, out.shape[-1]).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, params: AttentionParams) -> Tensor:
    """Attention with explicit scores, for softcap, sinks and ALiBi, which torch's own function does not have."""
    scores = (q @ k.transpose(2, 3)).float() * params.scale
    # Gemma 2's order: scale, then softcap, then mask. A softcap after the mask would turn -inf into a finite score.
    if params.softcap is not None:
        scores = torch.tanh(scores / params.softcap) * params.softcap
    if params.alibi is not None:
        # A query's own position adds the same to all its scores, which the softmax takes no notice of.
        position = torch.arange(1 - k.shape[2], 1, device=k.device)
        slopes = params.alibi.to(k.device).view(1, k.shape[1], -1).repeat_interleave(_rows_per_head(q, params.alibi), 2)
        scores = scores + slopes.unsqueeze(-1) * position
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if params.sinks is None:
        return scores.softmax(-1).to(v.dtype) @ v
    # A sink is one more column of scores, whose weight is dropped: [query heads] to the rows of each key head.
    sinks = params.sinks.float().repeat_interleave(_rows_per_head(q, params.sinks)).view(1, q.shape[1], q.shape[2], 1)
    weights = torch.cat([scores, sinks.expand(len(q), -1, -1, -1)], dim=-1).softmax(-1)[..., :-1]
    return weights.to(v.dtype) @ v


def _rows_per_head(q: Tensor, heads: Tensor) -> int:
    """Rows of one query head, which are consecutive, since `_attend` flattens (sharing, new) in this order."""
    return q.shape[1] * q.shape[2] // len(heads)
