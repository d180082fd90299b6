"""Keys of GGUF files that transformers does not read reach the configuration."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.gguf_config import complete
from backends.native.checkpoints.gguf_header import Header

pytestmark = pytest.mark.slow  # it imports transformers

FILE = Path("model.gguf")


def config(model_type: str, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(
        model_type=model_type, hidden_size=64, num_attention_heads=4, num_hidden_layers=2, vocab_size=100, **fields
    )


def header(architecture: str, keys: dict[str, Any]) -> Header:
    own = {f"{architecture}.{key}": value for key, value in keys.items()}
    return Header({"general.architecture": architecture} | own, {})


@pytest.mark.parametrize(
    ("keys", "fields", "read"),
    [
        ({"context_length": 512}, {"n_positions": 1024}, {"n_positions": 512}),
        ({"feed_forward_length": 256}, {"n_inner": None}, {"n_inner": 256}),
        ({"attention.layer_norm_epsilon": 1e-6}, {"layer_norm_epsilon": 1e-5}, {"layer_norm_epsilon": 1e-5}),
        ({"attention.key_length": 32}, {}, {}),
        ({}, {"n_positions": 1024}, {"n_positions": 1024}),
    ],
    ids=["unread", "unread and unset", "read by transformers", "no field of the configuration", "no key"],
)
def test_a_key_that_transformers_does_not_read(
    keys: dict[str, Any], fields: dict[str, Any], read: dict[str, Any]
) -> None:
    completed = config("gpt2", **fields)
    complete(completed, header("gpt2", keys), FILE)
    assert completed == config("gpt2", **read)


@pytest.mark.parametrize(("layers", "scalar"), [(26, 24), (46, 16)], ids=["2B", "27B"])
def test_queries_of_gemma_are_scaled_by_the_head_but_in_the_largest_model(layers: int, scalar: int) -> None:
    completed = config("gemma2", head_dim=24)
    completed.num_hidden_layers = layers
    complete(completed, header("gemma2", {}), FILE)
    assert completed.query_pre_attn_scalar == scalar


@pytest.mark.parametrize(
    ("keys", "rope", "read"),
    [
        ({"rope.freq_base": 5e5}, {"rope_theta": 1e4}, {"rope_theta": 5e5}),
        ({"rope.dimension_count": 16}, {"rope_theta": 1e4}, {"rope_theta": 1e4}),
        ({"rope.dimension_count": 4}, {"rope_theta": 1e4}, {"rope_theta": 1e4, "partial_rotary_factor": 0.25}),
        ({"rope.dimension_count": 16}, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0}),
        ({"rope.freq_base": 5e5}, {"full_attention": {}}, {"full_attention": {"rope_theta": 5e5}}),
        ({"rope.freq_base": 5e5}, None, None),
    ],
    ids=["base", "whole head", "part of a head", "other part of a head", "of several kinds of layers", "no rotation"],
)
def test_the_rotary_positions(keys: dict[str, Any], rope: dict[str, Any] | None, read: dict[str, Any] | None) -> None:
    completed = config("stablelm", rope_parameters=rope)
    complete(completed, header("stablelm", keys), FILE)
    assert completed.rope_parameters == read


def test_a_token_beyond_the_vocabulary_is_the_default_of_a_larger_one() -> None:
    completed = config("bloom", bos_token_id=1, eos_token_id=100, pad_token_id=None)
    complete(completed, header("bloom", {}), FILE)
    assert (completed.bos_token_id, completed.eos_token_id, completed.pad_token_id) == (1, None, None)


def test_what_transformers_reads_whole_is_left_as_it_is() -> None:
    completed = config("gemma4_text", sliding_window=1)
    complete(completed, header("gemma4", {"attention.sliding_window": 2}), FILE)
    assert completed == config("gemma4_text", sliding_window=1)


def test_a_falcon_with_several_key_heads_is_refused() -> None:
    with pytest.raises(CheckpointError, match=re.escape("model.gguf: a Falcon with several key heads")):
        complete(config("falcon"), header("falcon", {"attention.head_count_kv": 8}), FILE)
    complete(config("falcon"), header("falcon", {"attention.head_count_kv": 1}), FILE)
