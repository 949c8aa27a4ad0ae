"""Makes a JVM trust the certificate authorities that Python trusts."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")


def find_bundle(environ: Mapping[str, str]) -> Path | None:
    """The PEM file of trusted authorities that the environment or Python's OpenSSL names."""
    bundles = [environ[name] for name in _VARIABLES if environ.get(name)]
    defaults = ssl.get_default_verify_paths()
    for candidate in (*bundles, defaults.cafile, defaults.openssl_cafile):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def add_python_authorities(jvm: Any, environ: Mapping[str, str]) -> None:
    """Add the bundle's authorities to the ones the JVM knows, for this JVM only.

    The Java runtime of a wheel does not know authorities that a company or a machine adds.
    """
    pem = find_bundle(environ)
    if pem is None:
        return
    store = jvm.java.security.KeyStore.getInstance(jvm.java.security.KeyStore.getDefaultType())
    store.load(None, None)
    for number, certificate in enumerate(
        (*_list_known_authorities(jvm), *_read_certificates(jvm, pem))
    ):
        store.setCertificateEntry(str(number), certificate)
    context = jvm.javax.net.ssl.SSLContext.getInstance("TLS")
    context.init(None, _make_trust_managers(jvm, store), None)
    jvm.javax.net.ssl.SSLContext.setDefault(context)


def _list_known_authorities(jvm: Any) -> list[Any]:
    """The authorities that the JVM trusts by itself."""
    managers = _make_trust_managers(jvm, None)
    return [authority for manager in managers for authority in manager.getAcceptedIssuers()]


def _make_trust_managers(jvm: Any, store: Any) -> Any:
    """Trust managers over a key store; over the JVM's own when there is none."""
    tls = jvm.javax.net.ssl
    factory = tls.TrustManagerFactory.getInstance(tls.TrustManagerFactory.getDefaultAlgorithm())
    factory.init(store)
    return factory.getTrustManagers()


def _read_certificates(jvm: Any, pem: Path) -> list[Any]:
    factory = jvm.java.security.cert.CertificateFactory.getInstance("X.509")
    stream = jvm.java.io.FileInputStream(str(pem))
    try:
        return list(factory.generateCertificates(stream))
    finally:
        stream.close()
