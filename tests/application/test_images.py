"""Images over HTTP, in every form of every protocol: failures as the protocol's own errors, whole and streamed, and the
limit of a request's size.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Callable, Mapping
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from PIL import Image

from backends.base import Feature
from backends.native.backend import NativeBackend
from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Limits
from tests.backends.images import files
from tests.backends.images.audit import recorded_events
from tests.backends.images.test_fetch import site
from tests.backends.images.test_loader import DECODED, REFUSED
from tests.faults.recorded import SERVER
from tests.gateway.serving import config, listening, running
from tests.images import FORMS, QUESTION, RAW, post, square

OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nConnection: close\r\n\r\n"
TAKES_NONE: dict[str, tuple[int, Mapping[str, Any]]] = {
    "tgi": (422, {"error_type": "validation"}),
    "mindie": (422, {"error_type": "Input Validation Error"}),
    "openai": (400, {"error": {"type": "invalid_request_error", "param": "messages"}}),
    "mindie-openai": (422, {"error_type": "Input Validation Error"}),
    "databricks": (400, {"error_code": "INVALID_PARAMETER_VALUE"}),
    "anthropic": (400, {"type": "error", "error": {"type": "invalid_request_error"}}),
    "gemini": (400, {"error": {"status": "INVALID_ARGUMENT"}}),
    "ollama": (400, {}),
    "triton": (501, {}),
    "mindie-triton": (422, {"error_type": "Input Validation Error"}),
}

NOT_HAD: dict[str, tuple[int, Mapping[str, Any]]] = TAKES_NONE | {
    "openai": (
        400,
        {"error": {"type": "invalid_request_error", "param": "messages[0].content[0].image_url"}},
    ),
    "triton": (400, {}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def native() -> AsyncIterator[httpx.AsyncClient]:
    backend = NativeBackend("s", {"engine": "inprocess", "threads": 1})
    async with (
        listening(create_app(config("demo", server=SERVER), {"s": backend})) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield client


def dialect(form: str) -> str:
    return {"tgi-0.9": "tgi"}.get(FORMS[form][0], FORMS[form][0])


def check(answer: httpx.Response, form: str, refusals: Mapping[str, tuple[int, Any]]) -> str:
    """Check that an answer is the protocol's own error, and return its message."""
    status, has = refusals[dialect(form)]
    assert answer.status_code == status, answer.text
    assert within(has, answer.json()), answer.text
    return answer.text


def within(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Mapping):
        return all(key in found and within(value, found[key]) for key, value in wanted.items())
    return bool(wanted == found)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_model_without_images_rejects_them(stream: bool) -> None:
    """The image is neither dropped nor read as text; a plain link stays text."""
    backend = ScriptedBackend("s", {"features": sorted(set(Feature) - {Feature.IMAGES})})
    async with running(create_app(config("echo", server=SERVER), {"s": backend})) as client:
        for form in FORMS:
            answer = await post(client, form, as_base64(files.file()), stream=stream, model="echo")
            check(answer, form, TAKES_NONE)
        linked = await client.post("/generate", json={"inputs": "See ![](https://a.example/b.png)"})
    assert linked.json()["generated_text"].startswith("See ![](https")


async def test_mindie_accepts_one_image() -> None:
    two = [{"type": "image_url", "image_url": as_base64(files.file())}] * 2
    async with running(create_app(config("echo", server=SERVER), {"s": ScriptedBackend("s")})) as client:
        answer = await client.post("/mindie/generate", json={"inputs": [*two, {"type": "text", "text": "Hi"}]})
    assert answer.status_code == 422
    assert answer.json() == {
        "error": "The number of images must be no more than 1, got 2.",
        "error_type": "Input Validation Error",
    }


@pytest.mark.slow
async def test_images_have_their_own_limit_of_the_body() -> None:
    large = "iVBORw0KGgo" + as_base64(Random(1).randbytes(90_000))[11:]
    server = msgspec.structs.replace(SERVER, limits=Limits(max_body=100_000))
    async with running(create_app(config("echo", server=server), {"s": ScriptedBackend("s")})) as client:
        for form in FORMS:
            answer = await post(client, form, large, stream=False, model="echo")
            assert answer.status_code == 200, f"{form}: {answer.text[:300]}"
        text = await client.post("/v1/completions", json={"model": "echo", "prompt": large})
    assert text.status_code == 413


@pytest.mark.torch
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", REFUSED)
async def test_undecodable_images_are_rejected(native: httpx.AsyncClient, name: str) -> None:
    data, words = REFUSED[name]
    for number, form in enumerate(FORMS):
        if form == "mindie, bare base64" and not as_base64(data).startswith(("iVBORw0KGgo", "/9j/")):
            continue  # a string that is no image's base64 is a path
        stream = bool(number % 2)
        answer = await post(native, form, as_base64(data), stream=stream, model="demo")
        said = check(answer, form, NOT_HAD)
        assert re.search(words, said) or not data, said
        assert not re.search("Pillow|PIL|Traceback|0x[0-9a-f]{6}|/", said.replace("image/", "")), said


@pytest.mark.torch
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", DECODED)
async def test_images_of_every_format(native: httpx.AsyncClient, name: str) -> None:
    for number, form in enumerate(FORMS):
        answer = await post(native, form, as_base64(DECODED[name][0]), stream=bool(number % 2), model="demo")
        assert answer.status_code == 200, answer.text
        assert "error" not in answer.text


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def chat(url: Any) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": url}, {"type": "text", "text": QUESTION}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 20, "temperature": 0}


