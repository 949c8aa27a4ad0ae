"""Checks the expressions of views and triggers; one clear error for each that cannot be used.

Spark analyzes them, over no rows and with only the source's columns: one request for each stage of
a view. They must depend only on the row, so that the same commits give the same events.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from iscp_dagster.delta.spark_errors import summarize_message, translate_error
from iscp_dagster.model.declared.images import IMAGE_COLUMNS, ImageSource, Stage, TriggerConditions
from iscp_dagster.model.declared.schema import (
    SYSTEM_COLUMNS,
    DeltaField,
    parse_schema,
    to_schema_json,
)
from iscp_dagster.model.errors import ConfigError, UnavailableError

QUOTED_OR_COMMENT = re.compile(
    r"(?P<quoted>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`)|--[^\n]*|/\*.*?\*/",
    re.DOTALL,
)
"""Texts, quoted names and comments."""
WORD = re.compile(r"\b(?P<word>[A-Za-z_]\w*)\b(?P<call>\s*\()?(?P<argument>\s*\))?")
NOW_LITERAL = re.compile(
    r"\b(date|timestamp(_ntz|_ltz)?)\s*r?['\"]\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE
)
QUOTED_CALL = re.compile(r"`(?P<name>\w+)`(?=\s*\()")
SUBQUERY = re.compile(r"\(\s*(select|values|table|from|with)\b", re.IGNORECASE)
CLOCK_WORDS = frozenset(
    {
        *("current_date", "current_time", "current_timestamp", "localtimestamp", "user"),
        *("current_user", "session_user", "current_catalog", "current_database", "current_schema"),
        *("current_path",),
    }
)
"""Functions that need no parentheses, and whose value does not depend on the row."""
NONDETERMINISTIC_FUNCTIONS = CLOCK_WORDS | {
    *("now", "curdate", "getdate", "current_timezone", "version", "aes_encrypt"),
    *("reflect", "java_method", "try_reflect"),
    *("input_file_name", "spark_partition_id", "monotonically_increasing_id"),
}
"""Functions whose value does not depend on the row; Spark calls most of them deterministic."""
WINDOWS = "puts rows into time windows, but each row is evaluated by itself"
CALLS: Mapping[str, str] = MappingProxyType(
    {
        "window": WINDOWS,
        "session_window": WINDOWS,
        "identifier": "hides a name in identifier(); write the name itself",
    }
)
"""Functions that Spark accepts, and why they cannot be used."""
FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION": (
            "gives another value each time; it must depend only on the row"
        ),
        "NESTED_AGGREGATE_FUNCTION": "is an aggregate, but each row is evaluated by itself",
        "UNRESOLVED_ROUTINE": "calls a function that Spark does not have",
        "UNSUPPORTED_GENERATOR": "makes several rows from one",
    }
)
"""What Spark's error conditions mean here, by prefix."""
CONTEXTS = ("SQL", "DataFrame")
"""The parts of PySpark that have an error logger."""
UNKNOWN = "UNRESOLVED_COLUMN"
OVER = "window function"


@dataclass(frozen=True, kw_only=True)
class SqlExpression:
    """One expression, and what messages call it."""

    label: str
    """Such as `the predicate`."""
    text: str
    boolean: bool = False


class _FaultError(Exception):
    """What is wrong with an expression, without its owner."""


def analyze_expressions(
    spark: Any, owner: str, fields: Sequence[DeltaField], image_source: ImageSource
) -> tuple[DeltaField, ...]:
    """The calculated columns of the view, with their types; nothing is read.

    `owner` names the view or trigger in errors, and `fields` are the source's. Raises ConfigError
    for an expression that cannot be evaluated, and UnavailableError.
    """
    try:
        return _analyze_stages(spark, tuple(fields), image_source)
    except _FaultError as error:
        raise ConfigError(f"{owner}: {error}") from error.__cause__


@lru_cache(maxsize=64)
def _analyze_stages(
    spark: Any, fields: tuple[DeltaField, ...], image_source: ImageSource
) -> tuple[DeltaField, ...]:
    columns, calculated = [*fields], list[DeltaField]()
    for stage in image_source.stages:
        types = _resolve_types(spark, columns, _get_stage_expressions(stage))
        new_columns = [replace(types[name], name=name, physical=name) for name, _ in stage.columns]
        _check_names(columns, new_columns)
        columns, calculated = [*columns, *new_columns], [*calculated, *new_columns]
    if image_source.conditions:
        _resolve_types(spark, columns, _get_condition_expressions(image_source.conditions))
    return tuple(calculated)


def _get_stage_expressions(stage: Stage) -> dict[str, SqlExpression]:
    expressions = {
        name: SqlExpression(label=f"the column {name!r}", text=text) for name, text in stage.columns
    }
    if stage.where is not None:
        expressions[""] = SqlExpression(label="the predicate", text=stage.where, boolean=True)
    return expressions


def _get_condition_expressions(conditions: Sequence[TriggerConditions]) -> dict[str, SqlExpression]:
    return {
        f"{which} {trigger.name}": SqlExpression(
            label=f"the condition {which}= of trigger {trigger.name!r}", text=text, boolean=True
        )
        for trigger in conditions
        for which, text in (("match", trigger.match), ("unmatch", trigger.unmatch))
        if text is not None
    }


