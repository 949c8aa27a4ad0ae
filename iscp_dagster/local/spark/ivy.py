"""Fetches Maven modules with Ivy, driven in a short-lived JVM through py4j."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from iscp_dagster.local.spark.jars import SETTINGS_VARIABLE, Module, describe_remedy
from iscp_dagster.local.spark.java import Java
from iscp_dagster.local.spark.server import find_pyspark_folder
from iscp_dagster.local.spark.trust import add_python_authorities
from iscp_dagster.model.errors import SetupError

_PORTS = {"http": 80, "https": 443}
_URL_CREDENTIALS = re.compile(r"://[^/@\s]*@")


def fetch(java: Java, modules: Sequence[Module], into: Path, environ: Mapping[str, str]) -> None:
    """Put the modules' jars, without their dependencies, into a folder. Takes a few seconds."""
    output: deque[str] = deque(maxlen=200)
    with _start_jvm(java, output) as jvm:
        add_python_authorities(jvm, environ)
        _use_proxies(jvm, environ)
        problems = _resolve_modules(jvm, modules, into, environ)
    if problems:
        raise SetupError(
            f"Spark's jars cannot be fetched: {_URL_CREDENTIALS.sub('://', problems)}; "
            f"{describe_remedy()}"
        )


@contextlib.contextmanager
def _start_jvm(java: Java, output: deque[str]) -> Iterator[Any]:
    """A JVM with pyspark's jars; it ends with this process, however that ends."""
    from py4j.java_gateway import JavaGateway
    from py4j.protocol import Py4JError

    jars = find_pyspark_folder() / "jars"
    try:
        gateway = JavaGateway.launch_gateway(
            classpath=f"{jars}/*",
            jarpath=str(next(jars.glob("py4j*.jar"))),
            java_path=str(java.program),
            die_on_exit=True,
            enable_auth=True,
            redirect_stdout=output,
            redirect_stderr=output,
        )
    except (OSError, Py4JError, ValueError) as problem:
        raise SetupError(f"{java.program} does not run ({problem}); unset JAVA_HOME") from problem
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        gateway.java_process.stdin.close()
        gateway.java_process.wait()


def _use_proxies(jvm: Any, environ: Mapping[str, str]) -> None:
    """Hand the usual proxy variables to the JVM, which does not read them."""
    for scheme, usual in _PORTS.items():
        text = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme.upper()}_PROXY")
        if not text:
            continue
        proxy = urlsplit(text if "://" in text else f"http://{text}")
        jvm.System.setProperty(f"{scheme}.proxyHost", proxy.hostname or "")
        jvm.System.setProperty(f"{scheme}.proxyPort", str(proxy.port or usual))
    no_proxy = environ.get("no_proxy") or environ.get("NO_PROXY")
    if no_proxy:
        hosts = (name.strip() for name in no_proxy.split(",") if name.strip())
        pattern = "|".join(f"*{name}" if name.startswith(".") else name for name in hosts)
        jvm.System.setProperty("http.nonProxyHosts", pattern)


def _resolve_modules(
    jvm: Any, modules: Sequence[Module], into: Path, environ: Mapping[str, str]
) -> str:
    """Resolve and copy the jars; return what went wrong, or an empty text."""
    from py4j.protocol import Py4JJavaError

    try:
        ivy = _configure_ivy(jvm, into, environ)
        report = ivy.resolve(_build_caller_module(jvm, modules), _build_resolve_options(jvm))
        if report.hasError():
            first, *others = [str(text) for text in report.getAllProblemMessages()]
            return f"{first} (and {len(others)} more)" if others else first
        pattern = f"{into}/[artifact]-[revision].[ext]"
        revision = report.getModuleDescriptor().getModuleRevisionId()
        options = jvm.org.apache.ivy.core.retrieve.RetrieveOptions()
        options.setDestArtifactPattern(pattern)
        ivy.retrieve(revision, options)
    except Py4JJavaError as problem:
        return str(problem.java_exception.toString())
    return ""


def _configure_ivy(jvm: Any, into: Path, environ: Mapping[str, str]) -> Any:
    """An Ivy that keeps its cache in the folder, with the user's settings or Ivy's own."""
    ivy = jvm.org.apache.ivy.Ivy.newInstance()
    value = environ.get(SETTINGS_VARIABLE)
    if value:
        settings = Path(value).expanduser()
        if not settings.is_file():
            raise SetupError(f"{SETTINGS_VARIABLE} names {settings}, which does not exist")
        ivy.configure(jvm.java.io.File(str(settings)))
    else:
        ivy.configureDefault()
    ivy.getSettings().setDefaultCache(jvm.java.io.File(str(into / "cache")))
    return ivy


def _build_caller_module(jvm: Any, modules: Sequence[Module]) -> Any:
    """A module that depends only on these modules, not on their dependencies."""
    ids = jvm.org.apache.ivy.core.module.id
    caller = ids.ModuleRevisionId.newInstance("iscp", "caller", "working")
    descriptors = jvm.org.apache.ivy.core.module.descriptor
    descriptor = descriptors.DefaultModuleDescriptor.newDefaultInstance(caller)
    for module in modules:
        revision = ids.ModuleRevisionId.newInstance(module.group, module.name, module.version)
        dependency = descriptors.DefaultDependencyDescriptor(
            descriptor, revision, False, False, False
        )
        dependency.addDependencyConfiguration("default", "default")
        descriptor.addDependency(dependency)
    return descriptor


def _build_resolve_options(jvm: Any) -> Any:
    options = jvm.org.apache.ivy.core.resolve.ResolveOptions()
    options.setTransitive(False)
    jar_only = jvm.org.apache.ivy.util.filter.FilterHelper.getArtifactTypeFilter("jar")
    options.setArtifactFilter(jar_only)
    return options
