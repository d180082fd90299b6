"""Small language models that rank, and what the programs of their publishers make of a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from backends.native.rerankers import KNOWN
from tests.backends.native.encoders import _numbers

PAIRS = (
    ("What is a star?", "A star is a ball of hot gas."),
    ("What is the capital of France?\n", "  Yes, no; it rains:\n\n 17 days"),
    ("a", "A long text, which says what the people there eat when it rains. " * 6),
)
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>", "<think>", "</think>"]
_TASK = "Given a web search query, retrieve relevant passages that answer the query"
_MORE: dict[str, dict[str, Any]] = {
    "qwen3": {"num_key_value_heads": 1, "head_dim": 16},
    "qwen2": {"num_key_value_heads": 1},
    "gemma": {"num_key_value_heads": 1, "head_dim": 16},
}


def build(folder: Path, family: str) -> Path:
    """Write a language model of random weights with Qwen's way of cutting words; nothing in it says that it ranks."""
    tokens = _tokenizer()
    shape = {"vocab_size": len(tokens), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"intermediate_size": 40, "max_position_embeddings": 400, "tie_word_embeddings": False}
    config = AutoConfig.for_model(family, **shape, **_MORE[family], pad_token_id=0, bos_token_id=3, eos_token_id=2)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for seed, (_, parameter) in enumerate(sorted(model.named_parameters())):
        wide = _numbers(*parameter.shape, seed=seed)
        parameter.data = wide * 1.5 if parameter.dim() > 1 else parameter.data + wide
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    texts = [part for known in KNOWN.values() for part in (*known.prompt, known.instruction)]
    made.train_from_iterator(
        [*texts * 3, *(text for pair in PAIRS for text in pair), *["yes", "no", "Yes"] * 9], trainer
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<|endoftext|>", bos_token="<bos>")


def qwen3(tokens: Any, pair: tuple[str, str], task: str | None, length: int) -> tuple[list[int], list[int]]:
    """The ids of a pair, and those of the two answers, as the model card of Qwen3-Reranker has them."""
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    before, after = (tokens.encode(text, add_special_tokens=False) for text in (prefix, suffix))
    body = f"<Instruct>: {task or _TASK}\n<Query>: {pair[0]}\n<Document>: {pair[1]}"
    cut = tokens([body], truncation="longest_first", max_length=length - len(before) - len(after))["input_ids"][0]
    return before + cut + after, [tokens.convert_tokens_to_ids(answer) for answer in ("yes", "no")]


def mxbai_v2(tokens: Any, pair: tuple[str, str], task: str | None, length: int) -> tuple[list[int], list[int]]:
    """Likewise, as mxbai_rerank has them."""

    def ids(text: str, **how: Any) -> list[int]:
        found: list[int] = tokens(text, add_special_tokens=False, **how)["input_ids"]
        return found

    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    )
    expert = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    query = f"instruction: {task}\nquery: {pair[0]}" if task else f"query: {pair[0]}"
    before, after = ids(prefix) + ids(query) + ids("\n"), ids("\n") + ids(expert)
    after += ids("<|im_end|>\n<|im_start|>assistant\n")
    document = ids(f"document: {pair[1]}", truncation=True, max_length=length - len(before) - len(after))
    return before + document + after, [ids("1")[0], ids("0")[0]]


def bge_gemma(tokens: Any, pair: tuple[str, str], task: str | None, length: int) -> tuple[list[int], list[int]]:
    """Likewise, as FlagEmbedding has them; the score is one logit."""

    def ids(text: str) -> list[int]:
        found: list[int] = tokens(text, add_special_tokens=False)["input_ids"]
        return found

    asked = task or (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
        "prediction of either 'Yes' or 'No'."
    )
    before, after = [tokens.bos_token_id, *ids(f"A: {pair[0]}"), *ids("\n")], [*ids("\n"), *ids(asked)]
    return before + ids(f"B: {pair[1]}")[: length - len(before) - len(after)] + after, ids("Yes")[:1]


Form = Callable[[Any, tuple[str, str], str | None, int], tuple[list[int], list[int]]]
FORMS: dict[str, tuple[str, str, Form]] = {
    "qwen3": ("Qwen3-Reranker-0.6B", "qwen3", qwen3),
    "mxbai_v2": ("mxbai-rerank-base-v2", "qwen2", mxbai_v2),
    "bge_gemma": ("bge-reranker-v2-gemma", "gemma", bge_gemma),
}
"""The name of a folder, its model type, and the publisher's form."""


@torch.inference_mode()
def expected(
    folder: Path, form: Form, pairs: Sequence[tuple[str, str]], task: str | None = None, length: int = 400
) -> torch.Tensor:
    """[pairs, 1]: the score, by log-softmax over both answers, or the sigmoid of the only one."""
    tokens = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).float().eval()
    scores = []
    for pair in pairs:
        ids, answers = form(tokens, pair, task, length)
        last = model(torch.tensor([ids])).logits[0, -1]
        both = torch.stack([last[answer] for answer in reversed(answers)])
        scores.append(both.log_softmax(0)[1].exp() if len(answers) > 1 else both[0].sigmoid())
    return torch.stack(scores).unsqueeze(1)
