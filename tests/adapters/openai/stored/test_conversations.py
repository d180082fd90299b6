from __future__ import annotations

from typing import Any

import msgspec
import pytest

from adapters.base import Call, Reply
from adapters.objects import Append, Entry, Get, GetEntry, ListEntries, Page, Put, Steps
from adapters.openai.dialects import DIALECTS
from adapters.openai.stored.conversations import create, list_items, named, retrieve_item, update
from schemas.catalog import Catalog
from schemas.errors import BodyTooLarge, RouteNotFound, UnsupportedFeature

OPENAI = DIALECTS["openai"]


def call(**path: str) -> Call:
    return Call("0", Catalog({}, ""), path)


@pytest.mark.parametrize(
    ("body", "id"),
    [
        (b'{"conversation": "conv_1"}', "conv_1"),
        (b'{"conversation": {"id": "conv_1"}}', "conv_1"),
        (b'{"conversation": null}', None),
        (b'{"input": "conversation"}', None),
        (b'{"conversation": 5}', None),
        (b'{"conversation": "conv_1"', None),
    ],
)
def test_the_conversation_that_a_body_names(body: bytes, id: str | None) -> None:
    assert named(body) == (None if id is None else ("conversation", id))


def test_a_conversation_too_large_for_the_store_is_refused() -> None:
    steps = create(OPENAI, call(), {"items": [{"role": "user", "content": "Hi"}]}, 5)
    step = next(steps)
    assert isinstance(step, Put)
    assert (step.kind, step.id, [entry.id for entry in step.entries]) == ("conversation", "conv_0", ["msg_0_in0"])
    with pytest.raises(BodyTooLarge):
        steps.send(False)


def test_a_conversation_that_is_deleted_meanwhile_is_not_made_again() -> None:
    steps = update(OPENAI, call(id="conv_1"), {"metadata": {}})
    assert next(steps) == Get("conversation", "conv_1")
    step = steps.send(b'{"id":"conv_1","created_at":1,"metadata":{"a":"b"}}')
    assert isinstance(step, Append)
    assert step.entries == ()
    with pytest.raises(RouteNotFound):
        steps.send(False)


SCORED = b'{"id":"msg_1","content":[{"type":"output_text","text":"a","logprobs":[{"token":"a"}]}]}'


@pytest.mark.parametrize(
    ("query", "logprobs"),
    [
        ({}, []),
        ({"include": "message.output_text.logprobs"}, [{"token": "a"}]),
        ({"include[]": "message.input_image.image_url"}, []),
        ({"include[]": "reasoning.encrypted_content,message.output_text.logprobs"}, [{"token": "a"}]),
    ],
)
def test_items_have_log_probabilities_if_they_are_included(query: dict[str, str], logprobs: list[Any]) -> None:
    asked = msgspec.structs.replace(call(id="conv_1", item="msg_1"), query=query)
    listing, retrieval = list_items(asked), retrieve_item(asked)
    assert isinstance(next(listing), ListEntries)
    assert next(retrieval) == Get("conversation", "conv_1")
    assert isinstance(retrieval.send(b"{}"), GetEntry)
    [item] = answer(listing, Page((Entry("msg_1", SCORED),)))["data"]
    assert item == answer(retrieval, SCORED)
    assert item["content"][0]["logprobs"] == logprobs


def test_what_items_never_have_cannot_be_included() -> None:
    asked = msgspec.structs.replace(call(id="conv_1"), query={"include[]": "file_search_call.results"})
    with pytest.raises(UnsupportedFeature, match=r"'file_search_call\.results' cannot be included"):
        next(list_items(asked))


def answer(steps: Steps[Reply], result: Any) -> Any:
    """The answer of steps whose last one has a result."""
    with pytest.raises(StopIteration) as end:
        steps.send(result)
    return msgspec.json.decode(end.value.value.body)
