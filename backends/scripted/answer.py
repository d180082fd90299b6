"""What a script says to a request: the acts of one choice, before anything cuts them short."""

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

Act = int | FixedToken | Delta
"""One generated token: its id, all of it, or what it adds to something other than the text."""

_WEATHER = Tool("get_weather", parameters={"type": "object", "properties": {"city": {"enum": ["Paris"]}}})


class Answer(msgspec.Struct, frozen=True):
    """What is said, and how it ends if nothing ends it earlier."""

    acts: tuple[Act, ...]
    reason: FinishReason

    def run(self, *, endless: bool, at_least: int) -> Iterator[Act]:
        """The acts and the end token, which does not come if `endless`, nor among the first `at_least` tokens."""
        if self.reason is not FinishReason.EOS:
            return iter(self.acts)
        if not self.acts:
            return repeat(EOS, at_least + 1)
        if endless:
            return chain.from_iterable(repeat(self.acts))
        times = max(1, -(-at_least // len(self.acts)))
        return chain(chain.from_iterable(repeat(self.acts, times)), (EOS,))


def answer(script: Script, request: Generate, prompt: Prompt, seed: int, tokenizer: ToyTokenizer) -> Answer:
    """What `script` answers to `prompt`.

    Raises:
        schemas.errors.UnsupportedFeature: it cannot be made to match a regular expression.
    """
    tools = called_tools(script, request)
    if tools:
        return Answer((*_reasoning(script, tokenizer), *_calls(tools, tokenizer)), FinishReason.TOOL_CALL)
    if script.refusal:
        return Answer(tuple(Delta(refusal=text) for text in _texts(script.refusal, tokenizer)), script.reason)
    said: tuple[Act, ...]
    if script.tokens and request.grammar is None:
        said = script.tokens
    else:
        said = tokenizer.encode(_text(script, request, prompt, seed, tokenizer))
    return Answer((*_reasoning(script, tokenizer), *said * script.repeat), script.reason)


def called_tools(script: Script, request: Generate) -> tuple[Tool, ...]:
    """The tools that are called: those that must be, or those that the script likes to call."""
    choice = request.tool_choice
    if choice is not None and choice.mode == "none":
        return ()
    offered = request.tools or (_WEATHER,)
    if choice is not None and (choice.mode in ("named", "required") or choice.required):
        allowed = [tool for tool in offered if not choice.names or tool.name in choice.names]
        return tuple(allowed[: max(1, script.tool_calls)])
    return tuple(offered[place % len(offered)] for place in range(script.tool_calls))


def prompt_text(prompt: Prompt, tokenizer: ToyTokenizer) -> str:
    """A prompt as it is tokenised."""
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
        yield Delta(tool_calls=(ToolDelta(index, f"call_{index}", tool.name),))
        for text in _texts(json.dumps(instance(tool.parameters)), tokenizer):
            yield Delta(tool_calls=(ToolDelta(index, arguments=text),))


def _texts(text: str, tokenizer: ToyTokenizer) -> list[str]:
    """A text in pieces of one token each; of a character that takes several tokens, all with the last."""
    pieces: list[str] = []
    rest = b""
    for id in tokenizer.encode(text):
        rest += tokenizer.piece(id).bytes
        try:
            pieces.append(rest.decode())
        except UnicodeDecodeError:
            continue
        rest = b""
    return pieces
