"""instructor, in its tool and JSON modes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import instructor
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.clients.conftest import ATTEMPTS, Server

pytestmark = pytest.mark.clients

ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Give me JSON with name Anna and age 7."}],
    "temperature": 0,
    "max_retries": 0,
}


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    age: int


class get_weather(BaseModel):  # noqa: N801 - instructor calls the tool what the class is called
    city: str


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def client(server: Server, mode: str) -> instructor.Instructor:
    plain = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    return instructor.from_openai(plain, mode=instructor.Mode[mode], model=server.model)


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def test_an_answer_is_a_model(server: Server, mode: str) -> None:
    answer = client(server, mode).create(**ASKED, response_model=Person)
    assert isinstance(answer, Person)
    assert answer.model_dump() == {"name": "Anna", "age": 7}


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_a_model_is_streamed_as_it_grows(server: Server, mode: str) -> None:
    for _ in range(ATTEMPTS):
        *partial, last = client(server, mode).create_partial(**ASKED, response_model=Person)
        assert last.model_dump() == {"name": "Anna", "age": 7}
        if any(grown.age is None for grown in partial):
            return
    pytest.fail(f"each of {ATTEMPTS} answers came in one piece")


def test_several_tools_are_called_at_once(server: Server) -> None:
    question = [{"role": "user", "content": "What is the weather in Paris and Rome?"}]
    answer = client(server, "PARALLEL_TOOLS").create(
        **ASKED | {"messages": question}, response_model=Iterable[get_weather]
    )
    assert list(answer) == [get_weather(city="Paris"), get_weather(city="Rome")]


def test_json_without_a_schema_parses_unless_truncated(server: Server) -> None:
    """The schema is in the prompt, too long for the bundled model: any object is accepted."""
    try:
        answer = client(server, "JSON").create(**ASKED, response_model=Anything, max_tokens=64)
    except instructor.core.IncompleteOutputException:
        return
    assert isinstance(answer, Anything)
