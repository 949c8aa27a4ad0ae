"""A table of trades with a view and a trigger: its commits, and what consumers must get.

Two tenants have equal keys, and each commit changes many rows of both, so that a range of commits
changes most keys several times. Kept in tests/golden, as Spark wrote it.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from iscp_dagster.events.keys import make_event_key
from support.lake.golden_histories import Kept, Written, to_be_written

NAME = "tradeflow"
TABLE = "flow.trades"
TENANTS = ("acme", "globex")
COLUMNS = "tenant STRING, id BIGINT, amount BIGINT, note STRING"
CREATED = (
    f"CREATE TABLE {{t}} ({COLUMNS}) USING delta PARTITIONED BY (tenant) TBLPROPERTIES "
    "('delta.enableChangeDataFeed' = 'true', 'delta.enableInCommitTimestamps' = 'true')"
)
TRIGGER = "large_trade"
DECLARED = f"""
from iscp_dagster import Endpoint, Trigger, View

trades = SourceTable("{TABLE}", key="id", tenant="tenant", indexes=[])
big_trades = View(
    "big_trades", of=trades, where="amount > 100", columns={{"gross": "amount * 2"}}
)
hooks = Endpoint(
    "hooks",
    url="http://127.0.0.1:%(port)s/hook",
    secrets=["ISCP_WEBHOOK_SECRET"],
    allow=["127.0.0.1/32"],
    timeout=1.0,
    # So many that no event is given up while its receiver, or the machine, has much to do.
    retries=[0.3] * 400,
    refusals=1000,
)
large_trade = Trigger(
    "{TRIGGER}",
    on=big_trades,
    match="gross > 1000",
    unmatch="gross < 700",
    columns=["id", "gross"],
    to=[hooks],
)
"""
AMOUNTS = (None, 50, 150, 400, 450, 900, 1000)
"""Out of the view, below `unmatch`, between the conditions, and above `match`."""
QUIET = (None, 50, 150, 450)
"""Above `match` is none."""
Key = tuple[str, int]
Row = dict[str, Any]
State = dict[Key, Row]


@dataclass(frozen=True)
class Told:
    """A change as a subscriber of the view gets it."""

    operation: str
    data: Mapping[str, Any]
    fields: tuple[str, ...]
    ts_timestamp: str


@dataclass(frozen=True)
class Sent:
    """An event as a receiver gets it, without the time when it was recorded."""

    event_id: str
    event_type: str
    source_timestamp: str
    data: Mapping[str, Any]


@dataclass
class Trades:
    """The table's state by version, while its commits are made."""

    path: Path
    run: Callable[[str], object]
    """Runs SQL on Spark; `{t}` is the table."""
    commit: Callable[[Sequence[str]], int]
    chance: random.Random = field(default_factory=lambda: random.Random(16))
    states: list[State] = field(default_factory=lambda: [{}])
    keep: Callable[[], None] = lambda: None
    """Makes the archive, if the history is being written."""
    changes: int = 0
    """How many rows the commits have inserted, updated or deleted."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def go_live(self) -> None:
        """Have Spark make the commits from now on."""
        self.commit = Written(self.run, self.path).commit

    def put(self, number: int, keys: int, amounts: Sequence[int | None] = AMOUNTS) -> None:
        """Change `number` rows in one commit, each with one of the first `keys` keys."""
        chosen = self.chance.sample([(t, k) for t in TENANTS for k in range(1, keys + 1)], number)
        state, marked = dict(self.states[-1]), []
        for key in sorted(chosen):
            if key in state and self.chance.random() < 0.2:
                marked.append((state.pop(key), "d"))
            else:
                state[key] = self._row(key, self.chance.choice(amounts))
                marked.append((state[key], "u"))
        assert self.commit([merge(marked)]) == 1
        self.states.append(state)
        self.changes += len(marked)

    def _row(self, key: Key, amount: int | None) -> Row:
        note = f"note {next(self._numbers)}"
        return {"tenant": key[0], "id": key[1], "amount": amount, "note": note}

    def told(self, after: int = 0) -> dict[Key, list[Told]]:
        """Return the view's changes by key, of the versions after that one."""
        found = defaultdict(list)
        for version, key, before, now in self._steps():
            if version <= after:
                continue
            if before is None or now is None:
                operation, fields = ("DELETE" if now is None else "INSERT"), ()
            else:
                operation = "UPDATE"
                fields = tuple(name for name in now if now[name] != before[name])
            row = served(now or before or {})
            found[key].append(Told(operation, row, fields, self.timestamp(version)))
        return dict(found)

    def standing(self, version: int) -> dict[Key, Row]:
        """Return the view's rows as of a version, as a subscriber gets them."""
        return {key: served(row) for key, row in view(self.states[version]).items()}

    def sent(self) -> dict[Key, list[Sent]]:
        """Return the trigger's events by key."""
        found = defaultdict(list)
        active: set[Key] = set()
        for version, key, before, now in self._steps():
            fires = None
            if key not in active and now is not None and now["gross"] > 1000:
                active.add(key)
                fires = "MATCH"
            elif key in active and (now is None or now["gross"] < 700):
                active.remove(key)
                fires = "UNMATCH"
            if fires:
                found[key].append(self._event(version, key, fires, now or before or {}))
        return dict(found)

    def _event(self, version: int, key: Key, fires: str, row: Row) -> Sent:
        at = self.timestamp(version)
        named = f"{TRIGGER}:{make_event_key(key[0], [key[1]])}:{at}"
        id_ = hashlib.sha256(named.encode()).hexdigest()[:32]
        return Sent(id_, fires, at, {name: row[name] for name in ("tenant", "id", "gross")})

    def _steps(self) -> Iterator[tuple[int, Key, Row | None, Row | None]]:
        """Yield version, key, row before and row after of each change of the view."""
        views = [view(state) for state in self.states]
        for version in range(1, len(views)):
            before, now = views[version - 1], views[version]
            for key in sorted({*before, *now}):
                if before.get(key) != now.get(key):
                    yield version, key, before.get(key), now.get(key)

    def timestamp(self, version: int) -> str:
        """Return the version's in-commit timestamp as nanoseconds."""
        text = Path(self.path, "_delta_log", f"{version:020}.json").read_text(encoding="utf-8")
        said = next(each for each in map(json.loads, text.splitlines()) if "commitInfo" in each)
        return str(said["commitInfo"]["inCommitTimestamp"] * 1_000_000)


