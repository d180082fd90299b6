"""The demo model's tokenizer: 768 byte-level BPE tokens, digits single, trained on its own chats.

Roles are single special tokens. ``<tool_call>`` and ``</tool_call>`` are added tokens but not special ones,
so that a decoder which skips special tokens still shows them to the tool parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from backends.native.demo import WEIGHTS
from tools.demo_model.samples.chats import Completion
from tools.demo_model.samples.mix import BROAD, image_sample, text_sample

PAD, END, SYSTEM, USER, ASSISTANT, TOOL, IMAGE = range(7)
SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<image>")
"""Their ids are 0 to 6, in this order."""

CALL_TOKENS = ("<tool_call>", "</tool_call>")
VOCABULARY_SIZE = 768
CONTEXT_LENGTH = 2048
TEMPLATE = WEIGHTS / "chat_template.jinja"


def train_tokenizer(seed: int, samples: int = 16_000) -> PreTrainedTokenizerFast:
    """Train the merges on ``samples`` drawn chats; the same seed gives the same file."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(CALL_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(Random(f"{seed}:tokenizer"), samples), trainer)
    bpe.add_tokens([AddedToken(token, special=False, normalized=False) for token in CALL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=SPECIAL_TOKENS[PAD],
        eos_token=SPECIAL_TOKENS[END],
        additional_special_tokens=list(SPECIAL_TOKENS[SYSTEM:]),
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
        padding_side="left",
    )


def _texts(rng: Random, samples: int) -> Iterator[str]:
    """All strings of the samples, without the template's own tokens."""
    for _ in range(samples):
        sample = image_sample(rng) if rng.random() < 0.1 else text_sample(rng, BROAD)
        if isinstance(sample, Completion):
            yield sample.prompt + sample.text
            continue
        for message in sample.messages:
            content = message["content"]
            if isinstance(content, str):
                yield content
            for part in content if isinstance(content, list) else ():
                yield part.get("text", "")
            for call in message.get("tool_calls", ()):
                yield f'{{"name": "{call["function"]["name"]}", "arguments": {{"'
                yield from call["function"]["arguments"]
        for tool in sample.tools or ():
            parameters = ", ".join(tool["function"]["parameters"]["properties"])
            yield f"Tools: {tool['function']['name']}({parameters})"
