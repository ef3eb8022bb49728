#!/usr/bin/env bash
# open-spiel 2.0.2, voting by Schulze's method: four ballots in which c beats a 3 to 1, b beats d 3
# to 1, and all other pairs are tied. One would expect c before a and b before d, in every order of
# the alternatives. The ranking is a, b, c, d: a stands first, which beats no one. The code sorts
# by a comparison that says "equal" for a tie, and ties of this method are not transitive (a and b,
# b and c, but not a and c), while a sort relies on that and compares some pairs alone. Of 2,000
# random elections, 74 are ranked against their own strongest paths, 29 of them with a loser first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet open-spiel==2.0.2
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import random
from importlib.metadata import version
from itertools import permutations

from open_spiel.python.voting import base, schulze


def rank(ballots: list[str], alternatives: str) -> str:
    profile = base.PreferenceProfile([list(ballot) for ballot in ballots], list(alternatives))
    return "".join(schulze.SchulzeVoting().run_election(profile).ranking)


def strengths(ballots: list[str], alternatives: str) -> dict[tuple[str, str], int]:
    """Compute the strongest path of each pair, the weakest link of the best simple path."""

    def link(winner: str, loser: str) -> int:
        votes = sum(ballot.index(winner) < ballot.index(loser) for ballot in ballots)
        return votes if 2 * votes > len(ballots) else 0

    best = {pair: 0 for pair in permutations(alternatives, 2)}
    for length in range(2, len(alternatives) + 1):
        for path in permutations(alternatives, length):
            weakest = min(link(*pair) for pair in zip(path, path[1:]))
            ends = (path[0], path[-1])
            best[ends] = max(best[ends], weakest)
    return best


def beaten_pairs(ranking: str, best: dict[tuple[str, str], int]) -> list[tuple[str, str]]:
    """List the pairs that stand the wrong way round in a ranking."""
    pairs = [(first, second) for i, first in enumerate(ranking) for second in ranking[i + 1 :]]
    return [(first, second) for first, second in pairs if best[second, first] > best[first, second]]


BALLOTS = ["bdca", "abcd", "dcab", "cbad"]
ranking = rank(BALLOTS, "abcd")
wrong_pairs = beaten_pairs(ranking, strengths(BALLOTS, "abcd"))
print("open-spiel", version("open-spiel"))
print(f"expected: c before a, b before d; seen: {ranking}, against {wrong_pairs}")
orders = {rank(BALLOTS, "".join(order)) for order in permutations("abcd")}
print("rankings in other orders of the alternatives:", ", ".join(sorted(orders)))

draws = random.Random(0)
num_wrong = num_wrong_winners = 0
for _ in range(2000):
    ballots = ["".join(draws.sample("abcd", 4)) for _ in range(draws.randint(3, 8))]
    best = strengths(ballots, "abcd")
    ranking_of_draw = rank(ballots, "abcd")
    pairs = beaten_pairs(ranking_of_draw, best)
    num_wrong += bool(pairs)
    num_wrong_winners += any(first == ranking_of_draw[0] for first, _ in pairs)
print(f"of 2,000 elections {num_wrong} ranked wrongly, {num_wrong_winners} with a loser first")
assert ranking == "abcd" and wrong_pairs == [("a", "c")], "what was seen has changed"
assert num_wrong_winners > 0, "what was seen has changed"
PYTHON
