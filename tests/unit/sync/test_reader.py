"""Which changes one task reads itself, judged by the log's entries of their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onetable import Clock, commit, in_memory, orders

from iscp_dagster.delta.log.commits import commit_name
from iscp_dagster.model.batch import Range
from iscp_dagster.sync.reader import MOST_ROWS, SMALL_BYTES, Reader

SAID = {"partitionValues": {"region": "eu"}, "extendedFileMetadata": True}


def rows(count):
    return json.dumps({"numRecords": count})


@pytest.mark.parametrize(
    ("removed", "direct"),
    [
        ([{"size": 10, "stats": rows(1)}], True),
        ([{"size": SMALL_BYTES + 1, "stats": rows(1)}], False),
        ([{"size": SMALL_BYTES // 2 + 1, "stats": rows(1)}] * 2, False),
        ([{"size": SMALL_BYTES}], False),
        ([{}], False),
        ([{"size": 0}], False),
        ([{"stats": rows(1_000)}], True),
        ([{"stats": rows(MOST_ROWS)}], False),
    ],
)
def test_one_task_reads_few_bytes_also_of_what_was_removed(tmp_path, removed, direct):
    source = orders(tmp_path)
    commit(source, "eu")
    actions = [
        {"remove": {"path": f"{n}.parquet", "dataChange": True, **SAID, **more}}
        for n, more in enumerate(removed)
    ]
    Path(source.path, commit_name(1)).write_text("\n".join(map(json.dumps, actions)))
    deployment = in_memory(Clock())
    delta_log = deployment.delta_log(source)
    found = Reader(deployment, source, frozenset({"eu"}), delta_log)
    range_ = Range(from_=found.delta_log.moment(0), to=found.delta_log.moment(1))
    selection = found._selection(["id", "region"], 1)
    assert found._partitions(range_) == 1
    assert (found._feed(range_, selection) is not None) is direct
