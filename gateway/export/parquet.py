"""Rows of an export as a Parquet file, for Spark, pandas and DuckDB. Needs the extra `parquet`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec

from gateway.export.rows import Row

_BATCH = 10_000
"""Rows of a row group."""


class ParquetMissingError(Exception):
    """pyarrow is not installed."""


def write_parquet(rows: Iterable[Row], file: Path) -> int:
    """Write rows; return how many.

    Raises:
        ParquetMissingError: pyarrow is not installed.
        OSError: the file cannot be written.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ParquetMissingError(
            "Parquet needs pyarrow: install interlingua[parquet], or export with --format jsonl"
        ) from None
    types = {bool: arrow.bool_(), str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    composite = {
        tuple[str, ...]: arrow.list_(arrow.string()),
        dict[str, str]: arrow.map_(arrow.string(), arrow.string()),
    }

    def column(hint: Any) -> Any:
        if hint in composite:
            return composite[hint]
        return types[get_args(hint)[0] if isinstance(hint, UnionType) else hint]

    # Declared, not inferred: a column of nothing but nulls must have its type, too, or two exports could not be joined.
    schema = arrow.schema([(name, column(hint)) for name, hint in get_type_hints(Row).items()])
    written, waiting = 0, list[dict[str, Any]]()
    with parquet.ParquetWriter(file, schema) as writer:

        def flush() -> int:
            writer.write_table(arrow.Table.from_pylist(waiting, schema))
            count = len(waiting)
            waiting.clear()
            return count

        for row in rows:
            fields = msgspec.structs.asdict(row)
            waiting.append(fields | {"request_metadata": list(row.request_metadata.items())})
            if len(waiting) == _BATCH:
                written += flush()
        return written + flush()
