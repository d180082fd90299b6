"""Questions about an image of shapes, with their answers.

Answers are sentences of fixed form, so an exact comparison measures the model. Questions whose answer
would not be unique (two red shapes: "What shape is red?") are never asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from tools.demo_model.samples.chats import Chat, Message, assistant, maybe_system, user, with_article
from tools.demo_model.samples.scenes import COLORS, FORMS, Scene, draw_scene, render
from tools.demo_model.samples.talk import QuestionAnswer, ask

IMAGE_SIZE = 48  # pixels a side; also the model's input

NUMBERS = ("Zero", "One", "Two", "Three")
DESCRIBE = (
    "What is in the picture?",
    "What is in this picture?",
    "What is in this image?",
    "What is in the image?",
    "What do you see?",
    "Describe the picture.",
    "Describe the image.",
    "Describe this image.",
    "What's in this image?",
    "What is shown here?",
)


def describe(scene: Scene) -> str:
    """Names all shapes from left to right."""
    if not scene.shapes:
        return f"Only {with_article(scene.background)} background."
    names = [with_article(f"{shape.color} {shape.form}") for shape in scene.shapes]
    text = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{text[0].upper()}{text[1:]}."


def ask_what(rng: Random, scene: Scene) -> QuestionAnswer:
    """Ask what the image shows."""
    return rng.choice(DESCRIBE), describe(scene)


def ask_number(rng: Random, scene: Scene) -> QuestionAnswer:
    """How many shapes are there?"""
    forms = ("How many shapes are there?", "How many shapes are in the picture?", "Count the shapes.")
    return rng.choice(forms), f"{NUMBERS[len(scene.shapes)]}."


def ask_background(rng: Random, scene: Scene) -> QuestionAnswer:
    """What color is the background?"""
    forms = ("What is the background color?", "What color is the background?")
    return rng.choice(forms), f"{scene.background.capitalize()}."


def ask_color(rng: Random, scene: Scene) -> QuestionAnswer | None:
    """What color is the circle? None if no form occurs once only."""
    forms = Counter(shape.form for shape in scene.shapes)
    unique = [shape for shape in scene.shapes if forms[shape.form] == 1]
    if not unique:
        return None
    shape = rng.choice(unique)
    question = rng.choice(("What color is the {}?", "Which color is the {}?", "What colour is the {}?"))
    return question.format(shape.form), f"{shape.color.capitalize()}."


def ask_form(rng: Random, scene: Scene) -> QuestionAnswer | None:
    """Which shape is red? None if no colour occurs once only."""
    colors = Counter(shape.color for shape in scene.shapes)
    unique = [shape for shape in scene.shapes if colors[shape.color] == 1]
    if not unique:
        return None
    shape = rng.choice(unique)
    question = rng.choice(("What shape is {}?", "Which shape is {}?"))
    return question.format(shape.color), f"The {shape.form}."


def ask_presence(rng: Random, scene: Scene) -> QuestionAnswer:
    """Ask whether a shape is there."""
    if scene.shapes and rng.random() < 0.5:
        shape = rng.choice(scene.shapes)
        color, form = shape.color, shape.form
    else:
        color, form = rng.choice(list(COLORS)), rng.choice(FORMS)
    thing = with_article(f"{color} {form}")
    present = any(shape.color == color and shape.form == form for shape in scene.shapes)
    return f"Is there {thing}?", f"Yes, there is {thing}." if present else f"No, there is no {color} {form}."


QUESTIONS: dict[str, tuple[float, Callable[[Random, Scene], QuestionAnswer | None]]] = {
    "describe": (0.46, ask_what),
    "how many": (0.08, ask_number),
    "background": (0.07, ask_background),
    "color of": (0.14, ask_color),
    "which shape": (0.13, ask_form),
    "yes or no": (0.12, ask_presence),
}
"""Question name -> (share, function). The evaluation reports by these names."""


def ask_about(rng: Random, scene: Scene) -> QuestionAnswer:
    """Draw a question that ``scene`` answers."""
    shares = [share for share, _ in QUESTIONS.values()]
    _, function = rng.choices(list(QUESTIONS.values()), shares)[0]
    return function(rng, scene) or ask_what(rng, scene)


def image_message(rng: Random, question: str) -> Message:
    """The question with its image before or after it."""
    parts = [{"type": "image"}, {"type": "text", "text": question}]
    return user(parts if rng.random() < 0.5 else parts[::-1])


def image_chat(rng: Random) -> Chat:
    """One or (rarely) two images, each with one to three questions; a few are about something else."""
    messages = maybe_system(rng, 0.15)
    images = []
    for _ in range(2 if rng.random() < 0.1 else 1):
        scene = draw_scene(rng)
        images.append(render(scene, rng, IMAGE_SIZE, IMAGE_SIZE))
        question, answer = ask_about(rng, scene)
        messages += [image_message(rng, question), assistant(answer)]
        for _ in range(rng.choices((0, 1, 2), (0.4, 0.35, 0.25))[0]):
            question, answer = ask_about(rng, scene) if rng.random() < 0.88 else ask(rng)
            messages += [user(question), assistant(answer)]
    return Chat(messages, images=tuple(images))
