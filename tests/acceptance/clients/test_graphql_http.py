"""The server of GraphQL over HTTP, held against the audits of the npm package graphql-http."""

import json
import subprocess
from collections import Counter

from support.clients.npm import node_command

AUDITS = 60
SECONDS = 120


def test_every_audit_of_graphql_http_passes(packages, trades, record_property):
    command = node_command(packages, "audits.js", trades.http)
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    audits = json.loads(result.stdout)
    assert [audit for audit in audits if audit["status"] != "ok"] == []
    assert len(audits) >= AUDITS
    levels = Counter(audit["name"].split()[0] for audit in audits)
    record_property(f"{len(audits)} audits passed", dict(levels))
