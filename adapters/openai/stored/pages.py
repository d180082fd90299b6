"""What the lists of OpenAI's API have in common: the parameters of a page, its form, and metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from adapters.base import Reply
from adapters.objects import Page, Span
from adapters.openai.inbound.checks import not_one_of, refused
from schemas.errors import InvalidRequest
from schemas.openai.conversations import Metadata, ObjectList

_MAX_LIMIT, _DEFAULT_LIMIT = 100, 20
_ORDERS = ("asc", "desc")
_MOST_METADATA, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512


def read_span(query: Mapping[str, str], order: str) -> Span:
    """The page that a request asks for, in `order` ("asc" or "desc") unless it says another.

    Raises:
        schemas.errors.InvalidRequest: a parameter is wrong.
    """
    order = query.get("order", order)
    if order not in _ORDERS:
        raise not_one_of("order", order, _ORDERS)
    limit = query.get("limit", str(_DEFAULT_LIMIT))
    # The pattern bounds the number before `int` reads it.
    if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= _MAX_LIMIT:
        raise refused("limit", f"Invalid 'limit': must be from 1 to {_MAX_LIMIT}.")
    return Span(int(limit), query.get("after", ""), newest_first=order == "desc")


def encode_page(page: Page) -> Reply:
    """The answer with a page, whose entries are JSON."""
    entries = page.entries
    answer = ObjectList(
        data=tuple(msgspec.Raw(each.data) for each in entries),
        first_id=entries[0].id if entries else None,
        last_id=entries[-1].id if entries else None,
        has_more=page.more,
    )
    return Reply(msgspec.json.encode(answer))


def check_metadata(metadata: Metadata | None) -> Metadata:
    """The metadata of a request, {} for none.

    Raises:
        schemas.errors.InvalidRequest: it is larger than the API allows.
    """
    metadata = metadata or {}
    if len(metadata) > _MOST_METADATA:
        raise InvalidRequest(
            f"Invalid 'metadata': too many properties. Expected an object with at most {_MOST_METADATA} properties, "
            f"but got an object with {len(metadata)} properties instead.",
            param="metadata",
            code="object_above_max_properties",
        )
    for key, value in metadata.items():
        _check_length(f"metadata.{key[:_LONGEST_KEY]}", "key too long. Expected a key", key, _LONGEST_KEY)
        _check_length(f"metadata.{key}", "string too long. Expected a string", value, _LONGEST_VALUE)
    return metadata


def _check_length(param: str, what: str, text: str, most: int) -> None:
    if len(text) > most:
        message = f"Invalid '{param}': {what} with maximum length {most}, but got one of length {len(text)} instead."
        raise InvalidRequest(message, param=param, code="string_above_max_length")
