"""Changes indexes on real services: what entered, left or changed in a view, exactly once."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from dealings import TENANTS, dealings, seen
from mortal import Life, dies
from tables import Table, deployment_at, kinds

from iscp_dagster import Changes, Mirror, View
from iscp_dagster.delta.feed import ReadKind
from iscp_dagster.joblog.iterations import Failed
from iscp_dagster.location.assets.io_manager import shown
from iscp_dagster.model.declared.attach import index_of_view

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_first(clickhouse_url, spark_remote, tmp_path_factory):
    folder = tmp_path_factory.mktemp("changes")
    deployment = deployment_at(clickhouse_url, spark_remote, folder)
    table = Table.make(deployment, create=False, key="k")
    big = View("big", of=table.source, where="amount > 100", columns={"gross": "amount * 1.19"})
    huge = View("huge", of=big, where="gross > 150", columns={"shout": "upper(note)"})
    table = table.with_indexes(Changes(), Mirror(), index_of_view(big), index_of_view(huge))
    from pathlib import Path
    model = dealings(Path(table.path), table.sql, lambda: table.version)
    its = table.iteration(*TENANTS, to=5)
    out = table.run(its)
    print(out)
    out = table.run(table.iteration(*TENANTS, to=12))
    print([o.plan if not isinstance(o, Failed) else o for o in out])
    for v in ("changes", "big", "huge"):
        print(table.query(f"select * from {table.source.database}.rows_{v} order by _version, tenant, _ordinal, _image")[:5])
    print(table.query(f"select * from {table.source.database}.rows_big_as_of(version=9) order by all"))
    print(sorted(seen(model.states[9], lambda r: r if r['amount'] and r['amount']>100 else None)))
    table.check()
