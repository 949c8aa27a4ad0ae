"""GraphiQL, the editor of queries that a browser sees, from the files of dagster-webserver.

Its page holds no data: every query and subscription that it sends is admitted like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.util import find_spec
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from iscp_dagster.serve.access import Access

_SCRIPTS = (
    "react.production.min.js",
    "react-dom.production.min.js",
    "graphiql.min.js",
    "graphiql-plugin-explorer.umd.js",
)
_STYLES = ("graphiql.min.css", "graphiql-plugin-explorer-style.css")
_START = "start.js"
_MISSING = (
    "The page of GraphiQL needs the files of dagster-webserver: install iscp_dagster[local] beside "
    "this server. Queries are answered without it.\n"
)
# GraphiQL's editor writes styles into elements, and its style sheet holds its fonts.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src data:; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_STARTING = """\
const root = document.getElementById("graphiql");
const url = new URL(document.location.pathname, document.location.origin);
const socket = new URL(url);
socket.protocol = url.protocol === "https:" ? "wss:" : "ws:";
ReactDOM.createRoot(root).render(
  React.createElement(GraphiQL, {
    fetcher: GraphiQL.createFetcher({ url: url.href, subscriptionUrl: socket.href }),
    plugins: [GraphiQLPluginExplorer.explorerPlugin()],
    defaultQuery: root.dataset.query,
    defaultHeaders: root.dataset.headers,
    defaultEditorToolsVisibility: root.dataset.headers ? "headers" : true,
  }),
);
"""
_QUERY = "# Ctrl-Space completes, Ctrl-Enter runs the query.\n{\n  _tables\n}\n"


def is_page_request(request: Request) -> bool:
    """Whether a browser opens the page, rather than sends a query."""
    media_types = ",".join(request.headers.getlist("accept")).lower().split(",")
    accepted = {media_type.partition(";")[0].strip() for media_type in media_types}
    return (
        request.method in {"GET", "HEAD"}
        and "text/html" in accepted
        and "query" not in request.query_params
    )


class GraphiQLPage:
    """The page at `path`, and its files below it. Without the files it says which are missing."""

    def __init__(self, path: str, access: Access) -> None:
        self._path, self._files = path, _find_files()
        data = {"query": _QUERY}
        if not access.is_open:
            data["headers"] = json.dumps({"Authorization": "Bearer "}, indent=2)
        self._text = _render_page(path, data)

    def show(self) -> Response:
        """Return the page, or 404 with the remedy."""
        if self._files is None:
            return PlainTextResponse(_MISSING, 404, headers=_HEADERS)
        policy = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
        return HTMLResponse(self._text, headers={**_HEADERS, **policy})

    def list_routes(self) -> list[Route]:
        """Return the routes of the files that the page loads."""
        return [Route(f"{self._path}/graphiql/{{name}}", self._send_file, methods=["GET"])]

    async def _send_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == _START:
            return Response(_STARTING, headers=_HEADERS, media_type="text/javascript")
        if self._files is None or name not in {*_SCRIPTS, *_STYLES}:
            return PlainTextResponse("There is no such file.\n", 404, headers=_HEADERS)
        return FileResponse(self._files / name, headers={**_HEADERS, "Cache-Control": "no-cache"})


def _find_files() -> Path | None:
    """Return the directory of GraphiQL's files, without importing their package."""
    spec = find_spec("dagster_webserver")
    for folder in (spec and spec.submodule_search_locations) or ():
        files = Path(folder) / "webapp" / "build" / "vendor" / "graphiql"
        if all((files / name).is_file() for name in (*_SCRIPTS, *_STYLES)):
            return files
    return None


def _render_page(path: str, data: Mapping[str, str]) -> str:
    attributes = " ".join(f'data-{name}="{escape(value)}"' for name, value in data.items())
    styles = [f'<link rel="stylesheet" href="{path}/graphiql/{name}">' for name in _STYLES]
    scripts = [
        f'<script defer src="{path}/graphiql/{name}"></script>' for name in (*_SCRIPTS, _START)
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><title>GraphiQL</title>',
            '<link rel="icon" href="data:,">',
            *styles,
            "<style>body { margin: 0 } #graphiql { height: 100vh }</style>",
            *scripts,
            f'</head><body><div id="graphiql" {attributes}>Loading GraphiQL …</div></body></html>',
            "",
        ]
    )
