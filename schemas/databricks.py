"""Wire structs of Databricks' model serving, where they are not OpenAI's (`schemas.openai`).

Sources: Databricks' page "Foundation Model REST API reference"; databricks/databricks-sdk-py:databricks/sdk/service/
serving.py and databricks/sdk/oauth.py (0.156.0).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from schemas.openai import answers, requests

# --- requests -----------------------------------------------------------------------------------------------------


class ChatRequest(requests.ChatRequest, frozen=True, kw_only=True):
    """A chat request. The last three fields are arguments of the SDK's `query`."""

    client_request_id: str | None = None
    usage_context: dict[str, Any] | None = None
    extra_params: dict[str, Any] | None = None


class CompletionRequest(requests.CompletionRequest, frozen=True, kw_only=True):
    """A completion request. `suffix` is appended to the text; it is not what the text leads up to, as in OpenAI's."""

    error_behavior: Literal["truncate", "error"] | None = None
    use_raw_prompt: bool | None = None
    client_request_id: str | None = None
    usage_context: dict[str, Any] | None = None
    extra_params: dict[str, Any] | None = None


class EmbeddingRequest(requests.EmbeddingRequest, frozen=True, kw_only=True):
    """A request for embeddings. `instruction` is the text that some embedding models expect before the input."""

    instruction: str | None = None
    client_request_id: str | None = None
    usage_context: dict[str, Any] | None = None
    extra_params: dict[str, Any] | None = None


class ServedEntityInput(msgspec.Struct, frozen=True):
    """A served entity to create. `entity_name` is `backend/model` or a backend; fields about machines are ignored."""

    name: str | None = None
    entity_name: str | None = None
    entity_version: str | None = None
    # Decoded only to be named in the refusal: external models are configured as backends here.
    external_model: Any = None


class TrafficRouteInput(msgspec.Struct, frozen=True):
    """The traffic percentage of a served entity, which is named by the current or the deprecated field."""

    traffic_percentage: int
    served_entity_name: str | None = None
    served_model_name: str | None = None


class TrafficConfigInput(msgspec.Struct, frozen=True):
    """All traffic percentages; a served entity without one has none of the traffic."""

    routes: tuple[TrafficRouteInput, ...] = ()


class ConfigRequest(msgspec.Struct, frozen=True):
    """What an endpoint is to serve. None for `served_entities` keeps them and changes their traffic only."""

    served_entities: tuple[ServedEntityInput, ...] | None = None
    traffic_config: TrafficConfigInput | None = None


class CreateRequest(msgspec.Struct, frozen=True):
    """An endpoint to create."""

    name: str
    config: ConfigRequest = ConfigRequest()


class Enabled(msgspec.Struct, frozen=True):
    """Whether something is enabled."""

    enabled: bool


class RateLimit(msgspec.Struct, frozen=True):
    """A rate limit: `calls` or `tokens` in a period, of the whole endpoint or of each user."""

    renewal_period: Literal["minute"]
    key: Literal["endpoint", "user", "user_group", "service_principal"] = "endpoint"
    calls: Annotated[int, msgspec.Meta(ge=1)] | UnsetType | None = UNSET
    tokens: Annotated[int, msgspec.Meta(ge=1)] | UnsetType | None = UNSET
    principal: str | UnsetType | None = UNSET


class PiiBehavior(msgspec.Struct, frozen=True):
    """What becomes of personal data."""

    behavior: Literal["NONE", "MASK", "BLOCK"] = "NONE"


class GuardrailParameters(msgspec.Struct, frozen=True, omit_defaults=True):
    """The guardrails of requests or of answers."""

    pii: PiiBehavior | None = None
    invalid_keywords: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=500)], ...] | None = None
    safety: bool | None = None
    valid_topics: tuple[str, ...] | None = None


class Guardrails(msgspec.Struct, frozen=True, omit_defaults=True):
    """The guardrails of an endpoint."""

    input: GuardrailParameters | None = None
    output: GuardrailParameters | None = None


