"""A table of deals that Spark changed in every way, kept in tests/golden, and its model.

Two tenants have equal keys. The table has in-commit timestamps; at its end the change feed was off
for a commit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

from support.lake.golden_histories import Kept, Written, to_be_written

NAME = "dealings"
TENANTS = ("acme", "globex")
COLUMNS = "tenant STRING, k BIGINT, amount DECIMAL(10, 2), note STRING, tags MAP<STRING, INT>"
CREATED = (
    f"CREATE TABLE {{t}} ({COLUMNS}) USING delta PARTITIONED BY (tenant) TBLPROPERTIES "
    "('delta.enableChangeDataFeed' = 'true', 'delta.enableInCommitTimestamps' = 'true')"
)
FEED = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '%s')"
ROUND = (
    *("insert", "update", "note", "again", "replace", "merge", "both", "move", "delete"),
    *("update", "replace", "insert", "merge", "both", "rekey", "note", "move", "update"),
)
Key = tuple[str, int]
Row = dict[str, Any]
State = dict[Key, Row]
View = Callable[[Row], Row | None]
"""The row as the view has it; None: it is not in the view."""


def all_of(row: Row) -> Row | None:
    """A table's own changes: each row as it is."""
    return row


def big(row: Row) -> Row | None:
    """The view of the tests: `amount > 100`, with `gross`."""
    amount = row["amount"]
    return row | {"gross": amount * Decimal("1.19")} if amount and amount > 100 else None


def huge(row: Row) -> Row | None:
    """The view of `big`: `gross > 150`, with `shout`."""
    row = big(row) or {}
    return row | {"shout": row["note"].upper()} if row and row["gross"] > 150 else None


@dataclass
class Dealings:
    """The table's state by version, while its statements are run or looked up."""

    commit: Callable[[Sequence[str]], int]
    chance: random.Random
    states: list[State] = field(default_factory=lambda: [{}])
    gap: tuple[int, int] = (0, 0)
    """The versions whose changes nobody can read: after the first, up to the second."""
    twin: Key = ("", 0)
    """A key that the version before the last three gives a second row, and the next one takes it
    away again. Its row is in every view."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def state(self) -> State:
        return self.states[-1]

    def run(self) -> None:
        """Make all commits."""
        self.commit([CREATED])
        for step in ROUND:
            getattr(self, f"_{step}")()
        before = len(self.states) - 1
        self.commit([FEED % "false"])
        self.states.append(self.state)
        self._insert()
        self.commit([FEED % "true"])
        self.states.append(self.state)
        self.gap = before, len(self.states) - 1
        self._update()
        self._twin()
        self._extra()

    def _twin(self) -> None:
        """Insert a key that exists, and a row of the other tenant; then delete the former."""
        self.twin = next(key for key in sorted(self.state) if key[0] == "acme")
        again = self.state[self.twin] | {"amount": Decimal("900.01"), "note": "twin"}
        other = {"tenant": "globex", "k": 99, "amount": Decimal("900.01"), "note": "o", "tags": {}}
        state = self.state | map_by_key([other])
        self._apply(f"INSERT INTO {{t}} {values([again, other])}", state)
        assert self.commit(["DELETE FROM {t} WHERE note = 'twin'"]) == 1
        self.states.append(state)

    def _extra(self) -> None:
        """Add a column, and fill it in a row."""
        state = {key: row | {"extra": None} for key, row in self.state.items()}
        assert self.commit(["ALTER TABLE {t} ADD COLUMNS (extra STRING)"]) == 1
        self.states.append(state)
        filled = {("globex", 99): state["globex", 99] | {"extra": "more"}}
        self._apply("UPDATE {t} SET extra = 'more' WHERE k = 99", state | filled)

    def _apply(self, statement: str, state: Mapping[Key, Row]) -> None:
        if self.commit([statement]):
            self.states.append(dict(state))
        else:
            assert state == self.state

    def _row(self, key: Key) -> Row:
        amount = self.chance.choice([None, *map(Decimal, ("50.00", "101.50", "140.25", "900.01"))])
        tags = self.chance.choice([{}, {"a": 1}, {"a": 2, "b": 3}])
        note = f"note {next(self._numbers)}"
        return {"tenant": key[0], "k": key[1], "amount": amount, "note": note, "tags": tags}

    def _insert(self) -> None:
        free = [(t, k) for t in TENANTS for k in range(1, 10) if (t, k) not in self.state]
        rows = [self._row(key) for key in self.chance.sample(free, min(9, len(free)))]
        self._apply(f"INSERT INTO {{t}} {values(rows)}", self.state | map_by_key(rows))

    def _choose_keys(self, number: int) -> list[Key]:
        return self.chance.sample(sorted(self.state), min(number, len(self.state)))

    def _update(self) -> None:
        """Update rows of one key, of both tenants if they have it."""
        amount = self.chance.choice(["101.50", "140.25", "99.00", "900.01"])
        number = self.chance.choice([k for _, k in self.state])
        changed = {key: row | {"amount": Decimal(amount)} for key, row in self.state.items()}
        affected = {key: changed[key] for key in self.state if key[1] in {number, number + 1}}
        where = f"k IN ({number}, {number + 1})"
        self._apply(f"UPDATE {{t}} SET amount = {amount} WHERE {where}", self.state | affected)

    def _note(self) -> None:
        """Change a column that some views lack."""
        changed = {key: row | {"note": "noted"} for key, row in self.state.items() if key[1] < 4}
        self._apply("UPDATE {t} SET note = 'noted' WHERE k < 4", self.state | changed)

    def _again(self) -> None:
        """Write rows as they are."""
        self._apply("UPDATE {t} SET amount = amount WHERE k < 5", self.state)

    def _replace(self) -> None:
        """Delete and insert rows of the same keys in one commit, one of them unchanged."""
        _, number = self._choose_keys(1)[0]
        replaced = {key: row for key, row in self.state.items() if key[1] == number}
        rows = [self._row(key) for key in list(replaced)[1:]] + list(replaced.values())[:1]
        left = {key: row for key, row in self.state.items() if key not in replaced}
        statement = f"INSERT INTO {{t}} REPLACE WHERE k = {number} {values(rows)}"
        self._apply(statement, left | map_by_key(rows))

    def _merge(self) -> None:
        """Delete, update and insert in one commit."""
        deleted, *updated = self._choose_keys(3)
        rows = [self._row(key) for key in updated] + [self._row(("acme", next(self._numbers) + 20))]
        state = {key: row for key, row in self.state.items() if key != deleted} | map_by_key(rows)
        named = "t.tenant = s.tenant AND t.k = s.k"
        marked = [*((row, "u") for row in rows), (self.state[deleted], "d")]
        statement = (
            f"MERGE INTO {{t}} t USING ({marked_values(marked)}) s ON {named} "
            "WHEN MATCHED AND s.op = 'd' THEN DELETE WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        self._apply(statement, state)

    def _both(self) -> None:
        """Delete a row and insert another one of its key, by one MERGE."""
        key = self._choose_keys(1)[0]
        row = self._row(key)
        marked = [(self.state[key], "d"), (row, "i")]
        statement = (
            f"MERGE INTO {{t}} t USING ({marked_values(marked)}) s "
            "ON t.tenant = s.tenant AND t.k = s.k AND s.op = 'd' "
            "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
        )
        self._apply(statement, self.state | {key: row})

    def _move(self) -> None:
        """Move a row to the other tenant."""
        left = [k for t, k in sorted(self.state) if t == "acme" and ("globex", k) not in self.state]
        number = self.chance.choice(left)
        state = dict(self.state)
        state["globex", number] = state.pop(("acme", number)) | {"tenant": "globex"}
        where = f"tenant = 'acme' AND k = {number}"
        self._apply(f"UPDATE {{t}} SET tenant = 'globex' WHERE {where}", state)

    def _rekey(self) -> None:
        """Change keys, of which one becomes another's."""
        state = {(t, k + 1): row | {"k": k + 1} for (t, k), row in self.state.items()}
        self._apply("UPDATE {t} SET k = k + 1", state)

    def _delete(self) -> None:
        deleted = self._choose_keys(2)
        where = " OR ".join(f"(tenant = '{t}' AND k = {k})" for t, k in deleted)
        left = {key: row for key, row in self.state.items() if key not in deleted}
        self._apply(f"DELETE FROM {{t}} WHERE {where}", left)

    def images(self, view: View, versions: range) -> list[tuple[Any, ...]]:
        """Image rows as tuples: tenant, version, ordinal, image, change, fields, row."""
        return [row for version in versions for row in self._images(view, version)]

    def _images(self, view: View, version: int) -> Iterator[tuple[Any, ...]]:
        before, after = (seen(self.states[at], view) for at in (version - 1, version))
        for tenant in TENANTS:
            ordinal = 0
            for key in sorted({*before, *after}):
                old, new = before.get(key), after.get(key)
                if key[0] != tenant or old == new:
                    continue
                place = tenant, version, ordinal
                if old is None or new is None:
                    change, image = (3, 0) if new is None else (1, 1)
                    yield (*place, image, change, [], new or old)
                else:
                    fields = [name for name in new if new[name] != old[name]]
                    yield from ((*place, n, 2, fields, row) for n, row in enumerate((old, new)))
                ordinal += 1


