from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from backends.native.demo import WEIGHTS
from backends.native.text.vocabulary import HfVocabulary
from schemas.ir import Token

pytestmark = pytest.mark.torch

TEXT = "Hello 世界, 👩‍🚀 naïve\n\ttabs  and <tool_call>spaces🙂"


def byte_level() -> Any:
    return AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)


def sentencepiece() -> Any:
    """Like Llama 2: spaces are ▁, each text gets one in front, unknown characters are bytes."""
    words = ["▁", "a", "i", "n", "o", "l", "世", ","]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    ids = {word: id for id, word in enumerate(vocabulary)}
    model = models.BPE(vocab=ids, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    fast = Tokenizer(model)
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    fast.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", eos_token="</s>")


def word_pieces() -> Any:
    """Tokens without text of their own: `##` joins a token to the one before."""
    words = ["[UNK]", "he", "##llo", "world", "##s", "!", "[SEP]"]
    fast = Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    fast.add_special_tokens([AddedToken("[SEP]", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=fast, sep_token="[SEP]", unk_token="[UNK]")


def detokenize(vocabulary: HfVocabulary, ids: list[int], context: list[int] | None = None) -> list[Token]:
    detokenizer = vocabulary.detokenizer(context or [])
    return [token for id in ids for token in detokenizer.feed(id)] + detokenizer.close()


def text(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens if not token.special)


DEMO = byte_level()
DEMO_VOCABULARY = HfVocabulary(DEMO)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_incremental_text_is_the_whole_text(make: Any) -> None:
    tokenizer = make()
    vocabulary = HfVocabulary(tokenizer)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    tokens = detokenize(vocabulary, ids)
    assert text(tokens).removeprefix(" " if vocabulary.strips_first_space else "") == tokenizer.decode(ids)
    raw = b"".join(token.bytes if token.bytes is not None else token.text.encode() for token in tokens)
    assert raw.decode() == text(tokens)


@given(st.text(max_size=30))
def test_any_text_survives_the_demo_tokenizer(typed: str) -> None:
    ids = [*DEMO.encode(typed, add_special_tokens=False, split_special_tokens=True)]
    assert text(detokenize(DEMO_VOCABULARY, ids)) == typed


@given(st.lists(st.integers(0, 767), max_size=30))
def test_any_tokens_give_the_text_that_transformers_gives(ids: list[int]) -> None:
    tokens = detokenize(DEMO_VOCABULARY, ids)
    assert [token.id for token in tokens] == ids
    assert text(tokens) == DEMO.decode(ids, skip_special_tokens=True)


def test_special_tokens_have_a_name_and_no_text() -> None:
    tokens = detokenize(DEMO_VOCABULARY, [1, 766, 0])
    assert [(token.text, token.special) for token in tokens] == [
        ("<|end|>", True),
        ("<tool_call>", False),
        ("<|pad|>", True),
    ]


def test_the_digest_distinguishes_vocabularies() -> None:
    digests = [HfVocabulary(make()).digest for make in (byte_level, byte_level, sentencepiece, word_pieces)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert [(t.text, t.special) for t in detokenize(DEMO_VOCABULARY, [5000])] == [("", False)]


def test_sentencepiece_bytes() -> None:
    tokenizer = sentencepiece()
    pieces = [HfVocabulary(tokenizer).piece(id) for id in tokenizer.encode("🙂", add_special_tokens=False)]
    assert [piece.bytes for piece in pieces] == [b" ", *(bytes([byte]) for byte in "🙂".encode())]


def test_word_pieces_are_joined() -> None:
    tokenizer = word_pieces()
    vocabulary = HfVocabulary(tokenizer)
    ids = tokenizer.encode("hello worlds !")
    assert [token.text for token in detokenize(vocabulary, ids)] == ["he", "llo", " world", "s", " !"]
    after = detokenize(vocabulary, ids[1:], ids[:1])
    assert [token.text for token in after] == ["llo", " world", "s", " !"], "it knows what stood before"
    assert text(detokenize(vocabulary, [*ids, 6])) == "hello worlds !"
