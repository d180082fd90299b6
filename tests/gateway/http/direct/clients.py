"""The requests of each protocol's clients, and the forms in which a server of OpenAI's answers them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.gateway.serving import MESSAGES

CHAT: dict[str, Any] = {"model": "chat", "messages": MESSAGES}
COUNTS = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
Choice = dict[str, Any]


class Form(NamedTuple):
    """The form of a server's answers.

    Attributes:
        object: what they call themselves.
        whole: the content of a choice with a text.
        part: the content of a choice of a chunk with such a delta.
    """

    object: str
    whole: Callable[[str], Choice]
    part: Callable[[dict[str, Any]], Choice]

    def answer(self, **choice: Any) -> bytes:
        """A whole answer, whose choice may differ."""
        return json.dumps(self.fields(choices=[self.choice | choice])).encode()

    def fields(self, **more: Any) -> dict[str, Any]:
        """A whole answer's."""
        fields = {"id": "c", "object": self.object, "created": 1, "model": "m", "choices": [self.choice]}
        return fields | {"usage": COUNTS} | more

    @property
    def choice(self) -> Choice:
        """A whole answer's."""
        return {"index": 0, **self.whole("Yes."), "finish_reason": "stop"}


def _completed(delta: dict[str, Any]) -> Choice:
    """A chunk's content. What completions do not have is where chats have it."""
    content = delta.get("content", "")
    others = {name: value for name, value in delta.items() if name not in ("content", "role")}
    return {"text": content} | ({"delta": others} if others else {})


CHATS = Form(
    "chat.completion",
    lambda text: {"message": {"role": "assistant", "content": text}},
    lambda delta: {"delta": delta},
)
COMPLETIONS = Form("text_completion", lambda text: {"text": text, "logprobs": None}, _completed)


class Request(NamedTuple):
    """A client's request, and the form of the answer to it."""

    path: str
    body: dict[str, Any]
    form: Form = CHATS

    def but(self, path: str | None = None, **fields: Any) -> Request:
        """The same with other fields, or at another path."""
        return self._replace(path=path or self.path, body=self.body | fields)


OPENAI = Request("/v1/chat/completions", CHAT)
DATABRICKS = Request("/serving-endpoints/chat/invocations", {"messages": MESSAGES})
ANTHROPIC = Request("/v1/messages", CHAT | {"max_tokens": 50})
TGI = Request("/generate", {"inputs": "Hi"}, COMPLETIONS)
MINDIE = TGI.but("/mindie/generate")
TRITON = Request("/v2/models/chat/generate", {"text_input": "Hi"}, COMPLETIONS)
MINDIE_TRITON = TRITON.but("/mindie/v2/models/chat/generate")


def _both(plain: Request, **variants: Request) -> dict[str, Request]:
    return {"": plain, **variants}


def _of_tgi(plain: Request) -> dict[str, Request]:
    def given(**parameters: Any) -> Request:
        return plain.but(parameters=parameters)

    return _both(
        plain,
        parameters=given(max_new_tokens=5, temperature=0.5, top_p=0.9, top_k=3, seed=7, stop=["x", "y"]),
        nothing=given(details=None, watermark=None, do_sample=None, max_new_tokens=None),
        detailed=given(details=True),
        full=given(return_full_text=True),
        odd=given(unheard_of=1),
        other=given(frequency_penalty=0.5),
        best=given(best_of=2, do_sample=True),
        wrong=given(temperature=-1.0),
        grammar=given(grammar={"type": "regex", "value": "a"}),
        empty=plain.but(inputs=""),
        extra=plain.but(more=1),
        chat=plain.but(inputs=[{"type": "text", "text": "Hi"}]),
    )


def _of_triton(plain: Request) -> dict[str, Request]:
    def given(**parameters: Any) -> Request:
        return plain.but(parameters=parameters)

    return _both(
        plain,
        parameters=given(max_tokens=5, temperature=0.5, top_p=0.9, top_k=3, seed=7, stop="x"),
        beside=plain.but(max_tokens=5, seed="7", temperature="0.5"),
        named=plain.but(id="a"),
        counted=plain.but(return_num_output_tokens=True, return_finish_reason=True),
        detailed=given(details=True),
        scores=given(logprobs=1),
        whole=plain.but(stream=False),
        echoed=plain.but(exclude_input_in_output=False),
        two=given(n=2),
        odd=given(unheard_of=1),
        wrong=given(temperature=-1.0),
        empty=plain.but(text_input=""),
        absent=plain._replace(body={}),
    )


REQUESTS: dict[str, dict[str, Request]] = {
    "openai": _both(
        OPENAI,
        alias=OPENAI.but(model="also"),
        parameters=OPENAI.but(max_tokens=5, temperature=0.5, seed=3, user="u"),
        stated=OPENAI.but(stream=False),
        odd=OPENAI.but(unheard_of=1),
        scores=OPENAI.but(logprobs=True),
        two=OPENAI.but(n=2),
        other=OPENAI.but(model="other"),
        empty=OPENAI.but(messages=[]),
        wrong=OPENAI.but(temperature=9),
    ),
    "databricks": _both(
        DATABRICKS,
        parameters=DATABRICKS.but(max_tokens=5, temperature=0.5, top_p=0.9, user="u"),
        by_name=DATABRICKS.but("/serving-endpoints/chat/completions", model="chat"),
        served=DATABRICKS.but("/serving-endpoints/chat/served-models/one/invocations"),
        not_served=DATABRICKS.but("/serving-endpoints/chat/served-models/two/invocations"),
        turns=DATABRICKS.but(messages=MESSAGES * 2),
        penalties=DATABRICKS.but(presence_penalty=1, frequency_penalty=-0.5, seed=-3),
        odd=DATABRICKS.but(unheard_of=1),
        wrong=DATABRICKS.but(temperature=9),
        completion=DATABRICKS._replace(body={"prompt": "Hi"}),
    ),
    "anthropic": _both(
        ANTHROPIC,
        parameters=ANTHROPIC.but(temperature=0.5, top_p=0, top_k=0, stop_sequences=["x"], metadata={"user_id": "u"}),
        system=ANTHROPIC.but(system="Be brief.", temperature=0),
        blocks=ANTHROPIC.but(messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]),
        turns=ANTHROPIC.but(messages=[*MESSAGES, {"role": "assistant", "content": "Ho"}, *MESSAGES]),
        thinking=ANTHROPIC.but(thinking={"type": "enabled", "budget_tokens": 1024}),
        tier=ANTHROPIC.but(service_tier="auto"),
        tools=ANTHROPIC.but(tools=[{"name": "f", "input_schema": {"type": "object"}}]),
        odd=ANTHROPIC.but(unheard_of=1),
        wrong=ANTHROPIC.but(temperature=9),
        none=ANTHROPIC.but(max_tokens=0),
        empty=ANTHROPIC.but(messages=[]),
    ),
    "tgi": _of_tgi(TGI),
    "mindie": _of_tgi(MINDIE),
    "triton": _of_triton(TRITON),
    "mindie-triton": _of_triton(MINDIE_TRITON),
}
"""The requests of each protocol and dialect; "" is a plain one."""


def streamed(request: Request) -> Request:
    """The same request for a stream."""
    if "/generate" in request.path:
        return request.but(request.path + "_stream")
    return request.but(stream=True)
