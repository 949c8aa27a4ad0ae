"""Loads `docs.symbols`: parses and embeds in Spark's executors, merges into the Delta table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from iscp_dagster.demo.embedding import embed_texts
from iscp_dagster.demo.symbols import (
    SourceFile,
    Symbol,
    list_source_files,
    mark_deprecated,
    read_symbols,
    summarize_symbols,
)
from iscp_dagster.spark.quoting import quote_identifier, quote_string

if TYPE_CHECKING:
    import pyarrow as pa

    from iscp_dagster.location.assets.source_asset import Load

DISTRIBUTIONS = (
    "clickhouse-connect",
    "dagster",
    "dagster-graphql",
    "deltalake",
    "jinja2",
    "pandas",
    "pydantic",
    "rich",
    "starlette",
    "typer",
)
"""Dependencies of this project, so they are always installed."""

COLUMNS = """
    distribution STRING NOT NULL COMMENT 'Name of the Python distribution: the tenant',
    qualified_name STRING NOT NULL COMMENT 'Module path and name, unique in its distribution',
    kind STRING COMMENT 'module, class or function',
    signature STRING COMMENT 'Parameters and result, or base classes',
    doc STRING COMMENT 'The docstring',
    module STRING COMMENT 'The module that defines it',
    file STRING COMMENT 'Path below the folder of installed packages',
    line INT COMMENT 'Line of the definition, from 1',
    embedding ARRAY<FLOAT> COMMENT '256 floats of length 1: the meaning of name and docstring'
"""
ROW = "distribution string, qualified_name string, kind string, signature string, doc string, "
ROW += "module string, file string, line int, embedding array<float>"
CREATE = """
CREATE TABLE IF NOT EXISTS delta.{path} ({columns}) USING delta PARTITIONED BY (distribution)
TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.enableInCommitTimestamps = true)
"""
MERGE = """
MERGE INTO delta.{path} AS held USING symbols_now AS now
ON held.distribution = now.distribution AND held.qualified_name = now.qualified_name
   AND held.distribution IN ({tenants})
WHEN MATCHED AND (held.doc <> now.doc OR held.signature <> now.signature
                  OR held.line <> now.line OR held.file <> now.file) THEN UPDATE SET *
WHEN NOT MATCHED THEN INSERT *
WHEN NOT MATCHED BY SOURCE AND held.distribution IN ({tenants}) THEN DELETE
"""
FILES_PER_TASK = 120


class SymbolsConfig(BaseModel):
    """How much of the documentation to load."""

    summary: bool = Field(
        default=False, description="Only public symbols, each with its first paragraph."
    )
    deprecate: str = Field(
        default="", description="The qualified name of a symbol to mark as deprecated."
    )


def list_installed() -> list[str]:
    """The demo's distributions that are installed here."""
    installed = {str(distribution.name).lower() for distribution in metadata.distributions()}
    return [name for name in DISTRIBUTIONS if name in installed]


def load_symbols(load: Load) -> None:
    """Make the rows of the requested distributions exactly their symbols. Idempotent."""
    spark, path = load.spark, quote_identifier(load.path)
    files = [asdict(file) for name in load.tenants for file in list_source_files(name)]
    tasks = max(2, len(files) // FILES_PER_TASK)
    frame = spark.createDataFrame(files).repartition(tasks)
    config = load.config or SymbolsConfig()
    spark.sql(CREATE.format(path=path, columns=COLUMNS))
    frame.mapInArrow(_make_reader(config.summary, config.deprecate), ROW).createOrReplaceTempView(
        "symbols_now"
    )
    # MERGE binds no parameters.
    spark.sql(MERGE.format(path=path, tenants=", ".join(map(quote_string, load.tenants))))
    load.log.info("Merged the symbols of %s files of %s.", len(files), ", ".join(load.tenants))


def _make_reader(summary: bool, deprecate: str) -> Any:  # noqa: FBT001 - the config's fields
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            parsed = (row for file in batch.to_pylist() for row in read_symbols(SourceFile(**file)))
            rows = mark_deprecated(summarize_symbols(parsed) if summary else parsed, deprecate)
            yield _build_batch(list(rows))

    return read


def _build_batch(rows: list[Symbol]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    columns = {name: [getattr(row, name) for row in rows] for name in Symbol.__annotations__}
    vectors = embed_texts([row.text for row in rows])
    offsets = np.arange(0, vectors.size + 1, vectors.shape[1], dtype=np.int32)
    arrays = [
        pa.array(values, type=pa.int32() if name == "line" else pa.string())
        for name, values in columns.items()
    ]
    embedding = pa.ListArray.from_arrays(offsets, pa.array(vectors.ravel()))
    return pa.RecordBatch.from_arrays([*arrays, embedding], names=[*columns, "embedding"])
