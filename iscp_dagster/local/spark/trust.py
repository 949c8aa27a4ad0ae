"""Makes a JVM trust the certificate authorities that Python trusts."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")


def bundle(environ: Mapping[str, str]) -> Path | None:
    """The PEM file of trusted authorities that the environment or Python's OpenSSL names."""
    named = [environ[name] for name in _VARIABLES if environ.get(name)]
    usual = ssl.get_default_verify_paths()
    for candidate in (*named, usual.cafile, usual.openssl_cafile):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def trust_what_python_trusts(jvm: Any, environ: Mapping[str, str]) -> None:
    """Add the bundle's authorities to the ones the JVM knows, for this JVM only.

    The Java runtime of a wheel does not know authorities that a company or a machine adds.
    """
    pem = bundle(environ)
    if pem is None:
        return
    store = jvm.java.security.KeyStore.getInstance(jvm.java.security.KeyStore.getDefaultType())
    store.load(None, None)
    for number, certificate in enumerate((*_known(jvm), *_read(jvm, pem))):
        store.setCertificateEntry(str(number), certificate)
    context = jvm.javax.net.ssl.SSLContext.getInstance("TLS")
    context.init(None, _managers(jvm, store), None)
    jvm.javax.net.ssl.SSLContext.setDefault(context)


def _known(jvm: Any) -> list[Any]:
    """The authorities that the JVM trusts by itself."""
    managers = _managers(jvm, None)
    return [found for manager in managers for found in manager.getAcceptedIssuers()]


def _managers(jvm: Any, store: Any) -> Any:
    """Trust managers over a key store; over the JVM's own when there is none."""
    tls = jvm.javax.net.ssl
    factory = tls.TrustManagerFactory.getInstance(tls.TrustManagerFactory.getDefaultAlgorithm())
    factory.init(store)
    return factory.getTrustManagers()


def _read(jvm: Any, pem: Path) -> list[Any]:
    factory = jvm.java.security.cert.CertificateFactory.getInstance("X.509")
    stream = jvm.java.io.FileInputStream(str(pem))
    try:
        return list(factory.generateCertificates(stream))
    finally:
        stream.close()
