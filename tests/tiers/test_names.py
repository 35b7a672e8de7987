"""Small ids: one for each name, the same for ever, and one set of sizes a fingerprint."""

import pytest

from kvstore.core.errors import FieldInvalid, LayoutMismatch
from kvstore.tiers.names import NameKind, NameRow, Names

SIZES = {"block_bytes": 1000, "block_tokens": 16, "ranks": 2}


def test_ids_start_at_one_and_stay():
    names = Names()
    assert names.tenant_id("default") == names.tenant_id("default") == 1
    assert names.tenant_id("other") == 2
    assert names.writer_id("engine", "1") == 1
    assert names.writer_id("engine", "2") == 2
    assert names.namespace_id(b"a", **SIZES, description={}) == 1
    assert names.namespace_id(b"b", **SIZES, description={}) == 2
    assert names.namespace_id(b"a", **SIZES, description={"told": "later"}) == 1


@pytest.mark.parametrize("field", SIZES)
def test_a_known_fingerprint_with_other_sizes_is_refused(field):
    names = Names()
    names.namespace_id(b"a", **SIZES, description={})
    with pytest.raises(LayoutMismatch, match=field) as refusal:
        names.namespace_id(b"a", **{**SIZES, field: 3}, description={})
    assert refusal.value.field == field
    assert refusal.value.remedy
    assert len(names.rows_after(0)) == 1


def test_sizes_find_their_namespaces():
    names = Names()
    first = names.namespace_id(b"a", 1000, 16, 2, {})
    second = names.namespace_id(b"b", 2000, 16, 1, {})
    names.namespace_id(b"c", 1000, 16, 1, {})
    assert names.namespaces_of_size(2000) == {first, second}


def test_loaded_rows_keep_their_ids():
    names = Names([NameRow(kind=NameKind.TENANT, id=7, name=b"seven")])
    assert names.tenant_id("seven") == 7
    assert names.tenant_id("next") == 8
    assert [row.name for row in names.rows_after(1)] == [b"next"]


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_names_out_of_bounds_are_refused(name):
    with pytest.raises(FieldInvalid):
        Names().tenant_id(name)


@pytest.mark.parametrize("value", [b"", b"[]", b"{", b'{"ranks": "many"}'])
def test_a_row_that_is_none_is_a_value_error(value):
    with pytest.raises(ValueError):  # noqa: PT011 - whichever: the disk tier catches them all
        Names([NameRow(kind=NameKind.NAMESPACE, id=1, name=b"a", value=value)])
