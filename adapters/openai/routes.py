"""The routes of OpenAI's API, which servers have under several prefixes."""

from __future__ import annotations

from adapters.base import Route
from adapters.openai.responses.decode import COUNT, OPERATION
from schemas.openai import answers, requests
from schemas.responses import Deleted, InputTokens, ItemList, Response, ResponseRequest

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
        Route(
            "POST",
            f"{path}/{{id}}/cancel",
            "cancel",
            "describe",
            "Cancel a background response (there are none)",
            stores=True,
        ),
        Route(
            "GET", f"{path}/{{id}}", "response", "describe", "Retrieve a stored response", answer=Response, stores=True
        ),
        Route(
            "DELETE", f"{path}/{{id}}", "forget", "describe", "Delete a stored response", answer=Deleted, stores=True
        ),
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
