"""Finds a deployment's dead letters, replays them into their index, or drops them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.write.consumer import insert_fitted_rows
from iscp_dagster.clickhouse.write.conversion import fit_rows
from iscp_dagster.clickhouse.write.letters import DeadLetter, DeadLetters, hash_key
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
from iscp_dagster.planning.job_specs import make_job_spec
from iscp_dagster.planning.problems import to_iscp_error
from iscp_dagster.sync.deployment import Deployment


@dataclass(frozen=True, kw_only=True)
class ReplayOutcome:
    """The outcome for one letter; `error` says why it stays, None: it is gone."""

    letter: DeadLetter
    error: IscpError | None = None
    superseded: bool = False
    """Whether it was only dropped: it is a delete, or a later letter has the same key."""
    rebuilt: bool = False
    """Whether its tenant is rebuilt by the next iteration, for this letter or another."""


def find_letters(
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
    matches = [
        letter
        for letters, name in _list_letter_tables(deployment, sources, index)
        for letter in letters.list_letters(index=name, tenant=tenant, ids=ids)
    ]
    for id_ in ids:
        if not any(letter.id.startswith(id_) for letter in matches):
            raise ConfigError(f"There is no dead letter {id_!r}; see `iscp dlq list`.")
    return matches


def drop_letters(
    deployment: Deployment, sources: Sequence[SourceTable], letters: Sequence[DeadLetter]
) -> None:
    """Drop the letters; their rows stay out of the index. Idempotent."""
    for index in sorted({letter.index for letter in letters}):
        group = [letter for letter in letters if letter.index == index]
        for letters_table, _ in _list_letter_tables(deployment, sources, index):
            letters_table.drop(group)


def replay_letters(
    deployment: Deployment, sources: Sequence[SourceTable], letters: Sequence[DeadLetter]
) -> list[ReplayOutcome]:
    """Write the rows to their index as it is now, each under its own version.

    So a later version in the index hides the row, and replaying twice changes nothing. Of letters
    with the same key only the last is written. A letter that is rejected again stays, and so do all
    letters of an index that cannot be written; other indexes continue. A tenant with a letter for a
    whole range is rebuilt, with all its rows.
    """
    outcomes = []
    for name in sorted({letter.index for letter in letters}):
        group = [letter for letter in letters if letter.index == name]
        try:
            store = _open_store(deployment, sources, group[0])
            replayed = _replay_index(deployment, store, group)
            _get_letters(store).drop(
                [outcome.letter for outcome in replayed if outcome.error is None]
            )
        except Exception as error:  # noqa: BLE001 - an index's error must not stop the others
            replayed = [
                ReplayOutcome(letter=letter, error=to_iscp_error(error)) for letter in group
            ]
        outcomes += replayed
    return outcomes


def _replay_index(
    deployment: Deployment, store: IndexStore, letters: Sequence[DeadLetter]
) -> list[ReplayOutcome]:
    outcomes = [_rebuild_tenant(deployment, letter) for letter in letters if letter.whole_range]
    rebuilt_letters = [outcome.letter for outcome in outcomes if outcome.rebuilt]
    rebuilt = {(letter.tenant, letter.registration) for letter in rebuilt_letters}
    row_letters = [letter for letter in letters if not letter.whole_range]
    outcomes += [
        ReplayOutcome(letter=letter, rebuilt=True)
        for letter in row_letters
        if (letter.tenant, letter.registration) in rebuilt
    ]
    letters = [
        letter for letter in row_letters if (letter.tenant, letter.registration) not in rebuilt
    ]
    if not letters:
        return outcomes
    rows = dict(zip(letters, _get_letters(store).read_rows(letters), strict=True))
    # Before checking that the jobs are idle: a run that rebuilds one later rejects this insert.
    store = store.refresh_epochs()
    last_ids = _find_last_letters(store, letters[0].index)
    for letter in letters:
        if letter.id not in last_ids or letter.deleted:
            outcomes.append(ReplayOutcome(letter=letter, superseded=True))
        elif (obstacle := _find_obstacle(deployment, letter)) is not None:
            outcomes.append(ReplayOutcome(letter=letter, error=obstacle))
        else:
            outcomes.append(_write_letter(store, letter, rows[letter]))
    return outcomes


def _rebuild_tenant(deployment: Deployment, letter: DeadLetter) -> ReplayOutcome:
    jobs = [
        job for job in _list_jobs(deployment, letter) if job.registration == letter.registration
    ]
    if any(job.status.code == TableGoneError.code for job in jobs):
        message = f"The table of {letter.index} was dropped or recreated; drop the letter."
        return ReplayOutcome(letter=letter, error=TableGoneError(message))
    if not deployment.log.rebuild([job.key for job in jobs]):
        error = NoSuchJobError(
            f"Job {letter.index} of {letter.tenant} is no longer registered; drop the letter."
        )
        return ReplayOutcome(letter=letter, error=error)
    deployment.log.repair([job.key for job in jobs if job.state is JobState.ERROR])
    return ReplayOutcome(letter=letter, rebuilt=True)


def _list_jobs(deployment: Deployment, letter: DeadLetter) -> list[Job]:
    table, _, job_name = letter.index.partition("/")
    database, _, table_name = table.partition(".")
    job_id = JobID(db=database, table=table_name, job=job_name)
    return deployment.log.list_jobs(tenant=letter.tenant, name=job_id)


def _find_last_letters(store: IndexStore, index: str) -> set[str]:
    """The ids of the last letter of each key in the index."""
    table, target = _get_letters(store), store.make_target(staged=False)
    letters = [letter for letter in table.list_letters(index=index) if not letter.whole_range]
    ordered = sorted(letters, key=lambda letter: letter.version)
    last_ids: dict[tuple[str, str], str] = {}
    for letter, row in zip(ordered, table.read_rows(ordered), strict=True):
        last_ids[letter.tenant, hash_key(row, target) or letter.id] = letter.id
    return set(last_ids.values())


def _find_obstacle(deployment: Deployment, letter: DeadLetter) -> IscpError | None:
    """Why the letter's row cannot be written yet: its job is behind the row, or is running."""
    for job in _list_jobs(deployment, letter):
        is_behind = job.watermark.version < letter.to_version
        if job.registration == letter.registration and (is_behind or job.active):
            return FenceError(
                f"Job {job.key} has not reached version {letter.to_version}, or is running; "
                "replay the letter when the job is idle."
            )
    return None


