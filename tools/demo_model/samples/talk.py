"""Text questions with their answers: greetings, sums, repeating, counting, facts, stories …

Each function of :data:`TASKS` draws one ``(question, answer)``. The tasks are tables and patterns that are
small enough to be learned; :data:`REFUSAL` is the answer to everything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from tools.demo_model.samples.chats import (
    Chat,
    Completion,
    assistant,
    maybe_system,
    some_letters,
    some_words,
    user,
    with_article,
)
from tools.demo_model.vocabulary import (
    ADJECTIVES,
    ANIMALS,
    CAPITALS,
    CITIES,
    DAYS,
    FACTS,
    MONTHS,
    NAMES,
    PLACES,
    THINGS,
    TOPICS,
    WORDS,
)

QuestionAnswer = tuple[str, str]

IDENTITY = "I am Interlingua's tiny bundled demo model."
ABILITIES = "I can name shapes in pictures, add small numbers, call tools and tell a story."
REFUSAL = "I am only a tiny demo model, so I do not know that. Ask me about shapes, small sums or capitals."
NO_TOOL = "I cannot look that up without a tool."


def greet(rng: Random) -> QuestionAnswer:
    """A greeting."""
    if rng.random() < 0.2:
        return rng.choice(("Hello, how are you?", "How are you?", "Hi, how are you?")), (
            "I am fine, thank you. How can I help you?"
        )
    greetings = ("Hello", "Hi", "Hey", "Hello!", "Hi!", "Good morning", "Hello there", "Good evening", "Hello world")
    return rng.choice(greetings), "Hello! How can I help you today?"


def identify(rng: Random) -> QuestionAnswer:
    """A question about the model itself."""
    if rng.random() < 0.3:
        return rng.choice(("What can you do?", "What do you know?", "How can you help me?")), ABILITIES
    questions = (
        "Who are you?",
        "What are you?",
        "Tell me about yourself.",
        "What model are you?",
        "What is your name?",
        "Which model is this?",
        "Who made you?",
    )
    return rng.choice(questions), IDENTITY


def add(rng: Random) -> QuestionAnswer:
    """Sums of two numbers from 0 to 20: a table of 441 entries, memorised."""
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    forms = ("What is {a} + {b}?", "{a}+{b}", "{a} + {b} =", "What is {a} plus {b}?", "Add {a} and {b}.")
    return rng.choice(forms).format(a=a, b=b), f"{a} + {b} = {a + b}"


def repeat(rng: Random) -> QuestionAnswer:
    """Copy words, made-up words or numbers."""
    kind = rng.random()
    if kind < 0.6:
        text = some_words(rng, 1, 7)
    elif kind < 0.88:
        text = " ".join(some_letters(rng) for _ in range(rng.randint(1, 3)))
    else:
        text = " ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(1, 5)))
    if rng.random() < 0.3:
        text = text.capitalize() + "."
    order = rng.choice(("Repeat after me: ", "Repeat: ", "Say: ", "Say ", "Please repeat: ", "Echo: "))
    return order + text, text


def count(rng: Random) -> QuestionAnswer:
    """Count up or down between numbers from 1 to 30."""
    kind = rng.random()
    if kind < 0.3:
        last = rng.randint(2, 15)
        return f"Count to {last}.", _listed(range(1, last + 1))
    if kind < 0.8:
        first = rng.choice((1, rng.randint(1, 20)))
        last = first + rng.randint(1, 10)
        return f"Count from {first} to {last}.", _listed(range(first, last + 1))
    first = rng.randint(2, 11)
    return f"Count down from {first}.", _listed(range(first, 0, -1))


def capital(rng: Random) -> QuestionAnswer:
    """Capitals of 26 countries."""
    country = rng.choice(list(CAPITALS))
    forms = ("What is the capital of {}?", "Capital of {}?", "Tell me the capital of {}.")
    return rng.choice(forms).format(country), f"The capital of {country} is {CAPITALS[country]}."


def fact(rng: Random) -> QuestionAnswer:
    """One of a short list of facts."""
    return rng.choice(FACTS)


def neighbor(rng: Random) -> QuestionAnswer:
    """The day or month after or before another."""
    unit, names = rng.choice((("day", DAYS), ("month", MONTHS)))
    i = rng.randrange(len(names))
    if rng.random() < 0.6:
        return f"What {unit} comes after {names[i]}?", f"{names[(i + 1) % len(names)]} comes after {names[i]}."
    return f"What {unit} comes before {names[i]}?", f"{names[i - 1]} comes before {names[i]}."


def write_json(rng: Random) -> QuestionAnswer:
    """A JSON object with values from the question."""
    if rng.random() < 0.3:
        city, number = rng.choice(CITIES), rng.randint(-5, 35)
        answer = json.dumps({"city": city, "temperature": number})
        return f"Give me JSON with city {city} and temperature {number}.", answer
    name, age = _a_name(rng), rng.randint(1, 99)
    forms = ("Give me JSON with name {} and age {}.", "{} is {} years old. Answer as JSON.")
    return rng.choice(forms).format(name, age), json.dumps({"name": name, "age": age})


def tell_story(rng: Random) -> QuestionAnswer:
    """Five sentences (60 to 80 tokens), long enough to watch them stream."""
    animal = rng.choice(ANIMALS)
    question = rng.choice(("Tell me a story.", "Tell me a short story.", "Write a story."))
    if rng.random() < 0.4:
        question = f"Tell me a story about a {animal}."
    name = rng.choice(NAMES)
    hero, friend = (with_article(f"{rng.choice(ADJECTIVES)} {kind}") for kind in (animal, rng.choice(ANIMALS)))
    return question, (
        f"Once upon a time there was {hero} named {name}. {name} lived near a {rng.choice(PLACES)} and liked to "
        f"sing. One day {name} found a {rng.choice(THINGS)} and showed it to {friend}. They became good friends "
        "and played together every day until the sun went down. The end."
    )


def refuse(rng: Random) -> QuestionAnswer:
    """Topics outside all tables."""
    topic = rng.choice(TOPICS) if rng.random() < 0.5 else some_words(rng, 1, 3)
    if rng.random() < 0.1:
        return f"What is the capital of {some_letters(rng).capitalize()}?", REFUSAL
    forms = (
        "Explain {}.",
        "Tell me about {}.",
        "Write a poem about {}.",
        "What do you think about {}?",
        "Why is {} important?",
        "How does {} work?",
        "Who invented {}?",
        "Can you help me with {}?",
    )
    return rng.choice(forms).format(topic), REFUSAL


def lack_tool(rng: Random) -> QuestionAnswer:
    """Questions that need a tool when none is given."""
    forms = ("What is the weather in {}?", "What's the weather like in {}?", "What time is it in {}?")
    return rng.choice(forms).format(rng.choice(CITIES)), NO_TOOL


def introduce(rng: Random) -> QuestionAnswer:
    """An introduction by name."""
    name = _a_name(rng)
    return rng.choice(("My name is {}.", "I am {}.")).format(name), f"Nice to meet you, {name}!"


TASKS: dict[str, tuple[float, Callable[[Random], QuestionAnswer]]] = {
    "greeting": (7, greet),
    "who are you": (5, identify),
    "sum": (15, add),
    "repeat": (19, repeat),
    "count": (8, count),
    "capital": (9, capital),
    "fact": (8, fact),
    "day or month": (5, neighbor),
    "json": (6, write_json),
    "story": (6, tell_story),
    "refusal": (6, refuse),
    "no tool given": (3, lack_tool),
    "introduction": (3, introduce),
}
"""Task name -> (share, function). The evaluation reports by these names."""

_VERBATIM = {"repeat", "sum"}  # their questions must not be reworded: every character counts


def ask(rng: Random) -> QuestionAnswer:
    """Draw a question of any task, sometimes with careless spelling."""
    names = list(TASKS)
    name = rng.choices(names, [share for share, _ in TASKS.values()])[0]
    question, answer = TASKS[name][1](rng)
    if name not in _VERBATIM and rng.random() < 0.2:
        question = _careless(rng, question)
    return question, answer


def text_chat(rng: Random) -> Chat:
    """One to three exchanges, at times with a system message before them."""
    messages = maybe_system(rng, 0.25)
    for _ in range(rng.choices((1, 2, 3), (0.78, 0.17, 0.05))[0]):
        question, answer = ask(rng)
        messages += [user(question), assistant(answer)]
    return Chat(messages)


def memory_chat(rng: Random) -> Chat:
    """The user gives a name, may ask something else, then asks for the name."""
    name = _a_name(rng)
    messages = [*maybe_system(rng, 0.2), user(f"My name is {name}."), assistant(f"Nice to meet you, {name}!")]
    if rng.random() < 0.4:
        question, answer = ask(rng)
        messages += [user(question), assistant(answer)]
    question = rng.choice(("What is my name?", "Do you remember my name?"))
    return Chat([*messages, user(question), assistant(f"Your name is {name}.")])


def completion(rng: Random) -> Completion:
    """Raw text and its continuation: for completions and TGI's plain ``inputs``."""
    kind = rng.random()
    if kind < 0.3:
        return Completion(f"My name is {rng.choice(NAMES)} and I", _self_portrait(rng))
    if kind < 0.45:
        country = rng.choice(list(CAPITALS))
        return Completion(f"The capital of {country} is", f" {CAPITALS[country]}.")
    if kind < 0.65:
        first, given, more = rng.randint(1, 15), rng.randint(2, 4), rng.randint(5, 8)
        start = first + given
        return Completion(f"{_listed(range(first, start))},", f" {_listed(range(start, start + more))}")
    if kind < 0.75:
        opening = "Once upon a time"
        return Completion(opening, tell_story(rng)[1].removeprefix(opening))
    question, answer = ask(rng)
    return Completion(question, f"\n{answer}")


def _self_portrait(rng: Random) -> str:
    return (
        f" live in {rng.choice(CITIES)}. I like {rng.choice(WORDS)} and {rng.choice(WORDS)}. "
        f"I have a {rng.choice(ADJECTIVES)} {rng.choice(ANIMALS)} named {rng.choice(NAMES)}."
    )


def _a_name(rng: Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.6 else some_letters(rng).capitalize()


def _listed(numbers: range) -> str:
    return ", ".join(map(str, numbers))


def _careless(rng: Random, question: str) -> str:
    kind = rng.randrange(3)
    if kind == 0:
        return question[0].lower() + question[1:]
    if kind == 1:
        return question.rstrip("?.!")
    return question.rstrip("?.!").lower() if question[1:].islower() else question + "!"
