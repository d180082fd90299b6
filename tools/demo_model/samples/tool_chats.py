"""Chats with tools: the call, its result, the answer.

Tools are OpenAI function definitions. Names, parameters and values are drawn afresh each time (a quarter of
the cities are made-up words, one kind of tool has made-up names), so the model has to copy, not remember.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.samples.chats import (
    Chat,
    Message,
    assistant,
    maybe_system,
    some_letters,
    some_words,
    user,
)
from tools.demo_model.samples.talk import NO_TOOL, ask
from tools.demo_model.vocabulary import CITIES, NAMES, WEATHER, WORDS

Value = str | int
Outcome = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: the names it may go by and how a value is drawn."""

    names: Sequence[str]
    draw: Callable[[Random], Value]


@dataclass(frozen=True, slots=True)
class ToolKind:
    """A sort of tool. ``questions`` take the values in order; ``outcome`` draws a result and the answer to it."""

    names: Sequence[str]
    parameters: Sequence[Parameter]
    questions: Sequence[str]
    outcome: Callable[[Random, Sequence[Value]], Outcome]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as offered: its kind under the names drawn for this chat."""

    kind: ToolKind
    name: str
    parameters: tuple[str, ...]
    ignored: tuple[str, ...]
    """Further parameters that the definition offers and no question mentions."""

    def definition(self) -> dict[str, Any]:
        """The tool in OpenAI's form."""
        types = ["integer" if parameter.draw in (_a_number, _small) else "string" for parameter in self.kind.parameters]
        properties = {name: {"type": kind} for name, kind in zip(self.parameters, types, strict=True)}
        properties |= {name: {"type": "string"} for name in self.ignored}
        parameters = {"type": "object", "properties": properties, "required": list(self.parameters)}
        return {"type": "function", "function": {"name": self.name, "parameters": parameters}}

    def call(self, values: Sequence[Value]) -> dict[str, Any]:
        """A call of it in OpenAI's form, its arguments a mapping."""
        arguments = dict(zip(self.parameters, values, strict=True))
        return {"type": "function", "function": {"name": self.name, "arguments": arguments}}


def tool_call_chat(rng: Random) -> Chat:
    """One call of one of one to three tools, ending with the call."""
    tools = _offer(rng)
    tool = rng.choice(tools)
    values = [parameter.draw(rng) for parameter in tool.kind.parameters]
    return _called(rng, tools, tool, values)


def unseen_city_chat(rng: Random, cities: Sequence[str]) -> Chat:
    """A call for one of ``cities``, for the evaluation."""
    tools = _offer(rng, rng.choice(_CITY_KINDS))
    return _called(rng, tools, tools[0], [rng.choice(cities)])


def tool_answer_chat(rng: Random) -> Chat:
    """A call, its result and the answer."""
    tools = _offer(rng)
    tool = rng.choice(tools)
    values = [parameter.draw(rng) for parameter in tool.kind.parameters]
    chat = _called(rng, tools, tool, values)
    result, answer = tool.kind.outcome(rng, values)
    return Chat([*chat.messages, _result(result), assistant(answer)], chat.tools)


def parallel_calls_chat(rng: Random) -> Chat:
    """Two calls of one tool in one message, and perhaps the answer to both results."""
    kind = rng.choice(_CITY_KINDS)
    tools = _offer(rng, kind)
    places = [_a_city(rng), _a_city(rng)]
    question = rng.choice(kind.questions)
    question = question.format(rng.choice(("{} and {}", "{} and in {}")).format(*places))
    calls = [tools[0].call([place]) for place in places]
    messages = [*maybe_system(rng, 0.2), user(question), _calling(calls)]
    if rng.random() < 0.6:
        outcomes = [kind.outcome(rng, [place]) for place in places]
        messages += [_result(result) for result, _ in outcomes]
        messages.append(assistant(" ".join(answer for _, answer in outcomes)))
    return Chat(messages, _definitions(rng, tools))


