#!/usr/bin/env bash
# evalica 0.4.2: five players, of any two the one earlier in the alphabet wins eight games of ten.
# One would expect the order a, b, c, d, e from each of the seven methods. eigen gives it backwards:
# the weakest player has the highest score. It iterates with the transposed matrix of wins, so that
# a player is scored by those who won against it. With all winners swapped, it gives a first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet evalica==0.4.2
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version
from itertools import combinations

import evalica
from evalica import Winner

METHODS = ("counting", "average_win_rate", "bradley_terry", "newman", "elo", "pagerank", "eigen")
pairs = list(combinations("abcde", 2)) * 10
left, right = zip(*pairs)
games = range(len(pairs))
winners = [Winner.X if game < 80 else Winner.Y for game in games]
swapped = [Winner.Y if game < 80 else Winner.X for game in games]


def order(method: str, results: list[Winner], solver: str) -> str:
    scores = getattr(evalica, method)(left, right, results, solver=solver).scores
    return "".join(scores.sort_values(ascending=False).index)


print("evalica", version("evalica"))
orders = {method: order(method, winners, "pyo3") for method in METHODS}
for method, players in orders.items():
    print(f"  {method}: expected abcde, seen {players}")
print("  eigen with all winners swapped:", order("eigen", swapped, "pyo3"))
assert [method for method in METHODS if orders[method] != "abcde"] == ["eigen"], "this has changed"
for solver in ("pyo3", "naive"):
    assert order("eigen", winners, solver) == "edcba", "what was seen has changed"
    assert order("eigen", swapped, solver) == "abcde", "what was seen has changed"
PYTHON