def _resolve_types(
    spark: Any, columns: Sequence[DeltaField], expressions: Mapping[str, SqlExpression]
) -> dict[str, DeltaField]:
    """The types of the expressions over these columns, by name."""
    for expression in expressions.values():
        _check_words(columns, expression)
    try:
        fields = _query_types(spark, columns, list(expressions.values()))
    except Exception as error:
        if (gone := _to_unavailable(error)) is not None:
            raise gone from error
        for expression in expressions.values():
            _check_expression(spark, columns, expression)
        raise
    types = dict(zip(expressions, fields, strict=True))
    for name, expression in expressions.items():
        _check_type(expression, str(types[name].type))
    return types


def _query_types(
    spark: Any, columns: Sequence[DeltaField], expressions: Sequence[SqlExpression]
) -> list[DeltaField]:
    """The types of the expressions, each within an aggregate: there Spark rejects aggregates,
    windows, generators and nondeterministic functions.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.types import StructType

    rows = spark.createDataFrame([], StructType.fromJson(to_schema_json(columns)))
    aggregates = [
        F.any_value(F.expr(expression.text)).alias(f"e{n}")
        for n, expression in enumerate(expressions)
    ]
    with _suspend_error_logs():
        schema = rows.agg(*aggregates).schema
    return list(parse_schema(json.dumps(schema.jsonValue())))


@contextmanager
def _suspend_error_logs() -> Iterator[None]:
    """Keep PySpark from logging the server's stack for an error that is reported anyway."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(f"{context}QueryContextLogger") for context in CONTEXTS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _check_expression(spark: Any, columns: Sequence[DeltaField], expression: SqlExpression) -> None:
    try:
        _query_types(spark, columns, [expression])
    except Exception as error:
        if (gone := _to_unavailable(error)) is not None:
            raise gone from error
        raise _build_fault(expression, _describe_fault(error, columns)) from error


def _to_unavailable(error: Exception) -> UnavailableError | None:
    """The error if Spark does not answer; None for any other."""
    translated = translate_error("Spark", error)
    return translated if isinstance(translated, UnavailableError) else None


def _describe_fault(error: Exception, columns: Sequence[DeltaField]) -> str:
    condition = getattr(error, "getCondition", lambda: "")() or ""
    parameters: Mapping[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    if condition.startswith(UNKNOWN):
        name = str(parameters.get("objectName", "")).replace("`", "")
        return _describe_unknown_column(name, columns)
    for start, meaning in FAULTS.items():
        if condition.startswith(start):
            return meaning
    words = summarize_message(str(error))
    if OVER in words:
        return "is a window function, but each row is evaluated by itself"
    return f"is not Spark SQL that can be evaluated here: {words}"


def _describe_unknown_column(name: str, columns: Sequence[DeltaField]) -> str:
    names = ", ".join(column.name for column in columns)
    if name.casefold() in {*SYSTEM_COLUMNS, *IMAGE_COLUMNS}:
        return f"names {name}, a system column outside the row; it can use: {names}"
    return f"names a column {name} that does not exist; it can use: {names}"


def _check_words(columns: Sequence[DeltaField], expression: SqlExpression) -> None:
    """Reject subqueries, and functions whose value does not depend on the row."""
    uncommented = QUOTED_OR_COMMENT.sub(lambda match: match["quoted"] or " ", expression.text)
    if clock := NOW_LITERAL.search(uncommented):
        raise _build_fault(expression, f"depends on the time it is evaluated ({clock[0]}…)")
    names = {column.name.casefold() for column in columns}
    bare = QUOTED_OR_COMMENT.sub(
        lambda match: "''" if match["quoted"] else " ", QUOTED_CALL.sub(r"\g<name>", uncommented)
    )
    if SUBQUERY.search(bare):
        raise _build_fault(expression, "has a subquery, but it must depend only on the row")
    for match in WORD.finditer(bare):
        word, is_call = match["word"].casefold(), bool(match["call"])
        if is_call and word in CALLS:
            raise _build_fault(expression, CALLS[word])
        is_qualified = bare[: match.start()].rstrip().endswith(".")
        is_clock = not is_call and not is_qualified and word in CLOCK_WORDS and word not in names
        is_now = word == "unix_timestamp" and bool(match["argument"])
        if is_clock or is_now or (is_call and word in NONDETERMINISTIC_FUNCTIONS):
            fault = f"calls {word}, whose value does not depend on the row, as it must"
            raise _build_fault(expression, fault)


def _check_type(expression: SqlExpression, type_: str) -> None:
    if expression.boolean and type_ != "boolean":
        raise _build_fault(expression, f"is of type {type_}, not boolean")
    if type_ == "void":
        raise _build_fault(expression, "is always NULL and has no type; cast it to one")


def _check_names(columns: Sequence[DeltaField], new_columns: Sequence[DeltaField]) -> None:
    """Reject calculated columns that hide others: Spark ignores the case of names."""
    names = {column.name.casefold(): column.name for column in columns}
    for column in new_columns:
        hidden = names.setdefault(column.name.casefold(), column.name)
        if any(column.name.casefold() == existing.name.casefold() for existing in columns):
            raise _FaultError(
                f"the calculated column {column.name!r} hides the column {hidden!r}; give it "
                "another name."
            )


def _build_fault(expression: SqlExpression, fault: str) -> _FaultError:
    return _FaultError(f"{expression.label} `{expression.text}` {fault.rstrip('.')}.")
