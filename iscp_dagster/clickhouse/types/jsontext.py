"""Arrays, maps and structs as JSON text, for columns with `nulls="json"`."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa

from iscp_dagster.clickhouse.types.leaves import Misfit
from iscp_dagster.model.declared.schema import Array, DeltaType, Map, Primitive, Struct

_ODD = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def to_json_texts(values: pa.Array, type_: DeltaType) -> pa.Array:
    """Return each value as JSON text; null stays null.

    Raises Misfit for texts not in UTF-8, and for dates and times that Python lacks.
    """
    try:
        texts = [None if v is None else to_json_text(v, type_) for v in values.to_pylist()]
    except UnicodeDecodeError as error:
        raise Misfit("JSON text holds only text in UTF-8") from error
    except (ValueError, OverflowError) as error:
        raise Misfit("JSON text holds the dates and times of the years 1 to 9999") from error
    return pa.array(texts, pa.string())


def to_json_texts_or_null(values: pa.Array, type_: DeltaType) -> pa.Array:
    """Like `to_json_texts`, but with null for each value for which that raises."""
    try:
        return to_json_texts(values, type_)
    except Misfit:
        if len(values) == 1:
            return pa.array([None], pa.string())
        half = len(values) // 2
        parts = (values.slice(0, half), values.slice(half))
        return pa.concat_arrays([to_json_texts_or_null(part, type_) for part in parts])


def to_json_text(value: Any, type_: DeltaType) -> str:
    """Write a value as Arrow gives it to Python. Nulls are `null`, at any depth.

    A map is an object, or an array of pairs if its keys have parts. Bytes are base64, times ISO
    8601, and floats that JSON lacks the texts NaN, Infinity and -Infinity.
    """
    if value is None:
        return "null"
    if isinstance(type_, Array):
        return _format_array(to_json_text(part, type_.element) for part in value)
    if isinstance(type_, Struct):
        return _format_object((f.name, to_json_text(value[f.name], f.type)) for f in type_.fields)
    if not isinstance(type_, Map):
        return _format_leaf(value, type_)
    pairs = [(to_json_text(k, type_.key), to_json_text(v, type_.value)) for k, v in value]
    if isinstance(type_.key, Array | Map | Struct):
        return _format_array(map(_format_array, pairs))
    return _format_object((_strip_quotes(key), text) for key, text in pairs)


def _format_leaf(value: Any, type_: DeltaType) -> str:
    if type_ == Primitive("variant"):
        return str(value)
    if isinstance(value, float):
        return _format_float(value, single=type_ == Primitive("float"))
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, datetime) and value.tzinfo is not None:
        # Arrow gives it in the zone of whoever read it.
        return json.dumps(value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z"))
    if isinstance(value, datetime | date):
        return json.dumps(value.isoformat())
    # Decimals are numbers as they are written, which no float can hold.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | int) else f"{value:f}"


def _format_float(value: float, *, single: bool) -> str:
    if not math.isfinite(value):
        return json.dumps(_ODD[str(value)])
    return str(np.float32(value)) if single else repr(value)


def _strip_quotes(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


def _format_array(parts: Iterable[str]) -> str:
    return f"[{','.join(parts)}]"


def _format_object(parts: Iterable[tuple[str, str]]) -> str:
    return f"{{{','.join(f'{json.dumps(n, ensure_ascii=False)}:{text}' for n, text in parts)}}}"
