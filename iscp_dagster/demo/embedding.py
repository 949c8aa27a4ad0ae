"""Sentence embeddings from a real model, which its package contains."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster.model.imports import require_extra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIMENSION = 256


@lru_cache(maxsize=1)
def _load_model() -> Any:
    require_extra("demo", "an embedding of texts")
    import wordllama

    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, dim=DIMENSION, disable_download=True)


def embed_texts(texts: list[str]) -> NDArray[np.float32]:
    """One vector of length 1 per text: shape (texts, 256). An empty text gives zeros."""
    import numpy as np

    if not texts:
        return np.zeros((0, DIMENSION), dtype=np.float32)
    vectors: NDArray[np.float32] = _load_model().embed(texts, norm=True)
    return np.nan_to_num(vectors).astype(np.float32)
