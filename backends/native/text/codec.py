"""Prompts to token ids, and back: the model's tokenizer and chat template. The engine never sees text.

Short texts are tokenised at once, long ones in a thread with a tokenizer of its own, because a tokenizer is not
thread-safe and a text of megabytes takes seconds.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import TemplateError
from msgspec.structs import replace

from backends.native.grammar.grammar import Grammars
from backends.native.protocol.messages import Logprobs
from backends.native.text.infill import Infill
from backends.native.text.tool_parser import CLOSE, OPEN, can_call
from backends.native.text.vocabulary import HfVocabulary
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import (
    Message,
    Prompt,
    TextPart,
    TextPrompt,
    Token,
    Tokens,
    TokenSpan,
    TokensPrompt,
    Tool,
    TopToken,
)

_LONG = 4096
"""Characters from which a prompt is tokenised in the thread: about 4 ms of work."""
_PROBE = "something said"

T = TypeVar("T")


class TextCodec:
    """What a checkpoint says about text.

    Args:
        tokenizer: a `transformers.PreTrainedTokenizerBase`; not to be used by others any more.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._thread_tokenizer = copy.deepcopy(tokenizer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._parts = _wants_parts(tokenizer)
        self._control = re.compile("|".join(map(re.escape, tokenizer.added_tokens_encoder)) or "(?!)")
        self._infill = Infill.of(tokenizer.get_vocab())
        self._begin = _begin(tokenizer) if self._infill is not None else ()
        self.vocabulary = HfVocabulary(tokenizer)

    @classmethod
    def load(cls, model: str) -> TextCodec:
        """The codec of a checkpoint folder. Seconds: transformers is imported.

        Raises:
            OSError: there is no tokenizer.
            ValueError: there is none that we know.
        """
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        if not tokenizer.chat_template:
            tokenizer.chat_template = _processor_template(Path(model))
        return cls(tokenizer)

    def close(self) -> None:
        """Free the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def has_template(self) -> bool:
        """Whether the model can chat."""
        return bool(self._tokenizer.chat_template)

    @property
    def can_call(self) -> bool:
        """Whether the model can be given tools."""
        return can_call(self._tokenizer.chat_template)

    @property
    def has_call_tokens(self) -> bool:
        """Whether the tags around a call are tokens of their own."""
        return {OPEN, CLOSE} <= set(self._tokenizer.added_tokens_encoder)

    def grammars(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Grammars | None:
        """What compiles grammars for this tokenizer; None if it does not let us know its tokens' bytes."""
        return Grammars.of(self._tokenizer, vocab_size, eos_token_ids)

    async def encode_texts(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of each of many texts, which together may be long."""
        if not texts:
            return []
        return await self._run(sum(map(len, texts)), lambda tokenizer: _encode_all(tokenizer, list(texts)))

    @property
    def can_infill(self) -> bool:
        """Whether the model can fill a gap in a text."""
        return self._infill is not None

    async def encode_around(self, prompt: Prompt, suffix: str, *, truncate: int | None = None) -> tuple[int, ...]:
        """The ids of a prompt for what stands between it, or the last `truncate` of its tokens, and `suffix`.

        Raises:
            schemas.errors.InvalidRequest: the prompt is a chat, or the model cannot do that.
        """
        if self._infill is None or not isinstance(prompt, TextPrompt | TokensPrompt):
            raise UnsupportedFeature("Here is no text that could have a suffix.", feature="suffix", param="suffix")
        before = prompt.ids if isinstance(prompt, TokensPrompt) else await self._encode_bare(prompt.text)
        before = before[-truncate:] if truncate else before
        return self._infill.around(before, await self._encode_bare(suffix), self._begin)

    async def _encode_bare(self, text: str) -> tuple[int, ...]:
        """The ids of a text alone."""
        return await self._run(
            len(text), lambda tokenizer: tuple(tokenizer.encode(text, add_special_tokens=False, verbose=False))
        )

    async def encode(
        self, prompt: Prompt, tools: tuple[Tool, ...] = (), *, truncate: int | None = None
    ) -> tuple[int, ...]:
        """The ids of a prompt, the last `truncate` of them.

        Raises:
            schemas.errors.InvalidRequest: the chat template refuses the messages.
        """
        if isinstance(prompt, TokensPrompt):
            ids = prompt.ids
        elif isinstance(prompt, TextPrompt):
            ids = await self._run(len(prompt.text), lambda tokenizer: _encode(tokenizer, prompt.text))
        else:
            turns = [_turn(message, self._parts) for message in prompt.messages]
            said = "\0".join(_strings(turns))
            sanitize = self._control.search(said) is not None
            ids = await self._run(len(said), lambda tokenizer: _encode_chat(tokenizer, turns, tools, sanitize))
        return ids[-truncate:] if truncate else ids

    async def prefix_length(self, text: str) -> int:
        """How many tokens `text` is as the prefix of a longer text: without an end token of its own."""
        ids = await self.encode(TextPrompt(text))
        return len(ids) - (ids[-1] in self._tokenizer.all_special_ids)

    async def tokenize(
        self, prompt: Prompt, tools: tuple[Tool, ...] = (), *, add_special_tokens: bool = True
    ) -> Tokens:
        """A prompt's tokens and where in its text they are; of chats and ids the text is put together from tokens."""
        if isinstance(prompt, TextPrompt) and self._tokenizer.is_fast:
            text = prompt.text
            spans = await self._run(len(text), lambda tokenizer: _spans(tokenizer, text, add_special_tokens))
            return Tokens(spans, text)
        tokens = self.prompt_tokens(await self.encode(prompt, tools))
        edges = accumulate((len(token.text) for token in tokens), initial=0)
        spans = tuple(
            TokenSpan(token.id or 0, token.text, start, stop)
            for token, (start, stop) in zip(tokens, pairwise(edges), strict=True)
        )
        return Tokens(spans, "".join(token.text for token in tokens))

    def prompt_tokens(self, ids: Sequence[int], logprobs: Sequence[Logprobs] = ()) -> tuple[Token, ...]:
        """A prompt's tokens, with what each adds to its text."""
        detokenizer = self.vocabulary.detokenizer()
        scores = [self.scores(found) for found in logprobs] or [(None, ())] * len(ids)
        fed = (detokenizer.feed(id, *score) for id, score in zip(ids, scores, strict=True))
        tokens = [*chain.from_iterable(fed), *detokenizer.close()]
        if self.vocabulary.strips_first_space:
            _strip_first_space(tokens)
        return tuple(tokens)

    def scores(self, found: Logprobs) -> tuple[float | None, tuple[TopToken, ...]]:
        """The log-probabilities at a position, with text."""
        top = zip(found.top_ids, found.top_logprobs, strict=True)
        return found.logprob, tuple([self._top_token(id, logprob) for id, logprob in top])

    def _top_token(self, id: int, logprob: float) -> TopToken:
        entry = self.vocabulary.piece(id)
        return TopToken(id, entry.text, logprob, None if entry.whole else entry.bytes)

    async def _run(self, size: int, work: Callable[[Any], T]) -> T:
        if size < _LONG:
            return work(self._tokenizer)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._thread_tokenizer)


def _begin(tokenizer: Any) -> tuple[int, ...]:
    """What every text begins with: the tokenizer's first token, if it has one for that and uses it."""
    first = tuple(tokenizer("")["input_ids"][:1])
    return first if first == (tokenizer.bos_token_id,) else ()


def _encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, verbose=False))  # too long is not the tokenizer's to say


