"""The mirror law: what a client of the Responses API writes, a server decodes to the same, and the other way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from adapters.fold import fold
from adapters.openai import RESPONSES
from schemas.completion import Completion
from schemas.errors import Incomplete, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Events,
    FinishReason,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Sampling,
    Stopping,
    TextPart,
    TextPrompt,
    TokensPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)
from schemas.origin import Unread
from schemas.prompts import TemplateOptions
from tests.adapters.laws import batches, canonical, splits, streams, texts
from tests.adapters.openai.responses.test_decode import WEATHER, ask
from tests.adapters.openai.scenes import ROUTES, call, server

CLIENT = RESPONSES.client(RESPONSES.dialects["openai"])
ENDS = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


def asked(**fields: Any) -> Generate:
    chat = ChatPrompt((Message("user", "x"),))
    usual = {"id": "r1", "model": "m", "prompts": (chat,), "raw_prompt": False, "sampling": Sampling(do_sample=True)}
    return Generate(**usual | fields)  # type: ignore[arg-type]


def decodable(answer: Completion, *, scored: bool = False) -> Completion:
    """The answer as a client can decode it: without ids and special tokens, with the reasons that the API has."""
    [choice] = answer.choices
    reason = choice.reason
    if reason not in ENDS:
        reason = FinishReason.TOOL_CALL if choice.tool_calls else FinishReason.EOS
    tokens = tuple(
        replace(token, id=None, top=tuple(replace(top, id=None) for top in token.top))
        for token in choice.tokens
        if scored and not token.special
    )
    seen = replace(choice, reason=reason, tokens=tokens, generated=answer.usage.completion_tokens, stop=None)
    usage = replace(answer.usage, cached_tokens=0, reasoning_tokens=0)
    return replace(answer, choices=(seen,), usage=usage)


answers = streams(reasons=tuple(FinishReason), reasoning=True, refusals=True, tools=True, with_tokens=False)


@given(data=st.data(), events=answers)
def test_streams(data: st.DataObject, events: Events) -> None:
    writer = server().encoder(ask(stream=True, tools=[WEATHER]))
    written = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    reader = CLIENT.decoder(asked(stream=True))
    read: Events = ()
    for piece in data.draw(splits(written)):
        read += reader.feed(piece)
    assert canonical(read + reader.close()) == decodable(canonical(events))


@given(events=answers)
def test_whole_answers(events: Events) -> None:
    reply = server().encode(ask(tools=[WEATHER]), fold(events))
    assert canonical(CLIENT.decode(asked(), reply)) == decodable(canonical(events))


@given(data=st.data(), events=streams(with_logprobs=True, tops=2, end_token=True, ids=False))
def test_log_probabilities(data: st.DataObject, events: Events) -> None:
    scored = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    request = asked(stream=True, logprobs=True, top_logprobs=2)
    writer = server().encoder(ask(stream=True, **scored))
    reader = CLIENT.decoder(request)
    read: Events = ()
    for batch in data.draw(batches(events)):
        read += reader.feed(writer.feed(batch))
    whole = CLIENT.decode(request, server().encode(ask(**scored), fold(events)))
    expected = scores(canonical(events))
    assert scores(canonical(read)) == scores(canonical(whole)) == expected


def scores(answer: Completion) -> list[tuple[str, float | None, tuple[tuple[str, float], ...]]]:
    """The tokens with their log-probabilities, each with its string."""

    def name(token: Any) -> str:
        return token.text if token.bytes is None else token.bytes.decode("utf-8", "replace")

    return [
        (name(token), token.logprob, tuple((name(top), top.logprob) for top in token.top))
        for token in answer.choices[0].tokens
        if not token.special and name(token)
    ]


@given(events=streams(tools=True), data=st.data())
def test_a_truncated_stream_is_never_complete(events: Events, data: st.DataObject) -> None:
    written = server().encoder(ask(stream=True, tools=[WEATHER])).feed(events)
    reader = CLIENT.decoder(asked(stream=True))
    end = written.rindex(b"event: response.")
    reader.feed(written[: data.draw(st.integers(0, end))])
    with pytest.raises(Incomplete):
        reader.close()


nonempty = texts.filter(bool)
calls = st.just((ToolCall("t1", "f", '{"a":1}'), ToolCall("t2", "f", "{}")))
IMAGE = ImagePart("data:image/png;base64,QUJD", "data", "low")
conversations = st.lists(
    st.builds(Message, st.sampled_from(["system", "developer", "user"]), nonempty)
    | st.builds(Message, st.just("user"), nonempty.map(lambda text: (IMAGE, TextPart(text))))
    | st.builds(Message, st.just("assistant"), nonempty)
    | st.builds(Message, st.just("assistant"), nonempty, tool_calls=calls)
    | st.builds(Message, st.just("tool"), nonempty, tool_call_id=st.just("t1")),
    min_size=1,
    max_size=4,
).map(lambda given: ChatPrompt(tuple(given)))


@given(
    prompt=conversations,
    sampling=st.builds(
        Sampling,
        do_sample=st.just(True),
        temperature=st.none() | st.floats(0, 2),
        top_p=st.none() | st.floats(0.01, 1),
        frequency_penalty=st.none() | st.floats(-2, 2),
        presence_penalty=st.none() | st.floats(-2, 2),
    ),
    stopping=st.builds(Stopping, max_new_tokens=st.none() | st.integers(1, 999)),
    stream=st.booleans(),
    strict=st.booleans(),
    grammar=st.sampled_from([None, Grammar("json_object"), Grammar("json_schema", {"type": "object"}, "n", True)]),
    choice=st.sampled_from(
        [None, *map(ToolChoice, ("required", "none", "auto")), *(ToolChoice(mode, ("f",)) for mode in ("named",))]
    ),
    allowed=st.none() | st.booleans(),
    hints=st.fixed_dictionaries(
        {},
        optional={
            "reasoning_effort": st.just("low"),
            "verbosity": st.just("high"),
            "service_tier": st.just("flex"),
            "metadata": st.just({"a": "b"}),
        },
    ),
    parallel=st.none() | st.booleans(),
    top=st.none() | st.integers(0, 20),
)
def test_requests(
    prompt: ChatPrompt,
    sampling: Sampling,
    stopping: Stopping,
    stream: bool,
    strict: bool,
    grammar: Grammar | None,
    choice: ToolChoice | None,
    allowed: bool | None,
    hints: dict[str, Any],
    parallel: bool | None,
    top: int | None,
) -> None:
    request = asked(
        prompts=(prompt,),
        sampling=sampling,
        stopping=stopping,
        stream=stream,
        tools=(Tool("f", "Does.", {"type": "object"}, strict),),
        grammar=grammar,
        tool_choice=choice if allowed is None else ToolChoice("allowed", ("f",), allowed),
        parallel_tool_calls=parallel,
        hints=hints,
        user="u",
        logprobs=top is not None,
        top_logprobs=top or 0,
    )
    sent = CLIENT.encode(request)
    assert (sent.method, sent.path) == ("POST", "/responses")
    seen = server().decode(ROUTES["responses"], sent.body, call("r1"))
    assert isinstance(seen, Generate)
    assert replace(seen, origin=None, stream_usage=False) == request


def test_bytes_of_a_request() -> None:
    request = asked(
        prompts=(
            ChatPrompt(
                (
                    Message("system", "Be brief."),
                    Message("assistant", None, tool_calls=(ToolCall("c1", "f", "{}"),), reasoning="Hm."),
                    Message("tool", (TextPart("5"),), tool_call_id="c1"),
                )
            ),
        ),
        sampling=Sampling(seed=7, seed_drawn=True),
        stopping=Stopping(9),
        tools=(Tool("f"),),
        hints={"reasoning_effort": "low"},
        stream=True,
    )
    assert CLIENT.encode(request).body == (
        b'{"model":"m","input":[{"role":"system","content":"Be brief."},'
        b'{"role":"assistant","content":[{"type":"output_text","text":"<thinking>\\nHm.\\n</thinking>"}]},'
        b'{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},'
        b'{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"5"}]}],'
        b'"max_output_tokens":9,"temperature":0.0,'
        b'"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}},"strict":false}],'
        b'"reasoning":{"effort":"low"},"stream":true,"store":false}'
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"echo": True},
        {"prompt_logprobs": True},
        {"sampling": Sampling(True, seed=0)},
        {"sampling": Sampling(True, top_k=5)},
        {"stopping": Stopping(stop=("x",))},
        {"prompts": (TokensPrompt((1,)),)},
        {"prompts": (TextPrompt("x"),), "raw_prompt": True},
        {"prompts": (ChatPrompt((Message("user", "x"),), TemplateOptions(variables={"a": 1})),)},
        {"grammar": Grammar("regex", "a")},
    ],
)
def test_requests_that_the_api_cannot_express_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature):
        CLIENT.encode(asked(**fields))


def test_what_has_no_field_is_named_and_an_unknown_word_is_sent() -> None:
    effort = Unread("reasoning_effort", "reasoning_effort", "no")
    tool = Unread("tools[0].type", "tools", "no")
    request = asked(hints={"reasoning_effort": "lots", "prediction": {}}, unread=(effort, tool))
    assert CLIENT.ignored(request) == ("tools[0].type", "prediction")
    assert json.loads(CLIENT.encode(request).body)["reasoning"] == {"effort": "lots"}
