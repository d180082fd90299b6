"""Rows as a Parquet file, for Spark, pandas and DuckDB. Needs the extra `parquet`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import IO, Any, get_args

_BATCH = 10_000
"""Rows of a row group."""


class ParquetMissingError(Exception):
    """pyarrow is not installed."""


def write_parquet(columns: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], file: Path | IO[bytes]) -> int:
    """Write rows; return how many.

    Args:
        columns: name -> type: bool, str, int, float, datetime, Decimal with nine digits after the point, each also with
            None, a tuple or a dict of str.
        rows: the values by column.
        file: to write.

    Raises:
        ParquetMissingError: pyarrow is not installed.
        OSError: the file cannot be written.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ParquetMissingError(
            "Parquet needs pyarrow: install interlingua[parquet], or ask for another format"
        ) from None
    types = {
        bool: arrow.bool_(),
        str: arrow.string(),
        int: arrow.int64(),
        float: arrow.float64(),
        datetime: arrow.timestamp("ms", tz="UTC"),
        Decimal: arrow.decimal128(38, 9),
        tuple[str, ...]: arrow.list_(arrow.string()),
        dict[str, str]: arrow.map_(arrow.string(), arrow.string()),
    }
    # Declared, not inferred: a column of nothing but nulls must have its type, too, or two files could not be joined.
    schema = arrow.schema(
        [(name, types[get_args(hint)[0] if isinstance(hint, UnionType) else hint]) for name, hint in columns.items()]
    )
    maps = [name for name, hint in columns.items() if hint == dict[str, str]]
    written, waiting = 0, list[dict[str, Any]]()
    with parquet.ParquetWriter(file, schema) as writer:

        def flush() -> int:
            writer.write_table(arrow.Table.from_pylist(waiting, schema))
            count = len(waiting)
            waiting.clear()
            return count

        for row in rows:
            waiting.append({**row, **{name: list(row[name].items()) for name in maps}})
            if len(waiting) == _BATCH:
                written += flush()
        return written + flush()