def unused_tools_chat(rng: Random) -> Chat:
    """Tools are offered but none is needed, or none fits."""
    tools = [_named(rng, kind) for kind in rng.sample((_SEARCH, _PLAY, _TIMER, _MESSAGE), rng.randint(1, 2))]
    if rng.random() < 0.3:
        question, answer = rng.choice(rng.choice(_CITY_KINDS).questions).format(_a_city(rng)), NO_TOOL
    else:
        tools.append(_named(rng, rng.choice(_CITY_KINDS)))
        question, answer = ask(rng)
        while answer == NO_TOOL:  # not true here: a tool for it may be among those offered
            question, answer = ask(rng)
    return Chat([*maybe_system(rng, 0.2), user(question), assistant(answer)], _definitions(rng, tools))


def tool_chat(rng: Random) -> Chat:
    """Any of the above."""
    makers = (tool_call_chat, tool_answer_chat, parallel_calls_chat, unused_tools_chat)
    return rng.choices(makers, (0.44, 0.32, 0.08, 0.16))[0](rng)


def _called(rng: Random, tools: Sequence[Tool], tool: Tool, values: Sequence[Value]) -> Chat:
    question = rng.choice(tool.kind.questions)
    named = dict(zip(("first", "second"), tool.parameters, strict=False))
    text = question.format(*values, tool=tool.name, **named)
    return Chat([*maybe_system(rng, 0.2), user(text), _calling([tool.call(values)])], _definitions(rng, tools))


def _calling(calls: list[dict[str, Any]]) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(content: str) -> Message:
    return {"role": "tool", "content": content}


