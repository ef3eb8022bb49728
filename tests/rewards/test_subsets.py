"""What fewer samples would have given: against every subset, counted one by one."""

import random
from itertools import combinations
from statistics import fmean

import pytest

from debate_rewards.vote_metrics import majority_of_subsets, pass_at, right_in_most


def voted(classes, right):
    """Return the share of right classes among the largest."""
    sizes = {number: classes.count(number) for number in classes if number is not None}
    largest = [number for number, size in sizes.items() if size == max(sizes.values())]
    return fmean(number in right for number in largest) if largest else 0.0


def test_majority_of_subsets_by_hand():
    # Two right, one wrong, one silent. One sample: 2/4 right. Two: of 6 pairs right-right 1,
    # right-wrong 2 (half each), right-silent 2, wrong-silent 1: (1 + 1 + 2) / 6. Three: of 4
    # triples right-right-wrong 1, right-right-silent 1, right-wrong-silent 2 (half): 3/4. Four: 1.
    found = majority_of_subsets([0, 0, 1, None], frozenset((0,)), 4)
    assert found == [pytest.approx(value) for value in (0.5, 4 / 6, 0.75, 1.0)]


def test_majority_of_subsets_is_the_mean_over_all_subsets():
    rng = random.Random(1)
    for _ in range(40):
        classes = [rng.choice([None, 0, 0, 1, 1, 2, 3]) for _ in range(rng.randint(1, 8))]
        right = frozenset(rng.sample(range(4), rng.choice([0, 1, 1, 2])))
        found = majority_of_subsets(classes, right, len(classes))
        for k, value in enumerate(found, 1):
            subsets = [voted(list(one), right) for one in combinations(classes, k)]
            assert value == pytest.approx(fmean(subsets), abs=1e-12)


def test_pass_and_cons_are_means_over_all_subsets():
    for right in range(7):
        hits = [True] * right + [False] * (6 - right)
        for k in range(1, 7):
            subsets = list(combinations(hits, k))
            assert pass_at(right, 6, k) == pytest.approx(fmean(map(any, subsets)))
            most = fmean(2 * sum(one) > k for one in subsets)
            assert right_in_most(right, 6, k) == pytest.approx(most)


@pytest.mark.parametrize("k", [0, 4])
def test_subsets_larger_than_what_there_is_are_refused(k):
    with pytest.raises(ValueError, match=f"k: found {k}, expected 1 to 3"):
        pass_at(1, 3, k)
    with pytest.raises(ValueError, match="expected 1 to 3"):
        majority_of_subsets([0, 1, 1], frozenset((0,)), k)
