"""Small ids: one for each name, the same for ever, and one set of sizes a fingerprint."""

import pytest

from kvstore.core.errors import FieldInvalid, LayoutMismatch
from kvstore.tiers.names import NameKind, NameRow, Names

NO_SIZES = [
    *(b"", b"[]", b"{", b"null", b"\xff\xfe{", b"[" * 100_000, b'{"ranks": "many"}'),
    *(
        b'{"block_bytes": %s, "block_tokens": 16, "ranks": 1}' % size
        for size in (b"null", b"1e999", b"true", b"0", b"-5", b'"x"', b"9" * 5000)
    ),
]
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


def test_an_id_leads_back_to_its_name():
    names = Names([NameRow(kind=NameKind.TENANT, id=7, name=b"old")])
    names.namespace_id(b"a", **SIZES, description={})
    assert names.name_of(NameKind.TENANT, names.tenant_id("new")) == b"new"
    assert names.name_of(NameKind.TENANT, 7) == b"old"
    assert names.name_of(NameKind.NAMESPACE, 1) == b"a"
    assert names.name_of(NameKind.WRITER, 1) == b"", "none was given out"


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


@pytest.mark.parametrize("value", NO_SIZES)
def test_a_row_that_is_none_is_a_value_error(value):
    with pytest.raises(ValueError, match="not a namespace's sizes"):
        Names([NameRow(kind=NameKind.NAMESPACE, id=1, name=b"a", value=value)])


@pytest.mark.parametrize("kind", NameKind)
def test_an_id_belongs_to_one_name(kind):
    value = b'{"block_bytes": 1, "block_tokens": 1, "ranks": 1}'
    rows = [NameRow(kind=kind, id=3, name=name, value=value) for name in (b"a", b"b")]
    with pytest.raises(ValueError, match=f"two entries of {kind} with id 3"):
        Names(rows)


def test_reserved_ids_are_not_given_out():
    names = Names()
    names.reserve(NameKind.WRITER, 7)
    names.reserve(NameKind.WRITER, 3)
    assert names.writer_id("engine", "1") == 8
    assert names.tenant_id("default") == 1


def test_what_is_known_can_be_looked_up_and_is_not_added() -> None:
    names = Names()
    fingerprint = b"f" * 32
    namespace = names.namespace_id(fingerprint, 6000, 4, 1, {})
    first, second = names.writer_id("engine", "build 1"), names.writer_id("engine", "build 2")
    names.writer_id("engine-2", "build 1")
    assert names.find_namespace(fingerprint) == namespace
    assert names.find_namespace(b"g" * 32) is None
    assert names.writers_of("engine") == (first, second)
    assert names.writers_of("eng") == ()
    assert len(names.rows_after(0)) == 4
