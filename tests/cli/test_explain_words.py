"""A decision in words: whom it concerns is said as far as it is known."""

from kvstore.cli.explain_words import describe
from kvstore.v1 import kvstore_pb2 as pb


def test_the_tenant_is_named_where_there_are_several() -> None:
    lot = pb.Decision(kind="admit", chosen="written to disk", reason="kept beyond the memory tiers")
    assert describe(lot).splitlines()[0].endswith(" UTC  admit: written to disk")
    lot.tenant = "acme"
    assert describe(lot).splitlines()[0].endswith(" UTC  admit of tenant acme: written to disk")


def test_a_sequence_is_named_with_its_engine_tenant_and_session() -> None:
    swap = pb.Decision(
        kind="swap", chosen="drop", engine="engines/1", sequence=7, tenant="acme", session="chat"
    )
    told = "swap of sequence 7 of engines/1 of tenant acme (session chat): drop"
    assert describe(swap).endswith(told)
