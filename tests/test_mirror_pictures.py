"""Pictures through every protocol: the same answer from a model of ours, and through every kind of upstream that can
carry them. Where one cannot, the request is refused before the upstream is called.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from backends.native.backend import NativeBackend
from gateway.app import create_app
from schemas.errors import GatewayError, UnsupportedFeature
from schemas.ir import ChatPrompt, Generate, ImagePart, Message, Stopping, TextPart, TextPrompt
from tests.backends.images.audit import watching
from tests.equality import WAYS, Ask, Way, agree, say
from tests.faults.recorded import KINDS, MOUNTED, SERVER, playing, remote
from tests.faults.upstream import response
from tests.gateway.serving import config, listening

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

MODEL = "demo"
QUESTION = "What is in the picture?"
RAW = "<|user|>{}What is in the picture?<|end|><|assistant|>"
COLOURS = {"red": (220, 30, 30), "blue": (35, 70, 220)}


def square(colour: str) -> str:
    """Base64 of a PNG."""
    image, out = Image.new("RGB", (200, 200), "white"), BytesIO()
    image.paste(COLOURS[colour], (50, 50, 150, 150))
    image.save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def uri(data: str) -> str:
    return f"data:image/png;base64,{data}"


def markdown(data: str) -> dict[str, Any]:
    return {"inputs": RAW.format(f"![]({uri(data)})"), "parameters": {"max_new_tokens": 20, "details": True}}


def parts(url: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    def body(data: str) -> dict[str, Any]:
        content = [{"type": "image_url", "image_url": url(data)}, {"type": "text", "text": QUESTION}]
        return {"inputs": content, "parameters": {"max_new_tokens": 20, "details": True}}

    return body


def messages(url: Callable[[str], Any], **said: Any) -> Callable[[str], dict[str, Any]]:
    def body(data: str) -> dict[str, Any]:
        content = [{"type": "image_url", "image_url": url(data)}, {"type": "text", "text": QUESTION}]
        return {"messages": [{"role": "user", "content": content}], "max_tokens": 20, "temperature": 0, **said}

    return body


def blocks(data: str) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 20, "temperature": 0}


def tensors(data: str) -> dict[str, Any]:
    told = {"return_finish_reason": True, "return_num_input_tokens": True, "return_num_output_tokens": True}
    parameters = {"max_tokens": 20, "temperature": 0}
    return {"text_input": RAW.format("<image>"), "image": [data], "parameters": parameters, **told}


def list_input(data: str) -> dict[str, Any]:
    content = [{"type": "text", "text": RAW.format("<image>")}, {"type": "image_url", "image_url": data}]
    return {"id": "a", "text_input": content, "parameters": {"max_new_tokens": 20, "details": True}}


def with_url(data: str) -> dict[str, str]:
    return {"url": uri(data)}


def in_detail(data: str) -> dict[str, str]:
    return {"url": uri(data), "detail": "high"}


USAGE = {"stream_options": {"include_usage": True}}
FORMS: dict[str, tuple[str, bool, Callable[[str], dict[str, Any]]]] = {
    "tgi": ("tgi", False, markdown),
    "tgi-0.9": ("tgi-0.9", False, markdown),
    "mindie": ("mindie", True, parts(uri)),
    "mindie, bare base64": ("mindie", True, parts(str)),
    "openai": ("openai", True, messages(with_url)),
    "openai, detail": ("openai", True, messages(in_detail)),
    "openai, plain string": ("openai", True, messages(uri)),
    "mindie-openai": ("mindie-openai", True, messages(with_url, temperature=1e-6, seed=1)),
    "databricks": ("databricks", True, messages(with_url)),
    "anthropic": ("anthropic", True, blocks),
    "triton": ("triton", False, tensors),
    "mindie-triton": ("mindie-triton", False, list_input),
}


def way(form: str, data: str) -> Way:
    dialect, chat, body = FORMS[form]
    (found,) = [way for way in WAYS if (way.dialect, way.chat) == (dialect, chat)]

    def asked(_: Ask, stream: bool) -> dict[str, Any]:
        said = body(data)
        return (
            said
            | ({"stream": stream} if "messages" in said else {})
            | (USAGE if stream and dialect == "openai" else {})
        )

    return replace(found, body=asked)


ASK = Ask(QUESTION, 20)


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
async def test_every_form_says_the_same(native: NativeBackend, colour: str, stream: bool) -> None:
    data = square(colour)
    said = {form: await say(way(form, data), ASK, native, MODEL, stream) for form in FORMS}
    agree(said)
    assert {answer.text for answer in said.values()} == {f"A {colour} square."}


RAW_FORMS = {"tgi", "tgi-0.9", "triton", "mindie-triton"}
CHATS = set(FORMS) - RAW_FORMS
SEEDED = {"mindie", "mindie, bare base64", "mindie-openai"}
CARRIES = {
    "openai": CHATS,
    "mindie-openai": CHATS,
    "databricks": CHATS - SEEDED,
    "anthropic": CHATS - SEEDED,
    "tgi": CHATS | RAW_FORMS,
    "tgi-0.9": RAW_FORMS,
    "mindie": CHATS,
    "triton": RAW_FORMS,
    "mindie-triton": CHATS | {"triton", "mindie-triton"},
}
"""Which forms a kind of upstream can be sent: MindIE's have a seed, TGI's include the stop string."""


@pytest.mark.parametrize("kind", KINDS)
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
    """What the kind can say, but for the picture."""
    prompt: Any = TextPrompt("Hi", (image,))
    if kind not in ("triton", "tgi-0.9"):
        prompt = ChatPrompt((Message("user", (image, TextPart("Hi"))),))
    return Generate(id="r", model=MODEL, prompts=(prompt,), stopping=Stopping(max_new_tokens=5))


ELSEWHERE = "https://pics.example/a.png"
OUT_OF_REACH = {
    "a path": (ImagePart("/srv/a.png", "path"), set(KINDS) - {"mindie"}),
    "a URL": (ImagePart(ELSEWHERE, "url"), {"triton"}),
}
"""What kinds cannot be sent. MindIE's TGI reads paths of its own; Triton's tensor holds the picture itself."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("image", "refusing"), OUT_OF_REACH.values(), ids=OUT_OF_REACH)
async def test_a_picture_that_is_somewhere_else(kind: str, image: ImagePart, refusing: set[str]) -> None:
    """Refused with no call, or in what the upstream is sent; never fetched or opened here."""
    fails = (response(b"{}", status="400 Bad Request"),)
    async with playing(kind, lambda _: fails) as (backend, upstream):
        with watching() as seen, pytest.raises(GatewayError) as refused:
            _ = [events async for events in backend.generate(asked(kind, image))]
        calls = [call.body for call in upstream.asked if call.line.startswith("POST ")]
    assert isinstance(refused.value, UnsupportedFeature) == (kind in refusing)
    assert len(calls) == (0 if kind in refusing else 1)
    assert all(image.ref.encode() in body for body in calls)
    assert not [event for event, arguments in seen if event == "open" and str(arguments[0]) == image.ref]
    assert {arguments[0] for event, arguments in seen if event == "socket.getaddrinfo"} <= {"127.0.0.1"}
