"""What is loaded, where, and how it is: each backend with its model, for the console."""

from __future__ import annotations

import msgspec

from backends.base import Backend, EngineState, RunsEngine
from backends.controls import HasControls
from gateway.service import Service


class ModelView(msgspec.Struct, frozen=True):
    """A backend.

    Attributes:
        name: the section of the configuration.
        kind: of the section.
        url, model: what the section names.
        status, detail: its state, and why.
        endpoints: those that it answers for.
        asleep: the level of its sleep; null: it is no native model.
        engines: the last report of each engine that runs, by the engine's name.
    """

    name: str
    kind: str
    url: str | None
    model: str | None
    status: str
    detail: str
    endpoints: tuple[str, ...]
    context_length: int | None
    device: str | None
    dtype: str | None
    lora_adapters: tuple[str, ...]
    asleep: int | None
    engines: dict[str, EngineState]


def models_view(service: Service) -> list[ModelView]:
    """All backends, in the order of the configuration."""
    service.refresh()
    last = service.live.points[-1].backends if service.live.points else {}
    found = []
    for name, backend in service.backends.items():
        section = service.config.backends.get(name, {})
        can, state = backend.capabilities, last.get(name)
        endpoints = tuple(
            card
            for card in service.catalog.cards
            if name in {arm.backend for arm in service.deployed(card).served_entities}
        )
        found.append(
            ModelView(
                name,
                str(section.get("kind", "")),
                section.get("url"),
                section.get("model"),
                state.status if state is not None else "loading",
                state.detail if state is not None else "",
                endpoints,
                can.context_length,
                can.device,
                can.dtype,
                can.lora_adapters,
                backend.controls.asleep if isinstance(backend, HasControls) else None,
                _running(backend),
            )
        )
    return found


def _running(backend: Backend) -> dict[str, EngineState]:
    """The last report of each engine of a backend that runs."""
    states = backend.engine_states if isinstance(backend, RunsEngine) else {}
    return {name: state for name, state in states.items() if state is not None}
