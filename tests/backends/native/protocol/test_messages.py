"""The messages' layout: what a worker and an engine of different releases must agree on."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from backends.native.protocol.messages import Feature, FromEngine, Logprobs, Output, Ready, Submit, ToEngine

READY = Ready(2048, 768, (1,), "float32", "cpu", "packed", 64)


def test_a_message_is_an_array_of_its_tag_and_fields() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Submit(7, (1, 2), 20)))[:4] == ["Submit", 7, [1, 2], 20]


def test_fields_that_an_older_sender_omits_have_their_defaults() -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(["Submit", 7, [1, 2], 20]), type=ToEngine)
    assert decoded == Submit(7, (1, 2), 20)


def test_fields_that_a_newer_sender_adds_are_ignored() -> None:
    fields = [*msgspec.msgpack.decode(msgspec.msgpack.encode(READY)), "new"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=FromEngine) == READY


def test_every_message_has_its_own_tag() -> None:
    tags = [kind.__struct_config__.tag for kind in (*get_args(ToEngine), *get_args(FromEngine))]
    assert len(set(tags)) == len(tags) == 12


@pytest.mark.parametrize(("image_tokens", "images"), [(0, False), (9, True)])
def test_a_model_takes_images_if_they_may_take_tokens(image_tokens: int, images: bool) -> None:
    assert msgspec.structs.replace(READY, image_tokens=image_tokens).images is images


def test_nested_structs_survive_the_wire() -> None:
    output = Output(3, (5,), logprobs=(Logprobs(None, (1, 2), (-0.5, -1.5)),), vector=(0.25, -1.0))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(output), type=Output) == output
    submit = Submit(1, (4, 4), 0, features=(Feature(b"digest", 0, 2, b"\x01\x00", ()),), lora_adapter="team/sql")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(submit), type=ToEngine) == submit
