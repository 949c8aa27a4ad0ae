"""Dead letters of a deployment: found, replayed into their index, or dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from iscp_dagster.clickhouse.kinds.indexes import index_of
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.write.consumer import inserted
from iscp_dagster.clickhouse.write.fitting import fitted
from iscp_dagster.clickhouse.write.letters import DeadLetter, DeadLetters, key_of
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import (
    ConfigError,
    FenceError,
    IscpError,
    NoSuchJobError,
    SchemaError,
    TableGoneError,
)
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.declared import job_spec
from iscp_dagster.planning.problems import as_ours
from iscp_dagster.sync.deployment import Deployment


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The outcome for one letter; `error` says why it stays, None: it is gone."""

    letter: DeadLetter
    error: IscpError | None = None
    superseded: bool = False
    """Whether it was only dropped: it is a delete, or a later letter has the same key."""
    rebuilt: bool = False
    """Whether its tenant is rebuilt by the next iteration, for this letter or another."""


def dead_letters(
    deployment: Deployment,
    sources: Sequence[SourceTable],
    *,
    index: str | None = None,
    tenant: str | None = None,
    ids: Sequence[str] = (),
) -> list[DeadLetter]:
    """The letters in the databases of all `sources`. Raises UnavailableError.

    An id may be a prefix. Raises ConfigError for an id that matches no letter.
    """
    if "" in ids:
        raise ConfigError("An id is empty; see `iscp dlq list`.")
    found = [
        letter
        for letters, name in _kept(deployment, sources, index)
        for letter in letters.found(index=name, tenant=tenant, ids=ids)
    ]
    for id_ in ids:
        if not any(letter.id.startswith(id_) for letter in found):
            raise ConfigError(f"There is no dead letter {id_!r}; see `iscp dlq list`.")
    return found


def drop_letters(
    deployment: Deployment, sources: Sequence[SourceTable], letters: Sequence[DeadLetter]
) -> None:
    """Drop the letters; their rows stay out of the index. Idempotent."""
    for index in sorted({letter.index for letter in letters}):
        mine = [each for each in letters if each.index == index]
        for held, _ in _kept(deployment, sources, index):
            held.drop(mine)


def replay_letters(
    deployment: Deployment, sources: Sequence[SourceTable], letters: Sequence[DeadLetter]
) -> list[Replayed]:
    """Write the rows to their index as it is now, each under its own version.

    So a later version in the index hides the row, and replaying twice changes nothing. Of letters
    with one key the last one counts. A letter that is refused again stays, and so do all letters of
    an index that cannot be written, which stops no other index. A tenant with a letter
    of a whole range is rebuilt, which brings all its rows.
    """
    found = []
    for name in sorted({letter.index for letter in letters}):
        mine = [letter for letter in letters if letter.index == name]
        try:
            store = _store(deployment, sources, mine[0])
            done = _replayed(deployment, store, mine)
            _of(store).drop([each.letter for each in done if each.error is None])
        except Exception as error:  # noqa: BLE001 - whatever an index raises stops it alone
            done = [Replayed(letter=letter, error=as_ours(error)) for letter in mine]
        found += done
    return found


def _replayed(
    deployment: Deployment, store: IndexStore, letters: Sequence[DeadLetter]
) -> list[Replayed]:
    found = [_rebuilt(deployment, letter) for letter in letters if letter.whole_range]
    built = {(each.letter.tenant, each.letter.registration) for each in found if each.rebuilt}
    rows_of = [letter for letter in letters if not letter.whole_range]
    found += [
        Replayed(letter=letter, rebuilt=True)
        for letter in rows_of
        if (letter.tenant, letter.registration) in built
    ]
    letters = [each for each in rows_of if (each.tenant, each.registration) not in built]
    if not letters:
        return found
    rows = dict(zip(letters, _of(store).rows(letters), strict=True))
    # Before checking that the jobs are idle: a run that rebuilds one later rejects this insert.
    store = store.enter()
    kept = _last(store, letters[0].index)
    for letter in letters:
        if letter.id not in kept or letter.deleted:
            found.append(Replayed(letter=letter, superseded=True))
        elif (unserved := _unserved(deployment, letter)) is not None:
            found.append(Replayed(letter=letter, error=unserved))
        else:
            found.append(_written(store, letter, rows[letter]))
    return found


def _rebuilt(deployment: Deployment, letter: DeadLetter) -> Replayed:
    jobs = [job for job in _jobs(deployment, letter) if job.registration == letter.registration]
    if any(job.status.code == TableGoneError.code for job in jobs):
        message = f"The table of {letter.index} was dropped or recreated; drop the letter."
        return Replayed(letter=letter, error=TableGoneError(message))
    if not deployment.log.rebuild([job.key for job in jobs]):
        missing = NoSuchJobError(
            f"Job {letter.index} of {letter.tenant} is no longer registered; drop the letter."
        )
        return Replayed(letter=letter, error=missing)
    deployment.log.repair([job.key for job in jobs if job.state is JobState.ERROR])
    return Replayed(letter=letter, rebuilt=True)


