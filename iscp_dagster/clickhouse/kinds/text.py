"""Full text: ClickHouse's `text` index (ClickHouse doc: Full-text search)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.kinds.searching import Search
from iscp_dagster.model.errors import ConfigError

NOTE = (
    "hasAllTokens, hasAnyTokens and hasPhrase fold texts and words (Unicode NFKC_Casefold) where "
    "they are conditions of a WHERE, with the words as one text. They do not fold words in an "
    "array, and not in a SELECT list, an aggregate or a comparison such as = 0. NOT of one also "
    "selects rows whose text is NULL: add IS NOT NULL."
)
"""What the engine does, for the comment of the index view."""


@dataclass(frozen=True)
class FullText(IndexKind):
    """A mirror with a `text` index on each column in `text`, for word search.

    `tokenizer` is a tokenizer expression of ClickHouse's text index, such as
    `splitByNonAlpha` or `ngrams(3)`. Texts and words are folded by Unicode's NFKC_Casefold, so
    neither case nor the form of an accent matters; of a column kept as FixedString only the case
    of ASCII. ClickHouse folds in a WHERE alone, see `NOTE`.
    """

    text: str | Sequence[str]
    _: KW_ONLY
    tokenizer: str = "splitByNonAlpha"
    kind: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        several = isinstance(self.text, list | tuple) and self.text
        texts = self.text if several else [self.text]
        if not all(isinstance(each, str) and each for each in texts):
            raise ConfigError(
                f"Full-text index {self.name!r}: text {self.text!r} names no column; give the name "
                "of one, or a list of names."
            )
        self.check("tokenizer", str, "text")

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return (self.text,) if isinstance(self.text, str) else tuple(self.text)

    def skip_indexes(self) -> Sequence[str]:
        return [self._index(column) for column in self.needed_columns]

    def _index(self, column: str) -> str:
        name, quoted = ident(f"{column}_text"), ident(column)
        # The normalization refuses other bytes than UTF-8, and FixedString.
        folded = f"normalizeUTF8NFKCCasefold(toValidUTF8({quoted}))"
        if "FixedString" in self.types.get(column, ""):
            folded = f"lower({quoted})"
        options = f"tokenizer = {self.tokenizer}, preprocessor = {folded}"
        return f"INDEX {name} {quoted} TYPE text({options})"

    def searches(self) -> Mapping[str, Search]:
        return {
            "words": Search(
                type="String", description="All words that a text has.", condition=self._has_words
            )
        }

    def _has_words(self, words: str) -> str:
        texts = map(ident, self.needed_columns)
        return f"({' OR '.join(f'hasAllTokens({each}, {words})' for each in texts)})"

    def note(self) -> str:
        return NOTE
