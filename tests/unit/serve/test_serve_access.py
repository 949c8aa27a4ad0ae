"""Tokens and the tenants that they name."""

import hashlib
import json

import pytest

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.serve.access import (
    EVERYONE,
    FunctionAccess,
    OpenAccess,
    UnauthenticatedError,
    Viewer,
    load_access,
    parse_bearer,
)
from iscp_dagster.serve.web.app import check_host


def tenants_by_name(token):
    """Stand for a user's function, named by its import path."""
    return {"one": ["acme"], "all": "*", "number": 7}.get(token)


def written(tmp_path, tokens):
    path = tmp_path / "tokens.json"
    path.write_text(tokens if isinstance(tokens, str) else json.dumps(tokens))
    return path


def test_a_file_names_tokens_or_their_digests(tmp_path):
    digest = hashlib.sha256(b"hashed").hexdigest()
    path = written(tmp_path, {"plain": ["acme"], f"sha256:{digest}": "*", "nobody": []})
    known = load_access(str(path))
    assert not known.is_open
    assert known.identify_viewer("plain") == Viewer(tenants=frozenset({"acme"}))
    assert known.identify_viewer("hashed") == EVERYONE
    assert known.identify_viewer("nobody") == Viewer(tenants=frozenset())
    for unknown in (None, "", "other", digest, f"sha256:{digest}"):
        with pytest.raises(UnauthenticatedError):
            known.identify_viewer(unknown)


def test_a_changed_file_counts_at_once_and_a_broken_one_lets_nobody_in(tmp_path):
    path = written(tmp_path, {"old": "*"})
    known = load_access(str(path))
    known.identify_viewer("old")
    written(tmp_path, {"newer": "*"})
    assert known.identify_viewer("newer") == EVERYONE
    with pytest.raises(UnauthenticatedError):
        known.identify_viewer("old")
    written(tmp_path, "{")
    with pytest.raises(ConfigError, match=r"not JSON"):
        known.identify_viewer("newer")
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        known.identify_viewer("newer")


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ({}, "not a JSON object"),
        ([], "not a JSON object"),
        ({"top-secret": "acme"}, 'Token 1 in .* has str as its tenants; use a list of names, or "'),
        ({"top-secret": [1]}, "Token 1 in .* has list as its tenants"),
        ({"": ["acme"]}, "Token 1 in .* is empty"),
        ({"top-secret here": ["acme"]}, "characters that a header cannot have"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start_and_no_token_is_told(tmp_path, tokens, said):
    with pytest.raises(ConfigError, match=said) as refused:
        load_access(str(written(tmp_path, tokens)))
    assert "top-secret" not in str(refused.value)


def test_a_function_of_the_users_names_the_tenants():
    known = load_access(f"{__name__}:tenants_by_name")
    assert isinstance(known, FunctionAccess)
    assert known.identify_viewer("one") == Viewer(tenants=frozenset({"acme"}))
    assert known.identify_viewer("all") == EVERYONE
    for unknown in ("other", None):
        with pytest.raises(UnauthenticatedError):
            known.identify_viewer(unknown)
    with pytest.raises(ConfigError, match="returned int as its tenants"):
        known.identify_viewer("number")
    with pytest.raises(ConfigError, match="nowhere"):
        load_access("nowhere.module:name")


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer a b", None),
        (None, None),
    ],
)
def test_a_bearer_token_is_read_from_its_header(header, token):
    assert parse_bearer(header) == token


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_without_tokens_the_server_listens_on_loopback(host, tmp_path):
    check_host(host, OpenAccess())
    for other in ("0.0.0.0", "::", "192.168.1.1", "example.org", ""):
        with pytest.raises(ConfigError, match="--tokens"):
            check_host(other, OpenAccess())
        check_host(other, load_access(str(written(tmp_path, {"t": "*"}))))
