"""Triton: readiness, the tensors of a model, an inference, and an error."""

import sys
from urllib.parse import urlsplit

import numpy
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

url, model = sys.argv[1:]
client = triton.InferenceServerClient(urlsplit(url).netloc)
print(f"ready: {client.is_model_ready(model)}")
print("inputs:", [tensor["name"] for tensor in client.get_model_metadata(model)["inputs"]])

text = triton.InferInput("text_input", [1], "BYTES")
text.set_data_from_numpy(numpy.array([b"The capital of France is"], dtype=object))
answer = client.infer(model, [text], parameters={"max_tokens": 12})
print(answer.as_numpy("text_output")[0].decode())

try:
    client.infer("no-such-model", [text])
except InferenceServerException as error:
    print(f"error: {error.status()}")