def _write_letter(store: IndexStore, letter: DeadLetter, row: pa.Table) -> ReplayOutcome:
    target = store.make_target(staged=False)
    # Columns that the index has gained since get their defaults.
    columns = tuple(name for name in target.columns if name in row.schema.names)
    narrow = replace(target, columns=columns)
    try:
        fitted = fit_rows(narrow, row)
        if store.placement is not None and not store.placement.select_rows(row).num_rows:
            return ReplayOutcome(letter=letter, error=_make_misplaced_error(letter))
        if insert_fitted_rows(store.endpoint, narrow, fitted, token=f"letter-{letter.id}"):
            store.reject_earlier_inserts([letter.tenant])
    except pa.ArrowException as error:
        return ReplayOutcome(letter=letter, error=SchemaError(f"{target.name}: {error}"))
    except IscpError as error:
        return ReplayOutcome(letter=letter, error=error)
    return ReplayOutcome(letter=letter)


def _make_misplaced_error(letter: DeadLetter) -> IscpError:
    return ConfigError(
        f"The row of dead letter {letter.id} belongs to another shard than {letter.index}, now "
        "that its key fits. Drop the letter (`iscp dlq drop`), and write its row to its source "
        "again."
    )


def _open_store(
    deployment: Deployment, sources: Sequence[SourceTable], letter: DeadLetter
) -> IndexStore:
    """The tables that serve the letter's index, with the columns that the source has now."""
    table, _, job_name = letter.index.partition("/")
    source = next((candidate for candidate in sources if candidate.name == table), None)
    if source is None:
        raise ConfigError(f"Table {table!r} of dead letter {letter.id} is no longer declared.")
    name = JobID(db=source.database, table=source.table, job=job_name)
    jobs = deployment.log.list_jobs(tenant=letter.tenant, name=name)
    specs = [job.spec for job in jobs] or [
        make_job_spec(source, index) for index in source.indexes if index.name == job_name
    ]
    consumer = specs[0].detail.consumer if specs else None
    if consumer is None or not is_index(consumer):
        raise ConfigError(f"Index {letter.index!r} of dead letter {letter.id} no longer exists.")
    schema = deployment.make_delta_log(source).get_facts().fields
    store = deployment.make_index_store(
        source, resolve_index(source, consumer), schema, consumer.generation
    )
    store.ensure()
    return store


def _get_letters(store: IndexStore) -> DeadLetters:
    return DeadLetters(endpoint=store.endpoint, database=store.shape.database)


def _list_letter_tables(
    deployment: Deployment, sources: Sequence[SourceTable], index: str | None
) -> Iterator[tuple[DeadLetters, str | None]]:
    """Where letters are, and under which index name: for a declared index, on the server of each
    of its shards; else in the databases of all servers.
    """
    locations = [
        (deployment.get_endpoint(index_shard), source.database, f"{source.name}/{index_shard.name}")
        for source in sources
        for index_shard in source.indexes
        if index in {f"{source.name}/{index_shard.name}", f"{source.name}/{index_shard.shown}"}
    ]
    for endpoint, database, name in locations:
        yield DeadLetters(endpoint=endpoint, database=endpoint.resolve_database(database)), name
    if locations:
        return
    databases = {index.partition(".")[0]} if index else {source.database for source in sources}
    for endpoint in deployment.endpoints:
        for database in sorted({endpoint.resolve_database(name) for name in databases}):
            yield DeadLetters(endpoint=endpoint, database=database), index
