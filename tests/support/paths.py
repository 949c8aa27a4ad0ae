"""Where the project's files are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
GOLDEN = ROOT / "tests" / "golden"
