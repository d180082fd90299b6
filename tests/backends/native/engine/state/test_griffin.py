"""The gated linear recurrence in decode gives what transformers' module gives, and moves the states on alike."""

from __future__ import annotations

import pytest
import torch
from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

from backends.native.engine.state import griffin

pytestmark = pytest.mark.torch
SEQUENCES, HEADS, WIDTH = 3, 4, 24


def recurrence(dtype: torch.dtype) -> RecurrentGemmaRglru:
    torch.manual_seed(0)
    made = RecurrentGemmaRglru(RecurrentGemmaConfig(lru_width=HEADS * WIDTH, num_attention_heads=HEADS))
    for parameter in made.parameters():
        parameter.data.normal_(0.0, 0.5)
    return made.to(dtype)


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)])
def test_it_equals_transformers(dtype: torch.dtype, tolerance: float) -> None:
    plain = recurrence(dtype)
    inputs, state = torch.randn(SEQUENCES, HEADS * WIDTH).to(dtype), torch.randn(SEQUENCES, HEADS * WIDTH)
    plain.recurrent_states = state.clone()
    expected = plain(inputs.unsqueeze(1), torch.full((SEQUENCES, 1), 7))
    found = griffin._recur(plain, inputs, state)
    torch.testing.assert_close(found.unsqueeze(1), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(state, plain.recurrent_states, atol=tolerance, rtol=tolerance)


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, _ in recurrence(torch.float32).named_parameters()])
def test_every_parameter_counts(name: str) -> None:
    inputs, states = torch.randn(SEQUENCES, HEADS * WIDTH), [torch.ones(SEQUENCES, HEADS * WIDTH) for _ in range(2)]
    other = recurrence(torch.float32)
    other.get_parameter(name).data.mul_(1.1)
    outputs = [
        griffin._recur(each, inputs, state)
        for each, state in zip((recurrence(torch.float32), other), states, strict=True)
    ]
    assert not torch.allclose(*outputs)
