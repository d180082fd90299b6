"""Chats whose answer is held by a grammar: an object of any small schema, or a call of any tool.

The schema itself is never part of a prompt: where a client asks for one (`response_format`, a required tool), the
grammar writes the keys, and the model only fills in values. So the model learns short values and where they end, each
among the tokens that the grammar allows there.
"""

from __future__ import annotations

import json
import zlib
from random import Random
from string import Formatter
from typing import Any

from schemas.ir import Generate, Grammar, Tool, ToolChoice
from tools.demo_model.samples.chats import Chat, Message, assistant, maybe_system, some_words, user
from tools.demo_model.samples.schemas import Filled, a_name, draw_object, fill
from tools.demo_model.samples.talk import ask
from tools.demo_model.vocabulary import NAMES_OF_PROPERTIES, NOUNS, VERBS

_REQUESTS = (
    "Make up a {noun}.",
    "Give me a {noun} as JSON.",
    "Describe a {noun}.",
    "Create a {noun} for me.",
    "Invent a {noun}.",
    "Generate a random {noun}.",
    "Return the {noun} as JSON.",
    "Extract the {noun}: {text}.",
    "Classify this: {text}.",
    "Is this a {noun}? {text}",
    "{text}",
)
_FORMS = ("{} {}", "{} is {}", "{}: {}", "{} = {}")
_SENTENCES = (
    "{name} is {age} years old.",
    "{name} is {age} years old and lives in {city}.",
    "{name} lives in {city}.",
    "I know {name} from {city}.",
    "{name} likes the color {color}.",
    "{name} goes to {city} on {day}.",
    "The {item} costs {price} dollars.",
    "We bought {count} of them in {month}.",
    "{name} is from {country} and speaks {language}.",
    "On {date} it was {weather} in {city}.",
)
"""Sentences whose values an answer extracts."""


_LONGEST_ANSWER = 60  # characters


def held_out(schema: dict[str, Any]) -> bool:
    """Whether a schema is left to the evaluation: one in eight, by its content."""
    return zlib.crc32(json.dumps(schema).encode()) % 8 == 0


def schema_chat(rng: Random) -> Chat:
    """A request and an answer that a grammar holds, or a call of a tool nobody has heard of."""
    drawn = rng.random()
    if drawn < 0.15:
        return _told_call(rng)
    messages, filled = _asked(rng)
    if drawn < 0.6:
        free = rng.random() < 0.1
        grammar = Grammar("json_object") if free else Grammar("json_schema", filled.schema)
        held = Generate(id="", model="", prompts=(), grammar=grammar)
        return Chat([*messages, assistant(json.dumps(filled.value))], held=held)
    names = _names_of_tools(rng, rng.choices((1, 2, 3), (0.7, 0.2, 0.1))[0])
    tools = [Tool(name, None, filled.schema if name == names[0] else _trained_on(rng).schema) for name in names]
    rng.shuffle(tools)
    choice = ToolChoice("named", (names[0],)) if rng.random() < 0.5 else ToolChoice("required")
    held = Generate(id="", model="", prompts=(), tools=tuple(tools), tool_choice=choice)
    return Chat([*messages, _calling(names[0], filled)], _definitions(tools), held=held)


def _told_call(rng: Random) -> Chat:
    """A request that names the tool and its values, and the call, which no grammar holds."""
    filled = _trained_on(rng, nested=False)
    names = _names_of_tools(rng, rng.choice((1, 1, 2)))
    tools = [Tool(name, None, filled.schema if name == names[0] else _trained_on(rng).schema) for name in names]
    rng.shuffle(tools)
    verb = rng.choice(("Call", "Use", "Run"))
    messages = [*maybe_system(rng, 0.2), user(f"{verb} {names[0]} with {_listed(rng, filled.value)}.")]
    return Chat([*messages, _calling(names[0], filled)], _definitions(tools))


def _asked(rng: Random) -> tuple[list[Message], Filled]:
    """A request that names values, a vague one, or any question at all; and what answers it."""
    drawn = rng.random()
    if drawn < 0.2:
        filled = _trained_on(rng)
        flat = {key: value for key, value in filled.value.items() if not isinstance(value, dict)}
        text = f"Give me JSON with {_listed(rng, flat)}." if flat else "Give me JSON."
    elif drawn < 0.35:
        filled, text = _told_in_a_sentence(rng)
    elif drawn < 0.75:
        filled = _trained_on(rng)
        text = rng.choice(_REQUESTS).format(noun=rng.choice(NOUNS), text=some_words(rng, 2, 8))
    else:
        text, answer = ask(rng)
        filled = _answered(rng, answer) if len(answer) <= _LONGEST_ANSWER else _trained_on(rng)
    return [*maybe_system(rng, 0.2), user(text)], filled


def _told_in_a_sentence(rng: Random) -> tuple[Filled, str]:
    sentence = rng.choice(_SENTENCES)
    names = [name for _, name, _, _ in Formatter().parse(sentence) if name]
    rng.shuffle(names)
    while held_out((filled := fill(rng, names)).schema):
        names = names[1:] + names[:1]
    return filled, sentence.format(**filled.value)


def _answered(rng: Random, answer: str) -> Filled:
    """An object with an answer in it, or with the city that it names."""
    name, value = rng.choice(("answer", "text", "summary")), answer
    if answer.startswith("The capital of ") and rng.random() < 0.7:
        name, value = rng.choice(("city", "capital", "answer")), answer.split(" is ")[1].removesuffix(".")
    while True:
        others = draw_object(rng, nested=False)
        first = {name: {"type": "string"}}
        properties = first | others.schema["properties"] | first
        schema = others.schema | {"properties": properties, "required": [*properties]}
        if not held_out(schema):
            return Filled(schema, {name: value} | others.value | {name: value})


def _trained_on(rng: Random, *, nested: bool = True) -> Filled:
    broad = rng.random() < 0.4
    while held_out((filled := draw_object(rng, nested=nested, broad=broad)).schema):
        pass
    return filled


def _names_of_tools(rng: Random, count: int) -> list[str]:
    """Different names of tools, such as `save_trip`, `record` or `findOwner`."""
    names: list[str] = []
    while len(names) < count:
        verb, noun = rng.choice(VERBS), rng.choice((rng.choice(NOUNS), a_name(rng, NAMES_OF_PROPERTIES)))
        name = rng.choice((f"{verb}_{noun}", f"{verb}_{noun}", f"{verb}{noun.capitalize()}", noun, verb))
        names += [name] * (name not in names)
    return names


def _calling(name: str, filled: Filled) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": filled.value}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _definitions(tools: list[Tool]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}} for tool in tools]


def _listed(rng: Random, values: dict[str, Any]) -> str:
    form = rng.choice(_FORMS)
    parts = [form.format(key, value if isinstance(value, str) else json.dumps(value)) for key, value in values.items()]
    return rng.choice((" and ", ", ")).join(parts)