def seen(state: State, view: View) -> State:
    """The state as the view has it."""
    rows = {key: view(row) for key, row in state.items()}
    return {key: row for key, row in rows.items() if row is not None}


def dealings(path: Path, run: Callable[[str], object]) -> Dealings:
    """Put the table at `path`, and return its model; with ISCP_WRITE_HISTORIES it is made anew."""
    history = Written(run, path) if to_be_written() else Kept(NAME, path)
    model = Dealings(history.commit, random.Random(16))
    model.run()
    if isinstance(history, Written):
        history.keep(NAME)
    return model


def map_by_key(rows: Sequence[Row]) -> State:
    return {(row["tenant"], row["k"]): row for row in rows}


def values(rows: Sequence[Row]) -> str:
    return "VALUES " + ", ".join(f"({_texts(row)})" for row in rows)


def marked_values(rows: Sequence[tuple[Row, str]]) -> str:
    listed = ", ".join(f"({_texts(row)}, '{mark}')" for row, mark in rows)
    return f"SELECT * FROM VALUES {listed} AS s(tenant, k, amount, note, tags, op)"


def _texts(row: Row) -> str:
    amount = "CAST(NULL AS DECIMAL(10, 2))"
    if row["amount"] is not None:
        amount = f"CAST({row['amount']} AS DECIMAL(10, 2))"
    pairs = ", ".join(f"'{name}', {value}" for name, value in row["tags"].items())
    tags = f"CAST(map({pairs}) AS MAP<STRING, INT>)"
    note = "CAST(NULL AS STRING)" if row["note"] is None else f"'{row['note']}'"
    return f"'{row['tenant']}', CAST({row['k']} AS BIGINT), {amount}, {note}, {tags}"
