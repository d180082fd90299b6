"""OpenAI's usage API of an organization: `/v1/organization/usage/...` and `/v1/organization/costs`.

Source: OpenAI's API reference, "Usage". Fields of what this server has none of (projects, batches, audio) are null
or 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class CompletionsResult(msgspec.Struct, frozen=True, tag="organization.usage.completions.result", tag_field="object"):
    """Sums of a bucket, or of a group in it."""

    input_tokens: int
    output_tokens: int
    num_model_requests: int
    input_cached_tokens: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: bool | None = None


class EmbeddingsResult(msgspec.Struct, frozen=True, tag="organization.usage.embeddings.result", tag_field="object"):
    """The same of embeddings."""

    input_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None


class Amount(msgspec.Struct, frozen=True):
    """Money; `currency` is null, as prices here have none."""

    value: float
    currency: str | None = None


class CostsResult(msgspec.Struct, frozen=True, tag="organization.costs.result", tag_field="object"):
    """The cost of a bucket, or of a group in it."""

    amount: Amount
    line_item: str | None = None
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None


Result = CompletionsResult | EmbeddingsResult | CostsResult


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """What was used in a span of time; Unix times in seconds."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: tuple[Result, ...]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page of buckets."""

    object: Literal["page"] = "page"
    data: tuple[Bucket, ...]
    has_more: bool
    next_page: str | None
