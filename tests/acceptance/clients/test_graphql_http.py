"""The server of GraphQL over HTTP, held against the audits of the npm package graphql-http."""

import json
import subprocess
from collections import Counter

from support.clients.npm import node_command

AUDITS = 60
SECONDS = 120


def test_every_audit_of_graphql_http_passes(packages, trades, record_property):
    command = node_command(packages, "audits.js", trades.http)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    results = json.loads(done.stdout)
    assert [each for each in results if each["status"] != "ok"] == []
    assert len(results) >= AUDITS
    levels = Counter(each["name"].split()[0] for each in results)
    record_property(f"{len(results)} audits passed", dict(levels))
