#!/usr/bin/env bash
# reasoning-gym 0.1.25: one would expect a score of 1 for right answers alone. These wrong ones earn
# 1 from the verifiers of seven tasks: an expression of other numbers, and one that makes 24.5
# (puzzle24); the beginning of a decimal (coin_flip); each number .9 too large (number_sorting); the
# negated number (gsm_symbolic); a word too many (word_sorting); a row too many (game_of_life); and
# more text behind the word (spell_backward), which is sometimes paid more than 1. A policy that
# learns from these scores can learn any of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet reasoning-gym==0.1.25
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import ast
import json
from collections.abc import Callable
from importlib.metadata import version

import reasoning_gym


def raise_all(answer: str) -> str:
    return str([str(float(number) + 0.9) for number in ast.literal_eval(answer)])


def add_row(answer: str) -> str:
    grid = json.loads(answer)
    return json.dumps([*grid, [1] * len(grid[0])])


WRONG: dict[str, Callable[[str], str]] = {
    "puzzle24, other numbers": lambda answer: "4*6*1*1",
    "puzzle24, 24.5": lambda answer: "8*3+1/2",
    "coin_flip": lambda answer: answer[:-1],
    "number_sorting": raise_all,
    "gsm_symbolic": lambda answer: f"-{answer}",
    "word_sorting": lambda answer: f"{answer}, zzz",
    "game_of_life": add_row,
    "spell_backward": lambda answer: f"{answer} and more",
}
paid, highest = {}, 0.0
for name, make_wrong in WRONG.items():
    task = reasoning_gym.create_dataset(name.partition(",")[0], seed=0, size=20)
    scores = [task.score_answer(make_wrong(entry["answer"]), entry) for entry in task]
    paid[name] = sum(score >= 1 for score in scores)
    highest = max(highest, *scores)

print(f"reasoning-gym {version('reasoning-gym')}: wrong answers with a score of 1, of 20 each")
for name, count in paid.items():
    print(f"  {name}: {count}")
print(f"highest score: {highest!r}")
assert all(paid.values()) and highest > 1, "what was seen has changed"
PYTHON
