"""The compiled mixer gives what transformers' modules give, and moves their states on alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, FalconMambaConfig, JambaConfig, MambaConfig
from transformers.models.falcon_mamba.modeling_falcon_mamba import FalconMambaMixer
from transformers.models.jamba.modeling_jamba import JambaMambaMixer
from transformers.models.mamba.modeling_mamba import MambaMixer

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.kernels.jit import typed_function
from backends.native.engine.layers.fuse_model import fuse_layers, fuse_modules
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.lora.layers import LoraLinear
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.state.mamba_update import MambaUpdate
from backends.native.engine.state.pool import StatePool
from backends.native.engine.state.selective_state import decay_of, keep_decay
from backends.native.engine.state.step import StateView
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = [pytest.mark.torch, needs_compiler]

_WIDTH, _CHANNELS, _RANK, _EPSILON = 32, 80, 6, 1e-2


def mixer(kind: str, size: int, taps: int, *, biased: bool, dtype: torch.dtype) -> Any:
    """A module of transformers with random weights, of which none is 0 or 1."""
    sizes = {"hidden_size": _WIDTH, "num_hidden_layers": 1}
    falcon_or_own = sizes | {"intermediate_size": _CHANNELS, "state_size": size, "conv_kernel": taps}
    falcon_or_own |= {"time_step_rank": _RANK, "use_bias": biased, "use_conv_bias": biased}
    if kind == "mamba":
        made: Any = MambaMixer(MambaConfig(**falcon_or_own), 0)
    elif kind == "falcon_mamba":
        made = FalconMambaMixer(FalconMambaConfig(**falcon_or_own, mixer_rms_eps=_EPSILON), 0, False)
    else:
        more = {"mamba_d_state": size, "mamba_d_conv": taps, "mamba_expand": 2, "mamba_dt_rank": _RANK}
        more |= {"mamba_proj_bias": biased, "mamba_conv_bias": biased, "rms_norm_eps": _EPSILON}
        made = JambaMambaMixer(JambaConfig(**sizes | more), 0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            wide = parameter.shape[-1] if parameter.dim() > 1 and "conv" not in name and name != "A_log" else 1
            parameter.copy_(torch.randn(parameter.shape) / wide**0.5)
    return made.to(dtype).eval()


CASES = [
    (dtype, tolerance, kind, *sizes)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 2**-5))
    for kind, *sizes in (
        ("mamba", 16, 4, True),
        ("mamba", 20, 3, False),
        ("falcon_mamba", 16, 4, False),
        ("jamba", 16, 4, True),
    )
]
"""Of each the dtype, the tolerance, the module, a channel's size, taps, and whether projections have biases."""