def _jobs(deployment: Deployment, letter: DeadLetter) -> list[Job]:
    table, _, name = letter.index.partition("/")
    database, _, short = table.partition(".")
    job = JobID(db=database, table=short, job=name)
    return deployment.log.jobs(tenant=letter.tenant, name=job)


def _last(store: IndexStore, index: str) -> set[str]:
    """The ids of the last letter of each key in the index."""
    database, target = _of(store), store.target(staged=False)
    letters = [each for each in database.found(index=index) if not each.whole_range]
    every = sorted(letters, key=lambda each: each.version)
    last: dict[tuple[str, str], str] = {}
    for letter, row in zip(every, database.rows(every), strict=True):
        last[letter.tenant, key_of(row, target) or letter.id] = letter.id
    return set(last.values())


def _unserved(deployment: Deployment, letter: DeadLetter) -> IscpError | None:
    """Why the letter's row cannot be written yet: its job is behind the row, or at work."""
    for held in _jobs(deployment, letter):
        behind = held.watermark.version < letter.to_version
        if held.registration == letter.registration and (behind or held.active):
            return FenceError(
                f"Job {held.key} has not reached version {letter.to_version}, or is running; "
                "replay the letter when the job is idle."
            )
    return None


def _written(store: IndexStore, letter: DeadLetter, row: pa.Table) -> Replayed:
    target = store.target(staged=False)
    # Columns that the index has gained since get their defaults.
    there = tuple(name for name in target.columns if name in row.schema.names)
    narrow = replace(target, columns=there)
    try:
        fit = fitted(narrow, row)
        if store.placement is not None and not store.placement.mine(row).num_rows:
            return Replayed(letter=letter, error=_misplaced(letter))
        if inserted(store.endpoint, narrow, fit, token=f"letter-{letter.id}"):
            store.shut_out([letter.tenant])
    except pa.ArrowException as error:
        return Replayed(letter=letter, error=SchemaError(f"{target.name}: {error}"))
    except IscpError as error:
        return Replayed(letter=letter, error=error)
    return Replayed(letter=letter)


def _misplaced(letter: DeadLetter) -> IscpError:
    return ConfigError(
        f"The row of dead letter {letter.id} belongs to another shard than {letter.index}, now "
        "that its key fits. Drop the letter (`iscp dlq drop`), and write its row to its source "
        "again."
    )


def _store(
    deployment: Deployment, sources: Sequence[SourceTable], letter: DeadLetter
) -> IndexStore:
    """The tables that serve the letter's index, with the columns that the source has now."""
    table, _, job = letter.index.partition("/")
    source = next((each for each in sources if each.name == table), None)
    if source is None:
        raise ConfigError(f"Table {table!r} of dead letter {letter.id} is no longer declared.")
    name = JobID(db=source.database, table=source.table, job=job)
    held = deployment.log.jobs(tenant=letter.tenant, name=name)
    specs = [each.spec for each in held] or [
        job_spec(source, index) for index in source.indexes if index.name == job
    ]
    consumer = specs[0].detail.consumer if specs else None
    if consumer is None or not is_index(consumer):
        raise ConfigError(f"Index {letter.index!r} of dead letter {letter.id} no longer exists.")
    schema = deployment.delta_log(source).facts().fields
    store = deployment.store(source, index_of(source, consumer), schema, consumer.generation)
    store.ensure()
    return store


def _of(store: IndexStore) -> DeadLetters:
    return DeadLetters(endpoint=store.endpoint, database=store.shape.database)


def _kept(
    deployment: Deployment, sources: Sequence[SourceTable], index: str | None
) -> Iterator[tuple[DeadLetters, str | None]]:
    """Where letters are, and under which index name: for a declared index, on the server of each
    of its shards; else in the databases of all servers.
    """
    named = [
        (deployment.endpoint_of(each), source.database, f"{source.name}/{each.name}")
        for source in sources
        for each in source.indexes
        if index in {f"{source.name}/{each.name}", f"{source.name}/{each.shown}"}
    ]
    for endpoint, database, name in named:
        yield DeadLetters(endpoint=endpoint, database=endpoint.holds(database)), name
    if named:
        return
    of = {index.partition(".")[0]} if index else {source.database for source in sources}
    for endpoint in deployment.endpoints:
        for database in sorted({endpoint.holds(each) for each in of}):
            yield DeadLetters(endpoint=endpoint, database=database), index
