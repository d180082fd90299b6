"""Prompts to token ids and back, with the model's tokenizer and chat template. The engine never sees text.

Short texts are tokenized in the event loop, long ones in a thread with a tokenizer of its own: a tokenizer is not
thread-safe, and a text of megabytes takes seconds.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from backends.chat_template import ChatTemplate
from backends.chat_template.effort import effort_variables, without_effect
from backends.chat_template.messages import function, strings_in, turns
from backends.native.grammar.grammar import Grammars
from backends.native.protocol.messages import Logprobs
from backends.native.rerankers import fill
from backends.native.sentence_transformers import Late
from backends.native.text.control_tokens import ControlTokens, encode_templated
from backends.native.text.infill import Infill
from backends.native.text.late import LateTokens, add_prefixes
from backends.native.text.vocabulary import HfVocabulary
from backends.native.tools.families.table import find_form
from backends.native.tools.family import Family
from backends.native.tools.generic import plain_turns
from backends.native.tools.response_template import NotRead, read_response_template
from schemas.catalog import TokenizerInfo
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Prompt,
    TemplateOptions,
    TextPrompt,
    Token,
    Tokens,
    TokenSpan,
    TokensPrompt,
    Tool,
    TopToken,
)

log = structlog.get_logger()

# Strategy:
# - Ids pass through, a text is tokenized, and a chat is rendered by the checkpoint's own Jinja template first.
# - Messages are data: the name of a control token in them stays text (`mark_control_tokens` of transformers), or the
#   request is rejected.
# - Templates differ. What a template supports (parts, the role `developer`, tools) is found in its source or by trial.
# - A template is rendered in a process of its own (`backends.chat_template`): neither it nor a chat is trusted.
# - Tokens to text: `vocabulary` has each token's bytes, and the detokenizer joins them without splitting a character.

_LONG_TEXT = 4096
"""Characters from which a prompt is tokenized in the thread: about 4 ms of work."""
_TAIL = 16
"""Tokens at the end of a prompt in which the tag that opens reasoning is looked for."""

T = TypeVar("T")


class TextCodec:
    """Encodes prompts and decodes tokens for one checkpoint.

    Args:
        tokenizer: a `transformers.PreTrainedTokenizerBase`, which the caller must not use any more.
        tool_format: a family's name, "generic" or "none"; "auto" finds it by the chat template.
        reasoning_format: a family's name or "none", likewise.

    Attributes:
        form: how the model writes tool calls and reasoning.
    """

    def __init__(self, tokenizer: Any, tool_format: str = "auto", reasoning_format: str = "auto") -> None:
        self._tokenizer = tokenizer
        self._thread_tokenizer = copy.deepcopy(tokenizer)
        # One thread, because there is one tokenizer for it: long texts of several requests wait for each other, short
        # ones do not.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        source = tokenizer.chat_template
        self._template = ChatTemplate(source, tokenizer.special_tokens_map) if source else None
        named = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        self.info = TokenizerInfo(named, source or None)
        sources = source.values() if isinstance(source, dict) else [source or ""]
        own = _own_form(tokenizer)
        self.form = find_form("\0".join(sources), tokenizer.added_tokens_encoder, tool_format, reasoning_format, own)
        if source and not self.form.can_call and tool_format == "auto":
            log.warning("tools.refused", why="the chat template's form of calls is not known: set `tool_format`")
        self._control_tokens = ControlTokens(tokenizer, self._template.literals if self._template is not None else "")
        self._infill = Infill.of(tokenizer.get_vocab())
        self._bos = _bos(tokenizer) if self._infill is not None else ()
        self.vocabulary = HfVocabulary(tokenizer)

    @classmethod
    def load(
        cls, model: str, tool_format: str = "auto", reasoning_format: str = "auto", *, late: Late | None = None
    ) -> TextCodec:
        """Load the codec of a checkpoint folder. Takes seconds: transformers is imported.

        Args:
            model: the folder.
            tool_format: as in the constructor.
            reasoning_format: likewise.
            late: of a model of late interaction.

        Raises:
            OSError: the folder has no tokenizer.
            ValueError: its tokenizer is of an unknown kind.
        """
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        # Older multimodal checkpoints have the template in a file of their processor. Base models have none, and
        # `has_template` is false.
        if not tokenizer.chat_template:
            tokenizer.chat_template = _processor_template(Path(model))
        if late is not None:
            add_prefixes(tokenizer, late.prefixes)
        return cls(tokenizer, tool_format, reasoning_format)

    def close(self) -> None:
        """Stop the thread and the template's processes."""
        if self._template is not None:
            self._template.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._tokenizer.chat_template)

    @property
    def can_call(self) -> bool:
        """Whether the model can be offered tools."""
        return self.has_template and self.form.can_call

    def opens_reasoning(self, ids: Sequence[int]) -> bool:
        """Whether a prompt ends with the tag that opens reasoning, so that the answer goes on with it."""
        return self.form.opens_reasoning("".join(token.text for token in self.prompt_tokens(ids[-_TAIL:])))

    def grammars(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Grammars | None:
        """A grammar compiler for this tokenizer; None if the bytes of its tokens are not known."""
        return Grammars.of(self._tokenizer, vocab_size, eos_token_ids)

    async def encode_texts(self, texts: Sequence[str], *, truncate: int | None = None) -> list[tuple[int, ...]]:
        """The ids of each of several texts; longer ones are cut to `truncate` tokens, special tokens kept."""
        if not texts:
            return []
        # The total length decides between loop and thread: many short texts block as long as one long text.
        return await self._run_tokenizer(
            sum(map(len, texts)), lambda tokenizer: _encode_all(tokenizer, list(texts), truncate)
        )

    def late_tokens(self, late: Late, *, query: bool) -> LateTokens:
        """What becomes of the ids of queries or documents."""
        return LateTokens(self._tokenizer, late, query=query)

    async def encode_pairs(
        self, pairs: Sequence[tuple[str, str]], *, truncate: int | None = None
    ) -> list[tuple[tuple[int, ...], int]]:
        """The ids of each pair of texts, and where the second begins for models that distinguish them, else 0.

        A pair longer than `truncate` tokens is cut as the tokenizer cuts it: token by token of the longer text.
        """
        size = sum(len(one) + len(other) for one, other in pairs)
        return await self._run_tokenizer(size, lambda tokenizer: _encode_pairs(tokenizer, pairs, truncate))

    async def encode_parts(
        self, parts: Sequence[str], values: Sequence[Mapping[str, str]]
    ) -> list[list[tuple[int, ...]]]:
        """The ids of the parts of a prompt, each encoded by itself, with each of `values` in its places (`fill`).

        Raises:
            schemas.errors.InvalidRequest: a value has the name of a control token, and transformers is too old.
        """
        own = ControlTokens(self._tokenizer, "\0".join(parts))
        marked = own.named_in(text for each in values for text in each.values())
        given = [own.mark(dict(each)) for each in values] if marked else values
        prompts = [[fill(part, each) for part in parts] for each in given]
        texts = dict.fromkeys(chain.from_iterable(prompts))
        ids = await self._run_tokenizer(
            sum(map(len, texts)),
            lambda tokenizer: {text: encode_templated(tokenizer, text, marked=marked) for text in texts},
        )
        return [[ids[text] for text in prompt] for prompt in prompts]

    @property
    def can_infill(self) -> bool:
        """Whether the tokenizer has fill-in-the-middle tokens."""
        return self._infill is not None

    async def encode_around(self, prompt: Prompt, suffix: str, *, truncate: int | None = None) -> tuple[int, ...]:
        """The ids of a fill-in-the-middle prompt: `prompt` or the last `truncate` of its tokens, a gap, `suffix`.

        Raises:
            schemas.errors.UnsupportedFeature: the prompt is a chat, or the model does not support it.
        """
        if self._infill is None or not isinstance(prompt, TextPrompt | TokensPrompt):
            raise UnsupportedFeature(
                "A suffix needs a text prompt and a model that supports fill-in-the-middle.",
                feature="suffix",
                param="suffix",
            )
        before = prompt.ids if isinstance(prompt, TokensPrompt) else await self._encode_plain(prompt.text)
        # The text next to the gap is kept.
        before = before[-truncate:] if truncate else before
        return self._infill.around(before, await self._encode_plain(suffix), self._bos)

    async def _encode_plain(self, text: str) -> tuple[int, ...]:
        """The ids of a text without special tokens around it."""
        return await self._run_tokenizer(
            len(text), lambda tokenizer: tuple(tokenizer.encode(text, add_special_tokens=False, verbose=False))
        )

    async def encode(
        self, prompt: Prompt, tools: tuple[Tool, ...] = (), *, truncate: int | None = None
    ) -> tuple[int, ...]:
        """The ids of a prompt, or the last `truncate` of them.

        Raises:
            schemas.errors.InvalidRequest: the chat template rejects the messages.
        """
        if isinstance(prompt, TokensPrompt):
            ids = prompt.ids
        elif isinstance(prompt, TextPrompt):
            ids = await self._run_tokenizer(len(prompt.text), lambda tokenizer: _encode(tokenizer, prompt.text))
        else:
            ids = await self.encode_turns(self._turns(prompt), prompt.template, tools)
        return ids[-truncate:] if truncate else ids

    def _turns(self, prompt: ChatPrompt) -> list[dict[str, Any]]:
        return turns(prompt.messages, self._template) if self._template is not None else []

    async def encode_turns(
        self, messages: list[dict[str, Any]], options: TemplateOptions, tools: tuple[Tool, ...] = ()
    ) -> tuple[int, ...]:
        """The ids of a chat in the form that its template expects.

        Raises:
            schemas.errors.InvalidRequest: the chat template rejects the messages, or there is none.
        """
        text, marked = await self._render(messages, list(map(function, tools)), options)
        return await self._run_tokenizer(len(text), lambda tokenizer: encode_templated(tokenizer, text, marked=marked))

    async def _render(
        self, messages: list[dict[str, Any]], functions: list[dict[str, Any]], options: TemplateOptions
    ) -> tuple[str, bool]:
        """The text of a chat, and whether control tokens that are part of messages are marked in it."""
        if self._template is None:
            raise InvalidRequest("The model has no chat template.", param="messages")
        # Without this, a user's text `<|im_end|>` would become the control token and end the user's turn (prompt
        # injection).
        marked = self._control_tokens.named_in(strings_in([*messages, options.variables]))
        if marked:
            messages, functions = self._control_tokens.mark(messages), self._control_tokens.mark(functions)
            options = replace(options, variables=self._control_tokens.mark(dict(options.variables)))
        # Behind the marks: the tags around calls are ours, and not a client's.
        if self.form.generic:
            messages = plain_turns(messages, functions, takes_system=self._template.takes_system)
            functions = []
        return await self._template.render(messages, functions, options), marked

    def with_effort(self, prompt: ChatPrompt, hints: Mapping[str, Any]) -> ChatPrompt:
        """A chat with what the request's hints say of reasoning, as the template takes it; the client's own win."""
        found = effort_variables(hints, self._template.variables) if self._template is not None else {}
        if not found:
            return prompt
        return replace(prompt, template=replace(prompt.template, variables=found | prompt.template.variables))

    def without_effect(self, prompt: ChatPrompt, hints: Mapping[str, Any]) -> tuple[str, ...]:
        """The hints and the client's variables that the template does not read, by their place."""
        if self._template is None:
            return ()
        return without_effect(hints, prompt.template.variables, self._template.variables)

    async def prefix_length(self, text: str) -> int:
        """How many tokens `text` is as the prefix of a longer text: without an end token of its own."""
        # Encoders such as BERT put a special token behind every text (`[SEP]`); behind a prefix there is none.
        ids = await self.encode(TextPrompt(text))
        return len(ids) - (ids[-1] in self._tokenizer.all_special_ids)

    async def tokenize(
        self, prompt: Prompt, tools: tuple[Tool, ...] = (), *, add_special_tokens: bool = True
    ) -> Tokens:
        """A prompt's tokens and their places in its text; the text of chats and ids is decoded from the tokens."""
        # Only fast tokenizers know the offsets of their tokens. Otherwise each token's place follows from the length of
        # its decoded text.
        if isinstance(prompt, TextPrompt) and self._tokenizer.is_fast:
            text = prompt.text
            spans = await self._run_tokenizer(len(text), lambda tokenizer: _spans(tokenizer, text, add_special_tokens))
            return Tokens(spans, text)
        tokens = self.prompt_tokens(await self.encode(prompt, tools))
        edges = accumulate((len(token.text) for token in tokens), initial=0)
        spans = tuple(
            TokenSpan(token.id or 0, token.text, start, stop)
            for token, (start, stop) in zip(tokens, pairwise(edges), strict=True)
        )
        return Tokens(spans, "".join(token.text for token in tokens))

    def prompt_tokens(self, ids: Sequence[int], logprobs: Sequence[Logprobs] = ()) -> tuple[Token, ...]:
        """A prompt's tokens with their text, and with their log-probabilities if given."""
        detokenizer = self.vocabulary.detokenizer()
        # Without log-probabilities: neither a score nor alternatives for any token.
        scores = [self.scores(each) for each in logprobs] or [(None, ())] * len(ids)
        fed = (detokenizer.feed(id, *score) for id, score in zip(ids, scores, strict=True))
        tokens = [*chain.from_iterable(fed), *detokenizer.close()]
        if self.vocabulary.strips_first_space:
            _strip_first_space(tokens)
        return tuple(tokens)

    def scores(self, found: Logprobs) -> tuple[float | None, tuple[TopToken, ...]]:
        """The log-probabilities at a position, with the text of the tokens."""
        top = []
        for id, logprob in zip(found.top_ids, found.top_logprobs, strict=True):
            entry = self.vocabulary.piece(id)
            # Only a token that is not complete UTF-8 gets its bytes: its text has replacement characters (U+FFFD).
            top.append(TopToken(id, entry.text, logprob, None if entry.whole else entry.bytes))
        return found.logprob, tuple(top)

    async def _run_tokenizer(self, size: int, work: Callable[[Any], T]) -> T:
        # Nothing is awaited while the loop's tokenizer works, so no two calls overlap and it needs no lock.
        if size < _LONG_TEXT:
            return work(self._tokenizer)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._thread_tokenizer)


