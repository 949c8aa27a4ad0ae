"""The documentation of the installed Python distributions, searchable by word and by meaning."""

from __future__ import annotations

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.demo.load import SymbolsConfig, installed, load_symbols

symbols = SourceTable(
    "docs.symbols",
    key="qualified_name",
    tenant="distribution",
    indexes=[
        Mirror(),
        FullText("doc"),
        # A light graph is enough to tell names and first lines apart.
        Vector("embedding", dimension=256, quantization="i8", connectivity=16, expansion=64),
    ],
    load=load_symbols,
    load_config=SymbolsConfig,
    tenants=installed,
    description="Modules, classes and functions of installed distributions, with embeddings.",
    owners=["team:data-platform"],
    tags={"domain": "docs"},
)
