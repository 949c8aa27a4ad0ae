"""Dagster's private names that starting runs and storing their events need.

A test checks each name against the pinned version of Dagster.
"""

from dagster._cli.api import execute_run_command
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.execution.compute_logs import redirect_to_file
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._core.storage.compute_log_manager import CapturedLogContext, ComputeIOType
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.event_log.schema import AssetKeyTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.local_compute_log_manager import (
    IO_TYPE_EXTENSION,
    LocalComputeLogManager,
)
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules import SqliteScheduleStorage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from dagster._core.storage.sql import (  # type: ignore[attr-defined]
    ScriptDirectory,
    get_alembic_config,
)
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.sqlite_storage import (
    DagsterSqliteStorage,
    _event_logs_directory,
    _runs_directory,
    _schedule_directory,
)
from dagster._grpc.types import ExecuteRunArgs
