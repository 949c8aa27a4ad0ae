"""The measurements say what they need, without a traceback."""

import subprocess
import sys

import pytest

from support.paths import ROOT

BARE = """
import runpy, sys
import importlib.util

class Without:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in gone:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

gone = {"moto", "psutil", "hypercorn", "pytest", "hypothesis"}
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in gone else find(name, *more)
sys.meta_path.insert(0, Without)
runpy.run_module("bench", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("part", "module"), [("store", "moto"), ("invocations", "psutil")])
def test_a_part_names_the_extra_that_it_needs(part, module):
    command = [sys.executable, "-c", BARE, "--only", part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    said = f"the part {part} needs {module}; install the extra `test`, or use --only"
    assert said in " ".join(done.stderr.split())
