"""The vocabulary of a Hugging Face tokenizer: the bytes of every token, where its decoder makes them known.

Byte-level and SentencePiece tokenizers, which nearly all models have, concatenate their tokens' bytes. For other
tokenizers `WindowDecoder` calls the tokenizer's own `decode` on a window of tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from backends.detokenization.detokenizer import Detokenizer, Piece, Utf8Decoder, piece

_NOTHING = b""
_MAX_PENDING = 8
"""Tokens after which an incomplete character is given up: a character has four bytes at most."""


class HfVocabulary:
    """The vocabulary of `tokenizer`, a `transformers.PreTrainedTokenizerBase`.

    `strips_first_space`: the tokenizer adds a space before every text, which is not part of it. `digest` is equal for
    vocabularies that map the same ids to the same tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added: dict[int, Any] = tokenizer.added_tokens_decoder
        steps = list(_decoder_steps(tokenizer))
        self._to_bytes = _to_bytes({step["type"] for step in steps})
        self.strips_first_space = any(_strips_first_space(step) for step in steps)
        self._pieces: dict[int, Piece] = {}
        # Sorted, since `get_vocab` does not define an order: equal vocabularies must have equal digests.
        names = sorted((id, name) for name, id in tokenizer.get_vocab().items())
        self.digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()

    def piece(self, id: int) -> Piece:
        """The entry of a token; an empty one for an unknown id."""
        # Entries are made on first use: a vocabulary has 100,000 tokens and more, of which most requests use few.
        found = self._pieces.get(id)
        if found is None:
            found = self._pieces[id] = self._make_piece(id)
        return found

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        """A new detokenizer for the tokens after `context`."""
        if self._to_bytes is not None:
            return Detokenizer(self, Utf8Decoder())
        return Detokenizer(self, WindowDecoder(self._decode, context))

    def _make_piece(self, id: int) -> Piece:
        added = self._added.get(id)
        # A special token's text is its name, for lists of tokens; the mark keeps it out of visible text.
        if added is not None and added.special:
            return piece(id, added.content.encode(), special=True)
        # Models may have more logits than the tokenizer has tokens (padding for the hardware); such ids have no text.
        text: str | None = self._tokenizer.convert_ids_to_tokens(id) if 0 <= id < len(self._tokenizer) else None
        if text is None:
            return piece(id, _NOTHING)
        if self._to_bytes is None:
            return piece(id, self._decode([id]).encode())
        # Added tokens are stored as plain text: the byte alphabet and `▁` apply to the trained vocabulary only.
        return piece(id, text.encode() if added is not None else self._to_bytes(text))

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


class WindowDecoder:
    """Decodes vocabularies whose tokens have no text on their own: a token's text is by how much a window's text grows.

    The window starts with the tokens emitted before the latest ones, so that the tokenizer sees their context.

    Args:
        decode: ids to text.
        context: the ids before the first token.
    """

    __slots__ = ("_decode", "_emitted", "_window", "pending")

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-_MAX_PENDING:])
        self._emitted = len(self._window)
        self.pending = False

    def push(self, piece: Piece) -> str:
        """Add a token; returns the text that is complete with it."""
        # Both windows are decoded anew for each token, as by TGI's `prefix_offset` and `read_offset`: what a token adds
        # depends on the tokens before it (spaces that the decoder inserts or cleans up).
        self._window.append(piece.id)
        grown = self._new_text()
        # A trailing U+FFFD may be an incomplete character or one that the model has written; after `_MAX_PENDING`
        # tokens it is taken for the latter.
        self.pending = grown.endswith("\ufffd") and len(self._window) - self._emitted < _MAX_PENDING
        return "" if self.pending else self._emit(grown)

    def flush(self) -> str:
        """The text of pending tokens."""
        self.pending = False
        return self._emit(self._new_text())

    def _new_text(self) -> str:
        return self._decode(self._window)[len(self._decode(self._window[: self._emitted])) :]

    def _emit(self, text: str) -> str:
        # The tokens just emitted become the context of the next ones; older ones have no influence any more.
        del self._window[: self._emitted]
        self._emitted = len(self._window)
        return text


def _decoder_steps(tokenizer: Any) -> Iterator[dict[str, Any]]:
    """The steps of a fast tokenizer's decoder, with sequences flattened; none for slow tokenizers."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None or fast.decoder is None:
        return
    # `__getstate__`, made for pickling, is the decoder's part of tokenizer.json.
    pending = [json.loads(fast.decoder.__getstate__())]
    while pending:
        step = pending.pop()
        if step["type"] == "Sequence":
            pending += step["decoders"]
        else:
            yield step


def _to_bytes(steps: set[str]) -> Callable[[str], bytes] | None:
    """The function from a vocabulary entry to its bytes for a decoder of these steps; None if there is none."""
    # A step that is not listed here (WordPiece's, CTC's, BPEDecoder's) makes text depend on neighboring tokens.
    if "ByteLevel" in steps and steps <= {"ByteLevel", "Fuse"}:
        return _byte_level
    if steps and steps <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        return _sentencepiece if "ByteFallback" in steps else _metaspace
    return None


def _strips_first_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return bool(step["start"])
    # `always` and `first` put a `▁` before the text when encoding, and the decoder removes it.
    return bool(step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")


def _metaspace(text: str) -> bytes:
    return text.replace("▁", " ").encode()


def _sentencepiece(text: str) -> bytes:
    # Byte fallback: SentencePiece writes a byte without an entry of its own as `<0x0A>`.
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return _metaspace(text)


def _byte_level(text: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in text])
    # The entry is no byte-level text: a character is outside of the alphabet, so the entry means itself.
    except KeyError:
        return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """The inverse of GPT-2's `bytes_to_unicode`: printable bytes map to themselves, the others to U+0100 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_alphabet()
