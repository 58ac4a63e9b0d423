import itertools

from tests.pairs import covering


def test_every_pair_occurs():
    axes = ("abc", (None, 1), (True, False), range(5))
    for strength in (2, 3):
        found = covering(*axes, strength=strength)
        for columns in itertools.combinations(range(4), strength):
            wanted = set(itertools.product(*(axes[i] for i in columns)))
            assert {tuple(row[i] for i in columns) for row in found} == wanted
    assert 15 <= len(covering(*axes)) <= 18 and covering(*axes) == covering(*axes)
