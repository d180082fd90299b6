"""Responses of a remote that has the API: they reach a client as they came, but for what is the gateway's.

A client knows a response by the gateway's id, under which it is stored here, and the events of one by their numbers.
Items keep the remote's ids: what a server has encrypted may be bound to them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.openai.remote.encode_request import raw_fields
from adapters.openai.responses.response import own_fields
from schemas.completion import Completion
from schemas.ir import Generate
from schemas.openai.responses import Failure

_json = msgspec.json.Encoder().encode


def relayed_body(request: Generate, answer: Completion) -> bytes:
    """The JSON of a whole response that a remote has sent."""
    assert answer.relayed is not None
    return _json(raw_fields(answer.relayed) | own_fields(request))


class RelayedEvents:
    """The events of one response.

    Args:
        request: the request that is answered.
    """

    def __init__(self, request: Generate) -> None:
        self._own = own_fields(request)
        self._response: dict[str, Any] = {}
        self._items: list[msgspec.Raw] = []  # those that are complete

    def read(self, data: bytes) -> tuple[str, dict[str, Any]]:
        """The type of a remote's event, and its fields as they are to be sent."""
        # Line breaks between JSON tokens would end the event; within strings JSON escapes them.
        fields: dict[str, Any] = raw_fields(data.replace(b"\n", b"").replace(b"\r", b""))
        if bytes(fields.get("response", b"")).startswith(b"{"):
            fields["response"] = self._response = raw_fields(fields["response"]) | self._own
        type = msgspec.json.decode(fields.get("type", b'""'), type=str)
        if type == "response.output_item.done" and "item" in fields:
            self._items.append(fields["item"])
        return "".join(type.splitlines()), fields  # the type is text that the remote controls

    def failed(self, failure: Failure) -> dict[str, Any]:
        """The response as it is when the remote fails."""
        return self._response | {"status": "failed", "error": failure, "output": self._items}
