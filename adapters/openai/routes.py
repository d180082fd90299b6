"""The routes of OpenAI's API, which servers have under several prefixes."""

from __future__ import annotations

from typing import Any, Literal

from adapters.base import Route
from adapters.openai.responses.decode import COUNT, OPERATION
from schemas.openai import answers, conversations, requests
from schemas.openai.responses import Deleted, InputTokens, ItemList, Response, ResponseRequest

_QUESTION = {"model": "{model}", "input": "What is the capital of France?"}


def generation_routes(prefix: str) -> tuple[Route, ...]:
    """The routes of chats, completions and embeddings under the path `prefix`."""
    return (
        Route(
            "POST",
            f"{prefix}/chat/completions",
            "chat",
            "generate",
            "Answer a conversation",
            body=requests.ChatRequest,
            answer=answers.ChatCompletion,
            streams=True,
            keeps=True,
            example={"model": "{model}", "messages": [{"role": "user", "content": "What is the capital of France?"}]},
        ),
        Route(
            "POST",
            f"{prefix}/completions",
            "completions",
            "generate",
            "Continue a prompt",
            body=requests.CompletionRequest,
            answer=answers.Completion,
            streams=True,
            example={"model": "{model}", "prompt": "One, two, three,", "max_tokens": 12},
        ),
        Route(
            "POST",
            f"{prefix}/embeddings",
            "embeddings",
            "embed",
            "Turn texts into vectors",
            body=requests.EmbeddingRequest,
            answer=answers.EmbeddingList,
            example={"model": "{model}", "input": "One, two, three."},
        ),
    )


def model_routes(prefix: str) -> tuple[Route, ...]:
    """The routes of the model list under the path `prefix`."""
    return (
        Route("GET", f"{prefix}/models", "models", "describe", "List the models", answer=answers.ModelList),
        Route("GET", f"{prefix}/models/{{id:path}}", "model", "describe", "Describe a model", answer=answers.Model),
    )


def response_routes(prefix: str) -> tuple[Route, ...]:
    """The routes of the Responses API under the path `prefix`."""
    path = f"{prefix}/responses"
    return (
        Route(
            "POST",
            path,
            OPERATION,
            "generate",
            "Answer in typed items",
            body=ResponseRequest,
            answer=Response,
            streams=True,
            stores=True,
            example=_QUESTION,
        ),
        Route(
            "POST",
            f"{path}/input_tokens",
            COUNT,
            "tokenize",
            "Count the tokens of an input",
            body=ResponseRequest,
            answer=InputTokens,
            stores=True,
            example=_QUESTION,
        ),
        _object("POST", f"{path}/{{id}}/cancel", "cancel", "Cancel a response in the background", Response),
        _object("GET", f"{path}/{{id}}", "response", "Retrieve a stored response, or its events", Response),
        _object("DELETE", f"{path}/{{id}}", "forget", "Delete a stored response", Deleted),
        Route(
            "GET",
            f"{path}/{{id}}/input_items",
            "input_items",
            "describe",
            "List the input items of a stored response",
            answer=ItemList,
            stores=True,
        ),
    )


def conversation_routes(prefix: str) -> tuple[Route, ...]:
    """The routes of conversations under the path `prefix`."""
    path = f"{prefix}/conversations"
    one, items = f"{path}/{{id}}", f"{path}/{{id}}/items"
    item, named = f"{items}/{{item}}", {"metadata": {"topic": "capitals"}}
    what, listed, said = conversations.Conversation, conversations.ObjectList, conversations.ItemsRequest
    asked = conversations.ConversationRequest
    hello = {"type": "message", "role": "user", "content": "What is the capital of France?"}
    return (
        _object("POST", path, "create_conversation", "Make a conversation", what, asked, named),
        _object("GET", one, "conversation", "Retrieve a conversation", what),
        _object("POST", one, "update_conversation", "Replace the metadata", what, conversations.MetadataRequest, named),
        _object("DELETE", one, "delete_conversation", "Delete a conversation", conversations.DeletedObject),
        _object("POST", items, "create_items", "Add items to a conversation", listed, said, {"items": [hello]}),
        _object("GET", items, "list_items", "List the items of a conversation", listed),
        _object("GET", item, "item", "Retrieve an item of a conversation", dict[str, Any]),
        _object("DELETE", item, "delete_item", "Delete an item of a conversation", what),
    )


def stored_chat_routes(prefix: str) -> tuple[Route, ...]:
    """The routes of stored chat completions under the path `prefix`."""
    path = f"{prefix}/chat/completions"
    one, listed, named = f"{path}/{{id}}", conversations.ObjectList, {"metadata": {"topic": "capitals"}}
    asked, deleted = conversations.MetadataRequest, conversations.DeletedObject
    return (
        _object("GET", path, "list_chats", "List the stored chat completions", listed),
        _object("GET", one, "stored_chat", "Retrieve a stored chat completion", answers.ChatCompletion),
        _object("POST", one, "update_chat", "Replace the metadata", answers.ChatCompletion, asked, named),
        _object("DELETE", one, "delete_chat", "Delete a stored chat completion", deleted),
        _object("GET", f"{one}/messages", "list_messages", "List the messages of a stored chat", listed),
    )


def _object(
    method: Literal["GET", "POST", "DELETE"],
    path: str,
    name: str,
    summary: str,
    answer: Any,
    body: Any = None,
    example: Any = None,
) -> Route:
    """A route that uses stored objects."""
    return Route(method, path, name, "object", summary, body=body, answer=answer, example=example, stores=True)
