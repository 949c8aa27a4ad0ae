"""Settings of the package's tests."""

from hypothesis import settings

# A test that runs slowly on a busy machine has not failed.
settings.register_profile("chdb_http", deadline=None)
settings.load_profile("chdb_http")
