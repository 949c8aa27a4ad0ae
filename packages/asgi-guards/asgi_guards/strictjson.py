"""JSON as RFC 8259 has it: Python's parser also takes NaN, Infinity and halves of pairs."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes) -> Any:
    """The value of a JSON text that can be written again in UTF-8. Raises ValueError."""
    decoded = text if isinstance(text, str) else text.decode()
    try:
        value = json.loads(decoded, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if "\\u" in decoded:
        # Only an escape can be half of a surrogate pair.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")
