"""Tools for chat models whose template does not know them: listed in the system message, with the form of a call.

Calls and their results in a conversation become texts of the roles that every template has. The tags are those of
Hermes, which many models have seen in training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

_PROMPT = """\
You can call functions. Each line between <tools> and </tools> describes one, with a JSON schema of its arguments:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as JSON, and nothing else, in this form:
<tool_call>
{{"name": "function name", "arguments": {{"argument name": "value"}}}}
</tool_call>
Its result comes in the next message, between <tool_response> and </tool_response>. Call a function only if it helps \
to answer; otherwise answer as usual."""

Turn = dict[str, Any]


def plain_turns(turns: Sequence[Turn], functions: Sequence[Mapping[str, Any]], *, takes_system: bool) -> list[Turn]:
    """A chat without tools that says the same as one with tools.

    Args:
        turns: messages as chat templates have them.
        functions: the tools, likewise.
        takes_system: whether the template renders system messages; else the tools are listed in the user's first one.
    """
    plain: list[Turn] = []
    for turn in turns:
        if turn["role"] == "tool":
            _add_result(plain, turn)
        elif turn.get("tool_calls"):
            plain.append(_with_calls(turn))
        elif plain and plain[-1]["role"] == turn["role"] == "user" and _is_result(plain[-1]):
            # Templates that want turns to alternate get one turn of the results and of what the user says to them.
            plain[-1] = plain[-1] | {"content": _joined(plain[-1]["content"], "\n\n", turn["content"])}
        else:
            plain.append(turn)
    return _with_prompt(plain, functions, takes_system=takes_system) if functions else plain


def _with_prompt(turns: list[Turn], functions: Sequence[Mapping[str, Any]], *, takes_system: bool) -> list[Turn]:
    lines = "\n".join(json.dumps(each["function"], ensure_ascii=False) for each in functions)
    prompt = _PROMPT.format(tools=lines)
    if takes_system and turns[0]["role"] in ("system", "developer"):
        return [turns[0] | {"content": _joined(turns[0].get("content") or "", "\n\n", prompt)}, *turns[1:]]
    if takes_system:
        return [{"role": "system", "content": prompt}, *turns]
    place = next((place for place, turn in enumerate(turns) if turn["role"] == "user"), None)
    if place is None:
        return [{"role": "user", "content": prompt}, *turns]
    first = turns[place] | {"content": _joined(prompt, "\n\n", turns[place].get("content") or "")}
    return [*turns[:place], first, *turns[place + 1 :]]


def _add_result(turns: list[Turn], turn: Turn) -> None:
    content = _joined(_joined("<tool_response>\n", "", turn.get("content") or ""), "", "\n</tool_response>")
    if turns and _is_result(turns[-1]):
        turns[-1] = turns[-1] | {"content": _joined(turns[-1]["content"], "\n", content)}
    else:
        turns.append({"role": "user", "content": content})


def _is_result(turn: Turn) -> bool:
    content = turn.get("content")
    text = content[0].get("text", "") if isinstance(content, list) and content else content
    return turn["role"] == "user" and isinstance(text, str) and text.startswith("<tool_response>\n")


def _with_calls(turn: Turn) -> Turn:
    functions = [call["function"] for call in turn["tool_calls"]]
    calls = "\n".join(f"<tool_call>\n{_call(each)}\n</tool_call>" for each in functions)
    content = turn.get("content")
    kept = {name: value for name, value in turn.items() if name != "tool_calls"}
    return kept | {"content": _joined(content, "\n", calls) if content else calls}


def _call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    with suppress(ValueError, TypeError):  # the template at hand may want text, which is no JSON in the worst case
        arguments = json.loads(arguments)
    return json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)


def _joined(first: Any, between: str, second: Any) -> Any:
    """Two contents as one: a text if both are texts, else a list of parts."""
    if isinstance(first, str) and isinstance(second, str):
        return first + between + second
    parts = [[{"type": "text", "text": each}] if isinstance(each, str) else list(each) for each in (first, second)]
    return [*parts[0], *([{"type": "text", "text": between}] if between else []), *parts[1]]
