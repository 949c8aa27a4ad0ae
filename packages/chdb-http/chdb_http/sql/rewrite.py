"""Rewrites statements so that results and rows go through a pipe named by its descriptor.

The engine opens `/dev/fd/N` itself and formats, parses and reports errors as it does for files.
chDB's own streaming is not used: it makes a document of each block of a result, and loses errors
of an insert's commit (it reports a block with too many partitions as written).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chdb_http.sql.octets import to_bytes
from chdb_http.sql.tokens import TokenKind, iter_tokens, quote_name, quote_string, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chdb_http.sql.statement import Statement


def format_pipe_path(descriptor: int) -> str:
    return f"/dev/fd/{descriptor}"


def build_select_into_pipe(statement: Statement, descriptor: int, default_format: str) -> bytes:
    """The select with its result written to the pipe; its own FORMAT wins over the default."""
    outfile = f" INTO OUTFILE '{format_pipe_path(descriptor)}' APPEND ".encode()
    clause = statement.text[statement.cut :]
    if statement.format is None:
        clause = to_bytes(f"FORMAT {quote_name(default_format)}")
    # A line break ends a comment that the statement may end with.
    return statement.text[: statement.cut] + b"\n" + outfile + clause


def build_insert_from_pipe(statement: Statement, descriptor: int) -> bytes:
    """The insert with its rows read from the pipe."""
    path, name = format_pipe_path(descriptor), statement.format or "Values"
    if statement.input_call is not None:
        start, end = statement.input_call
        call = to_bytes(f"file({quote_string(path)}, {quote_string(name)}, ")
        return statement.text[:start] + call + statement.text[end : statement.cut]
    # FROM INFILE comes before SETTINGS.
    at = statement.cut if statement.settings_at is None else statement.settings_at
    head, settings = statement.text[:at], statement.text[at : statement.cut]
    infile = f"\nFROM INFILE {quote_string(path)} COMPRESSION 'none' ".encode()
    return head + infile + settings + to_bytes(f"\nFORMAT {quote_name(name)}")


def replace_query_ids(text: bytes, engine_ids: Mapping[str, str]) -> bytes:
    """A KILL statement with each client's query id replaced by the engine's."""
    parts, copied = [], 0
    for word in iter_tokens(text):
        if word.kind is TokenKind.STRING and (engine_id := engine_ids.get(unquote(word.value))):
            parts += [text[copied : word.start], quote_string(engine_id).encode()]
            copied = word.end
    return b"".join([*parts, text[copied:]])