def inputs(ref: str) -> dict[str, Any]:
    return {"inputs": [{"type": "image_url", "image_url": ref}, {"type": "text", "text": QUESTION}]}


def text_input(ref: str) -> dict[str, Any]:
    return {"id": "a", "text_input": [{"type": "text", "text": RAW.format("<image>")}, image_part(ref)]}


def image_part(ref: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": ref}


def block(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": url}}


BY_REFERENCE: dict[str, tuple[str, Callable[[str], dict[str, Any]], tuple[str, ...]]] = {
    "tgi": ("/generate", lambda ref: {"inputs": RAW.format(f"![]({ref})")}, ("url",)),
    "mindie": ("/mindie/generate", inputs, ("url", "path", "file", "relative")),
    "openai": ("/v1/chat/completions", lambda ref: chat({"url": ref}) | {"model": "demo"}, ("url", "path", "file")),
    "openai, plain": ("/v1/chat/completions", lambda ref: chat(ref) | {"model": "demo"}, ("url", "path", "relative")),
    "databricks": ("/serving-endpoints/demo/invocations", lambda ref: chat({"url": ref}), ("url", "file")),
    "mindie-triton": ("/mindie/v2/models/demo/generate", text_input, ("url", "path")),
    "anthropic": (
        "/v1/messages",
        lambda ref: {
            "model": "demo",
            "max_tokens": 20,
            "messages": [{"role": "user", "content": [block(ref), {"type": "text", "text": QUESTION}]}],
        },
        ("url",),
    ),
}


@pytest.mark.torch
async def test_images_by_reference(tmp_path: Path) -> None:
    """URLs of a listed host and paths in the folder are read; all other references are rejected."""
    (tmp_path / "a.png").write_bytes(base64.b64decode(square("red")))
    async with site() as there, site() as unlisted:
        there.answer = OK_HEAD + base64.b64decode(square("red"))
        images = {"hosts": [f"127.0.0.1:{there.port}"], "networks": ["127.0.0.0/8"], "folder": str(tmp_path)}
        backend = NativeBackend("s", {"engine": "inprocess", "threads": 1, "images": images})
        url = f"http://127.0.0.1:{there.port}/a.png"
        refs = {"url": url, "path": f"{tmp_path}/a.png", "file": f"file://{tmp_path}/a.png", "relative": "a.png"}
        bad = {
            "url": f"http://127.0.0.1:{unlisted.port}/a.png",
            "path": "/etc/hostname",
            "file": "file:///etc/hostname",
        }
        async with running(create_app(config("demo", server=SERVER), {"s": backend})) as client:
            for form, (path, body, kinds) in BY_REFERENCE.items():
                for kind in kinds:
                    answer = await client.post(path, json=body(refs[kind]))
                    assert "red square" in answer.text, f"{form}, {kind}: {answer.text}"
                    with recorded_events() as seen:
                        refused = await client.post(path, json=body(bad.get(kind, "../a.png")))
                    assert refused.status_code in (400, 422), f"{form}, {kind}: {refused.text}"
                    assert not {"/etc/hostname", "../a.png"} & {str(each[0]) for event, each in seen if event == "open"}
    assert there.requests
    assert not unlisted.requests


def jpeg(colour: str) -> str:
    image, out = Image.open(BytesIO(base64.b64decode(square(colour)))), BytesIO()
    image.save(out, "JPEG")
    return as_base64(out.getvalue())


@pytest.mark.torch
@pytest.mark.asyncio(loop_scope="module")
async def test_a_video_is_seen_as_its_frames(native: httpx.AsyncClient) -> None:
    async def ask(*content: dict[str, Any]) -> httpx.Response:
        body = {"model": "demo", "max_tokens": 20, "temperature": 0, "logprobs": True}
        parts = [*content, {"type": "text", "text": QUESTION}]
        return await native.post("/v1/chat/completions", json=body | {"messages": [{"role": "user", "content": parts}]})

    frames = [jpeg("red"), jpeg("blue")]
    shown = [{"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{frame}"}} for frame in frames]
    video = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{','.join(frames)}"}}
    expected, seen = await ask(*shown), await ask(video)
    assert expected.json()["choices"] == seen.json()["choices"]
    assert expected.json()["usage"]["prompt_tokens"] == seen.json()["usage"]["prompt_tokens"]
    for url, said, param in (
        ("data:video/mp4;base64,QUJD", "as its frames only", "type"),
        ("data:video/jpeg;base64,QUJD", "not a JPEG or PNG", "video_url"),
        ("data:video/jpeg;base64," + ",".join(frames * 11), "At most 20 images", None),
    ):
        refused = await ask({"type": "video_url", "video_url": {"url": url}})
        error = refused.json()["error"]
        assert refused.status_code == 400
        assert said in error["message"]
        assert error["param"] == ("messages" if param is None else f"messages[0].content[0].{param}")
    sent = await ask({"type": "image_embeds", "image_embeds": "QUJD"})
    assert sent.status_code == 400
    assert sent.json()["error"]["param"] == "messages[0].content[0].image_embeds"
    assert "cannot be read" in sent.json()["error"]["message"]
