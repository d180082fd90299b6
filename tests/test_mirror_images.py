"""Images through every protocol: the same answer from a native model and through every kind of upstream with images.

If a kind of upstream cannot take the image, the request is refused before the upstream is called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from backends.native.backend import NativeBackend
from gateway.app import create_app
from schemas.errors import GatewayError, UnsupportedFeature
from schemas.ir import ChatPrompt, Generate, ImagePart, Message, Stopping, TextPart, TextPrompt
from tests.backends.images.audit import recorded_events
from tests.equality import agree, say
from tests.faults.recorded import ANSWERED, KINDS, MOUNTED, SERVER, playing, remote
from tests.faults.upstream import response
from tests.gateway.serving import config, listening
from tests.images import ASK, COLOURS, FORMS, square, way

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

MODEL = "demo"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def native() -> AsyncIterator[NativeBackend]:
    backend = NativeBackend("s", {"engine": "inprocess", "threads": 1})
    await backend.start()
    yield backend
    await backend.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port() -> AsyncIterator[int]:
    backend = NativeBackend("s", {"engine": "inprocess", "threads": 1})
    async with listening(create_app(config(MODEL, server=SERVER), {"s": backend})) as port:
        yield port


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_every_form_gives_the_same_answer(native: NativeBackend, colour: str, stream: bool) -> None:
    data = square(colour)
    said = {form: await say(way(form, data), ASK, native, MODEL, stream) for form in FORMS}
    agree(said)
    assert {answer.text for answer in said.values()} == {f"A {colour} square."}


RAW_FORMS = {"tgi", "tgi-0.9", "triton", "mindie-triton"}
CHATS = set(FORMS) - RAW_FORMS
SEEDED = {"mindie-openai"}
CARRIES = {
    "openai": CHATS,
    "openai-responses": CHATS,
    "responses": CHATS - SEEDED,
    "mindie-openai": CHATS,
    "databricks": CHATS - SEEDED,
    "anthropic": CHATS - SEEDED,
    "gemini": CHATS,
    "ollama": CHATS | RAW_FORMS,
    "tgi": CHATS | RAW_FORMS,
    "tgi-0.9": RAW_FORMS,
    "mindie": CHATS,
    "triton": RAW_FORMS,
    "mindie-triton": CHATS | RAW_FORMS,
}
"""The forms that a kind of upstream can take: MindIE's have a seed, TGI's include the stop string."""


@pytest.mark.parametrize("kind", ANSWERED)
async def test_through_an_upstream(kind: str, port: int) -> None:
    carried = set()
    async with remote(kind, f"http://127.0.0.1:{port}{MOUNTED.get(kind, '')}") as outer:
        for form, stream in ((form, stream) for form in FORMS for stream in (False, True)):
            colour = ("red", "blue")[stream]
            try:
                said = await say(way(form, square(colour)), ASK, outer, MODEL, stream)
            except UnsupportedFeature:
                continue
            assert said.text == f"A {colour} square.", form
            carried.add(form)
    assert carried == CARRIES[kind]


def asked(kind: str, image: ImagePart) -> Generate:
    """A request that this kind of upstream can express, except for the image."""
    prompt: Any = TextPrompt("Hi", (image,))
    if kind not in ("triton", "tgi-0.9"):
        prompt = ChatPrompt((Message("user", (image, TextPart("Hi"))),))
    return Generate(id="r", model=MODEL, prompts=(prompt,), stopping=Stopping(max_new_tokens=5))


ELSEWHERE = "https://pics.example/a.png"
IN_OPENAIS_FORM = {"openai", "openai-responses", "mindie-openai", "databricks", "tgi", "mindie", "mindie-triton"}
OUT_OF_REACH = {
    "a path": (ImagePart("/srv/a.png", "path"), set(KINDS) - {"mindie"}),
    "a URL": (ImagePart(ELSEWHERE, "url"), {"ollama", "triton"}),
    "embeddings": (ImagePart("QUJD", "embeddings"), set(KINDS) - IN_OPENAIS_FORM),
}
"""Images that kinds cannot take. MindIE's TGI reads local paths of its own; Triton's tensor has the image itself;
embeddings are for chats in OpenAI's form."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("image", "refusing"), OUT_OF_REACH.values(), ids=OUT_OF_REACH)
async def test_an_image_by_reference_is_never_opened_here(kind: str, image: ImagePart, refusing: set[str]) -> None:
    """The request is refused without a call, or the upstream gets the reference; the image is never fetched."""
    fails = (response(b"{}", status="400 Bad Request"),)
    async with playing(kind, lambda _: fails) as (backend, upstream):
        with recorded_events() as seen, pytest.raises(GatewayError) as refused:
            _ = [events async for events in backend.generate(asked(kind, image))]
        calls = [call.body for call in upstream.asked if call.line.startswith("POST ")]
    assert isinstance(refused.value, UnsupportedFeature) == (kind in refusing)
    assert len(calls) == (0 if kind in refusing else 1)
    assert all(image.ref.encode() in body for body in calls)
    assert not [event for event, arguments in seen if event == "open" and str(arguments[0]) == image.ref]
    assert {arguments[0] for event, arguments in seen if event == "socket.getaddrinfo"} <= {"127.0.0.1"}
