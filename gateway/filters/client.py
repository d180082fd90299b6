"""The filters that Databricks' clients set as guardrails of an endpoint, as `redact` does them.

Databricks finds personal data by rules, too: payment cards, e-mail addresses, phone numbers, bank accounts and social
security numbers, in the forms of the United States. Source: its page "AI Gateway", section "AI Guardrails".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal

import regex

from gateway.config import FilterSettings
from gateway.filters.base import Source
from gateway.filters.guarded import GuardedFilter
from gateway.filters.redact import Redact, RedactOptions
from schemas.catalog import ClientFilters, TextRules

_PII: Mapping[str, str] = MappingProxyType(
    {
        "email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
        "card": r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])",
        "ssn": r"(?<![\d-])(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\d-])",
        "phone": r"(?<!\d)(?:\+?1[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?!\d)",
        "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b",
        "account": r"(?i)(?<=\b(?:account|acct|routing)\b\D{0,20})\d{8,17}\b",
    }
)
"""Regular expressions of personal data, by what takes its place."""

_ACTIONS: Mapping[str, Literal["replace", "refuse"]] = MappingProxyType({"mask": "replace", "block": "refuse"})


def client_filters(asked: ClientFilters) -> Iterator[GuardedFilter]:
    """The filters, first those of requests."""
    yield from _filters(asked.request, "request")
    yield from _filters(asked.answer, "answer")


def _filters(rules: TextRules, source: Source) -> Iterator[GuardedFilter]:
    if rules.keywords:
        # Wherever it is in a text, in any case, as there.
        patterns = {each: f"(?i){regex.escape(each)}" for each in rules.keywords}
        window = max(100, *map(len, rules.keywords))
        options = RedactOptions(patterns=patterns, sources=(source,), action="refuse", window=window)
        yield GuardedFilter(f"keywords of the {source}", Redact(options), FilterSettings())
    if rules.pii is not None:
        options = RedactOptions(patterns=dict(_PII), sources=(source,), action=_ACTIONS[rules.pii])
        yield GuardedFilter(f"personal data of the {source}", Redact(options), FilterSettings())
