"""The list of faults that the tests must find can be planted still. To plant takes minutes: `make mutate`."""

from pathlib import Path

import pytest

from tools.mutate import LIST, Mutation, plant, read_mutations

ROOT = Path(__file__).parent.parent
MUTATIONS = read_mutations(LIST.read_text())


def test_there_are_as_many_as_were_promised():
    assert len({each.name for each in MUTATIONS}) == len(MUTATIONS) >= 25
    assert len({(each.path, each.old, each.new) for each in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_can_be_planted(mutation: Mutation):
    source = (ROOT / mutation.path).read_text()
    assert plant(mutation, source) != source


def test_lines_that_are_not_there_once_are_refused():
    mutation = Mutation(name="a fault", path="a.py", old="a = 1\n", new="a = 2\n")
    assert plant(mutation, "a = 1\nb = 1\n") == "a = 2\nb = 1\n"
    for source in ("", " a = 1\n", "a = 1\nb = 1\na = 1\n", "a = 1\na = 1\n"):
        with pytest.raises(ValueError, match=r"a fault: its lines stand . times"):
            plant(mutation, source)
    with pytest.raises(SyntaxError):
        plant(Mutation(name="a fault", path="a.py", old="a = 1\n", new="a =\n"), "a = 1\n")
    with pytest.raises(ValueError, match="begin with"):
        read_mutations("intro\n\na fault\na.py\n+a = 2\n")
