"""What OpenAI's clients store: responses in the background and conversations, with the official SDK.

Two workers, so that what one makes and stores the other is asked for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients.conftest import CAPITAL, Server, serving

pytestmark = pytest.mark.clients
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("pair") / "log", "--workers", "2") as url:
        yield Server(url, "interlingua")


@pytest.fixture
def client(pair: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{pair.url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True)


def test_a_response_is_made_in_the_background(client: openai.OpenAI, pair: Server) -> None:
    queued = client.responses.create(model=pair.model, input=CAPITAL, temperature=0, background=True)
    assert (queued.status, queued.background) == ("queued", True)
    response = queued
    for _ in range(600):
        response = client.responses.retrieve(queued.id)
        if response.status not in ("queued", "in_progress"):
            break
        time.sleep(0.05)
    assert response.status == "completed"
    same = client.responses.create(model=pair.model, input=CAPITAL, temperature=0)
    assert response.output_text == same.output_text
    assert client.responses.cancel(queued.id) == response


def test_a_stream_in_the_background_is_resumed(client: openai.OpenAI, pair: Server) -> None:
    stream = client.responses.create(model=pair.model, input=CAPITAL, temperature=0, background=True, stream=True)
    seen = [next(stream) for _ in range(4)]
    stream.close()  # the client leaves
    id, last = seen[0].response.id, seen[-1].sequence_number
    assert [event.sequence_number for event in seen] == [0, 1, 2, 3]
    rest = list(client.responses.retrieve(id, stream=True, starting_after=last))
    assert [event.sequence_number for event in rest] == list(range(last + 1, last + 1 + len(rest)))
    assert rest[-1].type == "response.completed"
    assert client.responses.retrieve(id) == rest[-1].response
    for _ in range(4):  # any worker has all of them
        assert list(client.responses.retrieve(id, stream=True)) == seen + rest
    client.responses.delete(id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(id)


def test_a_response_in_the_background_is_cancelled(client: openai.OpenAI, pair: Server) -> None:
    queued = client.responses.create(model=pair.model, input=CAPITAL, background=True, max_output_tokens=1500)
    stopped = client.responses.cancel(queued.id)
    assert stopped.status in ("cancelled", "completed")
    assert client.responses.retrieve(queued.id).status == stopped.status


def test_a_conversation_is_made_shorter(pair: Server) -> None:
    # Not strict: the SDK's type of an output has no user's message, of which its own comment says that they are there.
    client = openai.OpenAI(base_url=f"{pair.url}/v1", api_key="unused", max_retries=0)
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    short = client.responses.compact(model=pair.model, input=asked)  # type: ignore[arg-type]
    assert [item.type for item in short.output] == ["message", "compaction"]
    following = [*(item.model_dump(exclude_none=True) for item in short.output), {"role": "user", "content": "Go on."}]
    assert client.responses.create(model=pair.model, input=following).output_text  # type: ignore[arg-type]


def test_conversations(client: openai.OpenAI, pair: Server) -> None:
    talk = client.conversations.create(metadata={"topic": "capitals"})
    assert client.conversations.retrieve(talk.id) == talk
    first = client.responses.create(model=pair.model, input=CAPITAL, temperature=0, conversation=talk.id)
    assert first.conversation.id == talk.id
    thanks = {"model": pair.model, "input": "Thank you!", "temperature": 0, "max_output_tokens": 20}
    second = client.responses.create(**thanks, conversation={"id": talk.id})
    chained = client.responses.create(**thanks, previous_response_id=first.id)
    assert (second.output_text, second.usage.input_tokens) == (chained.output_text, chained.usage.input_tokens)
    items = list(client.conversations.items.list(talk.id, order="asc", limit=3))
    assert [item.role for item in items] == ["user", "assistant", "user", "assistant"]
    assert [item.content[0].text for item in items[1::2]] == [first.output_text, second.output_text]
    added = client.conversations.items.create(talk.id, items=[{"role": "user", "content": "One more"}])
    assert client.conversations.items.retrieve(added.data[0].id, conversation_id=talk.id) == added.data[0]
    assert client.conversations.items.delete(added.data[0].id, conversation_id=talk.id) == talk
    changed = client.conversations.update(talk.id, metadata={"topic": "thanks"})
    assert (changed.metadata, client.conversations.delete(talk.id).deleted) == ({"topic": "thanks"}, True)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(talk.id)


def test_stored_chats(pair: Server) -> None:
    # Not strict: the SDK's type of these messages knows the role "assistant" alone.
    client = openai.OpenAI(base_url=f"{pair.url}/v1", api_key="unused", max_retries=0)
    asked = {"model": pair.model, "messages": [{"role": "user", "content": CAPITAL}], "temperature": 0, "store": True}
    chats = [client.chat.completions.create(**asked, metadata={"run": str(run)}) for run in range(3)]
    chunks = list(client.chat.completions.create(**asked, stream=True))
    found = list(client.chat.completions.list(limit=2))
    assert [chat.id for chat in found] == [*(chat.id for chat in chats), chunks[0].id]
    assert found[3].choices == found[0].choices == chats[0].choices
    assert [chat.id for chat in client.chat.completions.list(metadata={"run": "1"})] == [chats[1].id]
    changed = client.chat.completions.update(chats[0].id, metadata={"run": "7"})
    assert client.chat.completions.retrieve(chats[0].id).model_extra == changed.model_extra
    (message,) = client.chat.completions.messages.list(chats[0].id)
    assert (message.role, message.content) == ("user", CAPITAL)
    assert client.chat.completions.delete(chats[0].id).deleted
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(chats[0].id)


def test_the_example_of_the_docs_runs(client: openai.OpenAI, pair: Server) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/stored.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example.replace("http://127.0.0.1:8000", pair.url), names)
    assert len(client.conversations.items.list(names["talk"].id).data) >= 2
