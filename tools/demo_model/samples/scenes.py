"""Images of coloured shapes, with the class of every patch as labels of the vision stage.

Shapes are placed from left to right, one in each column. Lengths are fractions of the image, so a scene can be drawn
at any size. The order of :data:`COLORS`, :data:`FORMS` and :data:`BACKGROUNDS` numbers the classes of the
vision stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Color = tuple[int, int, int]

COLORS: dict[str, Color] = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (35, 70, 220),
    "yellow": (240, 220, 40),
    "orange": (250, 140, 20),
    "purple": (140, 40, 170),
    "black": (15, 15, 15),
    "white": (250, 250, 250),
}
BACKGROUNDS: dict[str, Color] = {**COLORS, "gray": (128, 128, 128)}
FORMS = ("circle", "square", "triangle", "star")

_OVERSAMPLING = 3
_MIN_COVER = 5 / 16  # of a patch; below this a shape's edge says nothing about its form


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape; centre and radius are fractions of the image's sides."""

    color: str
    form: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True)
class Scene:
    """Shapes from left to right; ``stretch`` > 1 widens them, as a non-square image does once resized."""

    shapes: tuple[Shape, ...]
    background: str
    stretch: float


def draw_scene(rng: Random, count: int | None = None) -> Scene:
    """Draw a scene of ``count`` shapes (0 to 3; drawn when None). An empty one may have any background."""
    if count is None:
        count = rng.choices((0, 1, 2, 3), (0.04, 0.46, 0.38, 0.12))[0]
    if count == 0:
        return Scene((), rng.choice(list(BACKGROUNDS)), 1.0)
    background = rng.choices(("white", "gray", "black"), (0.6, 0.2, 0.2))[0]
    kinds = [(color, form) for color in COLORS if color != background for form in FORMS]
    shapes = tuple(
        _placed(rng, color, form, column, count) for column, (color, form) in enumerate(rng.sample(kinds, count))
    )
    return Scene(shapes, background, rng.uniform(0.82, 1.22))


def _placed(rng: Random, color: str, form: str, column: int, columns: int) -> Shape:
    if columns == 1:
        radius = rng.uniform(0.18, 0.42)
        margin = radius * 1.05
        return Shape(color, form, rng.uniform(margin, 1 - margin), rng.uniform(margin, 1 - margin), radius)
    width = 1 / columns
    radius = rng.uniform(0.6, 1.0) * min(0.22, width * 0.46)
    slack = max(0.0, width / 2 - radius * 1.05)
    x = (column + 0.5) * width + rng.uniform(-slack, slack)
    return Shape(color, form, x, rng.uniform(radius * 1.1, 1 - radius * 1.1), radius)


def render(scene: Scene, rng: Random, width: int, height: int) -> Image.Image:
    """Render a scene with jittered colours and sometimes noise: RGB of ``width`` x ``height`` pixels."""
    image = Image.new(
        "RGB", (width * _OVERSAMPLING, height * _OVERSAMPLING), _jitter(rng, BACKGROUNDS[scene.background], 12)
    )
    fills = [
        _jitter(rng, COLORS[shape.color], 12 if shape.color in ("black", "white") else 22) for shape in scene.shapes
    ]
    _paint(image, scene, fills)
    filters = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.BOX)
    image = image.resize((width, height), rng.choice(filters))
    return _add_noise(image, rng) if rng.random() < 0.3 else image


def patch_classes(scene: Scene, grid: int) -> NDArray[np.int64]:
    """Classes ``[grid * grid, 3]``: colour and form on each patch (0: none), and the image's background."""
    side = grid * 4
    mask = Image.new("L", (side, side), 0)
    _paint(mask, scene, range(1, len(scene.shapes) + 1))
    cells = np.asarray(mask).reshape(grid, 4, grid, 4).transpose(0, 2, 1, 3).reshape(grid * grid, 16)
    classes = np.zeros((grid * grid, 3), np.int64)
    classes[:, 2] = list(BACKGROUNDS).index(scene.background)
    for number, shape in enumerate(scene.shapes, start=1):
        covered = (cells == number).mean(axis=1) >= _MIN_COVER
        classes[covered, 0] = 1 + list(COLORS).index(shape.color)
        classes[covered, 1] = 1 + FORMS.index(shape.form)
    return classes


def _jitter(rng: Random, color: Color, amount: int) -> Color:
    red, green, blue = (min(255, max(0, value + rng.randint(-amount, amount))) for value in color)
    return red, green, blue


def _add_noise(image: Image.Image, rng: Random) -> Image.Image:
    pixels = np.asarray(image).astype(np.float32)
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(2, 9), pixels.shape)
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def _paint(image: Image.Image, scene: Scene, fills: Sequence[int | Color]) -> None:
    """Fill each shape of ``scene``; ``fills`` are colours for an image, numbers for a mask."""
    draw = ImageDraw.Draw(image)
    for shape, fill in zip(scene.shapes, fills, strict=True):
        points = [
            (
                (shape.x + dx * shape.radius * scene.stretch) * image.width,
                (shape.y + dy * shape.radius / scene.stretch) * image.height,
            )
            for dx, dy in _OUTLINES[shape.form]
        ]
        draw.polygon(points, fill=fill)


def _ring(corners: int, *radii: float) -> list[tuple[float, float]]:
    """Corners around the centre, the first at the top, their radii taken in turn."""
    angles = [2 * math.pi * corner / corners for corner in range(corners)]
    return [
        (radii[i % len(radii)] * math.sin(angle), -radii[i % len(radii)] * math.cos(angle))
        for i, angle in enumerate(angles)
    ]


_OUTLINES: dict[str, list[tuple[float, float]]] = {
    "circle": _ring(48, 1.0),
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": [(0.0, -1.0), (0.95, 0.8), (-0.95, 0.8)],
    "star": _ring(10, 1.1, 0.45),
}
