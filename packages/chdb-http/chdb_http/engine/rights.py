"""The rights of queries in the engine: its users' configuration, written at each start.

chDB runs the engine like clickhouse-local, whose one user may read and write every file, connect
to every host and run programs. Rights are granted here by name, so that additions of new versions
are refused (ClickHouse doc: GRANT, users.xml).
"""

from __future__ import annotations

import re
import shutil
import uuid
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from pathlib import Path

    from chdb_http.engine.confine import Reach

FILES_ROLE = "files"
"""The role that may read and write files, wherever the kernel lets the process do so."""
LOCAL_DATABASE = "__files"
"""The database in which each file is a table, as in clickhouse-local."""
_FOLDER = "rights"
# A user-defined function replaces the engine's, which reads any file for any expression.
_NO_FILE = (
    "CREATE FUNCTION file AS (path) -> throwIf(1, 'file() is off as a function in expressions; "
    "use file() as a table')\n"
)
# No dictionaries: a program may fill them, and their source requires no right.
_DATA = (
    *("SHOW", "CHECK", "SELECT", "INSERT", "ALTER", "DROP", "UNDROP TABLE", "TRUNCATE", "OPTIMIZE"),
    *("CREATE DATABASE", "CREATE TABLE", "CREATE VIEW", "CREATE FUNCTION", "CREATE TEMPORARY VIEW"),
    *(
        "CREATE TEMPORARY TABLE",
        "CREATE ARBITRARY TEMPORARY TABLE",
        "MOVE PARTITION BETWEEN SHARDS",
    ),
    *("KILL QUERY", "CLUSTER", "SYSTEM FLUSH", "SYSTEM DROP CACHE", "SYSTEM SENDS"),
    "SYSTEM SYNC REPLICA",
)
# Every connection begins in `default`; without it none can be made.
_KEPT = ("default",)
# The engine makes these at its start, and needs them.
_ITS_OWN = ("system", "information_schema", "INFORMATION_SCHEMA")
# Engines by name, since a table that is itself a source requires no right to that source.
_MERGE_TREES = ("", "Replacing", "Summing", "Aggregating", "Collapsing", "VersionedCollapsing")
_ENGINES = (
    *(f"{kind}MergeTree" for kind in (*_MERGE_TREES, "Graphite", "Coalescing")),
    *("Log", "TinyLog", "StripeLog", "Memory", "Null", "Set", "Join", "Buffer", "Merge", "View"),
    *("MaterializedView", "GenerateRandom", "KeeperMap", "Distributed", "Alias", "File"),
)
# A base can turn a URL that names no file into one that does, and eval() a text into a statement.
# The check of a statement cannot see expressions in filters, and misreads other dialects.
_FIXED: dict[str, int | str] = {
    "max_http_get_redirects": 0,
    "s3_max_redirects": 0,
    "glob_expansion_max_elements": 1,
    "url_base": "",
    "allow_experimental_eval_table_function": 0,
    "additional_result_filter": "",
    "additional_table_filters": "{}",
    "parallel_replicas_custom_key": "",
    "dialect": "clickhouse",
    "default_normal_view_sql_security": "INVOKER",
    "default_materialized_view_sql_security": "INVOKER",
    # These name files or addresses that require no right.
    **dict.fromkeys(
        (
            *("format_template_row", "format_template_resultset", "output_format_schema"),
            *("format_schema", "rename_files_after_processing"),
            *("input_format_record_errors_file_path", "format_avro_schema_registry_url"),
        ),
        "",
    ),
    "format_schema_source": "file",
}

# chDB has four slots for merges and mutations, a server has 32; a mutation takes one for each part
# of its table, and waits about half a second whenever all are taken.
_PROMPT = {
    "background_merges_mutations_concurrency_ratio": 16,
    "background_processing_pool_task_sleep_seconds_when_no_work_random_part": 0,
}


