"""What every token of a Hugging Face tokenizer says, in bytes where the tokenizer's decoder lets us know them.

Byte-level and SentencePiece tokenizers, which nearly all models have, concatenate their tokens' bytes. For the others
(`WindowDecoder`) text is what the tokenizer's own `decode` makes of a window of tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from backends.detokenizer import Detokenizer, Piece, Utf8Decoder, piece

_NOTHING = b""
_STUCK = 8
"""Tokens after which an incomplete character will not be completed any more: it has four bytes at most."""


class HfVocabulary:
    """The vocabulary of `tokenizer`, a `transformers.PreTrainedTokenizerBase`.

    `strips_first_space` says that a text's very first space is not the text's own. `digest` is the same for
    vocabularies that give every id the same name.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added: dict[int, Any] = tokenizer.added_tokens_decoder
        steps = list(_decoder_steps(tokenizer))
        self._to_bytes = _to_bytes({step["type"] for step in steps})
        self.strips_first_space = any(_strips_first_space(step) for step in steps)
        self._pieces: dict[int, Piece] = {}
        names = sorted((id, name) for name, id in tokenizer.get_vocab().items())
        self.digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()

    def piece(self, id: int) -> Piece:
        """The entry of a token; of an unknown id, an empty one."""
        found = self._pieces.get(id)
        if found is None:
            found = self._pieces[id] = self._make(id)
        return found

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        """A fresh detokenizer for what follows `context`."""
        if self._to_bytes is not None:
            return Detokenizer(self, Utf8Decoder())
        return Detokenizer(self, WindowDecoder(self._decode, context))

    def _make(self, id: int) -> Piece:
        added = self._added.get(id)
        if added is not None and added.special:
            return piece(id, added.content.encode(), special=True)
        text: str | None = self._tokenizer.convert_ids_to_tokens(id) if 0 <= id < len(self._tokenizer) else None
        if text is None:
            return piece(id, _NOTHING)
        if self._to_bytes is None:
            return piece(id, self._decode([id]).encode())
        return piece(id, text.encode() if added is not None else self._to_bytes(text))

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


class WindowDecoder:
    """For vocabularies whose tokens say something only together: text is by how much a window's text grows.

    The window starts one telling before the last, so that the tokenizer knows what stood before.

    Args:
        decode: ids to text.
        context: the ids that stand before the first one.
    """

    __slots__ = ("_decode", "_told", "_window", "pending")

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-_STUCK:])
        self._told = len(self._window)
        self.pending = False

    def push(self, piece: Piece) -> str:
        """The text that became certain."""
        self._window.append(piece.id)
        grown = self._grown()
        self.pending = grown.endswith("\ufffd") and len(self._window) - self._told < _STUCK
        return "" if self.pending else self._tell(grown)

    def flush(self) -> str:
        """The text of what is pending."""
        self.pending = False
        return self._tell(self._grown())

    def _grown(self) -> str:
        return self._decode(self._window)[len(self._decode(self._window[: self._told])) :]

    def _tell(self, text: str) -> str:
        del self._window[: self._told]
        self._told = len(self._window)
        return text


def _decoder_steps(tokenizer: Any) -> Iterator[dict[str, Any]]:
    """The steps of a fast tokenizer's decoder, sequences opened; none for other tokenizers."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None or fast.decoder is None:
        return
    pending = [json.loads(fast.decoder.__getstate__())]
    while pending:
        step = pending.pop()
        if step["type"] == "Sequence":
            pending += step["decoders"]
        else:
            yield step


def _to_bytes(steps: set[str]) -> Callable[[str], bytes] | None:
    """How a vocabulary entry is turned to bytes by a decoder of these steps; None if not one by one."""
    if "ByteLevel" in steps and steps <= {"ByteLevel", "Fuse"}:
        return _byte_level
    if steps and steps <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        return _sentencepiece if "ByteFallback" in steps else _metaspace
    return None


def _strips_first_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return bool(step["start"])
    return bool(step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")


def _metaspace(text: str) -> bytes:
    return text.replace("▁", " ").encode()


def _sentencepiece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return _metaspace(text)


def _byte_level(text: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in text])
    except KeyError:
        return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's `bytes_to_unicode`, reversed: printable bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_alphabet()
