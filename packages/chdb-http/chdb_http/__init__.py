"""ClickHouse for tests and small machines: chDB behind ClickHouse's HTTP interface.

`python -m chdb_http --path FOLDER` serves; `launch(FOLDER)` does so in a child process.
"""

from chdb_http.errors import StartError
from chdb_http.http.auth import Account
from chdb_http.process import ServerProcess, launch

__all__ = ["Account", "ServerProcess", "StartError", "launch"]
