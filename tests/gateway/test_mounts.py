from __future__ import annotations

import pytest

from gateway.mounts import Paths

TEMPLATES = (
    "/",
    "/generate",
    "/v1/models",
    "/v1/models/{id:path}",
    "/v2/models/stats",
    "/v2/models/{model}",
    "/v2/models/{model}/versions/{version}/generate",
    "/serving-endpoints/chat/completions",
    "/serving-endpoints/{name}/invocations",
)

CASES = {
    "/": ("/", {}),
    "/generate": ("/generate", {}),
    "/generate/": ("/generate", {}),
    "/v1/models/": ("/v1/models", {}),
    "/v1/models/org/name": ("/v1/models/{id:path}", {"id": "org/name"}),
    "/v2/models/stats": ("/v2/models/stats", {}),
    "/v2/models/m": ("/v2/models/{model}", {"model": "m"}),
    "/v2/models/org%2Fname": ("/v2/models/{model}", {"model": "org/name"}),
    "/v2/models/m/versions/1/generate": (
        "/v2/models/{model}/versions/{version}/generate",
        {"model": "m", "version": "1"},
    ),
    "/serving-endpoints/chat/completions": ("/serving-endpoints/chat/completions", {}),
    "/serving-endpoints/chat/invocations": ("/serving-endpoints/{name}/invocations", {"name": "chat"}),
}


@pytest.fixture(scope="module")
def paths() -> Paths[str]:
    paths: Paths[str] = Paths()
    for template in TEMPLATES:
        paths.add(template, template)
    return paths


@pytest.mark.parametrize(("path", "found"), CASES.items(), ids=CASES)
def test_found(paths: Paths[str], path: str, found: tuple[str, dict[str, str]]) -> None:
    assert paths.find(path) == found


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/models/m/versions", "//generate", "/v1/models//", "/generate/x", "/Generate"]
)
def test_not_found(paths: Paths[str], path: str) -> None:
    assert paths.find(path) in (None, ("/v1/models", {}))
