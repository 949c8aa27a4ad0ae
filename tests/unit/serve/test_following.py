"""A server learns that the declarations changed."""

import os
from threading import Event

import pytest

from iscp_dagster.serve.web import declaration_watch
from iscp_dagster.serve.web.declaration_watch import read_marks, watch_declarations


@pytest.fixture
def package(tmp_path, monkeypatch):
    package = tmp_path / "followed_assets"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("a = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ISCP_ASSETS", package.name)
    return package


CHANGES = {
    "changed": lambda package: (package / "one.py").write_text("a = 22\n"),
    "added": lambda package: (package / "two.py").write_text("b = 1\n"),
    "removed": lambda package: (package / "one.py").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_is_changed_added_or_removed_is_noticed(package, change, monkeypatch):
    monkeypatch.setattr(declaration_watch, "find_mistake", lambda environ: "")
    noticed = Event()
    with watch_declarations(os.environ, noticed.set, seconds=0.01):
        assert not noticed.wait(0.05)
        change(package)
        assert noticed.wait(20)


def test_declarations_with_a_mistake_change_nothing_until_it_is_corrected(package, caplog):
    """The server continues with the declarations before."""
    noticed, logged = Event(), Event()
    caplog.handler.addFilter(lambda record: logged.set() or True)
    with watch_declarations(os.environ, noticed.set, seconds=0.01):
        (package / "two.py").write_text("from iscp_dagster import Mirror\nMirror(name='a b')\n")
        assert logged.wait(60)
        assert "followed_assets/two.py" in caplog.text.replace("\n", "")
        assert not noticed.is_set()
        (package / "two.py").write_text("b = 1\n")
        assert noticed.wait(60)


def test_a_single_module_is_followed_and_none_is_no_error(package):
    (path,) = read_marks({"ISCP_ASSETS": "followed_assets.one"})
    assert path == str(package / "one.py")
    assert read_marks({"ISCP_ASSETS": "nowhere_at_all.x"}) == {}
