"""The current problems of a table."""

from __future__ import annotations

from collections.abc import Collection

from iscp_dagster.delta.log.facts import TenantSize
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, TableGoneError
from iscp_dagster.model.jobs import TENANT_BYTES
from iscp_dagster.planning.problems import Problem, make_problem
from iscp_dagster.spark.quoting import quote_identifier
from iscp_dagster.sync.deployment import Deployment


def find_problems(deployment: Deployment, source: SourceTable) -> list[Problem]:
    """All current problems of the table. Reads its log and the ISCP log; starts no Spark."""
    problems = list_mistakes(source)
    try:
        delta_log = deployment.make_delta_log(source)
        check_sole(deployment, source, delta_log.get_table_id())
        problems += find_tenantless_problem(
            source, delta_log.location, delta_log.get_unnamed_size()
        )
        problems += find_stranded_problem(deployment, source, delta_log.get_table_id())
    except Exception as error:  # noqa: BLE001 - a table may raise anything
        problems.append(make_problem(source, error))
    return problems


def list_mistakes(source: SourceTable) -> list[Problem]:
    """A problem for each declaration of the table, or with its name, that is left out."""
    return [make_problem(source, error) for error in source.left_out]


def check_sole(
    deployment: Deployment,
    source: SourceTable,
    table_id: str,
    tenants: Collection[str] | None = None,
) -> None:
    """Raise ConfigError if another declaration has jobs for this table.

    The ISCP log identifies jobs by the Delta table's id and their own names. Pass the `tenants`
    concerned to avoid a query for all.
    """
    log = deployment.log
    # Tenants new to the log do not show whose table it is.
    names = log.find_table_names(table_id, tenants) or log.find_table_names(table_id)
    tables = {".".join(name) for name in names}
    if others := sorted(tables - {source.name}):
        raise ConfigError(
            f"{source.name} is the same Delta table as {others[0]}, which has jobs for it (id "
            f"{table_id}). Declare the table once, with the indexes of both; or, if it has a new "
            f"name, unregister the jobs of {others[0]} for all tenants (`iscp job unregister`), "
            f"and register those of {source.name}."
        )


def find_tenantless_problem(
    source: SourceTable, location: str, size: TenantSize | None
) -> list[Problem]:
    """The problem that rows have no tenant and so are in no index, if there are such rows."""
    if size is None or source.tenant is None:
        return []
    number = "Rows" if size.rows is None else f"{size.rows:,} row{'' if size.rows == 1 else 's'}"
    tenant = quote_identifier(source.tenant)
    selection = (
        f"delta.{quote_identifier(location)} WHERE coalesce(CAST({tenant} AS STRING), '') = ''"
    )
    message = (
        f"{number} without a tenant: column {source.tenant!r} is null or empty (Spark stores both "
        "as null), or has a NUL character or more than "
        f"{TENANT_BYTES:,} bytes, which databases cannot store as a name. They are in no index; "
        "all other rows are indexed. Give them a tenant or delete them. "
        f"To delete those that are null or empty: DELETE FROM {selection}"
    )
    facts = {} if size.rows is None else {"rows_without_tenant": size.rows}
    return [
        Problem(table=source.name, message=message, fingerprint=number, severe=False, facts=facts)
    ]


def find_earlier_ids(deployment: Deployment, source: SourceTable, table_id: str) -> frozenset[str]:
    """The ids of earlier tables of that name that still have jobs."""
    return deployment.log.find_table_ids(source.database, source.table) - {table_id}


def find_stranded_names(deployment: Deployment, earlier: Collection[str]) -> set[str]:
    """The names of the jobs of earlier tables, each once."""
    return {
        name
        for table_id in earlier
        for name, _, _ in deployment.log.list_watermark_versions(table_id)
    }


def find_stranded_problem(
    deployment: Deployment, source: SourceTable, table_id: str
) -> list[Problem]:
    """The problem that stranded jobs wait for a person, if there are any."""
    names = find_stranded_names(deployment, find_earlier_ids(deployment, source, table_id))
    if not names:
        return []
    listed = ", ".join(sorted(names))
    message = (
        f"The table was dropped or recreated, and the jobs of {listed} belong to the earlier "
        f"table: they stop, their indexes keep the old rows, and new tenants get no jobs. "
        f"Register them for the new table (`iscp job register {source.name}/{min(names)} "
        "--tenant '*'`), unregister them, or declare the table with on_replace='rebuild'."
    )
    return [
        Problem(
            table=source.name,
            message=message,
            fingerprint=f"stranded: {listed}",
            code=TableGoneError.code,
        )
    ]