def run(module: Any, hidden: torch.Tensor, latest: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The output of transformers' own forward for one token of each sequence; both states move on."""
    pool = StatePool(1)
    pool._rows = len(hidden)
    states = StateView(pool, slice(0, len(hidden)), fresh=False)
    states.update_conv_state(latest, 0)
    states.update_recurrent_state(state, 0)
    output: torch.Tensor = module(hidden, cache_params=states)
    for mine, own in ((latest, states.get_conv_state(0)), (state, states.get_recurrent_state(0))):
        assert own is not None
        mine.copy_(own)
    return output


@torch.inference_mode()
def compare(dtype: torch.dtype, tolerance: float, kind: str, size: int, taps: int, biased: bool) -> None:
    """Output and states are those of transformers' module."""
    torch.manual_seed(0)
    module = mixer(kind, size, taps, biased=biased, dtype=dtype)
    channels = module.in_proj.out_features // 2
    hidden, latest = torch.randn(3, 1, _WIDTH).to(dtype), torch.randn(3, channels, taps).to(dtype)
    state = torch.randn(3, channels, size)
    theirs = (latest.clone(), state.clone())
    expected = run(module, hidden, *theirs)
    update = direct(module)
    assert update.takes(hidden, latest, state)
    found = update.update(hidden, latest, state)
    for mine, own in ((found, expected), (latest, theirs[0]), (state, theirs[1])):
        assert mine.dtype == own.dtype
        torch.testing.assert_close(mine, own, atol=tolerance * float(own.abs().max()), rtol=tolerance)


def direct(module: Any) -> MambaUpdate:
    """The compiled mixer, which was not compared with the module."""
    fuse_modules(module, 64)
    pack_linears(module, least=1)
    keep_decay(module)
    function, decay = typed_function("mamba", "mamba_update", module.conv1d.weight.dtype), decay_of(module)
    assert function is not None
    assert decay is not None
    names = ("dt_layernorm", "b_layernorm", "c_layernorm")
    return MambaUpdate(module, [getattr(module, name) for name in names if hasattr(module, name)], decay, function)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_equals_transformers(case: tuple[Any, ...]) -> None:
    compare(*case)


def packed(kind: str = "mamba") -> Any:
    torch.manual_seed(0)
    module = mixer(kind, 16, 4, biased=True, dtype=torch.float32)
    pack_linears(module, least=1)
    keep_decay(module)
    return module


def forward_of(module: Any) -> Any:
    return lambda rows, cache: module(rows, cache_params=cache)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba", "jamba"])
def test_a_mixer_is_known_by_what_it_computes(kind: str) -> None:
    module = packed(kind)
    assert MambaUpdate.of(module, forward_of(module)) is not None
    assert MambaUpdate.of(module, lambda rows, cache: 2 * module(rows, cache_params=cache)) is None


@torch.inference_mode()
def test_what_it_is_not_made_for_stays() -> None:
    unpacked = mixer("mamba", 16, 4, biased=True, dtype=torch.float32)
    keep_decay(unpacked)
    assert MambaUpdate.of(unpacked, forward_of(unpacked)) is None
    wide = mixer("mamba", 300, 4, biased=True, dtype=torch.float32)
    pack_linears(wide, least=1)
    keep_decay(wide)
    assert MambaUpdate.of(wide, forward_of(wide)) is None
    module = packed()
    module.A_log = torch.nn.Parameter(torch.ones(1))
    assert MambaUpdate.of(module, forward_of(module)) is None


@torch.inference_mode()
def test_what_it_does_not_take_goes_through_the_module() -> None:
    module = packed()
    update = direct(module)
    hidden, latest, state = torch.randn(3, 1, _WIDTH), torch.randn(3, _CHANNELS, 4), torch.randn(3, _CHANNELS, 16)
    assert update.takes(hidden, latest, state)
    assert not update.takes(hidden.bfloat16(), latest, state)
    assert not update.takes(hidden, latest, state.bfloat16())
    assert not update.takes(hidden.expand(3, 2, _WIDTH), latest, state)
    assert not update.takes(hidden, latest[..., :2].contiguous(), state)
    assert not update.takes(hidden, latest.transpose(1, 2).contiguous().transpose(1, 2), state)
    many = [each.repeat(22, 1, 1) for each in (hidden, latest, state)]  # 66 sequences; 64 go at once
    assert not update.takes(*many)
    # As an adapter is loaded while the model serves.
    own = module.out_proj
    module.out_proj = LoraLinear(own, {})
    assert not update.takes(hidden, latest, state)
    module.out_proj = own
    assert update.takes(hidden, latest, state)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba", "jamba"])
def test_a_model_has_the_logits_that_it_has_without_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    update = MambaUpdate.update

    def counted(self: MambaUpdate, hidden: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return update(self, hidden, *states)

    monkeypatch.setattr(MambaUpdate, "update", counted)
    found = logits(kind)
    layers = 1 if kind == "jamba" else 2
    assert (
        rows == [1, 3] * layers + [3] * layers + [2] * layers + [3] * layers
    )  # a mixer is first compared, with one row
    monkeypatch.setattr(MambaUpdate, "of", lambda *_: None)
    rows.clear()
    expected = logits(kind)
    assert not rows
    torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


def logits(kind: str) -> torch.Tensor:
    """Those of a small model, of three sequences' steps in decode: of all, of all but the middle one, and of all."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 48, "hidden_size": _WIDTH, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 1, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **sizes | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 6})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    fuse_layers(model, 64)
    pack_linears(model, least=1)
    runner = PackedRunner(model, KVCache(6, 16))
    sequences = [Sequence(0, Submit(index, tuple(range(3, 8 + index)), 1), index) for index in range(3)]
    for index, sequence in enumerate(sequences):
        sequence.blocks.extend((2 * index, 2 * index + 1))
        runner.run([Work(sequence, 0, len(sequence.tokens), samples=True)])
    found = []
    for chosen in (sequences, sequences, sequences[::2], sequences):
        for sequence in chosen:
            sequence.tokens.append(5)
        found.append(runner.run([Work(each, len(each.tokens) - 1, 1, samples=True) for each in chosen]))
    return torch.cat(found)
