"""What the wheels have; packages in a virtual environment with nothing but what they ask for."""

import json
import re
import subprocess
from importlib.metadata import PathDistribution
from zipfile import Path as ZipPath
from zipfile import ZipFile

import pytest
from hatchling.build import build_wheel

from support.paths import PACKAGES, ROOT
from support.services.stack import clean_environment
from support.services.wheels import install_wheels

pytestmark = pytest.mark.slow

MOST_BYTES = 5_000_000
SIZES = """
import json, sys
from importlib.metadata import distributions
print(json.dumps({
    installed.metadata["Name"]: sum(path.stat().st_size for path in paths if path.exists())
    for installed in distributions()
    for paths in [[file.locate() for file in installed.files]]
}))
"""


@pytest.mark.parametrize("project", [ROOT, *PACKAGES], ids=lambda path: path.name)
def test_a_wheel_has_the_files_of_its_package_and_nothing_else(project, tmp_path, monkeypatch):
    monkeypatch.chdir(project)
    wheel = tmp_path / build_wheel(str(tmp_path))
    name = wheel.name.partition("-")[0]
    files = {each for each in ZipFile(wheel).namelist() if ".dist-info/" not in each}
    kept = [path for path in (project / name).rglob("*") if path.suffix != ".pyc"]
    assert files == {str(path.relative_to(project)) for path in kept if path.is_file()}
    (info,) = (each for each in ZipPath(wheel).iterdir() if each.name.endswith(".dist-info"))
    points = PathDistribution(info).entry_points
    if project == ROOT:
        assert points.select(name="iscp")["iscp"].value == "iscp_dagster.cli.main:main"
        assert points.select(group="dagster_dg_cli.registry_modules").names == {"iscp_dagster"}


def install(folder, package, *others, needs=()):
    """Install the project's package, and what it needs of the project; return the Python."""
    projects = [path for path in PACKAGES if path.name in {package, *needs}]
    return install_wheels(folder, package, *others, projects=projects) / "python"


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


def read_first_example(package):
    page = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]


def test_a_receiver_of_webhooks_installs_little(tmp_path):
    python = install(tmp_path, "idempotent-receiver", "standardwebhooks")
    sizes = json.loads(run(python, SIZES, tmp_path))
    assert sizes.keys() == {"idempotent-receiver", "standardwebhooks"}
    assert sum(sizes.values()) < MOST_BYTES
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
    code = read_first_example("idempotent-receiver") + delivering
    assert run(python, code, tmp_path) == "[{'event_id': 'e1'}]\n"


def test_chdb_http_starts_alone_and_answers_clickhouse_connect(tmp_path):
    python = install(tmp_path, "chdb-http", "clickhouse-connect", needs=["asgi-guards"])
    names = json.loads(run(python, SIZES, tmp_path)).keys()
    assert {"chdb-http", "asgi-guards", "chdb"} <= names
    assert not {name for name in names if re.match("dagster|pyspark|iscp", name)}
    assert run(python, read_first_example("chdb-http"), tmp_path) == "[(2, 'b')]\n"
