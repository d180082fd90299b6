"""How MindIE's server breaks a stream off: a bare sentence instead of an event, and then a clean end of the connection.

The bytes are those that MindIE-LLM writes (`src/server/endpoint`: `SingleLLMPnDReqHandler::StreamResponseFillHttpSink`,
`ProcessOneStreamResponse` and `EventDispatcher::WaitEvent`). No answer that ends so may pass for a whole one.
"""

from __future__ import annotations

import json

import pytest

from adapters import openai, tgi, triton
from adapters.base import ClientCodec
from schemas.errors import Incomplete
from schemas.ir import ChatPrompt, Delta, Events, Generate, Message, TextPrompt

SENTENCES = (
    b"Engine callback timeout.",
    b"Engine callback timeout: the first token took more than 60 s",
    b"Failed to get engine response",
)
CHUNK = {
    "id": "c",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}],
}
TOKEN = {"token": {"id": 5, "text": "Hi", "logprob": None, "special": None}, "generated_text": None, "details": None}
TRITON = {"id": "a", "model_name": "m", "model_version": None, "text_output": "Hi", "details": None}
EVENTS = {"mindie-openai": CHUNK, "mindie": TOKEN, "mindie-triton": TRITON}
CODECS: dict[str, ClientCodec] = {
    name: adapter.ADAPTER.client(adapter.ADAPTER.dialects[name])
    for name, adapter in {"mindie-openai": openai, "mindie": tgi, "mindie-triton": triton}.items()
}


def read(name: str, data: bytes, cut: int) -> Events:
    """The events of a stream that comes in two pieces and breaks off."""
    prompt = ChatPrompt((Message("user", "Hi"),)) if name == "mindie-openai" else TextPrompt("Hi")
    reader = CODECS[name].decoder(Generate(id="a", model="m", prompts=(prompt,), stream=True))
    events = reader.feed(data[:cut]) + reader.feed(data[cut:])
    with pytest.raises(Incomplete):
        reader.close()
    return events


@pytest.mark.parametrize("begun", [True, False], ids=["after a token", "before one"])
@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize("name", CODECS)
def test_a_sentence_is_a_failure_wherever_it_is_cut(name: str, sentence: bytes, begun: bool) -> None:
    event = b"data: " + json.dumps(EVENTS[name]).encode() + b"\n\n" if begun else b""
    for cut in range(len(event + sentence) + 1):
        events = read(name, event + sentence, cut)
        assert "".join(each.text for each in events if isinstance(each, Delta)) == ("Hi" if begun else "")
