"""The documentation of the installed Python distributions, searchable by word and by meaning.

A webhook notifies a receiver on this machine when a symbol's documentation starts to say that
something is deprecated.
"""

import os

from iscp_dagster import Endpoint, FullText, Mirror, SourceTable, Trigger, Vector, View
from iscp_dagster.demo.alerts import get_address
from iscp_dagster.demo.load import SymbolsConfig, list_installed, load_symbols

symbols = SourceTable(
    "docs.symbols",
    key="qualified_name",
    tenant="distribution",
    indexes=[
        Mirror(),
        FullText("doc"),
        # A light graph is enough to distinguish names and first lines.
        Vector("embedding", dimension=256, quantization="i8", connectivity=16, expansion=64),
    ],
    load=load_symbols,
    load_config=SymbolsConfig,
    tenants=list_installed,
    description="Modules, classes and functions of installed distributions, with embeddings.",
    owners=["team:data-platform"],
    tags={"domain": "docs"},
)

deprecations = View(
    "deprecations",
    of=symbols,
    where="lower(doc) LIKE '%deprecated%'",
    description="Symbols whose documentation says that something is deprecated.",
)

receiver = Endpoint(
    "receiver",
    url=get_address(os.environ),
    secrets=["ISCP_WEBHOOK_SECRET"],
    allow=["127.0.0.1/32"],
)

deprecated = Trigger(
    "deprecated",
    on=deprecations,
    match="true",
    columns=["distribution", "kind", "file", "line"],
    to=[receiver],
    description="Fires when a symbol's documentation starts, or ceases, to say so.",
)
