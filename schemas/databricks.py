"""Wire structs of Databricks' model serving, where they are not OpenAI's (`schemas.openai`).

Sources: Databricks' page "Foundation Model REST API reference"; databricks/databricks-sdk-py:databricks/sdk/service/
serving.py and databricks/sdk/oauth.py (0.156.0).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from schemas.openai import answers, requests

# --- requests -----------------------------------------------------------------------------------------------------


class ChatRequest(requests.ChatRequest, frozen=True, kw_only=True):
    """A chat. The last three are the SDK's `query` arguments."""

    client_request_id: str | None = None
    usage_context: dict[str, Any] | None = None
    extra_params: dict[str, Any] | None = None


class CompletionRequest(requests.CompletionRequest, frozen=True, kw_only=True):
    """A completion. `suffix` is appended to the text here, not what the text leads up to."""

    error_behavior: Literal["truncate", "error"] | None = None
    use_raw_prompt: bool | None = None
    client_request_id: str | None = None
    usage_context: dict[str, Any] | None = None
    extra_params: dict[str, Any] | None = None


class EmbeddingRequest(requests.EmbeddingRequest, frozen=True, kw_only=True):
    """Vectors. `instruction` is what some embedding models want said before the text."""

    instruction: str | None = None
    client_request_id: str | None = None
    usage_context: dict[str, Any] | None = None
    extra_params: dict[str, Any] | None = None


class ServedEntityInput(msgspec.Struct, frozen=True):
    """An arm to be. `entity_name` is `backend/model` or a backend; what machines it would run on is not read."""

    name: str | None = None
    entity_name: str | None = None
    entity_version: str | None = None
    external_model: Any = None


class TrafficRouteInput(msgspec.Struct, frozen=True):
    """An arm's share, by its present or its old name for it."""

    traffic_percentage: int
    served_entity_name: str | None = None
    served_model_name: str | None = None


class TrafficConfigInput(msgspec.Struct, frozen=True):
    """All shares; an arm not named here has none."""

    routes: tuple[TrafficRouteInput, ...] = ()


class ConfigRequest(msgspec.Struct, frozen=True):
    """What an endpoint shall serve. Without `served_entities` its arms stay, and only their shares change."""

    served_entities: tuple[ServedEntityInput, ...] | None = None
    traffic_config: TrafficConfigInput | None = None


class CreateRequest(msgspec.Struct, frozen=True):
    """An endpoint to be."""

    name: str
    config: ConfigRequest = ConfigRequest()


# --- answers ------------------------------------------------------------------------------------------------------


class ErrorResponse(msgspec.Struct, frozen=True):
    """Any error. mlflow derives the status from `error_code`, and takes an unknown one for 500."""

    error_code: str
    message: str


class StreamError(msgspec.Struct, frozen=True):
    """An error in a stream: in the platform's own form alone, OpenAI's clients take it for the end."""

    error: answers.Error
    error_code: str
    message: str


class EndpointState(msgspec.Struct, frozen=True):
    """READY only if every served entity is."""

    ready: Literal["READY", "NOT_READY"]
    config_update: Literal["NOT_UPDATING", "IN_PROGRESS", "UPDATE_FAILED"] = "NOT_UPDATING"


class ServedEntityState(msgspec.Struct, frozen=True):
    """One arm's deployment; RECOVERING while others answer for it."""

    deployment: Literal["DEPLOYMENT_READY", "DEPLOYMENT_CREATING", "DEPLOYMENT_RECOVERING", "DEPLOYMENT_FAILED"]
    deployment_state_message: str = ""


class ServedEntity(msgspec.Struct, frozen=True):
    """One arm. Lists leave its state out."""

    name: str
    entity_name: str
    entity_version: str
    state: ServedEntityState | UnsetType = UNSET


class TrafficRoute(msgspec.Struct, frozen=True):
    """How much of the traffic an arm gets, in percent. `served_model_name` is its old name."""

    served_model_name: str
    served_entity_name: str
    traffic_percentage: int


class TrafficConfig(msgspec.Struct, frozen=True):
    """All arms' shares."""

    routes: tuple[TrafficRoute, ...]


class EndpointConfig(msgspec.Struct, frozen=True):
    """What an endpoint serves."""

    served_entities: tuple[ServedEntity, ...]
    traffic_config: TrafficConfig | UnsetType = UNSET
    config_version: int | UnsetType = UNSET


class PendingConfig(msgspec.Struct, frozen=True):
    """What an endpoint is about to serve."""

    served_entities: tuple[ServedEntity, ...]
    traffic_config: TrafficConfig
    config_version: int


class ServingEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint. Timestamps are milliseconds since 1970. Lists leave `endpoint_url`'s neighbours out."""

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
    route_optimized: bool | UnsetType = UNSET


class EndpointList(msgspec.Struct, frozen=True):
    """Answer of `/api/2.0/serving-endpoints`."""

    endpoints: tuple[ServingEndpoint, ...]


class HostMetadata(msgspec.Struct, frozen=True):
    """What SDKs ask first. Empty: there is no account, no workspace and no OAuth here, keys are given."""

    oidc_endpoint: str = ""
    account_id: str | None = None
    workspace_id: str | None = None
