"""Plain answers, read in one step: they are what the full way reads, and nothing is accepted that it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Reply
from adapters.fold import fold
from adapters.openai.remote.decode_answer import read_answer
from adapters.openai.remote.plain_answer import read_plain_answer
from schemas.completion import Completion
from schemas.errors import GatewayError
from schemas.ir import Generate, Origin
from tests.adapters.openai.remote.test_text_runs import DIALECT
from tests.adapters.openai.remote_scenes import COUNTED, asked, choice, talk

CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TEXTS = st.sampled_from(("", "Hi", "\u2028", None, [{"type": "text", "text": "a"}], 1))
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": TEXTS,
        "reasoning": TEXTS,
        "reasoning_content": TEXTS,
        "refusal": TEXTS,
        "tool_calls": st.sampled_from((None, [], [CALL])),
        "extra_content": st.sampled_from((None, {}, {"google": {"thought": True}})),
    },
)
LOGPROBS = st.sampled_from((None, {"content": []}, {"tokens": ["Hi"], "token_logprobs": [-1.0]}))
CHOICES = st.fixed_dictionaries(
    {"index": st.sampled_from((0, 0, 0, 1)), "finish_reason": st.sampled_from(("stop", "length", "tired", None, ""))},
    optional={
        "message": MESSAGES | st.none(),
        "delta": MESSAGES | st.none(),
        "text": TEXTS,
        "logprobs": LOGPROBS,
        "stop_reason": st.sampled_from((None, "x", 7, True, 1.5)),
    },
)
COUNTS = st.sampled_from((3, 0, None, -1))
USAGES = st.none() | st.fixed_dictionaries(
    {"prompt_tokens": COUNTS},
    optional={
        "completion_tokens": COUNTS,
        "prompt_tokens_details": st.sampled_from((None, {"cached_tokens": 2})),
        "completion_tokens_details": st.sampled_from((None, {"reasoning_tokens": 2})),
    },
)
ANSWERS = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, max_size=2) | st.none()},
    optional={"model": st.sampled_from(("m", None, "")), "usage": USAGES, "error": st.sampled_from((None, {}, "no"))},
)
ORIGIN = Origin(DIALECT.protocol, DIALECT.name, "chat", b"{}")
REQUESTS = [talk(), talk(origin=ORIGIN), asked()]


def by_full_way(request: Generate, body: bytes) -> Completion | None:
    """What the full way reads; None: it refuses the answer."""
    try:
        return fold(read_answer(DIALECT, request, Reply(body)))
    except GatewayError:
        return None


@given(request=st.sampled_from(REQUESTS), answer=ANSWERS)
def test_both_ways_read_the_same(request: Generate, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    plain = read_plain_answer(DIALECT, request, body)
    assert plain is None or plain == by_full_way(request, body)


@pytest.mark.parametrize("request_", REQUESTS)
def test_usual_answers_are_plain(request_: Generate) -> None:
    content = {"text": "Hi"} if request_.raw_prompt else {}
    body = json.dumps({"model": "m", "choices": [choice(**content)], "usage": COUNTED["usage"]}).encode()
    if request_.raw_prompt:
        body = body.replace(b'"message":', b'"other":')
    assert read_plain_answer(DIALECT, request_, body) is not None
