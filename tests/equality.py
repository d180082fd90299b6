"""The equality law: one prompt, seed and limit give the same answer in every protocol and dialect, streamed or not.

Each row writes a request in a protocol's own JSON and reads the answer back out of the protocol's own JSON or SSE, with
no client codec in between, as a client would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from adapters.base import Adapter, Call, ServerCodec
from adapters.fold import fold
from adapters.triton.grpc.messages import MESSAGES
from backends.base import Backend, Feature
from schemas.catalog import Catalog, ModelCard
from schemas.ir import Generate

ADAPTERS: dict[str, Adapter] = {point.name: point.load() for point in entry_points(group="gateway.adapters")}


@dataclass(frozen=True)
class Ask:
    """A question, independent of any protocol. `temperature` None is greedy."""

    prompt: str
    max_tokens: int
    temperature: float | None = None
    seed: int | None = None
    chat: bool = False


@dataclass(frozen=True)
class Said:
    """The answer as a client reads it. `ids` is None where the protocol has no token ids."""

    text: str
    reason: str
    generated: int | None
    prompt_tokens: int | None
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Way:
    """One route of one dialect: how its body is written, and how its answers are read."""

    protocol: str
    dialect: str
    path: str
    body: Callable[[Ask, bool], dict[str, Any]]
    read_whole: Callable[[Any], Said]
    read_stream: Callable[[list[Any]], Said]
    chat: bool = False
    stream_path: str | None = None
    seeds: bool = True

    def __str__(self) -> str:
        return f"{self.dialect} {self.path}"


REASONS = {
    "eos_token": "end",
    "stop": "end",
    "STOP": "end",
    "MAX_TOKENS": "length",
    "stop_sequence": "end",
    "end_turn": "end",
} | dict.fromkeys(("length", "max_tokens"), "length")


async def say(way: Way, ask: Ask, backend: Backend, model: str, stream: bool) -> Said:
    """The answer of `backend` to a question in the given way, without HTTP."""
    adapter = ADAPTERS[way.protocol]
    server = adapter.server(adapter.dialects[way.dialect])
    path = (way.stream_path or way.path) if stream else way.path
    route = next(route for route in server.routes if route.path == path and route.method == "POST")
    card = ModelCard(name=model, images=Feature.IMAGES in backend.capabilities.features)
    path_names = {"name": model, "model": model}
    call = Call("request", Catalog({model: card}, default=model), path_names, query={"alt": "sse"})
    body = json.dumps({"model": model} | way.body(ask, stream) if "model" in _fields(way) else way.body(ask, stream))
    request = server.decode(route, body.encode(), call)
    assert isinstance(request, Generate)
    if stream:
        return way.read_stream(_frames(await _stream(server, request, backend)))
    events = [event async for batch in backend.generate(request) for event in batch]
    return way.read_whole(json.loads(server.encode(request, fold(tuple(events))).body))


async def _stream(server: ServerCodec, request: Generate, backend: Backend) -> bytes:
    encoder = server.encoder(request)
    return b"".join([encoder.feed(batch) async for batch in backend.generate(request)])


def _fields(way: Way) -> tuple[str, ...]:
    return ("model",) if way.protocol in ("openai", "anthropic", "ollama") else ()


def _frames(data: bytes) -> list[Any]:
    # Ollama's frames are lines.
    marks = (b"data:", b"{")
    lines = [line.removeprefix(b"data:").strip() for line in data.split(b"\n") if line.startswith(marks)]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


# --- bodies and answers of each protocol --------------------------------------------------------------------------


def _tgi_body(ask: Ask, stream: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = {"max_new_tokens": ask.max_tokens, "details": True}
    if ask.temperature is not None:
        parameters |= {"do_sample": True, "temperature": ask.temperature, "seed": ask.seed}
    inputs: Any = [{"type": "text", "text": ask.prompt}] if ask.chat else ask.prompt
    return {"inputs": inputs, "parameters": parameters}


def _tgi_whole(answer: Any) -> Said:
    answer = answer[0] if isinstance(answer, list) else answer
    details = answer["details"]
    return Said(
        answer["generated_text"],
        REASONS[details["finish_reason"]],
        details["generated_tokens"],
        details.get("prompt_tokens"),
        tuple(token["id"] for token in details["tokens"]),
    )


def _tgi_stream(frames: list[Any]) -> Said:
    last, details = frames[-1], frames[-1]["details"]
    spoken = "".join(frame["token"]["text"] for frame in frames if frame["token"]["special"] is not True)
    assert spoken == last["generated_text"]
    return Said(
        last["generated_text"],
        REASONS[details["finish_reason"]],
        details["generated_tokens"],
        details.get("prompt_tokens", details.get("input_length")),
        tuple(frame["token"]["id"] for frame in frames),
    )


def _openai_body(ask: Ask, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"max_tokens": ask.max_tokens, "stream": stream}
    if ask.chat:
        body["messages"] = [{"role": "user", "content": ask.prompt}]
    else:
        body["prompt"] = ask.prompt
    return body | (
        {"temperature": 0} if ask.temperature is None else {"temperature": ask.temperature, "seed": ask.seed}
    )


def _mindie_chat_body(ask: Ask, stream: bool) -> dict[str, Any]:
    """MindIE refuses the temperature 0: a very small one is as good as greedy."""
    body = _openai_body(ask, stream)
    return body | ({"temperature": 1e-6, "seed": 1} if ask.temperature is None else {})


def _openai_stream_body(ask: Ask, stream: bool) -> dict[str, Any]:
    return _openai_body(ask, stream) | ({"stream_options": {"include_usage": True}} if stream else {})


def _databricks_body(ask: Ask, stream: bool) -> dict[str, Any]:
    return _openai_body(ask, stream) | ({} if ask.chat else {"use_raw_prompt": True})


def _openai_whole(answer: Any) -> Said:
    choice, usage = answer["choices"][0], answer["usage"]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return Said(text, REASONS[choice["finish_reason"]], usage["completion_tokens"], usage["prompt_tokens"])


def _openai_stream(frames: list[Any]) -> Said:
    choices = [frame["choices"][0] for frame in frames if frame["choices"]]
    pieces = [choice["delta"].get("content") if "delta" in choice else choice["text"] for choice in choices]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(reasons) == 1
    usage = frames[-1].get("usage") or {}
    return Said(
        "".join(piece or "" for piece in pieces),
        REASONS[reasons[0]],
        usage.get("completion_tokens"),
        usage.get("prompt_tokens"),
    )


def _anthropic_body(ask: Ask, stream: bool) -> dict[str, Any]:
    temperature = 0 if ask.temperature is None else ask.temperature
    messages = [{"role": "user", "content": ask.prompt}]
    return {"max_tokens": ask.max_tokens, "messages": messages, "temperature": temperature, "stream": stream}


def _anthropic_whole(answer: Any) -> Said:
    usage = answer["usage"]
    text = "".join(block["text"] for block in answer["content"])
    return Said(text, REASONS[answer["stop_reason"]], usage["output_tokens"], _read_tokens(usage))


def _anthropic_stream(frames: list[Any]) -> Said:
    text = "".join(frame["delta"]["text"] for frame in frames if frame["type"] == "content_block_delta")
    (last,) = [frame for frame in frames if frame["type"] == "message_delta"]
    usage = last["usage"]
    return Said(text, REASONS[last["delta"]["stop_reason"]], usage["output_tokens"], _read_tokens(usage))


def _read_tokens(usage: Any) -> int:
    return int(usage["input_tokens"] + usage["cache_read_input_tokens"])


def _ollama_body(ask: Ask, stream: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"num_predict": ask.max_tokens}
    options |= {"temperature": 0} if ask.temperature is None else {"temperature": ask.temperature, "seed": ask.seed}
    asked = {"messages": [{"role": "user", "content": ask.prompt}]} if ask.chat else {"prompt": ask.prompt, "raw": True}
    return {**asked, "options": options, "stream": stream}


def _ollama_whole(answer: Any) -> Said:
    return _ollama_stream([answer])


def _ollama_stream(frames: list[Any]) -> Said:
    last = frames[-1]
    assert [frame["done"] for frame in frames] == [False] * (len(frames) - 1) + [True]
    text = "".join(frame["message"]["content"] if "message" in frame else frame["response"] for frame in frames)
    return Said(text, REASONS[last["done_reason"]], last.get("eval_count", 0), last.get("prompt_eval_count", 0))


def _gemini_body(ask: Ask, stream: bool) -> dict[str, Any]:
    config: dict[str, Any] = {"maxOutputTokens": ask.max_tokens}
    config |= {"temperature": 0} if ask.temperature is None else {"temperature": ask.temperature, "seed": ask.seed}
    return {"contents": [{"role": "user", "parts": [{"text": ask.prompt}]}], "generationConfig": config}


def _gemini_whole(answer: Any) -> Said:
    return _gemini_stream([answer])


def _gemini_stream(frames: list[Any]) -> Said:
    candidates = [candidate for frame in frames for candidate in frame["candidates"]]
    text = "".join(part["text"] for candidate in candidates for part in candidate["content"]["parts"])
    usage = frames[-1]["usageMetadata"]
    reason = REASONS[candidates[-1]["finishReason"]]
    return Said(text, reason, usage["candidatesTokenCount"], usage["promptTokenCount"])


async def say_over_grpc(ask: Ask, backend: Backend, model: str, stream: bool) -> Said:
    """The answer of a backend over Triton's gRPC, as a client reads it."""
    adapter = ADAPTERS["triton"]
    assert adapter.rpc is not None
    codec = adapter.rpc(adapter.dialects["triton"])
    route = next(route for route in codec.routes if route.streams == stream and route.kind == "generate")
    message = MESSAGES["ModelInferRequest"](model_name=model)
    text = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.append(ask.prompt.encode())
    for name in TRITON_OUTPUTS:
        message.inputs.add(name=name, datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    for name, value in _triton_body(ask, stream)["parameters"].items():
        field = "double_param" if isinstance(value, float) else "int64_param"
        setattr(message.parameters[name], field, value)
    request = codec.decode(route, message.SerializeToString(), Call("request", Catalog({model: ModelCard(name=model)})))
    assert isinstance(request, Generate)
    if stream:
        return _triton_stream(list(_responses(await _stream(codec, request, backend))))
    events = [event async for batch in backend.generate(request) for event in batch]
    data = codec.encode(request, fold(tuple(events))).body
    return _triton_whole(_tensors(MESSAGES["ModelInferResponse"].FromString(data[5:])))


def _responses(data: bytes) -> Iterator[dict[str, Any]]:
    """The responses of a stream: each has a flag and its length in front."""
    while data:
        end = 5 + int.from_bytes(data[1:5], "big")
        yield _tensors(MESSAGES["ModelStreamInferResponse"].FromString(data[5:end]).infer_response)
        data = data[end:]


def _tensors(response: Any) -> dict[str, Any]:
    """The outputs as the generate extension has them."""
    return {
        output.name: raw[4:].decode() if output.datatype == "BYTES" else int.from_bytes(raw, "little")
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


TRITON_OUTPUTS = {
    "return_finish_reason": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
}


def _triton_body(ask: Ask, stream: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = {"max_tokens": ask.max_tokens}
    parameters |= {"temperature": 0} if ask.temperature is None else {"temperature": ask.temperature, "seed": ask.seed}
    return {"text_input": ask.prompt, "parameters": parameters, **TRITON_OUTPUTS}


def _mindie_triton_body(ask: Ask, stream: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = {"max_new_tokens": ask.max_tokens, "details": True}
    if ask.temperature is not None:
        parameters |= {"do_sample": True, "temperature": ask.temperature, "seed": ask.seed}
    return {"id": "a", "text_input": ask.prompt, "parameters": parameters}


def _triton_whole(answer: Any) -> Said:
    return _triton_stream([answer])


def _triton_stream(frames: list[Any]) -> Said:
    last = frames[-1]
    details = last.get("details") or {}
    reason = last.get("finish_reason") or details["finish_reason"]
    return Said(
        "".join(frame["text_output"] for frame in frames),
        REASONS[reason],
        details.get("generated_tokens", sum(frame.get("num_output_tokens", 0) for frame in frames)),
        last.get("num_input_tokens"),
    )


def _tgi(dialect: str, path: str, chat: bool = False) -> Way:
    return Way("tgi", dialect, path, _tgi_body, _tgi_whole, _tgi_stream, chat, "/generate_stream")


def _openai(dialect: str, path: str, body: Callable[[Ask, bool], dict[str, Any]], chat: bool) -> Way:
    return Way("openai", dialect, path, body, _openai_whole, _openai_stream, chat)


_INVOCATIONS = "/serving-endpoints/{name}/invocations"
_GENERATE = "/v2/models/{model}/generate"
_CONTENT = "/v1beta/models/{model:path}:generateContent"
_CONTENT_STREAM = "/v1beta/models/{model:path}:streamGenerateContent"

WAYS: tuple[Way, ...] = (
    _tgi("tgi", "/generate"),
    _tgi("tgi-0.9", "/generate"),
    _tgi("mindie", "/generate"),
    _tgi("mindie", "/generate", chat=True),
    _openai("openai", "/v1/completions", _openai_stream_body, chat=False),
    _openai("openai", "/v1/chat/completions", _openai_stream_body, chat=True),
    _openai("mindie-openai", "/v1/chat/completions", _mindie_chat_body, chat=True),
    Way("databricks", "databricks", _INVOCATIONS, _databricks_body, _openai_whole, _openai_stream),
    Way("databricks", "databricks", _INVOCATIONS, _databricks_body, _openai_whole, _openai_stream, chat=True),
    Way(
        "anthropic",
        "anthropic",
        "/v1/messages",
        _anthropic_body,
        _anthropic_whole,
        _anthropic_stream,
        chat=True,
        seeds=False,
    ),
    Way("ollama", "ollama", "/api/generate", _ollama_body, _ollama_whole, _ollama_stream),
    Way("ollama", "ollama", "/api/chat", _ollama_body, _ollama_whole, _ollama_stream, chat=True),
    Way("gemini", "gemini", _CONTENT, _gemini_body, _gemini_whole, _gemini_stream, True, _CONTENT_STREAM),
    Way("triton", "triton", _GENERATE, _triton_body, _triton_whole, _triton_stream, stream_path=f"{_GENERATE}_stream"),
    Way(
        "triton",
        "mindie-triton",
        _GENERATE,
        _mindie_triton_body,
        _triton_whole,
        _triton_stream,
        stream_path=f"{_GENERATE}_stream",
    ),
)


def agree(answers: dict[str, Said]) -> None:
    """Check that all answers are equal in the fields that they have.

    Raises:
        AssertionError: a field differs.
    """
    for field in ("text", "reason", "generated", "prompt_tokens", "ids"):
        values = {way: getattr(said, field) for way, said in answers.items() if getattr(said, field) is not None}
        assert len(set(values.values())) == 1, f"{field} differs: {values}"
