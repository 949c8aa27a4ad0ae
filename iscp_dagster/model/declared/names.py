"""Names that must be unique, such as an index view's, and lists of the names of columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from iscp_dagster.model.declared.kinds import list_view_suffixes
from iscp_dagster.model.errors import ConfigError

RESERVED_DATABASES = frozenset({"system", "information_schema"})
"""ClickHouse's own, in any case."""
RESERVED_VIEWS = frozenset({"iscp_dead_letters", "iscp_states"})
"""Tables that exist beside the indexes of a database."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_AN_INDEX = re.compile(r".*(__(rows|staging)(_[0-9]+)?(_r[0-9a-f]{8}_[0-9a-f]{8})?)")
_OF_A_SHARD = re.compile(r".*_shard_[0-9]+")


def check_identifier(name: str, what: str) -> str:
    """`name` if it is an identifier. Raises ConfigError if not."""
    if not (isinstance(name, str) and _IDENTIFIER.fullmatch(name)):
        raise ConfigError(
            f"The {what} name {name!r} is not an identifier; use letters, digits and _."
        )
    return name


def check_database(name: str) -> str:
    """`name` if tables can be made there. Raises ConfigError if not."""
    if name.lower() in RESERVED_DATABASES:
        raise ConfigError(
            f"The database {name!r} is ClickHouse's own; name the table in another one."
        )
    return check_identifier(name, "database")


def view_name(table: str, index: str) -> str:
    """The name of an index view, in the table's database."""
    return f"{table}_{index}"


def check_view(source: str, table: str, index: str) -> None:
    """Reject an index whose index view would have a name reserved for other tables or views.

    Raises ConfigError.
    """
    view = view_name(table, index)
    if view in RESERVED_VIEWS:
        why = "a table of this name exists beside the indexes"
    elif _OF_AN_INDEX.fullmatch(view) or view.endswith(
        tuple(f"_{suffix}" for suffix in list_view_suffixes())
    ):
        why = (
            "names that end in __rows, __staging (and a number) or "
            f"{' or '.join(f'_{suffix}' for suffix in list_view_suffixes())} belong to other "
            "index views"
        )
    else:
        return
    raise ConfigError(
        f"Index {source}/{index}: its index view would be {view!r}, but {why}; rename the index."
    )


def check_no_shard(source: str, index: str) -> None:
    """Reject an index that is named like a shard of another. Raises ConfigError."""
    if _OF_A_SHARD.fullmatch(index):
        raise ConfigError(
            f"Index {source}/{index}: names that end in _shard_ and a number belong to the shards "
            "of sharded indexes; rename the index."
        )


def list_possible_owners(view: str) -> Iterator[tuple[str, str]]:
    """Every table and index whose index view could have this name."""
    for position, char in enumerate(view):
        if char == "_" and 0 < position < len(view) - 1:
            yield view[:position], view[position + 1 :]


def check_lists(name: str, columns: Sequence[str] | None, exclude: Sequence[str]) -> None:
    """Reject lists that are not of names, and both of them together. Raises ConfigError."""
    for option, names in (("columns", columns), ("exclude", exclude)):
        if isinstance(names, str):
            raise ConfigError(
                f"Index {name!r}: {option}={names!r} is not a list of names; write "
                f"{option}=[{names!r}]."
            )
        if not all(isinstance(column, str) for column in names or ()):
            raise ConfigError(f"Index {name!r}: {option}={names!r} is not a list of names.")
    if columns is not None and exclude:
        raise ConfigError(
            f"Index {name!r}: columns= and exclude= are both given; name either the columns that "
            "it carries, or those that it leaves out."
        )


def check_excluded(where: str, exclude: Collection[str], needed: Collection[str]) -> None:
    """Reject leaving out a column that the index cannot do without. Raises ConfigError."""
    if required := [column for column in exclude if column in needed]:
        raise ConfigError(
            f"Index {where}: exclude= names {required[0]!r}, which the index needs: the tenant, "
            "the key, and the columns of its kind are always in it. Remove it from exclude=."
        )
