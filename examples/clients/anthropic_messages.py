"""Anthropic: a streamed message with its usage, and an error."""

import sys

from anthropic import Anthropic, NotFoundError

url, model = sys.argv[1:]
client = Anthropic(base_url=url, api_key="unused")
question = {"role": "user", "content": "What is the capital of France?"}

with client.messages.stream(model=model, max_tokens=32, messages=[question]) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    message = stream.get_final_message()
print(f"\nstop reason: {message.stop_reason}")
print(f"tokens: {message.usage.input_tokens} in, {message.usage.output_tokens} out")
print(f"counted ahead: {client.messages.count_tokens(model=model, messages=[question]).input_tokens}")

try:
    client.messages.create(model="no-such-model", max_tokens=8, messages=[question])
except NotFoundError as error:
    print(f"error: {error.status_code} {error.body['error']['type']}")
