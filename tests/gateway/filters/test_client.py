"""The guardrails that Databricks' clients set, over texts."""

from __future__ import annotations

import pytest

from gateway.filters.base import apply
from gateway.filters.client import client_filters
from schemas.catalog import ClientFilters, TextRules
from schemas.errors import InvalidRequest

MASKED = {
    "Write to ann.b@mail.example.org now.": "Write to [email] now.",
    "Card 4111 1111 1111 1111, please.": "Card [card], please.",
    "My number is 123-45-6789.": "My number is [ssn].",
    "Call (555) 123-4567 or +1 555-123-4567.": "Call [phone] or [phone].",
    "IBAN DE89 3704 0044 0532 0130 00.": "IBAN [iban].",
    "My account number is 12345678901.": "My account number is [account].",
    "In 2024 we sold 12345678901 of 4 x 1,000 in room 555-12, v1.2.3.": None,
}


@pytest.mark.parametrize("text", MASKED)
async def test_personal_data_is_masked(text: str) -> None:
    (masks,) = client_filters(ClientFilters(request=TextRules(pii="mask")))
    assert apply(text, await masks.edits(text, "request")) == (MASKED[text] or text)
    assert await masks.edits(text, "answer") == []


async def test_personal_data_and_keywords_are_refused_where_that_is_wanted() -> None:
    rules = TextRules(pii="block", keywords=("Secret (x)",))
    keywords, data = client_filters(ClientFilters(answer=rules))
    with pytest.raises(InvalidRequest, match=r"\[email\]"):
        await data.edits("a@b.example", "answer")
    with pytest.raises(InvalidRequest, match="Secret"):
        await keywords.edits("THE SECRET (X)!", "answer")
    assert await keywords.edits("Secret x", "answer") == []
    assert list(client_filters(ClientFilters())) == []