def _encode_all(tokenizer: Any, texts: list[str]) -> list[tuple[int, ...]]:
    return [tuple(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]]


def _encode_chat(
    tokenizer: Any, turns: list[dict[str, Any]], tools: tuple[Tool, ...], sanitize: bool
) -> tuple[int, ...]:
    """Render and tokenise; the names of control tokens in what people said stay text if `sanitize`."""
    if sanitize and "sanitize_control_tokens" not in signature(tokenizer.apply_chat_template).parameters:
        raise InvalidRequest(  # transformers before 5.20: a message could pass for somebody else's
            "The messages hold the name of a control token, which cannot be told apart from the token itself here.",
            param="messages",
        )
    try:
        ids = tokenizer.apply_chat_template(
            _known_roles(turns, tokenizer.chat_template),
            tools=[_function(tool) for tool in tools] or None,
            add_generation_prompt=True,
            **({"sanitize_control_tokens": True} if sanitize else {}),
            return_dict=False,
            tokenizer_kwargs={"verbose": False},
        )
    except (TemplateError, ValueError) as error:
        raise InvalidRequest(f"The model's chat template refuses the messages: {error}", param="messages") from error
    return tuple(ids)


def _spans(tokenizer: Any, text: str, add_special_tokens: bool) -> tuple[TokenSpan, ...]:
    found = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
    return tuple(
        TokenSpan(id, text[start:stop], start, stop)
        for id, (start, stop) in zip(found["input_ids"], found["offset_mapping"], strict=True)
    )


def _processor_template(folder: Path) -> str | None:
    """Of multimodal checkpoints whose processor keeps it in a file of its own, as older ones do."""
    file = folder / "chat_template.json"
    return json.loads(file.read_text())["chat_template"] if file.is_file() else None


def _wants_parts(tokenizer: Any) -> bool:
    """Whether its template passes over a text that is not in a list of parts, as those of many multimodal models do."""

    def says(content: object) -> bool:
        try:
            said = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
        except (TemplateError, ValueError, TypeError):
            return False
        return _PROBE in said

    return bool(tokenizer.chat_template) and not says(_PROBE) and says([{"type": "text", "text": _PROBE}])


def _turn(message: Message, parts: bool) -> dict[str, Any]:
    """A message as chat templates know it. What is not there is None, which transformers leaves out."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call.arguments)}}
        for call in message.tool_calls
    ]
    return {
        "role": message.role,
        "content": _content(message, parts),
        "name": message.name,
        "tool_calls": calls or None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }


def _content(message: Message, parts: bool) -> str | list[dict[str, str]] | None:
    """Text as one string, which most templates take; in `parts` for the others, and if there are pictures."""
    content = message.content
    if isinstance(content, str) and parts:
        content = (TextPart(content),)
    if content is None or isinstance(content, str):
        return content
    if not parts and all(isinstance(part, TextPart) for part in content):
        return "".join(part.text for part in content if isinstance(part, TextPart))
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"} for part in content
    ]


def _arguments(text: str) -> Any:
    """Templates expect what the JSON says, and write it as the model wants it; what is none stays as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _known_roles(turns: list[dict[str, Any]], template: object) -> list[dict[str, Any]]:
    """OpenAI's newer word for system, for templates that were written before it."""
    if "developer" in str(template):
        return turns
    return [turn | {"role": "system"} if turn["role"] == "developer" else turn for turn in turns]


def _function(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters or {}}
    return {"type": "function", "function": function}


def _strings(value: Any) -> list[str]:
    """All strings in it, dict keys aside."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _strings(each)]


def _strip_first_space(tokens: list[Token]) -> None:
    for place, token in enumerate(tokens):
        if not token.special and token.text:
            if token.text.startswith(" "):
                tokens[place] = replace(token, text=token.text[1:], bytes=token.bytes or token.text.encode())
            return
