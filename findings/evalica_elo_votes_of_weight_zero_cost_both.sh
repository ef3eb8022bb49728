#!/usr/bin/env bash
# evalica 0.4.2, elo with weights: one would expect a vote of weight 0 to change nothing, and a vote
# of weight w to move both ratings w times as far. The weight multiplies the outcome and not the
# expectation: a vote of weight 0 costs both players half of k, a draw of equals at weight 0.5 costs
# both a quarter, and at weight 2 both gain. The sum of ratings, which Elo keeps, follows the
# weights, so votes that were weighted down punish whoever received many of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet evalica==0.4.2
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from evalica import Winner, counting, elo


def ratings(winner: Winner, weight: float, solver: str) -> list[float]:
    scores = elo(["a"], ["b"], [winner], weights=[weight], k=4, solver=solver).scores
    return [round(float(scores[player]), 6) for player in "ab"]


EXPECTED = {
    (Winner.X, 1.0): [1002.0, 998.0],
    (Winner.X, 0.0): [1000.0, 1000.0],
    (Winner.X, 0.5): [1001.0, 999.0],
    (Winner.Draw, 0.5): [1000.0, 1000.0],
    (Winner.Draw, 2.0): [1000.0, 1000.0],
}
SEEN = [[1002.0, 998.0], [998.0, 998.0], [1000.0, 998.0], [999.0, 999.0], [1002.0, 1002.0]]
print(f"evalica {version('evalica')}: ratings of a and b, 1000 at first, after one vote (k = 4)")
for (winner, weight), expected in EXPECTED.items():
    seen = ratings(winner, weight, "pyo3")
    print(f"  winner {winner.name}, weight {weight}: expected {expected}, seen {seen}")
for solver in ("pyo3", "naive"):
    assert [ratings(*vote, solver) for vote in EXPECTED] == SEEN, "what was seen has changed"
votes = counting(["a"], ["b"], [Winner.X], weights=[0.0]).scores
assert votes.to_dict() == {"a": 0, "b": 0}, "counting takes weight 0 otherwise now"
PYTHON
