"""Checks the expressions of views and triggers; one clear error for each that cannot be used.

Spark itself analyzes them, over no rows and with the source's columns alone: one request for each
stage of a view. They must depend on the row alone, so that the same commits give the same events.
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

from iscp_dagster.delta.failures import spoken, translated
from iscp_dagster.model.declared.images import IMAGE_COLUMNS, Condition, Stage, Transitions
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS, DeltaField, parse_schema, schema_json
from iscp_dagster.model.errors import ConfigError, UnavailableError

APART = re.compile(
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
"""Functions that need no parentheses, and whose value is not that of the row."""
CLOCKS = CLOCK_WORDS | {
    *("now", "curdate", "getdate", "current_timezone", "version", "aes_encrypt"),
    *("reflect", "java_method", "try_reflect"),
    *("input_file_name", "spark_partition_id", "monotonically_increasing_id"),
}
"""Functions whose value is not that of the row; Spark takes most of them for deterministic."""
WINDOWS = "puts rows into windows of time, but each row is looked at alone"
CALLS: Mapping[str, str] = MappingProxyType(
    {
        "window": WINDOWS,
        "session_window": WINDOWS,
        "identifier": "hides a name in identifier(); write the name itself",
    }
)
"""Functions that Spark takes, and why they cannot be used."""
FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION": (
            "gives another value each time; it must depend on the row alone"
        ),
        "NESTED_AGGREGATE_FUNCTION": "is an aggregate, but each row is looked at alone",
        "UNRESOLVED_ROUTINE": "calls a function that Spark does not have",
        "UNSUPPORTED_GENERATOR": "makes several rows of one",
    }
)
"""What Spark's conditions mean here, by how they begin."""
CONTEXTS = ("SQL", "DataFrame")
"""What PySpark has a logger for errors in."""
UNKNOWN = "UNRESOLVED_COLUMN"
OVER = "window function"


@dataclass(frozen=True, kw_only=True)
class Said:
    """One expression, and what it is for a message."""

    what: str
    """Such as `the predicate`."""
    text: str
    boolean: bool = False


class _FaultError(Exception):
    """What is wrong with an expression, before it is said whose it is."""


def analyzed(
    spark: Any, owner: str, fields: Sequence[DeltaField], transitions: Transitions
) -> tuple[DeltaField, ...]:
    """The calculated columns of the view, with their types; nothing is read.

    `owner` names the view or trigger in errors, and `fields` are the source's. Raises ConfigError
    for an expression that cannot be evaluated, and UnavailableError.
    """
    try:
        return _analyzed(spark, tuple(fields), transitions)
    except _FaultError as error:
        raise ConfigError(f"{owner}: {error}") from error.__cause__


@lru_cache(maxsize=64)
def _analyzed(
    spark: Any, fields: tuple[DeltaField, ...], transitions: Transitions
) -> tuple[DeltaField, ...]:
    held, found = [*fields], list[DeltaField]()
    for stage in transitions.stages:
        types = _types(spark, held, _of_stage(stage))
        made = [replace(types[name], name=name, physical=name) for name, _ in stage.columns]
        _check_names(held, made)
        held, found = [*held, *made], [*found, *made]
    if transitions.conditions:
        _types(spark, held, _of_conditions(transitions.conditions))
    return tuple(found)


def _of_stage(stage: Stage) -> dict[str, Said]:
    found = {name: Said(what=f"the column {name!r}", text=text) for name, text in stage.columns}
    if stage.where is not None:
        found[""] = Said(what="the predicate", text=stage.where, boolean=True)
    return found


def _of_conditions(conditions: Sequence[Condition]) -> dict[str, Said]:
    return {
        f"{which} {each.name}": Said(
            what=f"the condition {which}= of trigger {each.name!r}", text=text, boolean=True
        )
        for each in conditions
        for which, text in (("match", each.match), ("unmatch", each.unmatch))
        if text is not None
    }


def _types(
    spark: Any, held: Sequence[DeltaField], said: Mapping[str, Said]
) -> dict[str, DeltaField]:
    """The types of the expressions over these columns, by name."""
    for each in said.values():
        _check_words(held, each)
    try:
        found = _asked(spark, held, list(said.values()))
    except Exception as error:
        if (gone := _gone(error)) is not None:
            raise gone from error
        for each in said.values():
            _check_alone(spark, held, each)
        raise
    types = dict(zip(said, found, strict=True))
    for name, each in said.items():
        _check_type(each, str(types[name].type))
    return types


