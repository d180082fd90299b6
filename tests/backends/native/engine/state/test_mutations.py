"""The tests of compiled states are sensitive: each of these mistakes in the C++ fails one of their comparisons."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.native.engine.kernels import jit
from backends.native.engine.kernels.libraries import LIBRARIES
from backends.native.engine.kernels.library_cache import FOLDER_VARIABLE
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.state import (
    test_delta_rule,
    test_griffin_update,
    test_mamba_update,
    test_selective_state,
)

pytestmark = [pytest.mark.torch, needs_compiler]

HAS_AVX512 = "avx512f" in jit._cpu_field("flags").split()
COMPARISONS: dict[str, tuple[Callable[..., None], list[tuple[Any, ...]]]] = {
    "delta_rule": (test_delta_rule.compare, test_delta_rule.CASES),
    "griffin": (test_griffin_update.compare, test_griffin_update.CASES),
    "mamba": (test_mamba_update.compare, test_mamba_update.CASES),
    "selective_state": (test_selective_state.compare, test_selective_state.CASES),
}
MISTAKES: dict[str, dict[str, tuple[str, str]]] = {
    "delta_rule": {
        "lengths count": ("if (normalize) scale", "if (false) scale"),
        "queries are not scaled": ("size.normalize, scale);", "size.normalize, 1.0f);"),
        "found before the decay": ("head.key[k] * head.decay[k];", "head.key[k];"),
        "written in full": ("- found[at]) * rate;", "- found[at]);"),
        "written beside what is there": (" - found[at])", ")"),
        "written at the query": ("found[at] * head.key[k];", "found[at] * head.query[k];"),
        "the state stays": ("store<Float32>(place, now, left - at * LANES);", ""),
        "the output of the last key": ("outputs[at] += now", "outputs[at] = now"),
        "one decay for all keys": ("size.decays > 1 ?", "false ?"),
        "another head's keys": ("at / (size.heads / size.key_heads)", "at % size.key_heads"),
        "adjacent queries": ("sequence * size.query[0]", "sequence * size.key_heads * size.keys"),
        "the first sequence's values": ("sequence * size.value[0] + at", "at"),
    },
    "griffin": {
        "no bias of the convolution": ("of.conv_bias ? of.conv_bias + channel : nullptr", "nullptr"),
        "adjacent inputs": ("of.inputs + sequence * size.inputs", "of.inputs + sequence * channels"),
        "adjacent gates": ("(sequence + at) * size.gate", "(sequence + at) * channels"),
        "another state of the convolution": (
            "of.conv_state + place * size.length",
            "of.conv_state + channel * size.length",
        ),
        "no bias of input gates": ("gates[0] + into_bias", "gates[0]"),
        "no bias of recurrence gates": ("gates[1] + kept_bias", "gates[1]"),
        "the first head's weights": ("of.weight + (head * blocks + first / LANES)", "of.weight + (first / LANES)"),
        "the first sixteen channels' weights": ("(head * blocks + first / LANES)", "(head * blocks)"),
        "the first head's inputs": ("sequence * channels + head * size.width;", "sequence * channels;"),
        "the first sequence of a tile": ("inputs[at * channels + k]", "inputs[k]"),
        "one gate for both": ("gates[1] + kept_bias", "gates[0] + kept_bias"),
        "no input gate": ("round_to<Dtype>(input * into) * normal", "input * normal"),
        "no normal": ("round_to<Dtype>(input * into) * normal", "input * into"),
        "another rate": ("-8.0f * kept", "-4.0f * kept"),
        "the state stays": ("store<Float32>(of.state + place, state, left);", ""),
        "nothing is kept": ("return state * round_to<Dtype>(vector_exp(logarithm)) + input;", "return input;"),
        "no activation": ("if (size.activates)", "if (false)"),
        "always an activation": ("if (size.activates)", "if (true)"),
        "no sequences behind tiles": ("for (; sequence < size.sequences; sequence++) advance", "if (false) advance"),
    },
    "mamba": {
        "no bias of the first projection": ("multiply(hidden, of.in, of.in_bias,", "multiply(hidden, of.in, nullptr,"),
        "no bias of the last projection": ("of.out, of.out_bias,", "of.out, nullptr,"),
        "no bias of the convolution": ("bias ? bias + channel : nullptr", "nullptr"),
        "the first channels' bias": ("bias ? bias + channel", "bias ? bias"),
        "the first channels' weights": ("weight + channel * of.taps", "weight"),
        "adjacent inputs": ("2 * row * of.channels + channel", "row * of.channels + channel"),
        "no activation": ("gated::Silu::of(round_to<Dtype>(sums))", "sums"),
        "another state of the convolution": ("(latest) + place * length", "(latest) + channel * length"),
        "never a norm": ("if (of.norms[part])", "if (false)"),
        "one norm for all": ("static_cast<const scalar*>(of.norms[part])", "static_cast<const scalar*>(of.norms[1])"),
        "another epsilon": ("own, width, of.epsilon", "own, width, 1e-6f"),
        "the first sequence's parameters": ("(parameters) + row * all", "(parameters)"),
        "the first part alone": ("from += width, to", "to"),
        "the gate of the first half": ("convolved, joined + of.channels,", "convolved, joined,"),
        "adjacent gates": (".gate = {2 * of.channels, 0, 1}", ".gate = {of.channels, 0, 1}"),
        "steps as they come": (".softplus = 1", ".softplus = 0"),
        "into for out": ("into, out, scanned}", "into, into, scanned}"),
        "no input where all is skipped": ("of.step_bias, of.skip, steps", "of.step_bias, nullptr, steps"),
        "no bias of steps": ("of.decay, of.step_bias, of", "of.decay, nullptr, of"),
    },
    "selective_state": {
        "no bias": ("if (of.bias)", "if (false)"),
        "steps as they come": ("if (size.softplus)", "if (false)"),
        "no softplus of negative steps": ("if_less(x, f32x16{}, x, -x)", "x"),
        "no input where all is skipped": ("if (of.skip)", "if (false)"),
        "no gate": ("if (of.gate)", "if (false)"),
        "the first row's decay": (", decay += size.decay[1]) {", ") {"),
        "the first row's steps": ("floats{} + power[at + lane]", "floats{} + power[0]"),
        "heads decay alike": ("of.decay + head * size.decay[0] + first", "of.decay + first"),
        "the first block's rows": ("(first + at) * strides[2]", "at * strides[2]"),
        "the first block's bias": ("(first + at) * strides[1]", "at * strides[1]"),
        "the first block's decay": (" + first * size.decay[1];", ";"),
        "another group": ("head / (size.heads / size.groups)", "head % size.groups"),
        "the first sequence's inputs": ("sequence * size.into[0] + group", "group"),
        "the state stays": ("std::memcpy(state + k, &now, rest * sizeof *state);", ""),
        "no tail": ("if (whole < count)", "if (false)"),
        "the output of the last numbers": ("sum += now", "sum = now"),
        "the output of every other number": (" + odd_lanes(rows[2 * at], rows[2 * at + 1]);", ";")
        if HAS_AVX512
        else ("sum_lanes(rows[row])", "sum_lanes(even_lanes(rows[row], f32x16{}))"),
    },
}


def compare_all(name: str) -> None:
    compare, cases = COMPARISONS[name]
    for case in cases:
        compare(*case)


@pytest.mark.parametrize(
    ("name", "mistake"), [(name, mistake) for name, mistakes in MISTAKES.items() for mistake in mistakes]
)
def test_it_is_noticed(name: str, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = MISTAKES[name][mistake]
    sources = tmp_path / "src"
    sources.mkdir()
    for file in jit.source_files(LIBRARIES[name].source):
        shutil.copy(file, sources)
    found = [source for source in sources.iterdir() if right in source.read_text()]
    assert len(found) == found[0].read_text().count(right) == 1
    found[0].write_text(found[0].read_text().replace(right, wrong))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "FLAGS", ("-O1", "-w", *jit.FLAGS[1:]))
    library = replace(LIBRARIES[name], folder=sources)
    assert jit.load(library) is not None
    monkeypatch.setitem(LIBRARIES, name, library)
    with pytest.raises(AssertionError):
        compare_all(name)
