"""Questions about images of colored shapes, asked with the client library of each protocol."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Callable
from io import BytesIO
from random import Random

import anthropic
import numpy as np
import openai
import pytest
import text_generation
import tritonclient.http as triton
from databricks.sdk import WorkspaceClient
from huggingface_hub import InferenceClient
from PIL import Image

from tests.clients.conftest import LIMIT, Server
from tools.demo_model.samples.scenes import draw_scene, render

pytestmark = pytest.mark.clients

QUESTION = "What is in the picture?"
RAW = "<|user|>{}What is in the picture?<|end|><|assistant|>"
IMAGES = 20


def question_image(seed: int) -> tuple[tuple[str, str], str]:
    """A color and a form, and the data URI of an image that shows them."""
    rng = Random(f"clients {seed}")
    scene = draw_scene(rng, 1)
    out = BytesIO()
    render(scene, rng, 300, 200).save(out, "PNG")
    (shape,) = scene.shapes
    return (shape.color, shape.form), f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def messages(uri: str) -> list[dict]:
    parts = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": QUESTION}]
    return [{"role": "user", "content": parts}]


def openai_sdk(server: Server, uri: str, stream: bool) -> str:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    made = client.chat.completions.create(model=server.model, messages=messages(uri), temperature=0, stream=stream)
    if not stream:
        return made.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in made if chunk.choices)


def openai_responses(server: Server, uri: str, stream: bool) -> str:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    parts = [{"type": "input_image", "image_url": uri}, {"type": "input_text", "text": QUESTION}]
    asked = {"model": server.model, "input": [{"role": "user", "content": parts}], "temperature": 0}
    if not stream:
        return client.responses.create(**asked).output_text
    events = client.responses.create(**asked, stream=True)
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def anthropic_sdk(server: Server, uri: str, stream: bool) -> str:
    client = anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": uri.partition("base64,")[2]}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    asked = {"model": server.model, "max_tokens": 20, "messages": [{"role": "user", "content": content}]}
    asked["extra_body"] = {"temperature": 0}
    if not stream:
        return client.messages.create(**asked).content[0].text
    with client.messages.stream(**asked) as events:
        return "".join(events.text_stream)


def databricks(server: Server, uri: str, stream: bool) -> str:
    """The OpenAI client of Databricks' SDK: the SDK's own `query` takes only text and does not stream."""
    workspace = WorkspaceClient(host=server.url, token="unused", auth_type="pat")
    path = f"/serving-endpoints/{server.model}/invocations"
    body = {"messages": messages(uri), "temperature": 0, "max_tokens": 20, "stream": stream}
    if not stream:
        return workspace.api_client.do("POST", path, body=body)["choices"][0]["message"]["content"]
    raw = workspace.api_client.do("POST", path, body=body, raw=True)["contents"].read().decode()
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


def tgi(server: Server, uri: str, stream: bool) -> str:
    client = text_generation.Client(server.url, timeout=LIMIT)
    prompt = RAW.format(f"![]({uri})")
    if not stream:
        return client.generate(prompt, max_new_tokens=20).generated_text
    return list(client.generate_stream(prompt, max_new_tokens=20))[-1].generated_text


def tgi_hub(server: Server, uri: str, stream: bool) -> str:
    client = InferenceClient(server.url)
    made = client.text_generation(RAW.format(f"![]({uri})"), max_new_tokens=20, details=True, stream=stream)
    return list(made)[-1].generated_text if stream else made.generated_text


def triton_http(server: Server, uri: str, stream: bool) -> str:
    """Streams use the generate extension as documented, because the library has no call for streams over HTTP."""
    data = uri.partition("base64,")[2]
    parameters = {"max_tokens": 20, "temperature": 0}
    if stream:
        body = {"text_input": RAW.format("<image>"), "image": [data], "parameters": parameters}
        url = f"{server.url}/v2/models/{server.model}/generate_stream"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            frames = [json.loads(line[5:]) for line in answer.read().decode().splitlines() if line.startswith("data:")]
        return "".join(frame["text_output"] for frame in frames)
    inputs = []
    for name, value in (("text_input", RAW.format("<image>")), ("image", data)):
        tensor = triton.InferInput(name, [1], "BYTES")
        tensor.set_data_from_numpy(np.array([value.encode()], dtype=np.object_))
        inputs.append(tensor)
    client = triton.InferenceServerClient(server.address)
    return client.infer(server.model, inputs, parameters=parameters).as_numpy("text_output")[0].decode()


WAYS: dict[str, Callable[[Server, str, bool], str]] = {
    way.__name__: way for way in (openai_sdk, openai_responses, databricks, anthropic_sdk, tgi, tgi_hub, triton_http)
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_shape_and_colour(server: Server, way: Callable[[Server, str, bool], str], stream: bool) -> None:
    right = 0
    for seed in range(IMAGES):
        words, uri = question_image(seed)
        text = way(server, uri, stream)
        right += all(word in text for word in words)
    print(f"{way.__name__}, {'streamed' if stream else 'whole'}: {right} of {IMAGES} right")
    assert right >= 0.9 * IMAGES


SQUARES = {"red": (220, 30, 30), "blue": (35, 70, 220), "green": (30, 160, 50)}


def test_no_cache_answers_about_another_image(server: Server) -> None:
    """The same question about squares in turn, with every client, so that every cache could be hit.

    (Triton's whole answers begin with the prompt.)
    """
    shown = {}
    for colour, value in SQUARES.items():
        image, out = Image.new("RGB", (200, 200), "white"), BytesIO()
        image.paste(value, (50, 50, 150, 150))
        image.save(out, "PNG")
        shown[colour] = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    for turn, colour in enumerate(("blue", "red", "blue", "green", "red", "green", "blue")):
        texts = {name: way(server, shown[colour], bool(turn % 2)) for name, way in WAYS.items()}
        answers = {text.strip().rpartition("<|assistant|>")[2] for text in texts.values()}
        assert answers == {f"A {colour} square."}, texts


def test_refusals_have_the_form_of_the_protocol(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    for uri in ("data:image/png;base64,aGk=", "http://127.0.0.1:1/x.png", "/etc/hostname"):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=server.model, messages=messages(uri))
        assert refused.value.type == "invalid_request_error"
        assert "127.0.0.1" not in refused.value.message
        assert "hostname" not in refused.value.message
    with pytest.raises(text_generation.errors.ValidationError, match="not a JPEG or PNG"):
        text_generation.Client(server.url, timeout=LIMIT).generate("![](data:image/png;base64,aGk=)Hi")


def jpeg(colour: str) -> str:
    """The base64 of a JPEG with a square."""
    image, out = Image.new("RGB", (200, 200), "white"), BytesIO()
    image.paste(SQUARES[colour], (50, 50, 150, 150))
    image.save(out, "JPEG", quality=95)
    return base64.b64encode(out.getvalue()).decode()


def test_parts_of_vllms_clients(server: Server) -> None:
    """Frames of a video are images; embeddings of a wrong width are refused in OpenAI's words."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)

    def ask(part: dict) -> str:
        said = [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}]
        return (
            client.chat.completions.create(model=server.model, messages=said, temperature=0).choices[0].message.content
        )

    for colour in SQUARES:
        video = f"data:video/jpeg;base64,{jpeg(colour)}"
        assert ask({"type": "video_url", "video_url": {"url": video}}) == f"A {colour} square."
    file = BytesIO()
    np.save(file, np.zeros((1, 4, 7), np.float32))
    embeddings = base64.b64encode(file.getvalue()).decode()
    for part, param in (
        ({"type": "image_embeds", "image_embeds": embeddings}, "messages[0].content[0].image_embeds"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, "messages[0].content[0].type"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(part)
        assert refused.value.param == param
