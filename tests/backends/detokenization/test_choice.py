"""Building the deltas of a choice: stop strings, end tokens, held-back tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.detokenization.choice import ChoiceBuilder
from backends.detokenization.detokenizer import Detokenizer, Piece, piece
from backends.scripted.tokenizer import EOS, ToyTokenizer
from schemas.ir import Delta, Finished, FinishReason, Stopping, Token

TOY = ToyTokenizer()


def build(ids: tuple[int, ...], stopping: Stopping, reason: FinishReason = FinishReason.LENGTH) -> list[Delta]:
    builder = ChoiceBuilder(0, stopping, Detokenizer(TOY), seed=7)
    deltas: list[Delta] = []
    for id in ids:
        builder.add(id)
        if builder.stopped:
            break
        if id != ids[-1] and (delta := builder.delta()) is not None:
            deltas.append(delta)
    return [*deltas, builder.finish(reason)]


class Pieces:
    """A vocabulary of these bytes."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    def piece(self, id: int) -> Piece:
        return piece(id, self._pieces[id])


@pytest.mark.parametrize(("include", "expected"), [(False, "a"), (True, "a ")])
def test_a_stop_string_may_match_before_a_character_that_spans_two_tokens(include: bool, expected: str) -> None:
    detokenizer = Detokenizer(Pieces(b"a \xe2\x80", b"\xa6b"))  # "a …b": the second token completes "…"
    builder = ChoiceBuilder(0, Stopping(stop=(" ",), include_stop=include), detokenizer)
    builder.add(0)
    assert not builder.stopped  # the token waits for the rest of its character
    builder.add(1)
    assert builder.stopped
    finished = builder.finish(FinishReason.LENGTH)
    assert (finished.text, finished.reason, finished.generated) == (expected, FinishReason.STOP_STRING, 2)
    assert [token.id for token in finished.tokens] == [0, 1]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


@given(
    st.text("thedog .🙂", max_size=20),
    st.lists(st.text("thedog .🙂", min_size=1, max_size=4), max_size=3).map(tuple),
    st.booleans(),
)
def test_the_text_ends_at_the_first_stop_string(source: str, stop: tuple[str, ...], include: bool) -> None:
    deltas = build(TOY.encode(source), Stopping(stop=stop, include_stop=include))
    ends = [(source.find(s) + len(s), source.find(s), s) for s in stop if s in source]
    if ends:
        end, start, matched = min(ends)
        assert text(deltas) == source[: end if include else start]
        assert (deltas[-1].reason, deltas[-1].stop) == (FinishReason.STOP_STRING, matched)
    else:
        assert text(deltas) == source
        assert (deltas[-1].reason, deltas[-1].stop) == (FinishReason.LENGTH, None)
    tokens = [token for delta in deltas for token in delta.tokens]
    assert len(tokens) == deltas[-1].generated
    for delta in deltas:
        assert delta.text == "".join(token.text for token in delta.tokens)


def test_tokens_are_held_back_only_while_a_stop_string_may_cut_them() -> None:
    ids = TOY.encode("the quick brown fox jumps")
    assert [delta.text for delta in build(ids, Stopping(stop=("brown dog",)))] == [
        "the",
        " quick",
        " brown fox",
        " jumps",
    ]
    assert [delta.text for delta in build(ids, Stopping(stop=("brown dog",), include_stop=True))] == [
        "the",
        " quick",
        " brown",
        " fox",
        " jumps",
    ]


def test_the_tokens_of_a_stop_string_keep_the_rest_of_their_text() -> None:
    *_, last = build(TOY.encode("the quick brown fox"), Stopping(stop=("ick brown",)))
    assert isinstance(last, Finished)
    assert [(token.text, token.bytes) for token in last.tokens] == [(" qu", b" quick"), ("", b" brown")]
    assert last.generated == 3
    assert last.seed == 7


def test_a_stop_string_does_not_match_before_the_minimum() -> None:
    deltas = build(TOY.encode("one one one one"), Stopping(stop=("one",), min_new_tokens=2))
    assert text(deltas) == "one one "
    assert deltas[-1].generated == 3


@pytest.mark.parametrize(("include", "expected"), [(True, "the dog"), (False, "the")])
def test_a_stop_token_is_text_only_with_include_stop(include: bool, expected: str) -> None:
    deltas = build(TOY.encode("the dog"), Stopping(include_stop=include), FinishReason.STOP_TOKEN)
    assert text(deltas) == expected
    assert deltas[-1].tokens[-1].id == TOY.encode(" dog")[0]


def test_the_end_token_is_special_and_not_text() -> None:
    deltas = build((*TOY.encode("the"), EOS), Stopping(stop=("</s>",)), FinishReason.EOS)
    assert text(deltas) == "the"
    assert deltas[-1].tokens == (Token(EOS, "</s>", special=True),)
    assert deltas[-1].reason is FinishReason.EOS


def test_an_end_token_that_its_vocabulary_lists_as_text_is_special() -> None:
    deltas = build(TOY.encode("the end"), Stopping(), FinishReason.EOS)
    assert text(deltas) == "the"
    assert deltas[-1].tokens[-1].special
