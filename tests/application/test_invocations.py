"""`POST /invocations`, as SageMaker calls its containers: the body says whether it is a chat, a completion or TGI's."""

from __future__ import annotations

from typing import Any

import pytest

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Limits, ServerSection
from tests.gateway.serving import MESSAGES, config, running, scripted
from tests.recordings.reading import frames


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"messages": MESSAGES}, ("choices", 0, "message", "content")),
        ({"prompt": "Hi", "max_tokens": 5}, ("choices", 0, "text")),
        ({"inputs": "Hi"}, (0, "generated_text")),
    ],
)
async def test_the_body_decides(body: dict[str, Any], place: tuple[Any, ...]) -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        answer = await client.post("/invocations", json=body)
        assert answer.status_code == 200
        found = answer.json()
        for key in place:
            found = found[key]
        assert found == "Hi"
        streamed = await client.post("/invocations", json=body | {"stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert len(list(frames(streamed.content))) > 1


@pytest.mark.slow
async def test_a_chat_that_is_to_be_stored_and_cannot_be_is_named() -> None:
    for limit, stored, named in ((0, True, "store"), (0, False, None), (1 << 20, True, None)):
        settings = config("echo", server=ServerSection(limits=Limits(stored_objects=limit)))
        async with running(create_app(settings, {"s": ScriptedBackend("s")})) as client:
            answer = await client.post(
                "/v1/chat/completions", json={"model": "echo", "messages": MESSAGES, "store": stored}
            )
            assert answer.headers.get("x-interlingua-ignored") == named