def _definitions(rng: Random, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [tool.definition() for tool in rng.sample(tools, len(tools))]


def _offer(rng: Random, first: ToolKind | None = None) -> list[Tool]:
    """One to three tools of different kinds, ``first`` among them."""
    others = [kind for kind in (*_KINDS, _made_up(rng)) if kind is not first]
    number = rng.choices((1, 2, 3), (0.5, 0.3, 0.2))[0]
    kinds = rng.sample(others, number) if first is None else [first, *rng.sample(others, number - 1)]
    return [_named(rng, kind) for kind in kinds]


def _named(rng: Random, kind: ToolKind) -> Tool:
    parameters = tuple(rng.choice(parameter.names) for parameter in kind.parameters)
    spare = [name for name in ("unit", "units", "format", "language", "country", "limit") if name not in parameters]
    ignored = tuple(rng.sample(spare, 1)) if rng.random() < 0.2 else ()
    return Tool(kind, _spelled(rng, rng.choice(kind.names)), parameters, ignored)


def _spelled(rng: Random, name: str) -> str:
    """A name as functions are spelled, or as classes, or in camel case."""
    first, *others = name.split("_")
    capitalized = "".join(word.capitalize() for word in others)
    return rng.choices((name, first.capitalize() + capitalized, first + capitalized), (0.6, 0.28, 0.12))[0]


def _a_city(rng: Random) -> str:
    return some_letters(rng).capitalize() if rng.random() < 0.25 else rng.choice(CITIES)


def _a_person(rng: Random) -> str:
    return some_letters(rng).capitalize() if rng.random() < 0.25 else rng.choice(NAMES)


def _a_phrase(rng: Random) -> str:
    return some_words(rng, 1, 3)


def _a_number(rng: Random) -> int:
    return rng.randint(1, 60)


def _small(rng: Random) -> int:
    return rng.randint(0, 20)


def _weather(rng: Random, values: Sequence[Value]) -> Outcome:
    degrees, sky = rng.randint(-5, 35), rng.choice(WEATHER)
    results = (
        json.dumps({"temperature": degrees, "condition": sky}),
        json.dumps({"condition": sky, "temperature": degrees}),
        f"{degrees} degrees, {sky}",
        f"{sky}, {degrees} degrees",
    )
    return rng.choice(results), f"It is {sky} and {degrees} degrees in {values[0]}."


def _time(rng: Random, values: Sequence[Value]) -> Outcome:
    clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    return rng.choice((json.dumps({"time": clock}), clock)), f"It is {clock} in {values[0]}."


def _population(rng: Random, values: Sequence[Value]) -> Outcome:
    people = rng.randint(10, 999) * 1000
    return rng.choice((json.dumps({"population": people}), str(people))), f"{people} people live in {values[0]}."


def _found(rng: Random, values: Sequence[Value]) -> Outcome:
    del values
    text = some_words(rng, 2, 4)
    return rng.choice((json.dumps({"result": text}), text)), f"I found this: {text}."


def _done(sentence: str) -> Callable[[Random, Sequence[Value]], Outcome]:
    def outcome(rng: Random, values: Sequence[Value]) -> Outcome:
        return rng.choice((json.dumps({"status": "ok"}), "ok", "done")), sentence.format(*values)

    return outcome


def _summed(rng: Random, values: Sequence[Value]) -> Outcome:
    a, b = (int(value) for value in values)
    return rng.choice((json.dumps({"result": a + b}), str(a + b))), f"{a} + {b} = {a + b}"


def _today(rng: Random, values: Sequence[Value]) -> Outcome:
    del values
    date = f"20{rng.randint(20, 39)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    return rng.choice((json.dumps({"date": date}), date)), f"Today is {date}."


def _made_up(rng: Random) -> ToolKind:
    """A tool nobody has heard of: ``lookup_candle(key)``, called by its name."""
    verb = rng.choice(("get", "find", "lookup", "read", "check", "list", "make", "open"))
    noun = rng.choice(WORDS) if rng.random() < 0.7 else some_letters(rng)
    two = rng.random() < 0.3
    first = Parameter(("id", "name", "key", "item", "user"), _a_phrase if rng.random() < 0.5 else _a_number)
    second = Parameter(("value", "color", "size", "text"), _a_phrase)
    forms = ("Call {tool} with {first} {}", "Use {tool} with {first} {}", "Run {tool} with {first} {}")
    tail = " and {second} {}." if two else "."
    return ToolKind(
        (f"{verb}_{noun}",),
        (first, second) if two else (first,),
        [form + tail for form in forms],
        _found,
    )


_PLACE = Parameter(("city", "location", "place"), _a_city)
_WEATHER = ToolKind(
    ("get_weather", "get_current_weather", "weather", "fetch_weather"),
    (_PLACE,),
    (
        "What is the weather in {}?",
        "What's the weather like in {}?",
        "How is the weather in {}?",
        "What is the weather like in {} today?",
    ),
    _weather,
)
_TIME = ToolKind(
    ("get_time", "get_current_time", "time_in"),
    (Parameter(("city", "location", "timezone"), _a_city),),
    ("What time is it in {}?", "What is the time in {}?"),
    _time,
)
_POPULATION = ToolKind(
    ("get_population", "population", "city_population"),
    (Parameter(("city", "name"), _a_city),),
    ("How many people live in {}?", "What is the population in {}?"),
    _population,
)
_SEARCH = ToolKind(
    ("search", "web_search", "search_web"),
    (Parameter(("query", "q", "text"), _a_phrase),),
    ("Search for {}.", "Search the web for {}.", "Find {} on the web."),
    _found,
)
_PLAY = ToolKind(
    ("play_song", "play_music", "play"),
    (Parameter(("title", "song"), _a_phrase),),
    ("Play {}.", "Play the song {}."),
    _done("Now playing {}."),
)
_TIMER = ToolKind(
    ("set_timer", "start_timer", "timer"),
    (Parameter(("minutes", "duration"), _a_number),),
    ("Set a timer for {} minutes.", "Start a timer for {} minutes."),
    _done("The timer is set for {} minutes."),
)
_MESSAGE = ToolKind(
    ("send_message", "send_email", "write_to"),
    (Parameter(("to", "recipient"), _a_person), Parameter(("text", "message", "body"), _a_phrase)),
    ("Send {} a message: {}", "Write to {}: {}"),
    _done("I sent {} the message."),
)
_ADD = ToolKind(
    ("add", "add_numbers", "calculator_add"),
    (Parameter(("a", "x"), _small), Parameter(("b", "y"), _small)),
    ("What is {} + {}?", "Add {} and {}.", "What is {} plus {}?"),
    _summed,
)
_DATE = ToolKind(("get_date", "today", "current_date"), (), ("What is the date?", "What day is it today?"), _today)
_CITY_KINDS = (_WEATHER, _TIME, _POPULATION)
_KINDS = (_WEATHER, _TIME, _POPULATION, _SEARCH, _PLAY, _TIMER, _MESSAGE, _ADD, _DATE)