def write_engine_config(reach: Reach, config_file: Path | None) -> Path:
    """Write the engine's configuration and return its file; `config_file` is merged into it."""
    folder = reach.data / _FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "config.d").mkdir(parents=True)
    main = folder / "config.xml"
    main.write_text(_render_main_config())
    if config_file is not None:
        # Files are merged in the order of their names; later ones override earlier ones.
        (folder / "config.d" / f"own{config_file.suffix}").write_bytes(config_file.read_bytes())
    users = folder / "users.xml"
    users.write_text(_render_users(build_grants(reach)))
    (folder / "config.d" / "zz_rights.xml").write_text(_render_rights_config(folder, users))
    _write_defaults(reach.data)
    return main


def _render_main_config() -> str:
    values = "".join(f" <{name}>{value}</{name}>\n" for name, value in _PROMPT.items())
    return f"<clickhouse>\n{values}</clickhouse>\n"


def _write_defaults(data: Path) -> None:
    """Write the function that hides `file()`, and the database that every connection begins in."""
    for name in ("user_defined", "metadata"):
        (data / name).mkdir(exist_ok=True)
    (data / "user_defined" / "function_file.sql").write_text(_NO_FILE)
    default, link = data / "metadata" / "default.sql", data / "metadata" / "default"
    if not default.exists():
        database_id = link.readlink().name if link.is_symlink() else uuid.uuid4()
        default.write_text(f"ATTACH DATABASE _ UUID '{database_id}'\nENGINE = Atomic\n")
    # The engine makes the link, and would take an old one for a second database of that id.
    link.unlink(missing_ok=True)


def build_grants(reach: Reach) -> list[str]:
    """The GRANT and REVOKE statements of the engine's one user."""
    grants = [f"GRANT {', '.join(_DATA)} ON *.*"]
    grants += [f"GRANT TABLE ENGINE ON {engine}" for engine in _ENGINES]
    grants += [f"REVOKE DROP DATABASE ON {database}.*" for database in _KEPT]
    grants += [f"REVOKE DROP ON {database}.*" for database in _ITS_OWN]
    grants += [f"REVOKE CREATE DATABASE ON {LOCAL_DATABASE}.*", f"GRANT {FILES_ROLE}"]
    for host in reach.hosts:
        pattern = _build_url_pattern(host)
        grants += [f"GRANT READ, WRITE ON {source}('{pattern}')" for source in ("URL", "S3")]
    return grants


def _build_url_pattern(host: str) -> str:
    """A pattern of the URLs of one host."""
    name, _, port = host.partition(":")
    ports = f":{port}" if port else "(:80|:443)?"
    pattern = f"^https?://{re.escape(name)}{ports}(/.*)?$"
    return pattern.replace("\\", "\\\\")


def _render_rights_config(folder: Path, users: Path) -> str:
    return (
        f'<clickhouse>\n <users_config replace="1">{escape(str(users))}</users_config>\n'
        f' <default_database replace="1">{LOCAL_DATABASE}</default_database>\n'
        f' <user_scripts_path replace="1">{escape(str(folder / "none"))}/</user_scripts_path>\n'
        "</clickhouse>\n"
    )


def _render_users(queries: list[str]) -> str:
    """The users' file; constant settings keep URLs from leading to hosts that were not named."""
    granted = "\n".join(f"    <query>{escape(query)}</query>" for query in queries)
    values = "".join(f"<{name}>{value}</{name}>" for name, value in _FIXED.items())
    constant = "".join(f"<{name}><const/></{name}>" for name in _FIXED)
    return (
        f"<clickhouse>\n <profiles><default>{values}<constraints>{constant}</constraints>"
        "</default></profiles>\n <quotas><default/></quotas>\n <users><default>\n"
        "   <password></password><networks><ip>::/0</ip></networks>\n"
        "   <profile>default</profile><quota>default</quota>\n"
        f"   <grants>\n{granted}\n   </grants>\n </default></users>\n <roles><{FILES_ROLE}>"
        "<grants><query>GRANT READ, WRITE ON FILE</query></grants>"
        f"</{FILES_ROLE}></roles>\n</clickhouse>\n"
    )
