"""A comparison that is fitted to a column's type means the same as before."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.comparing import OPERATORS, fit_comparison
from iscp_dagster.serve.reads import nearest

TYPES = ("Int8", "UInt16", "Decimal(3, 2)", "Date", "DateTime", "DateTime64(3, 'UTC')")


@st.composite
def comparisons(draw):
    """Return a column, an operator, a literal near the type's values, and a place of a value."""
    column = build_column("a", parse_type(draw(st.sampled_from(TYPES))))
    step, least, most = column.grid
    places = st.one_of(
        st.integers(least, least + 3), st.integers(most - 3, most), st.integers(least, most)
    )
    near = draw(places) + draw(st.integers(-5, 5))
    literal = (near + draw(st.fractions(-1, 1, max_denominator=4))) * step
    return column, draw(st.sampled_from(sorted(OPERATORS))), literal, draw(places)


@settings(max_examples=300)
@given(comparisons())
def test_a_fitted_comparison_means_the_same(comparison):
    column, operator, literal, place = comparison
    step, least, most = column.grid
    result = OPERATORS[operator](Fraction(place) * step, literal)
    fitted = fit_comparison(column, operator, literal)
    if not fitted.operator:
        assert fitted.constant_result is result
        return
    assert least <= fitted.value <= most
    assert OPERATORS[fitted.operator](place, fitted.value) is result


def test_a_tenant_is_named_exactly_as_its_column_writes_values():
    names = ("7", "07", "x")
    number, text = (build_column("customer", parse_type(type_)) for type_ in ("Int64", "String"))
    assert [name for name in names if nearest._is_tenant_name(number, name)] == ["7"]
    assert [name for name in names if nearest._is_tenant_name(text, name)] == [*names]
