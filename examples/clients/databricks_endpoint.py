"""Databricks: the endpoints, a chat with one of them, and an error."""

import sys

from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import NotFound
from databricks.sdk.service.serving import ChatMessage, ChatMessageRole

url, model = sys.argv[1:]
workspace = WorkspaceClient(host=url, token="unused", auth_type="pat")
for endpoint in workspace.serving_endpoints.list():
    print(f"endpoint: {endpoint.name} ({endpoint.state.ready.value})")

question = ChatMessage(role=ChatMessageRole.USER, content="What is the capital of France?")
answer = workspace.serving_endpoints.query(model, messages=[question], max_tokens=32)
print(answer.choices[0].message.content)
print(f"tokens: {answer.usage.prompt_tokens} in, {answer.usage.completion_tokens} out")

try:
    workspace.serving_endpoints.query("no-such-endpoint", messages=[question])
except NotFound as error:
    print(f"error: {error.error_code}")
