"""The selective scan of Mamba (arXiv 2312.00752, algorithm 2) from an initial state, in plain torch.

transformers' own starts from zeros, which is right for a whole prompt and wrong for its second chunk. Here the initial
states come from the group of sequences that a module is called for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.state.functions import with_functions
from backends.native.engine.state.step import StateView

NAME = "mamba_selective_scan"
"""The name of transformers' function, whose place this one takes."""
_SPAN = 64
"""Tokens whose discretized inputs, [channels, state] floats each, are made at once."""


def starting_from(states: StateView, module: Any, own: Callable[..., Any]) -> Callable[..., Any]:
    """`own`, the forward of a Mamba layer of transformers, with scans that start from its states."""
    state = states.get_recurrent_state(module.layer_idx)
    # Zamba scans once for each of its heads, [batch, heads, channels, state].
    initial = iter((state,) if state is None or state.dim() < 4 else state.unbind(1))
    return with_functions(own, {NAME: partial(selective_scan, initial)})


def selective_scan(
    initial: Iterator[Tensor | None],
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803 - transformers' names, by which it is called
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor,  # noqa: N803
    z: Tensor,
    delta_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The outputs [batch, channels, tokens] and the state after them [batch, channels, state].

    Args:
        initial: yields the state before the first token, [batch, channels, state]; None: zeros.
        hidden_states: [batch, channels, tokens].
        dt: [batch, channels, tokens], before bias and softplus.
        A: [channels, state].
        B: [batch, state, tokens].
        C: [batch, state, tokens].
        D: [channels], the factor of the input in the output.
        z: [batch, channels, tokens], the gate.
        delta_bias: [channels], added to `dt`.
    """
    state = next(initial, None)
    if state is None:
        state = hidden_states.new_zeros(*hidden_states.shape[:2], A.shape[-1])
    steps = functional.softplus(dt if delta_bias is None else dt + delta_bias.to(dt.dtype).unsqueeze(-1))
    outputs = []
    # In spans: for a whole prompt the discretized inputs would be the largest tensors of the model.
    parts = (torch.split(each, _SPAN, dim=-1) for each in (hidden_states, steps, B, C))
    for inputs, step, into, out in zip(*parts, strict=True):
        # [tokens, batch, channels, state] each.
        decay = torch.exp(step.permute(2, 0, 1).unsqueeze(-1) * A)
        added = (step * inputs).float().permute(2, 0, 1).unsqueeze(-1) * into.float().permute(2, 0, 1).unsqueeze(2)
        states = []
        for token in range(len(added)):
            state = decay[token] * state + added[token]
            states.append(state)
        all_states = torch.stack(states).to(hidden_states.dtype)
        outputs.append((all_states @ out.permute(2, 0, 1).unsqueeze(-1)).squeeze(-1).permute(1, 2, 0))
    scanned = torch.cat(outputs, dim=-1) + hidden_states * D.unsqueeze(-1)
    return scanned * functional.silu(z), state
