"""Single requests in the console: the last ones of all workers, and the texts of one, where records have them."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.access.keys_file import Key
from gateway.http.api.usage.answers import read
from gateway.service import Service
from gateway.usage.query import read_record


class Seen(msgspec.Struct, frozen=True):
    """What decides who sees an entry of the request log."""

    key_id: str | None = None


_seen = msgspec.json.Decoder(Seen)


def visible(entries: list[bytes], key: Key | None) -> list[bytes]:
    """The entries that a key may see: an admin's all, another its own; without a key, where none is needed, all."""
    if key is None or key.may("admin"):
        return entries
    own = key.digest[:16]
    return [entry for entry in entries if _seen.decode(entry).key_id == own]


async def texts(service: Service, key: Key | None, request_id: str) -> dict[str, Any]:
    """The texts of a request, as its record has them; empty if there is no record, or it is another key's.

    Raises:
        schemas.errors.BackendUnavailable: the database of usage cannot be read.
    """
    if service.usage is None or not service.usage.settings.text:
        return {}
    record = await read(service.usage, lambda database: read_record(database, request_id))
    if record is None or (key is not None and not key.may("admin") and record["key_id"] != key.digest[:16]):
        return {}
    return {"input": record["input"], "output": record["output"]}
