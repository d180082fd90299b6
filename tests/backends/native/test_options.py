"""Reading the options of a native backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from backends.native.backend import NativeBackend
from backends.native.options import NativeOptions, read_options
from backends.native.protocol.engine_options import EngineOptions

LORA = {"support": "./lora/support"}
DEPRECATED = {
    "event": "backend.option_deprecated",
    "log_level": "warning",
    "option": "adapters",
    "use": "lora_adapters",
}


def test_the_former_name_of_lora_adapters_is_read_with_a_warning() -> None:
    with capture_logs() as logs:
        assert read_options({"adapters": LORA}) == NativeOptions(lora_adapters=LORA)
    assert logs == [DEPRECATED]


def test_the_present_name_is_read_without_a_warning() -> None:
    with capture_logs() as logs:
        assert read_options({"lora_adapters": LORA}).lora_adapters == LORA
    assert logs == []


def test_the_former_name_reaches_a_shared_engine_process_too() -> None:
    command = NativeBackend.engine_command({"adapters": LORA}, Path("socket"))
    assert command is not None
    assert f"--lora-adapters={msgspec.json.encode(LORA).decode()}" in command


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"adapters": LORA, "lora_adapters": LORA}, "`adapters` is the former name of `lora_adapters`"),
        ({"adapters": 3}, "lora_adapters"),
        ({"adaptor": {}}, "unknown field `adaptor`"),
    ],
)
def test_wrong_options_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        read_options(given)


def test_the_engine_gets_its_own_options_only() -> None:
    options = read_options({"model": "folder", "heartbeat": 2.0, "max_sequences": 3})
    assert options.engine_options == EngineOptions(model="folder", max_sequences=3)