def view(state: State) -> State:
    """Return the rows of the view."""
    rows = {key: row for key, row in state.items() if (row["amount"] or 0) > 100}
    return {key: row | {"gross": row["amount"] * 2} for key, row in rows.items()}


def served(row: Row) -> Row:
    """Return the row as GraphQL tells it: whole numbers of 64 bits as text."""
    return {name: str(value) if isinstance(value, int) else value for name, value in row.items()}


def merge(marked: Sequence[tuple[Row, str]]) -> str:
    values = ", ".join(
        f"('{row['tenant']}', {row['id']}L, CAST({_text(row['amount'])} AS BIGINT), "
        f"'{row['note']}', '{mark}')"
        for row, mark in marked
    )
    return (
        f"MERGE INTO {{t}} t USING (SELECT * FROM VALUES {values} "
        "AS s(tenant, id, amount, note, op)) s ON t.tenant = s.tenant AND t.id = s.id "
        "WHEN MATCHED AND s.op = 'd' THEN DELETE WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def _text(amount: int | None) -> str:
    return "NULL" if amount is None else str(amount)


@dataclass
class Unfolding:
    """A kept history whose versions appear one by one, as if they were committed now."""

    kept: Kept
    path: Path
    version: int = -1

    def __post_init__(self) -> None:
        """Lay out the data, which nobody reads before a version names it."""
        for file in self.kept.path.rglob("*.parquet"):
            place = file.relative_to(self.kept.path)
            if place.parts[0] != "_delta_log":
                (self.path / place).parent.mkdir(parents=True, exist_ok=True)
                file.rename(self.path / place)
        (self.path / "_delta_log").mkdir(parents=True)

    def commit(self, statements: Sequence[str]) -> int:
        """Show the versions that these statements made; return how many."""
        versions = self.kept.commit(statements)
        for _ in range(versions):
            self.version += 1
            name = f"_delta_log/{self.version:020}.json"
            (self.kept.path / name).rename(self.path / name)
        return versions


def trades(path: Path, staging: Path, run: Callable[[str], object]) -> Trades:
    """Make the empty table at `path`; `run` runs SQL where the history is to be written."""
    if to_be_written():
        history = Written(run, path)
        made = Trades(path, run, history.commit, keep=lambda: history.keep(NAME))
    else:
        made = Trades(path, run, Unfolding(Kept(NAME, staging), path).commit)
    assert made.commit([CREATED]) == 1
    return made
