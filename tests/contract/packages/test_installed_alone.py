"""Each package in a virtual environment with nothing but what it asks for."""

import json
import re
import subprocess

import pytest

from support.paths import ROOT
from support.services.stack import clean_environment
from support.services.wheels import install_wheels

pytestmark = pytest.mark.slow

MOST_BYTES = 5_000_000
INSTALLED = """
import json, sys
from importlib.metadata import distributions
print(json.dumps({
    held.metadata["Name"]: sum(path.stat().st_size for path in paths if path.exists())
    for held in distributions()
    for paths in [[file.locate() for file in held.files]]
}))
"""


def run(python, code, folder):
    done = subprocess.run(
        [python, "-c", code],
        cwd=folder,
        env=clean_environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def first_example(package):
    page = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]


def test_a_receiver_of_webhooks_installs_little(tmp_path):
    python = install_wheels(tmp_path, "idempotent-receiver", "standardwebhooks") / "python"
    installed = json.loads(run(python, INSTALLED, tmp_path))
    assert installed.keys() == {"idempotent-receiver", "standardwebhooks"}
    assert sum(installed.values()) < MOST_BYTES
    delivering = """
import base64
from datetime import datetime, timezone
secret = os.environ["ALERTS_SECRET"] = "whsec_" + base64.b64encode(b"0" * 24).decode()
at, body, handled = datetime.now(timezone.utc), '{"event_id": "e1"}', []
handle = handled.append
headers = {
    "webhook-id": "e1",
    "webhook-timestamp": str(int(at.timestamp())),
    "webhook-signature": Webhook(secret).sign("e1", at, body),
}
assert [receive(headers, body.encode()) for _ in range(3)] == [204, 204, 204]
print(handled)
"""
    code = first_example("idempotent-receiver") + delivering
    assert run(python, code, tmp_path) == "[{'event_id': 'e1'}]\n"


def test_chdb_http_starts_alone_and_answers_clickhouse_connect(tmp_path):
    python = install_wheels(tmp_path, "chdb-http", "clickhouse-connect") / "python"
    installed = json.loads(run(python, INSTALLED, tmp_path)).keys()
    assert {"chdb-http", "asgi-guards", "chdb"} <= installed
    assert not {name for name in installed if re.match("dagster|pyspark|iscp", name)}
    assert run(python, first_example("chdb-http"), tmp_path) == "[(2, 'b')]\n"
