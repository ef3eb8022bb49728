#!/usr/bin/env bash
# choix 0.4.1: six players in a row, each of which beat the next eight times of ten; others never
# met. One would expect a regularization of alpha=1e-12 to change nothing, as in ilsr_pairwise. In
# rank_centrality it flattens the strengths, from 3.5 to 0.2 for the first player, and puts the
# third above the second, by whom it was beaten. alpha is added to the wins of all pairs before
# they become shares, so each pair that never met becomes a tie, which counts as much as ten games.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet choix==0.4.1
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import choix
import numpy as np

NUM_PLAYERS = 6
games = []
for player in range(NUM_PLAYERS - 1):
    games += [(player, player + 1)] * 8 + [(player + 1, player)] * 2

print("choix", version("choix"))
strengths = {}
for method in (choix.ilsr_pairwise, choix.rank_centrality):
    for alpha in (0.0, 1e-12):
        values = method(NUM_PLAYERS, games, alpha=alpha)
        strengths[method.__name__, alpha] = values
        print(f"  {method.__name__}, alpha={alpha:g}: {values.round(3).tolist()}")
expected = strengths["rank_centrality", 0.0]
seen = strengths["rank_centrality", 1e-12]
print("expected from rank_centrality with alpha=1e-12: nearly the row above it")
assert np.allclose(strengths["ilsr_pairwise", 0.0], strengths["ilsr_pairwise", 1e-12], atol=1e-3)
assert expected[0] > 3 and seen[0] < 0.3 and seen[2] > seen[1], "what was seen has changed"
PYTHON
