"""Full text: ClickHouse's `text` index (ClickHouse doc: Full-text search)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
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
    neither case nor the form of an accent matters; in a column kept as FixedString, only ASCII
    case is folded. ClickHouse folds only in a WHERE, see `NOTE`.
    """

    text: str | Sequence[str]
    _: KW_ONLY
    tokenizer: str = "splitByNonAlpha"
    kind: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        is_list = isinstance(self.text, list | tuple) and self.text
        columns = self.text if is_list else [self.text]
        if not all(isinstance(column, str) and column for column in columns):
            raise ConfigError(
                f"Full-text index {self.name!r}: text {self.text!r} names no column; give the name "
                "of one, or a list of names."
            )
        self.check("tokenizer", str, "text")

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return (self.text,) if isinstance(self.text, str) else tuple(self.text)

    def list_skip_indexes(self) -> Sequence[str]:
        return [self._render_index(column) for column in self.needed_columns]

    def _render_index(self, column: str) -> str:
        name, quoted = quote_identifier(f"{column}_text"), quote_identifier(column)
        # The normalization refuses other bytes than UTF-8, and FixedString.
        folded = f"normalizeUTF8NFKCCasefold(toValidUTF8({quoted}))"
        if "FixedString" in self.types.get(column, ""):
            folded = f"lower({quoted})"
        options = f"tokenizer = {self.tokenizer}, preprocessor = {folded}"
        return f"INDEX {name} {quoted} TYPE text({options})"

    def list_searches(self) -> Mapping[str, Search]:
        return {
            "words": Search(
                type="String",
                description="All words that a text has.",
                condition=self._render_words_condition,
            )
        }

    def _render_words_condition(self, words: str) -> str:
        columns = map(quote_identifier, self.needed_columns)
        return f"({' OR '.join(f'hasAllTokens({column}, {words})' for column in columns)})"

    def get_note(self) -> str:
        return NOTE
