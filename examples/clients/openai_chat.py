"""OpenAI: a streamed chat with its usage, a tool call, and an error."""

import sys

from openai import NotFoundError, OpenAI

url, model = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="unused")
question = [{"role": "user", "content": "What is the capital of France?"}]

stream = client.chat.completions.create(
    model=model, messages=question, stream=True, stream_options={"include_usage": True}, max_tokens=32
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
        if choice.finish_reason:
            print(f"\nfinish reason: {choice.finish_reason}")
    if chunk.usage:
        print(f"tokens: {chunk.usage.prompt_tokens} in, {chunk.usage.completion_tokens} out")

weather = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "What is the weather in Paris?"}],
    tools=[{"type": "function", "function": weather}],
    tool_choice="required",
    max_tokens=64,
)
call = answer.choices[0].message.tool_calls[0].function
print(f"tool call: {call.name}({call.arguments})")

try:
    client.chat.completions.create(model="no-such-model", messages=question)
except NotFoundError as error:
    print(f"error: {error.status_code} {error.code}")