def _own_form(tokenizer: Any) -> Family | None:
    """How the model's own response template says that it answers, if it has one."""
    template = getattr(tokenizer, "response_template", None)
    if template is None:
        return None
    try:
        return read_response_template(template)
    except NotRead as error:
        log.warning("response_template.ignored", why=str(error))
        return None


def _bos(tokenizer: Any) -> tuple[int, ...]:
    """The beginning-of-sequence token, if the tokenizer puts one before every text."""
    # An empty text has the special tokens only.
    first = tuple(tokenizer("")["input_ids"][:1])
    return first if first == (tokenizer.bos_token_id,) else ()


def _encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, verbose=False))  # not verbose: it would warn of long texts


def _encode_all(tokenizer: Any, texts: list[str], truncate: int | None = None) -> list[tuple[int, ...]]:
    found = tokenizer(texts, truncation=truncate is not None, max_length=truncate, verbose=False)
    return [tuple(ids) for ids in found["input_ids"]]


def _encode_pairs(
    tokenizer: Any, pairs: Sequence[tuple[str, str]], truncate: int | None
) -> list[tuple[tuple[int, ...], int]]:
    ones, others = map(list, zip(*pairs, strict=True))
    found = tokenizer(ones, others, truncation=truncate is not None, max_length=truncate, verbose=False)
    # Tokenizers of models without token types leave them out.
    types = found.get("token_type_ids") or [()] * len(pairs)
    return [
        (tuple(ids), kinds.index(1) if 1 in kinds else 0) for ids, kinds in zip(found["input_ids"], types, strict=True)
    ]


def _spans(tokenizer: Any, text: str, add_special_tokens: bool) -> tuple[TokenSpan, ...]:
    found = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
    return tuple(
        TokenSpan(id, text[start:stop], start, stop)
        for id, (start, stop) in zip(found["input_ids"], found["offset_mapping"], strict=True)
    )


def _processor_template(folder: Path) -> str | None:
    """The chat template of older multimodal checkpoints, whose processor has it in a file of its own."""
    file = folder / "chat_template.json"
    return json.loads(file.read_text())["chat_template"] if file.is_file() else None


def _strip_first_space(tokens: list[Token]) -> None:
    for place, token in enumerate(tokens):
        if not token.special and token.text:
            # The token keeps its bytes, space included: they identify the vocabulary's entry.
            if token.text.startswith(" "):
                tokens[place] = replace(token, text=token.text[1:], bytes=token.bytes or token.text.encode())
            return
