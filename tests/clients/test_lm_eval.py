"""lm-eval's models for OpenAI's protocol, which ask with token ids and read the prompt's log-probabilities.

Its results are compared with the forward pass of transformers over the same weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients

WEIGHTS = str(Path(__file__).parents[2] / "backends/native/demo/weights")
PAIRS = [
    ("The capital of France is", " Paris."),
    ("The capital of France is", " Rome."),
    ("One, two, three,", " four"),
    ("", "The capital of France"),
]


@pytest.fixture(params=[{}, {"batch_size": 3}, {"num_concurrent": 2}, {"tokenized_requests": False}], ids=str)
def model(server: Server, request: pytest.FixtureRequest) -> LocalCompletionsAPI:
    url = f"{server.url}/v1/completions"
    options = {"tokenizer": WEIGHTS, "max_retries": 1} | request.param
    return LocalCompletionsAPI(base_url=url, model=server.model, **options)


def test_loglikelihood(model: LocalCompletionsAPI) -> None:
    expected = [_loglikelihood(model, *pair) for pair in PAIRS]
    results = model.loglikelihood(_instances("loglikelihood", PAIRS), disable_tqdm=True)
    assert [greedy for _, greedy in results] == [greedy for _, greedy in expected]
    assert [sum_ for sum_, _ in results] == [pytest.approx(sum_, abs=1e-3) for sum_, _ in expected]


def test_loglikelihood_rolling(model: LocalCompletionsAPI) -> None:
    text = "The capital of France is Paris."
    (result,) = model.loglikelihood_rolling(_instances("loglikelihood_rolling", [(text,)]), disable_tqdm=True)
    assert result == pytest.approx(_loglikelihood(model, "", text)[0], abs=1e-3)


def test_generate_until(model: LocalCompletionsAPI) -> None:
    asked = [("The capital of France is", {"until": ["."], "max_gen_toks": 12})]
    asked += [("The capital of Italy is", {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False})]
    assert model.generate_until(_instances("generate_until", asked), disable_tqdm=True) == [" Paris", " Rome."]


def test_chat(server: Server) -> None:
    chat = LocalChatCompletion(base_url=f"{server.url}/v1/chat/completions", model=server.model, max_retries=1)
    prompt = chat.apply_chat_template([{"role": "user", "content": CAPITAL}])
    (answer,) = chat.generate_until(_instances("generate_until", [(prompt, {"until": ["."]})]), disable_tqdm=True)
    assert answer == "The capital of France is Paris"


def _instances(kind: Any, asked: list[Any]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=arguments, idx=i) for i, arguments in enumerate(asked)]


def _loglikelihood(model: LocalCompletionsAPI, context: str, continuation: str) -> tuple[float, bool]:
    """The log-likelihood by transformers, and whether each token is the most probable one."""
    before = model.tok_encode(context) if context else [model.prefix_token_id]
    after = model.tok_encode(context + continuation)[len(before) if context else 0 :]
    weights = transformers.LlavaForConditionalGeneration.from_pretrained(WEIGHTS, dtype=torch.float32)
    with torch.inference_mode():
        logits = weights(input_ids=torch.tensor([before + after])).logits[0, len(before) - 1 : -1]
    logprobs, ids = logits.log_softmax(-1), torch.tensor(after)
    total = logprobs.gather(1, ids[:, None]).sum().item()
    return total, bool((logprobs.argmax(-1) == ids).all())


def test_the_tokenizer_of_the_server(server: Server) -> None:
    """`tokenizer_backend="remote"` asks /tokenizer_info, /tokenize and /detokenize instead of loading a tokenizer."""
    options = {"tokenizer_backend": "remote", "max_retries": 1}
    model = LocalCompletionsAPI(base_url=f"{server.url}/v1/completions", model=server.model, **options)
    reference = transformers.AutoTokenizer.from_pretrained(WEIGHTS)
    text = "The capital of France is"
    ids = reference.encode(text, add_special_tokens=False)
    assert model.tok_encode(text) == ids
    assert model.decode_batch([ids]) == [text]
    assert model.eot_token_id == reference.eos_token_id
    turns = [{"role": "user", "content": CAPITAL}]
    assert model.tokenizer.apply_chat_template(turns, tools=None) == reference.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )
    with_tokenizer = LocalCompletionsAPI(
        base_url=f"{server.url}/v1/completions", model=server.model, tokenizer=WEIGHTS, max_retries=1
    )
    asked = _instances("loglikelihood", PAIRS[:3])
    assert model.loglikelihood(asked, disable_tqdm=True) == with_tokenizer.loglikelihood(asked, disable_tqdm=True)
