"""A server learns that the declarations changed."""

import os
from threading import Event

import pytest

from iscp_dagster.serve.web.reload import read_marks, watch_declarations


@pytest.fixture
def declared(tmp_path, monkeypatch):
    package = tmp_path / "followed_assets"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("a = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return package


CHANGES = {
    "changed": lambda package: (package / "one.py").write_text("a = 22\n"),
    "come": lambda package: (package / "two.py").write_text("b = 1\n"),
    "gone": lambda package: (package / "one.py").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes_comes_or_goes_is_told_once(declared, change):
    told = Event()
    environ = {**os.environ, "ISCP_ASSETS": "followed_assets"}
    with watch_declarations(environ, told.set, seconds=0.01):
        assert not told.wait(0.05)
        change(declared)
        assert told.wait(20)


def test_a_mistake_is_not_told_until_it_is_corrected(declared, caplog):
    """Who serves goes on with what was declared before."""
    told, wrong = Event(), Event()
    caplog.handler.addFilter(lambda record: wrong.set() or True)
    with watch_declarations(
        {**os.environ, "ISCP_ASSETS": "followed_assets"}, told.set, seconds=0.01
    ):
        (declared / "two.py").write_text("from iscp_dagster import *\nSourceTable('x')\n")
        assert wrong.wait(60)
        assert "followed_assets/two.py" in caplog.text.replace("\n", "")
        assert not told.is_set()
        (declared / "two.py").write_text("from iscp_dagster import *\n")
        assert told.wait(60)


def test_a_single_module_is_followed_and_none_is_no_error(declared):
    assert [
        name.rpartition("/")[2] for name in read_marks({"ISCP_ASSETS": "followed_assets.one"})
    ] == ["one.py"]
    assert read_marks({"ISCP_ASSETS": "nowhere_at_all.x"}) == {}
