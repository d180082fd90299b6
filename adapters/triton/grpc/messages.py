"""The messages of KServe v2 over gRPC (`schemas/triton_grpc.proto`).

The body of an answer is messages as gRPC frames them on the wire, so that it may be several.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

import schemas
from adapters.formats.protobuf import load
from schemas.errors import MalformedBody

MEDIA_TYPE = "application/grpc"
MESSAGES = load(Path(schemas.__file__).parent / "triton_grpc.proto")
"""The message classes by name."""
SERVICE = "inference.GRPCInferenceService"


def parse(name: str, data: bytes) -> Any:
    """A message of the class with this name.

    Raises:
        schemas.errors.MalformedBody: the bytes are no such message.
    """
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError:
        raise MalformedBody(f"the bytes are no {name}") from None
