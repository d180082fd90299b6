"""Plain chats, texts with a few parameters, read in one step: the full way takes ten times as long.

Strategy: a body that fits the structs below in every field breaks no rule but those that are checked here, so it is
decoded once, from bytes to these structs, and the request is made of a template that the full way has read. Whatever
does not fit (an unknown field, another type, a value out of bounds, a large body) goes the full way, which alone
refuses.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from adapters.base import Call
from adapters.body import SMALL, UNREADABLE
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.decode import read_chat, read_model
from adapters.unknown_fields import Unknown
from schemas.catalog import Catalog
from schemas.ir import SMALLEST_TOP_P, ChatPrompt, Generate, Message, Origin
from schemas.openai.requests import ChatMessage, ChatRequest

_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Role = Literal["system", "developer", "user", "assistant"]
_ROLES = ("system", "developer", "user", "assistant")


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: _Role
    content: Annotated[str, msgspec.Meta(min_length=1)]


class _StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None


class _Chat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[tuple[_Message, ...], msgspec.Meta(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None
    max_tokens: _Integer | None = None
    max_completion_tokens: _Integer | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: _Integer | None = None


_decode = msgspec.json.Decoder(_Chat).decode
_NUMBERS = tuple(_Chat.__struct_fields__[_Chat.__struct_fields__.index("max_tokens") :])
_numbers = attrgetter(*_NUMBERS)
_NO_NUMBERS = (None,) * len(_NUMBERS)


class PlainChats:
    """Reads the plain chats of one dialect.

    Args:
        dialect: whose rules hold.
        operations: the names of the routes that chats come to.
    """

    def __init__(self, dialect: Dialect, operations: tuple[str, ...]) -> None:
        self._dialect = dialect
        self._operations = operations
        self._foreign_roles = frozenset(_ROLES) - set(dialect.requests.roles)
        self._bounds = {bound.name: bound for bound in dialect.limits.bounds}
        limits, known = dialect.limits, dialect.requests
        own_rules = (limits.model_pattern, limits.max_message_chars, limits.max_iter_times, known.chat_fields)
        self._template: Generate | None = None  # None: the dialect has rules that are not checked here
        if "user" in known.roles and all(each is None for each in own_rules):
            chat = ChatRequest(model="m", messages=(ChatMessage("user", "m"),))
            self._template = read_chat(dialect, chat, Origin("", "", ""), Call("", Catalog({})), Unknown({}, ()))

    def read(self, operation: str, body: bytes, call: Call, model: str | None = None) -> Generate | None:
        """The request of a plain chat, as `read_chat` reads it; None: it is not plain, or to be refused.

        A `model` that the path names goes before the body's.
        """
        template = self._template
        if operation not in self._operations or template is None or len(body) > SMALL:
            return None
        try:
            given = _decode(body)
        except UNREADABLE:
            return None
        model = given.model if model is None else model
        if not model or (self._foreign_roles and any(each.role in self._foreign_roles for each in given.messages)):
            return None
        stream = template.stream if given.stream is None else given.stream
        if given.stream_options is not None and not stream:
            return None
        changed: dict[str, Any] = {}
        numbers = _numbers(given)
        for name, value in zip(_NUMBERS, numbers, strict=True) if numbers != _NO_NUMBERS else ():
            if value is not None:
                if name in self._bounds and not self._bounds[name].holds(value):
                    return None
                changed[name] = value
        dialect = self._dialect
        return replace(
            template,
            id=call.id,
            model=model if model in call.catalog.cards else read_model(dialect, model, call),
            prompts=(ChatPrompt(tuple([Message(each.role, each.content) for each in given.messages])),),
            stream=stream,
            origin=Origin(dialect.protocol, dialect.name, operation, body),
            **(_parameters(template, given, changed) if changed else {}),
            **({} if given.user is None else {"user": given.user}),
            **({} if given.stream_options is None else {"stream_usage": bool(given.stream_options.include_usage)}),
        )


def _parameters(template: Generate, given: _Chat, changed: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request for the numbers of a chat that are set."""
    limit = changed.pop("max_tokens", None)
    limit = changed.pop("max_completion_tokens", limit)  # which wins: the other is deprecated
    stopping = {} if limit is None else {"stopping": replace(template.stopping, max_new_tokens=limit)}
    if not changed:
        return stopping
    if given.top_p == 0:
        changed["top_p"] = SMALLEST_TOP_P
    if given.seed is not None:
        changed["seed"] = given.seed % 2**64
    return stopping | {"sampling": replace(template.sampling, **changed)}
