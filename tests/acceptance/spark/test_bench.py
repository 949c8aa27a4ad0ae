"""The whole benchmark runs, on few rows."""

import re
import subprocess
import sys

import pytest

from support.paths import ROOT


@pytest.mark.soak
def test_it_prints_every_comparison(stack):
    small = ["--rows", "4000", "--rounds", "1", "--tables", "3"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bench", *small],
        cwd=ROOT,
        env=stack.environment | {"ISCP_LAKE": str(stack.home / "lake")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ratios = re.findall(r"^  = (.+?) +([\d.]+) x +target: ", done.stdout, re.MULTILINE)
    assert [name for name, _ in ratios] == [
        "rows/s against delta-rs",
        "rows/s against deltaLakeLocal",
        "three indexes against one",
        "of 3 x delta-rs + 0.5 s",
        "structs and maps against delta-rs",
        "deletion vectors against delta-rs",
        "mapped columns against delta-rs",
        "S3 against delta-rs",
    ]
    assert all(float(value) > 0 for _, value in ratios)
    assert re.search(r"idle: per tenant +[\d.]+ us", done.stdout)
