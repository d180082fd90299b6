"""Ports with roles: what a port does not have is not there, whatever key is sent."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from backends.scripted import ScriptedBackend
from gateway.access.keys_file import keys_file, new_key
from gateway.app import create_app
from gateway.config import Config, Endpoint, Listener, Role, ServedEntity, ServerSection

ASK, METRICS, ADMIN = 8000, 9001, 9002
PATHS: list[tuple[str, str, Role | None]] = [
    ("POST", "/v1/chat/completions", "ask"),
    ("GET", "/v1/models", "ask"),
    ("GET", "/v2/models/chat", "ask"),
    ("POST", "/v1/feedback", "ask"),
    ("GET", "/v1/usage", "ask"),
    ("GET", "/metrics", "metrics"),
    ("GET", "/metrics/", "metrics"),
    ("GET", "/%6detrics", "metrics"),
    ("GET", "/serving-endpoints/chat/experiment", "metrics"),
    ("POST", "/serving-endpoints/chat/experiment/reset", "admin"),
    ("GET", "/v1/keys", "admin"),
    ("DELETE", "/v1/keys/x", "admin"),
    ("POST", "/sleep", "admin"),
    ("PUT", "/api/2.0/serving-endpoints/chat/config", "admin"),
    ("DELETE", "/api/2.0/serving-endpoints/chat", "admin"),
    ("GET", "/health", None),
    ("GET", "/health/ready", None),
    ("GET", "/ui", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("port", "roles"), [(ASK, {"ask"}), (METRICS, {"metrics"}), (ADMIN, {"metrics", "admin"})])
async def test_a_port_has_the_paths_of_its_roles_and_no_others(port: int, roles: set[str], tmp_path: Path) -> None:
    key = new_key(keys_file(tmp_path / "keys.json"), "root", roles=("admin",))
    server = ServerSection(
        keys_file=str(tmp_path / "keys.json"),
        roles=("ask",),
        listeners=(
            Listener(port=METRICS, roles=("metrics",)),
            Listener(port=ADMIN, roles=("metrics", "admin"), host="127.0.0.1"),
        ),
    )
    endpoint = Endpoint(served_entities=(ServedEntity(name="a", backend="s", model="echo"),))
    app = create_app(
        Config(server=server, backends={"s": {"kind": "scripted"}}, endpoints={"chat": endpoint}),
        {"s": ScriptedBackend("s")},
    )
    url, headers = f"http://localhost:{port}", {"authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url=url, headers=headers) as client:
        for method, path, role in PATHS:
            answer = await client.request(method, path, json={} if method in ("POST", "PUT") else None)
            # In Triton's words or in ours.
            hidden = answer.status_code == 404 and ("no such path" in answer.text or "Not Found" in answer.text)
            assert hidden == (role is not None and role not in roles), (method, path, answer.status_code, answer.text)


def test_a_listener_on_a_public_address_makes_the_server_public() -> None:
    assert ServerSection(listeners=(Listener(port=1),)).is_private
    assert not ServerSection(listeners=(Listener(port=1, host="0.0.0.0"),)).is_private
