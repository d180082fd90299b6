"""What a script answers to a request: the steps of one choice, before stop strings and limits are applied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, repeat

import msgspec

from backends.scripted.instance import instance
from backends.scripted.script import FixedToken, Script
from backends.scripted.tokenizer import EOS, ToyTokenizer
from schemas.errors import UnsupportedFeature
from schemas.ir import ChatPrompt, Delta, FinishReason, Generate, Prompt, TextPart, TextPrompt, Tool, ToolDelta

Step = int | FixedToken | Delta
"""One generated token: its id, a complete token, or a delta of something other than the text (reasoning, tool calls).
"""

_WEATHER = Tool("get_weather", parameters={"type": "object", "properties": {"city": {"enum": ["Paris"]}}})


class Answer(msgspec.Struct, frozen=True):
    """The steps of a choice, and the finish reason if neither a limit nor a stop string ends it earlier."""

    steps: tuple[Step, ...]
    reason: FinishReason

    def run(self, *, endless: bool, at_least: int) -> Iterator[Step]:
        """The steps and then the end token, with the steps repeated for as long as the end token may not come.

        Args:
            endless: the end token never comes.
            at_least: steps before the end token.
        """
        # Tool calls and content filters end without an end token, and `ignore_eos` does not apply to them.
        if self.reason is not FinishReason.EOS:
            return iter(self.steps)
        if not self.steps:
            # An empty answer has nothing to repeat: end tokens fill the minimum.
            return repeat(EOS, at_least + 1)
        if endless:
            return chain.from_iterable(repeat(self.steps))
        times = max(1, -(-at_least // len(self.steps)))  # rounded up
        return chain(chain.from_iterable(repeat(self.steps, times)), (EOS,))


def answer(script: Script, request: Generate, prompt: Prompt, seed: int, tokenizer: ToyTokenizer) -> Answer:
    """The answer of `script` to `prompt`.

    Raises:
        schemas.errors.UnsupportedFeature: the request's grammar is a regular expression.
    """
    tools = called_tools(script, request)
    if tools:
        return Answer((*_reasoning(script, tokenizer), *_calls(tools, tokenizer)), FinishReason.TOOL_CALL)
    if script.refusal:
        return Answer(tuple(Delta(refusal=text) for text in _texts(script.refusal, tokenizer)), script.reason)
    steps: tuple[Step, ...]
    # Fixed tokens cannot follow a grammar, so a request with one gets a text.
    if script.tokens and request.grammar is None:
        steps = script.tokens
    else:
        steps = tokenizer.encode(_text(script, request, prompt, seed, tokenizer))
    return Answer((*_reasoning(script, tokenizer), *steps * script.repeat), script.reason)


def called_tools(script: Script, request: Generate) -> tuple[Tool, ...]:
    """The tools that the answer calls: those that the request requires, else as many as the script says."""
    choice = request.tool_choice
    if choice is not None and choice.mode == "none":
        return ()
    # A script that calls tools works without tools in the request, too.
    offered = request.tools or (_WEATHER,)
    if choice is not None and (choice.mode in ("named", "required") or choice.required):
        # Without names, any tool will do.
        allowed = [tool for tool in offered if not choice.names or tool.name in choice.names]
        return tuple(allowed[: max(1, script.tool_calls)])
    # A script may call more tools than are offered: they are called in turn.
    return tuple(offered[place % len(offered)] for place in range(script.tool_calls))


def prompt_text(prompt: Prompt, tokenizer: ToyTokenizer) -> str:
    """The text of a prompt that is tokenized; of a chat, with roles and the beginning of the answer."""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    if isinstance(prompt, ChatPrompt):
        turns = (f"{message.role}: {_content(message.content)}\n" for message in prompt.messages)
        return "".join(turns) + "assistant:"
    return tokenizer.decode(prompt.ids)


def _content(content: object) -> str:
    if isinstance(content, tuple):
        return "".join(part.text if isinstance(part, TextPart) else "<image>" for part in content)
    return content if isinstance(content, str) else ""


def _text(script: Script, request: Generate, prompt: Prompt, seed: int, tokenizer: ToyTokenizer) -> str:
    text = script.texts[0 if request.sampling.greedy else seed % len(script.texts)]
    if script.echo:
        last = _content(prompt.messages[-1].content) if isinstance(prompt, ChatPrompt) else None
        text = prompt_text(prompt, tokenizer) if last is None else last
    if request.grammar is None:
        return text
    if request.grammar.kind == "regex":
        raise UnsupportedFeature("The scripted backend cannot follow regular expressions.", feature="grammar")
    value = {"answer": text} if request.grammar.kind == "json_object" else instance(request.grammar.value)
    return json.dumps(value, ensure_ascii=False)


def _reasoning(script: Script, tokenizer: ToyTokenizer) -> tuple[Delta, ...]:
    return tuple(Delta(reasoning=text) for text in _texts(script.reasoning, tokenizer))


def _calls(tools: tuple[Tool, ...], tokenizer: ToyTokenizer) -> Iterator[Delta]:
    for index, tool in enumerate(tools):
        # The id and name come first and the arguments in pieces, as in OpenAI's streams.
        yield Delta(tool_calls=(ToolDelta(index, f"call_{index}", tool.name),))
        for text in _texts(json.dumps(instance(tool.parameters)), tokenizer):
            yield Delta(tool_calls=(ToolDelta(index, arguments=text),))


def _texts(text: str, tokenizer: ToyTokenizer) -> list[str]:
    """A text in pieces of one token each. A character of several tokens comes with the last of them."""
    pieces: list[str] = []
    rest = b""
    for id in tokenizer.encode(text):
        rest += tokenizer.piece(id).bytes
        try:
            pieces.append(rest.decode())
        except UnicodeDecodeError:  # in the middle of a character
            continue
        rest = b""
    return pieces