class AiGatewayRequest(msgspec.Struct, frozen=True):
    """Settings of an endpoint's AI gateway. What is not read here is decoded only to be refused."""

    usage_tracking_config: Enabled | None = None
    fallback_config: Enabled | None = None
    rate_limits: tuple[RateLimit, ...] | None = None
    guardrails: Guardrails | None = None
    inference_table_config: dict[str, Any] | None = None


# --- answers ------------------------------------------------------------------------------------------------------


class ErrorResponse(msgspec.Struct, frozen=True):
    """Any error. mlflow derives the status from `error_code`; an unknown code counts as 500."""

    error_code: str
    message: str


class StreamError(msgspec.Struct, frozen=True):
    """An error in a stream. Without `error` OpenAI's clients would take it for the end of the stream."""

    error: answers.Error
    error_code: str
    message: str


class EndpointState(msgspec.Struct, frozen=True):
    """The state of an endpoint: READY if every served entity is ready."""

    ready: Literal["READY", "NOT_READY"]
    config_update: Literal["NOT_UPDATING", "IN_PROGRESS", "UPDATE_FAILED"] = "NOT_UPDATING"


class ServedEntityState(msgspec.Struct, frozen=True):
    """The deployment of a served entity; RECOVERING while others answer in its place."""

    deployment: Literal["DEPLOYMENT_READY", "DEPLOYMENT_CREATING", "DEPLOYMENT_RECOVERING", "DEPLOYMENT_FAILED"]
    deployment_state_message: str = ""


class ServedEntity(msgspec.Struct, frozen=True):
    """One served entity. Lists omit its state."""

    name: str
    entity_name: str
    entity_version: str
    state: ServedEntityState | UnsetType = UNSET


class TrafficRoute(msgspec.Struct, frozen=True):
    """The traffic percentage of a served entity. `served_model_name` is the deprecated name of the same field."""

    served_model_name: str
    served_entity_name: str
    traffic_percentage: int


class TrafficConfig(msgspec.Struct, frozen=True):
    """The traffic percentages of all served entities."""

    routes: tuple[TrafficRoute, ...]


class EndpointConfig(msgspec.Struct, frozen=True):
    """What an endpoint serves."""

    served_entities: tuple[ServedEntity, ...]
    traffic_config: TrafficConfig | UnsetType = UNSET
    config_version: int | UnsetType = UNSET


class PendingConfig(msgspec.Struct, frozen=True):
    """What an endpoint serves after the update in progress."""

    served_entities: tuple[ServedEntity, ...]
    traffic_config: TrafficConfig
    config_version: int


class AiGateway(msgspec.Struct, frozen=True):
    """The settings of an endpoint's AI gateway."""

    usage_tracking_config: Enabled
    fallback_config: Enabled
    rate_limits: tuple[RateLimit, ...] = ()
    guardrails: Guardrails | UnsetType = UNSET


class ServingEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint. Timestamps are milliseconds since 1970. Lists omit some fields."""

    name: str
    creator: str
    creation_timestamp: int
    last_updated_timestamp: int
    state: EndpointState
    config: EndpointConfig
    pending_config: PendingConfig | UnsetType = UNSET
    tags: tuple[Any, ...] = ()
    id: str
    task: str
    permission_level: str | UnsetType = UNSET
    ai_gateway: AiGateway | UnsetType = UNSET
    route_optimized: bool | UnsetType = UNSET


class EndpointList(msgspec.Struct, frozen=True):
    """Answer of `/api/2.0/serving-endpoints`."""

    endpoints: tuple[ServingEndpoint, ...]


class HostMetadata(msgspec.Struct, frozen=True):
    """The first thing that SDKs request. Empty fields: no account, no workspace, no OAuth; clients have API keys."""

    oidc_endpoint: str = ""
    account_id: str | None = None
    workspace_id: str | None = None
