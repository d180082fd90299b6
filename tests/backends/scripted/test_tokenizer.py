from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backends.scripted.tokenizer import ToyTokenizer

TOY = ToyTokenizer()


@given(st.text())
def test_decoding_an_encoded_text_gives_the_text(text: str) -> None:
    ids = TOY.encode(text)
    assert TOY.decode(ids) == text
    assert all(0 < id < TOY.size for id in ids)


@given(st.text("the dog東🙂é", max_size=12))
def test_spans_cover_the_text_in_order(text: str) -> None:
    spans = TOY.spans(text)
    assert [span.id for span in spans] == list(TOY.encode(text))
    assert all(span.text == text[span.start : span.stop] for span in spans)
    assert {place for span in spans for place in range(span.start, span.stop)} == set(range(len(text)))
    assert [span.start for span in spans] == sorted(span.start for span in spans)


def test_words_are_single_tokens_and_emoji_are_not() -> None:
    assert [TOY.piece(id).text for id in TOY.encode("Hello world. The")] == ["Hello", " world", ".", " The"]
    assert len(TOY.encode("🙂")) == 4
