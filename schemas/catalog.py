"""The served endpoints as listings show them and management requests change them, independent of any protocol."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import msgspec


class ServedEntity(msgspec.Struct, frozen=True):
    """One served entity of an endpoint, as listings show it. `traffic_percentage` is an integer from 0 to 100.

    `detail` is why the entity failed or how far it is loaded; if it is ready, why others answer in its place.
    """

    name: str
    entity_name: str
    traffic_percentage: int = 100
    state: Literal["ready", "loading", "failed"] = "ready"
    detail: str = ""


class RateLimit(msgspec.Struct, frozen=True):
    """At most so many requests or tokens a minute: of an endpoint, or of each API key there."""

    per: Literal["endpoint", "key"]
    requests: int | None = None
    tokens: int | None = None


class TextRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client wants of texts: what becomes of personal data, and keywords that may not occur in them."""

    pii: Literal["mask", "block"] | None = None
    keywords: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=500)], ...] = ()


class ClientFilters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The filters that clients have an endpoint use, for its requests and for its answers."""

    request: TextRules = TextRules()
    answer: TextRules = TextRules()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A requested change of an endpoint. The `state` of its served entities has no meaning here.

    `unknown` are the fields of its body that have no effect. "configure" changes `usage_tracking`, `fallback`,
    `rate_limits` and `filters`, where they are not None, and nothing else.
    """

    action: Literal["create", "update", "delete", "configure"]
    endpoint: str
    served_entities: tuple[ServedEntity, ...] = ()
    unknown: tuple[str, ...] = ()
    usage_tracking: bool | None = None
    fallback: bool | None = None
    rate_limits: tuple[RateLimit, ...] | None = None
    filters: ClientFilters | None = None


class OwnInput(msgspec.Struct, frozen=True):
    """A Triton input that an endpoint declares; -1 in `dims` stands for any size."""

    datatype: str = "BYTES"
    dims: tuple[int, ...] = (1,)
    required: bool = False


class TensorNames(msgspec.Struct, frozen=True):
    """An endpoint's own names of Triton tensors -> the usual ones (`{"PROMPT": "text_input"}`).

    `own` are inputs that it declares beside the usual ones; one of theirs is only made required or optional.
    """

    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    own: dict[str, OwnInput] = {}


class TokenizerInfo(msgspec.Struct, frozen=True):
    """What a client needs to write prompts for a model: special tokens by name (`eos_token`) and the chat template."""

    special_tokens: dict[str, str] = {}
    chat_template: str | None = None


# Counted per worker process: a statistics request is answered by one worker, about itself.
class RequestCounts(msgspec.Struct, frozen=True):
    """Requests for a model in this worker since it started. `_ns` are nanoseconds, `last_ms` a Unix time."""

    succeeded: int = 0
    succeeded_ns: int = 0
    failed: int = 0
    failed_ns: int = 0
    last_ms: int = 0


Task = Literal["chat", "completions", "embeddings", "rerank", "classify"]
"""What an endpoint is for."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What listings tell of an endpoint. `context_length` is in tokens, prompt and answer together.

    `declared_task`: `task` is configured, and no default. `created` and `changed` are Unix times in seconds. `pending`
    are the served entities of an update under way, `version` counts those that were put in force. `lora_adapters` are
    the LoRA adapters that requests may name; the `parent` of an endpoint of nothing but LoRA adapters is the endpoint
    of their base model, if there is one. `usage_tracking` is None where no client has configured it, and
    `tokenizer` where it is not known; `fallback`: whether another served entity is asked if one fails.
    `rate_limits` are those by the minute, not of single users, and `filters` those of clients.
    """

    name: str
    task: Task = "chat"
    declared_task: bool = False
    created: int = 0
    changed: int = 0
    version: int = 1
    ready: bool = True
    served_entities: tuple[ServedEntity, ...] = ()
    pending: tuple[ServedEntity, ...] = ()
    update_failed: bool = False
    context_length: int | None = None
    dtype: str | None = None
    device: str | None = None
    vocab_size: int | None = None
    images: bool = False
    lora_adapters: tuple[str, ...] = ()
    parent: str | None = None
    tensors: TensorNames = TensorNames()
    tokenizer: TokenizerInfo | None = None
    usage_tracking: bool | None = None
    fallback: bool = True
    rate_limits: tuple[RateLimit, ...] = ()
    filters: ClientFilters = ClientFilters()
    counts: RequestCounts = RequestCounts()


class Aliases(msgspec.Struct, frozen=True):
    """Other names of endpoints: alias -> endpoint, and pairs of pattern and endpoint in the order of precedence."""

    exact: dict[str, str] = {}
    patterns: tuple[tuple[str, str], ...] = ()

    def endpoint(self, alias: str) -> str | None:
        """The name of the endpoint that an alias stands for; None if it stands for none."""
        if (name := self.exact.get(alias)) is not None:
            return name
        return next((name for pattern, name in self.patterns if fnmatchcase(alias, pattern)), None)


class Catalog(msgspec.Struct, frozen=True):
    """All endpoints, by name; `default` answers requests of protocols that name no model.

    `lora_models` are LoRA adapters that requests may name as their model, each with the endpoint of its base model.
    """

    cards: dict[str, ModelCard]
    default: str | None = None
    version: str = "0"
    max_concurrent_requests: int = 0
    aliases: Aliases = Aliases()
    lora_models: dict[str, str] = {}

    def find(self, name: str) -> ModelCard | None:
        """The endpoint of a name or an alias; None if there is none. A name goes before an alias."""
        if (card := self.cards.get(name)) is not None:
            return card
        return self.cards.get(self.aliases.endpoint(name) or "")

    def models(self) -> list[tuple[str, ModelCard]]:
        """The names that listings show: endpoints, then exact aliases, each with its endpoint."""
        aliases = [(alias, self.cards.get(name)) for alias, name in self.aliases.exact.items()]
        return [*self.cards.items(), *((alias, card) for alias, card in aliases if card is not None)]

    def narrowed(self, shown: Callable[[str], bool]) -> Catalog:
        """The catalog with nothing but the endpoints that are shown, and aliases of these."""
        cards = {name: card for name, card in self.cards.items() if shown(name)}
        aliases = Aliases(
            {alias: name for alias, name in self.aliases.exact.items() if name in cards},
            tuple(pair for pair in self.aliases.patterns if pair[1] in cards),
        )
        loras = {lora: name for lora, name in self.lora_models.items() if name in cards}
        default = self.default if self.default in cards else next(iter(cards), None)
        return msgspec.structs.replace(self, cards=cards, default=default, aliases=aliases, lora_models=loras)

    @property
    def ready(self) -> bool:
        """Whether every endpoint can answer."""
        return all(card.ready for card in self.cards.values())
