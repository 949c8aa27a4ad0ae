"""Three searches that a person would run: words, meaning, and SQL."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from iscp_dagster.demo.embedding import embed_texts
from iscp_dagster.sync.deployment import Deployment

WORDS = """
SELECT distribution, qualified_name, substring(doc, 1, 60) AS documentation
FROM symbols_text
WHERE hasAllTokens(doc, 'missing values')
ORDER BY length(doc), qualified_name LIMIT 5
"""
MEANING_QUESTION = "draw a progress bar in the terminal"
MEANING_TENANT = "rich"
MEANING = """
SELECT round(toFloat64(distance), 3) AS distance, kind, qualified_name
FROM symbols_vector_nearest(query = {query:Array(Float32)}, tenant = {tenant:String}, k = 5)
ORDER BY distance
"""
MIRROR = """
SELECT distribution, count() AS symbols, countIf(kind = 'class') AS classes,
       round(100 * countIf(doc != '') / count()) AS documented_percent
FROM symbols_mirror GROUP BY distribution ORDER BY symbols DESC
"""


def search_words(deployment: Deployment, database: str, console: Console) -> None:
    """A full-text search over all tenants."""
    _run_search(
        deployment, database, console, "Words: documentation that mentions missing values", WORDS
    )


def search_meaning(deployment: Deployment, database: str, console: Console) -> None:
    """A nearest-neighbour search within one tenant."""
    query = embed_texts([MEANING_QUESTION])[0].tolist()
    title = f"Meaning: {MEANING_QUESTION!r} in {MEANING_TENANT}"
    _run_search(deployment, database, console, title, MEANING, query=query, tenant=MEANING_TENANT)


def search_mirror(deployment: Deployment, database: str, console: Console) -> None:
    """An aggregate over the mirror."""
    _run_search(
        deployment, database, console, "SQL: how well each distribution is documented", MIRROR
    )


SEARCHES = (search_words, search_meaning, search_mirror)


def _run_search(
    deployment: Deployment, database: str, console: Console, title: str, sql: str, **parameters: Any
) -> None:
    endpoint = deployment.endpoint
    with endpoint.translate_errors("search"):
        settings = {"database": endpoint.resolve_database(database)}
        result = endpoint.get_client().query(sql, parameters=parameters, settings=settings)
    table = Table(*result.column_names, title=title, title_justify="left", box=None, pad_edge=False)
    for row in result.result_rows:
        table.add_row(*(" ".join(str(value).split()) for value in row))
    console.print(table)
    console.print()
