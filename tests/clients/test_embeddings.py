"""Embeddings of a sentence-transformers folder, through every client with an embeddings call, equal that library's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import openai
import pytest

from tests.clients.conftest import Server, _gateway, serving

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
CASE = "xlm-roberta, prompts"
BUILD = f"""
from pathlib import Path
from tests.backends.native.encoders import CASES, TEXTS, build
import json, sys
build(Path(sys.argv[1]), CASES["{CASE}"])
print(json.dumps(TEXTS))
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The texts of the golden vectors. The model is built by the gateway's Python, which has the libraries for it."""
    python = Path(_gateway()).parent / "python"
    folder = tmp_path_factory.getbasetemp() / "encoder"
    command = [str(python), "-c", BUILD, str(folder)]
    made = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return list(json.loads(made.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def encoder(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.getbasetemp() / "encoder"
    with serving(tmp_path_factory.mktemp("serving") / "log", "--model", str(folder)) as url:
        yield Server(url, folder.name)


@pytest.fixture(scope="module")
def golden() -> list[list[float]]:
    return list(json.loads((ROOT / "tests" / "golden" / "embeddings.json").read_text())[CASE])


def close(found: list[list[float]], golden: list[list[float]]) -> None:
    assert found == [pytest.approx(vector, abs=1e-5) for vector in golden]


def test_openai(encoder: Server, texts: list[str], golden: list[list[float]]) -> None:
    client = openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="unused", max_retries=0)
    packed = client.embeddings.create(model=encoder.model, input=texts)
    close([entry.embedding for entry in packed.data], golden)
    strict = openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="unused", _strict_response_validation=True)
    plain = strict.embeddings.create(model=encoder.model, input=texts, encoding_format="float")
    close([entry.embedding for entry in plain.data], golden)
    assert plain.usage == packed.usage
    with pytest.raises(openai.BadRequestError) as long:
        client.embeddings.create(model=encoder.model, input="b" * 200)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="makes embeddings, and no text"):
        client.chat.completions.create(model=encoder.model, messages=[{"role": "user", "content": "Hi"}])


def test_databricks(encoder: Server, texts: list[str], golden: list[list[float]]) -> None:
    sdk = import_module("databricks.sdk")
    workspace = sdk.WorkspaceClient(host=encoder.url, token="unused")
    answer = workspace.serving_endpoints.query(encoder.model, input=texts)
    close([entry.embedding for entry in answer.data], golden)
    assert workspace.serving_endpoints.get(encoder.model).task == "llm/v1/embeddings"


def test_mlflow(encoder: Server, texts: list[str], golden: list[list[float]], monkeypatch: pytest.MonkeyPatch) -> None:
    deployments = import_module("mlflow.deployments")
    monkeypatch.setenv("DATABRICKS_HOST", encoder.url)
    monkeypatch.setenv("DATABRICKS_TOKEN", "unused")
    answer = deployments.get_deploy_client("databricks").predict(endpoint=encoder.model, inputs={"input": texts})
    close([entry["embedding"] for entry in answer["data"]], golden)


def test_langchain(encoder: Server, texts: list[str], golden: list[list[float]]) -> None:
    langchain = import_module("langchain_openai")
    asked = langchain.OpenAIEmbeddings(
        model=encoder.model, base_url=f"{encoder.url}/v1", api_key="unused", check_embedding_ctx_length=False
    )
    close(asked.embed_documents(texts), golden)


def test_litellm(encoder: Server, texts: list[str], golden: list[list[float]]) -> None:
    litellm = import_module("litellm")
    answer = litellm.embedding(
        model=f"openai/{encoder.model}", input=texts, api_base=f"{encoder.url}/v1", api_key="unused"
    )
    close([entry["embedding"] for entry in answer.data], golden)
