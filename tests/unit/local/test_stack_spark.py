"""The Java that runs Spark, the source of its jars, and the server's arguments."""

from __future__ import annotations

import ssl
import stat
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
from test_stack_settings import make_settings

from iscp_dagster.local.services import spark_server
from iscp_dagster.local.spark import daemon, ivy, jars, java, s3a, trust
from iscp_dagster.local.spark.java import Java
from iscp_dagster.local.spark.server import (
    SparkServer,
    find_pyspark_folder,
    get_default_memory,
    parse_java_options,
)
from iscp_dagster.local.stack import plan
from iscp_dagster.model.errors import ConfigError, SetupError
from support.errors import raises_naming

_PRETENDS = """#!/bin/sh
case "$1" in
-version) echo 'openjdk version "{version}" 2025-01-01' >&2 ;;
--list-modules) echo 'java.base@{version}'; {vector} ;;
esac
"""


def pretend_java(home: Path, version: str, *, vector: bool) -> Path:
    """Make a JAVA_HOME whose `java` only prints its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    modules = "echo 'jdk.incubator.vector@1'" if vector else "true"
    program.write_text(_PRETENDS.format(version=version, vector=modules))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_a_java_home_is_used_if_it_is_new_enough_else_the_bundled_java(tmp_path: Path) -> None:
    bundled = java.get_bundled_runtime()
    assert bundled.program.is_file()
    assert java.find({}) == java.find({"JAVA_HOME": str(tmp_path / "none")}) == bundled
    for version in ("1.8.0_402", "16"):
        pretend_java(tmp_path / version, version, vector=False)
        assert java.find({"JAVA_HOME": str(tmp_path / version)}) == bundled
    program = pretend_java(tmp_path / "a jdk", "21.0.2", vector=True)
    expected = Java(program=program, release=21, vector=True)
    assert java.find({"JAVA_HOME": str(tmp_path / "a jdk")}) == expected


def test_options_fit_the_java() -> None:
    old = Java(program=Path("java"), release=17, vector=True).list_options()
    new = Java(program=Path("java"), release=25, vector=False).list_options()
    assert "--add-modules=jdk.incubator.vector" in old
    assert "--add-modules=jdk.incubator.vector" not in new
    assert "--sun-misc-unsafe-memory-access=allow" not in old
    assert "--sun-misc-unsafe-memory-access=allow" in new


def fetch_all(_java, modules, into: Path, _environ) -> None:
    for module in modules:
        (into / module.file).write_bytes(b"jar")


def test_jars_are_fetched_once_and_a_failed_fetch_leaves_nothing_behind(tmp_path: Path) -> None:
    folders = []

    def fetch(java_, modules, into: Path, environ) -> None:
        folders.append(into)
        fetch_all(java_, modules[:1] if len(folders) == 1 else modules, into, environ)

    assert jars.get_folder(tmp_path, {}) == tmp_path / "jars"
    folder = jars.get_folder(tmp_path, {"ISCP_JARS": str(tmp_path / "shared jars")})
    assert folder == tmp_path / "shared jars"
    bundled = java.get_bundled_runtime()
    with raises_naming(SetupError, jars.MODULES[1].file, "ISCP_IVY_SETTINGS"):
        jars.ensure(folder, bundled, {}, fetch)
    assert jars.find_jars(folder) is None
    assert not list(folder.glob(".fetch-*"))
    paths = jars.ensure(folder, bundled, {}, fetch)
    assert paths == jars.ensure(folder, bundled, {}, fetch) == jars.find_jars(folder)
    assert len(folders) == 2
    assert not list(folder.glob(".fetch-*"))
    paths[0].unlink()
    jars.ensure(folder, bundled, {}, fetch)
    assert len(folders) == 3


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, {}),
        ({"AWS_DEFAULT_REGION": "eu-1"}, {"fs.s3a.endpoint.region": "eu-1"}),
        (
            {"AWS_ENDPOINT_URL": "http://one:9000", "AWS_SECRET_ACCESS_KEY": "hush"},
            {"fs.s3a.endpoint": "http://one:9000", "fs.s3a.path.style.access": "true"},
        ),
        (
            {
                "AWS_ENDPOINT_URL": "http://one:9000",
                "AWS_ENDPOINT_URL_S3": "http://two:9000",
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
            },
            {"fs.s3a.endpoint": "http://two:9000", "fs.s3a.path.style.access": "false"},
        ),
    ],
)
def test_spark_uses_the_store_of_delta_rs(environ, options) -> None:
    always, found = s3a.build_settings({}), s3a.build_settings(environ)
    assert found == always | {f"spark.hadoop.{name}": value for name, value in options.items()}
    assert "hush" not in found.values()
    assert found["spark.hadoop.fs.s3.impl"].endswith("S3AFileSystem")


def test_the_module_for_s3_has_the_version_of_pyspark_s_hadoop() -> None:
    (hadoop, *_) = s3a.MODULES
    assert (find_pyspark_folder() / "jars" / f"hadoop-client-api-{hadoop.version}.jar").is_file()


@pytest.mark.parametrize(
    ("lake", "paths", "s3"),
    [
        (None, [], False),
        (None, [None, "/lake/t", "file:///lake/t", "abfss://c@a/t"], False),
        (None, ["/lake/t", "s3://bucket/t"], True),
        (None, ["s3a://bucket/t"], True),
        ("s3://bucket/lake", [], True),
    ],
)
def test_the_module_for_s3_is_fetched_if_a_table_lies_there(
    tmp_path: Path, monkeypatch, capsys, lake, paths, s3
) -> None:
    monkeypatch.setattr(ivy, "fetch", fetch_all)
    monkeypatch.setenv("ISCP_JARS", str(tmp_path / "jars"))
    monkeypatch.delenv("ISCP_LAKE", raising=False)
    if lake:
        monkeypatch.setenv("ISCP_LAKE", lake)
    own = make_settings(home=tmp_path / "home")
    for _ in range(2):
        plan.fetch_missing_jars(own, lambda: paths)
    output = "".join(capsys.readouterr())
    assert output.count("Delta Lake") == 1
    assert output.count("S3A") == s3
    command = " ".join(spark_server.build_service(own).command)
    assert ("hadoop-aws" in command, "spark.hadoop.fs.s3.impl" in command) == (s3, s3)


@pytest.mark.slow
def test_the_error_of_an_unreachable_repository_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    proxy = {"https_proxy": "http://someone:secret@127.0.0.1:9"}
    with raises_naming(SetupError, "ISCP_JARS") as caught:
        jars.ensure(tmp_path, java.get_bundled_runtime(), proxy, ivy.fetch)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_a_company_s_own_mirror_serves_the_jars_if_its_settings_are_there(tmp_path: Path) -> None:
    mirror = tmp_path / "the mirror"
    mirror.mkdir()
    for module in jars.MODULES:
        (mirror / module.file).write_bytes(module.name.encode())
    file = tmp_path / "ivysettings.xml"
    file.write_text(
        '<ivysettings><settings defaultResolver="m"/><resolvers><filesystem name="m">'
        f'<artifact pattern="{mirror}/[artifact]-[revision].[ext]"/>'
        "</filesystem></resolvers></ivysettings>"
    )
    environ = {"ISCP_IVY_SETTINGS": str(file)}
    paths = jars.ensure(tmp_path / "jars", java.get_bundled_runtime(), environ, ivy.fetch)
    assert [path.read_bytes().decode() for path in paths] == [m.name for m in jars.MODULES]
    file.unlink()
    with raises_naming(SetupError, "ISCP_IVY_SETTINGS", file):
        jars.ensure(tmp_path / "others", java.get_bundled_runtime(), environ, ivy.fetch)


def test_the_environments_certificates_come_first(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.touch()
    assert trust.find_bundle({"SSL_CERT_FILE": str(pem)}) == pem
    assert trust.find_bundle({"SSL_CERT_FILE": "/none", "REQUESTS_CA_BUNDLE": str(pem)}) == pem
    usual = ssl.get_default_verify_paths()
    assert trust.find_bundle({}) in {Path(usual.cafile or ""), Path(usual.openssl_cafile), None}


def make_server(home: Path) -> SparkServer:
    return SparkServer(
        java=java.get_bundled_runtime(),
        port=1,
        jars=[Path("/jars/delta.jar")],
        home=home,
        memory="1g",
        cores=3,
        python="/the/python",
    )


def test_the_end_of_an_idle_daemon_is_no_warning_and_each_logger_is_a_class() -> None:
    lines = (Path(daemon.__file__).parent / "log4j2.properties").read_text().splitlines()
    settings = dict(line.split(" = ", 1) for line in lines if not line.startswith("#"))
    levels = {
        name: settings[key.removesuffix("name") + "level"]
        for key, name in settings.items()
        if key.startswith("logger.") and key.endswith(".name")
    }
    assert levels["org.apache.spark.api.python.PythonWorkerFactory"] == "error"
    jars_of_spark = (find_pyspark_folder() / "jars").glob("*.jar")
    classes = {name for jar in jars_of_spark for name in ZipFile(jar).namelist()}
    assert {f"{name.replace('.', '/')}.class" for name in levels} <= classes


def test_the_server_has_our_daemon_and_keeps_everything_under_its_home(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    server = make_server(home)
    server.prepare()
    command = server.build_command()
    assert "local[3]" in command
    assert any(part.endswith(":/jars/delta.jar") for part in command)
    assert f"spark.sql.warehouse.dir={home / 'lake'}" in command
    assert f"spark.python.daemon.module={daemon.__name__}" in command
    environment = server.build_environment({"SPARK_REMOTE": "sc://other", "KEPT": "1"})
    assert environment["SPARK_LOCAL_DIRS"].startswith(str(home))
    assert environment["PYSPARK_PYTHON"] == "/the/python"
    assert environment["KEPT"] == "1"
    assert "SPARK_REMOTE" not in environment
    assert server.lake.is_dir()
    assert server.local.is_dir()


def test_the_user_s_java_options_come_last_and_are_quoted_as_for_a_shell() -> None:
    text = "-XX:TieredStopAtLevel=1 '-Dfolder=a b'"
    options = parse_java_options({"ISCP_SPARK_JAVA_OPTIONS": text})
    assert options == ("-XX:TieredStopAtLevel=1", "-Dfolder=a b")
    assert parse_java_options({}) == ()
    command = replace(make_server(Path("/home")), java_options=options).build_command()
    assert command.index("-Dfolder=a b") > command.index("-Xmx1g")
    assert command.index("-Dfolder=a b") < command.index("-cp")
    with raises_naming(ConfigError, "ISCP_SPARK_JAVA_OPTIONS", "-Xmx1g"):
        parse_java_options({"ISCP_SPARK_JAVA_OPTIONS": "'-Xmx1g"})


def test_memory_is_a_quarter_within_bounds() -> None:
    assert get_default_memory({"ISCP_SPARK_MEMORY": "7g"}) == "7g"
    assert 1024 <= int(get_default_memory({}).removesuffix("m")) <= 4096