def _asked(spark: Any, held: Sequence[DeltaField], said: Sequence[Said]) -> list[DeltaField]:
    """Their types. An aggregate takes neither another one, nor what gives another value each time,
    a window or several rows.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.types import StructType

    rows = spark.createDataFrame([], StructType.fromJson(schema_json(held)))
    asked = [F.any_value(F.expr(each.text)).alias(f"e{n}") for n, each in enumerate(said)]
    with _in_silence():
        found = rows.agg(*asked).schema
    return list(parse_schema(json.dumps(found.jsonValue())))


@contextmanager
def _in_silence() -> Iterator[None]:
    """Keep PySpark from printing the server's stack for an error that is reported in our words."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(f"{each}QueryContextLogger") for each in CONTEXTS]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


def _check_alone(spark: Any, held: Sequence[DeltaField], said: Said) -> None:
    try:
        _asked(spark, held, [said])
    except Exception as error:
        if (gone := _gone(error)) is not None:
            raise gone from error
        raise _refusal(said, _fault(error, held)) from error


def _gone(error: Exception) -> UnavailableError | None:
    """The error of a Spark that does not answer; None for any other."""
    known = translated("Spark", error)
    return known if isinstance(known, UnavailableError) else None


def _fault(error: Exception, held: Sequence[DeltaField]) -> str:
    condition = getattr(error, "getCondition", lambda: "")() or ""
    parameters: Mapping[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    if condition.startswith(UNKNOWN):
        name = str(parameters.get("objectName", "")).replace("`", "")
        return _unknown(name, held)
    for start, meaning in FAULTS.items():
        if condition.startswith(start):
            return meaning
    words = spoken(str(error))
    if OVER in words:
        return "is a window function, but each row is looked at alone"
    return f"is not Spark SQL that can be evaluated here: {words}"


def _unknown(name: str, held: Sequence[DeltaField]) -> str:
    known = ", ".join(each.name for each in held)
    if name.casefold() in {*SYSTEM_COLUMNS, *IMAGE_COLUMNS}:
        return (
            f"names {name}, which is beside the row and not in it; it can use its columns: {known}"
        )
    return f"names a column {name} that is not there; it can use: {known}"


def _check_words(held: Sequence[DeltaField], said: Said) -> None:
    """Refuse subqueries, and functions whose value is not that of the row."""
    uncommented = APART.sub(lambda found: found["quoted"] or " ", said.text)
    if clock := NOW_LITERAL.search(uncommented):
        raise _refusal(said, f"depends on the time it is evaluated ({clock[0]}…)")
    columns = {each.name.casefold() for each in held}
    bare = APART.sub(
        lambda found: "''" if found["quoted"] else " ", QUOTED_CALL.sub(r"\g<name>", uncommented)
    )
    if SUBQUERY.search(bare):
        raise _refusal(said, "has a subquery, but only the row is looked at")
    for found in WORD.finditer(bare):
        word, called = found["word"].casefold(), bool(found["call"])
        if called and word in CALLS:
            raise _refusal(said, CALLS[word])
        within = bare[: found.start()].rstrip().endswith(".")
        alone = not called and not within and word in CLOCK_WORDS and word not in columns
        timed = word == "unix_timestamp" and bool(found["argument"])
        if alone or timed or (called and word in CLOCKS):
            fault = f"calls {word}, whose value is not the row's; it must depend on the row alone"
            raise _refusal(said, fault)


def _check_type(said: Said, type_: str) -> None:
    if said.boolean and type_ != "boolean":
        raise _refusal(said, f"is of type {type_}, not boolean")
    if type_ == "void":
        raise _refusal(said, "is always NULL, of no type; cast it to one")


def _check_names(held: Sequence[DeltaField], made: Sequence[DeltaField]) -> None:
    """Refuse calculated columns that hide others: Spark ignores the case of names."""
    taken = {each.name.casefold(): each.name for each in held}
    for each in made:
        other = taken.setdefault(each.name.casefold(), each.name)
        if any(each.name.casefold() == one.name.casefold() for one in held):
            raise _FaultError(
                f"the calculated column {each.name!r} hides the column {other!r}; give it "
                "another name."
            )


def _refusal(said: Said, fault: str) -> _FaultError:
    return _FaultError(f"{said.what} `{said.text}` {fault.rstrip('.')}.")
