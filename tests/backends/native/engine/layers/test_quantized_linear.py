"""Quantized weights: the same for few and many rows, close to the original ones, and as good on a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer

from backends.native.demo import WEIGHTS
from backends.native.engine.errors import LoadError
from backends.native.engine.factory import load_engine
from backends.native.engine.layers.packed_linear import PackedLinear, pack_linears
from backends.native.engine.layers.quantized_linear import BITS, QuantizedLinear, quantize_linears
from backends.native.engine.loading.weights import load
from backends.native.engine.loop import Engine
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.tiny import build
from tools.demo_model.evaluate import draw_questions
from tools.demo_model.samples.chats import Chat
from tools.demo_model.samples.questions import QUESTIONNAIRE

pytestmark = pytest.mark.torch

DTYPES = [torch.float32, torch.bfloat16]
# Of a normally distributed weight, the root mean square of what rounding takes away: half a level is at most 1/254 of
# the largest weight, or 1/30 of a group's range (4 to 5 standard deviations), and 1/sqrt(12) of a level on average.
ERRORS = {"int8": 0.01, "int4": 0.1}
# Of a trained model's choices, the share that stays, and by how many nats a token its distribution moves.
SAME = {"int8": 0.999, "int4": 0.99}
DIVERGENCES = {"int8": 1e-4, "int4": 1e-2}
names = pytest.mark.parametrize("name", BITS)


def linear(dtype: torch.dtype, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(256, 128, bias=bias).to(dtype)


@names
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (2,), (4,), (5,), (33,), (1, 1), (1, 7), (0,), (1, 0)])
def test_the_gemv_and_matmul_paths_use_the_same_weights(
    name: str, dtype: torch.dtype, bias: bool, shape: tuple[int]
) -> None:
    plain = linear(dtype, bias=bias)
    rounded = QuantizedLinear(plain, BITS[name])  # and `plain` has the rounded weight now
    rows = torch.randn(*shape, 256).to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    with torch.inference_mode():
        torch.testing.assert_close(rounded(rows), plain(rows), atol=tolerance, rtol=tolerance)


@names
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rounding_error_is_bounded(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = linear(dtype)
    nn.init.normal_(plain.weight)
    before = plain.weight.detach().float().clone()
    QuantizedLinear(plain, BITS[name])
    error = (plain.weight.float() - before).square().mean().sqrt()
    assert ERRORS[name] / 3 < error < ERRORS[name]


@needs_compiler
@names
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_product_whatever_other_rows_there_are(name: str, dtype: torch.dtype) -> None:
    rounded = QuantizedLinear(linear(dtype), BITS[name], 24)
    rows = torch.randn(24, 256).to(dtype)
    with torch.inference_mode():
        together = rounded(rows)
        for count in (1, 2, 4, 5, 23):
            assert torch.equal(rounded(rows[:count]), together[:count])


@names
def test_weights_that_blocks_cannot_hold_are_multiplied_by_torch(name: str) -> None:
    plain = linear(torch.float32)
    with torch.no_grad():
        plain.weight[3, 5] = 1e5  # float16 ends at 65504
    rounded = QuantizedLinear(plain, BITS[name])
    assert rounded.few is None
    with torch.inference_mode():
        torch.testing.assert_close(rounded(torch.eye(256)[:1]), plain(torch.eye(256)[:1]))


@names
def test_weights_that_are_zero_or_all_the_same_stay_so(name: str) -> None:
    plain = linear(torch.float32)
    with torch.no_grad():
        plain.weight[0] = 0
        plain.weight[1] = -0.5
    before = plain.weight.detach().clone()
    QuantizedLinear(plain, BITS[name])
    # But for the rounding of a scale in 8 bits, or of the least weight in 4, to float16.
    torch.testing.assert_close(plain.weight[:2], before[:2], atol=1e-6, rtol=2.0**-11)


def test_the_head_and_layers_that_do_not_fit_are_left_alone() -> None:
    model = build("llama")
    assert quantize_linears(model, 8) == 14
    assert type(model.lm_head) is nn.Linear
    assert quantize_linears(build("llama"), 4) == 2  # the others' 48 inputs are no multiple of 32


def test_the_layer_for_many_rows_can_be_packed() -> None:
    model = build("llama")
    quantize_linears(model, 8)
    pack_linears(model, least=1)
    layer = model.model.layers[0].mlp.up_proj
    assert isinstance(layer, QuantizedLinear)
    assert isinstance(layer.many, PackedLinear)


@pytest.fixture(scope="module")
def questions() -> list[tuple[list[int], list[int]]]:
    """Prompt and right answer of each, in tokens."""
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    found = []
    for question in (each for task in QUESTIONNAIRE for each in draw_questions(task, 0, 4)):
        if isinstance(question.prompt, Chat) and not question.prompt.images and not question.prompt.tools:
            prompt = tokenizer.apply_chat_template(
                question.prompt.messages, add_generation_prompt=True, return_dict=False
            )
            found.append((prompt, tokenizer.encode(question.answer, add_special_tokens=False)))
    assert len(found) > 40
    return found


@names
def test_a_trained_model_answers_almost_as_in_float32(name: str, questions: list[tuple[list[int], list[int]]]) -> None:
    plain, rounded = (load(str(WEIGHTS), "float32").model for _ in range(2))
    assert quantize_linears(rounded, BITS[name])
    same, moved, count = 0, 0.0, 0
    for prompt, answer in questions:
        given = torch.tensor([prompt + answer])
        with torch.inference_mode():
            expected, found = (m(given).logits[0, len(prompt) - 1 : -1].log_softmax(-1) for m in (plain, rounded))
        same += int((expected.argmax(-1) == found.argmax(-1)).sum())
        moved += float((expected.exp() * (expected - found)).sum())
        count += len(answer)
    assert same / count >= SAME[name]
    assert moved / count < DIVERGENCES[name]


@names
def test_an_engine_answers_alone_and_in_a_batch_as_in_float32(
    name: str, questions: list[tuple[list[int], list[int]]]
) -> None:
    some = questions[:: len(questions) // 16]
    asked = [Submit(seq, tuple(prompt), len(answer)) for seq, (prompt, answer) in enumerate(some)]
    plain, rounded = engine("float32"), engine(name)
    expected = answers(plain, asked)
    batched = answers(rounded, asked)
    alone = {request.seq: answers(rounded, [request])[request.seq] for request in asked}
    for found in (batched, alone):
        assert sum(found[seq] == expected[seq] for seq in expected) >= 0.9 * len(asked)


def engine(dtype: str) -> Engine:
    made, ready = load_engine(EngineOptions(str(WEIGHTS), dtype=dtype, device="cpu", threads=1), lambda _: None)
    assert ready.dtype == dtype
    return made


def answers(made: Engine, asked: list[Submit]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {request.seq: [] for request in asked}
    for request in asked:
        made.submit(0, request)
    while made.busy:
        for output in (output for step in made.step().values() for output in step.outputs):
            assert output.error is None
            found[output.seq] += output.ids
    return found


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dtype": "int4", "device": "meta"}, "The dtype int4 is for CPUs, not for meta"),
        ({"dtype": "int4"}, "This model has no linear layers that could run in int4"),
    ],
)
def test_models_that_cannot_be_quantized_are_refused(options: dict[str, str], why: str, tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    with pytest.raises(LoadError, match=why):
        load_engine(EngineOptions(str(tmp_path), **options), lambda _: None)  # type: ignore[arg-type]
