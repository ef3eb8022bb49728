#!/usr/bin/env bash
# crowd-kit 1.4.2, NoisyBradleyTerry: three workers rank eight answers rightly in all 56 ordered
# pairs, a fourth names the worse answer each time. One would expect a fit of the likelihood: the
# same order from every random_state, and the fourth worker's skill below the others'. Both
# follow the random start instead. The class hands the optimizer a gradient that is not its
# likelihood's: the entries of workers stand one place too early, and each vote overwrites the
# worker's last one. With a numerical gradient, each start leads to what was expected.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet crowd-kit==1.4.2
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version
from itertools import permutations

import pandas as pd
from crowdkit.aggregation import NoisyBradleyTerry
from crowdkit.aggregation.pairwise import noisy_bt

RIGHT = ("abcdefgh", "opposite")
votes = []
for left, right in permutations("abcdefgh", 2):
    votes += [(worker, left, right, min(left, right)) for worker in ("w1", "w2", "w3")]
    votes.append(("opposite", left, right, max(left, right)))
data = pd.DataFrame(votes, columns=["worker", "left", "right", "label"])


def fit_from_five_starts() -> set[tuple[str, str]]:
    outcomes = set()
    for seed in range(5):
        model = NoisyBradleyTerry(n_iter=1000, random_state=seed).fit(data)
        order = "".join(model.scores_.sort_values(ascending=False).index)
        print(f"  {seed}: {order}; skills {model.skills_.round(2).to_dict()}")
        outcomes.add((order, model.skills_.idxmin()))
    return outcomes


def minimize_without_gradient(function, start, jac, **settings):
    return minimize(function, start, **settings)


print("crowd-kit", version("crowd-kit"))
print("expected from every random_state: abcdefgh, and the lowest skill is opposite's; seen:")
with_its_gradient = fit_from_five_starts()
minimize = noisy_bt.minimize
noisy_bt.minimize = minimize_without_gradient
print("the same optimizer with a numerical gradient:")
with_numerical_gradient = fit_from_five_starts()
assert len(with_its_gradient) > 1, "what was seen has changed"
assert with_numerical_gradient == {RIGHT}, "the likelihood has another maximum now"
PYTHON
