"""TGI: a stream with its tokens and details, a chat, and an error. TGI's requests name no model."""

import sys

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, TextGenerationError

url, model = sys.argv[1:]
client = InferenceClient(url, headers={"x-gateway-model-name": model})  # else the server's default answers

for event in client.text_generation("The capital of France is", max_new_tokens=12, stream=True, details=True):
    if not event.token.special:
        print(event.token.text, end="", flush=True)
    if event.details is not None:
        print(f"\nfinish reason: {event.details.finish_reason}, {event.details.generated_tokens} tokens")

answer = client.text_generation("The capital of France is", max_new_tokens=12, details=True)
print("first tokens:", [(token.id, token.text) for token in answer.details.tokens[:3]])

try:
    client.text_generation("x", max_new_tokens=12, temperature=-1.0)
except (TextGenerationError, HfHubHTTPError) as error:
    print(f"error: {type(error).__name__}")
