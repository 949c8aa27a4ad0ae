"""Modules and settings of Hadoop's S3A, with which Spark reads tables in S3-compatible stores.

https://hadoop.apache.org/docs/r3.5.0/hadoop-aws/tools/hadoop-aws/index.html
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from iscp_dagster.delta.log.files import STORES
from iscp_dagster.local.spark.jars import Module

_HADOOP = "3.5.0"
_SDK = "2.35.4"
# The 14 MB of Amazon's SDK that S3A loads, not its bundle of 640 MB; Spark has the HTTP client.
_OF_THE_SDK = (
    *("annotations", "apache-client", "arns", "auth", "aws-core", "aws-query-protocol"),
    *("aws-xml-protocol", "checksums", "checksums-spi", "crt-core", "endpoints-spi", "http-auth"),
    *("http-auth-aws", "http-auth-aws-eventstream", "http-auth-spi", "http-client-spi"),
    *("identity-spi", "json-utils", "metrics-spi", "netty-nio-client", "profiles"),
    *("protocol-core", "regions", "retries", "retries-spi", "s3", "s3-transfer-manager"),
    *("sdk-core", "sts", "third-party-jackson-core", "utils", "utils-lite"),
)
MODULES = (
    Module(group="org.apache.hadoop", name="hadoop-aws", version=_HADOOP),
    *(Module(group="software.amazon.awssdk", name=name, version=_SDK) for name in _OF_THE_SDK),
    Module(group="software.amazon.eventstream", name="eventstream", version="1.0.1"),
    Module(
        group="software.amazon.s3.analyticsaccelerator",
        name="analyticsaccelerator-s3",
        version="1.3.1",
    ),
    Module(group="org.reactivestreams", name="reactive-streams", version="1.0.4"),
)
"""The modules that S3A needs besides those in PySpark."""
CREDENTIALS = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""Looks for credentials where delta-rs does: variables, profiles, web identity, the machine's."""


def has_store_path(paths: Iterable[str | None]) -> bool:
    """Whether one of the paths is in a store that S3A reads."""
    return any(path is not None and urlsplit(path).scheme in STORES for path in paths)


def build_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings that point S3A to the store of delta-rs, from the same `AWS_…` variables."""
    options = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
        "fs.s3a.aws.credentials.provider": CREDENTIALS,
    }
    if endpoint := environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL"):
        options["fs.s3a.endpoint"] = endpoint
        virtual = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
        options["fs.s3a.path.style.access"] = "false" if virtual else "true"
    if region := environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        options["fs.s3a.endpoint.region"] = region
    return {f"spark.hadoop.{name}": value for name, value in options.items()}
