#!/usr/bin/env bash
# math-verify 0.9.0: one would expect a number to be read whole, or not at all. The repeating digits
# of a decimal, the base of a number and the degree sign of an angle are dropped without a word:
# 0.333... is read as 0 and equals 0.777..., but not 1/3; 101 in base 2 equals 101 in base 3 and in
# base 10, but not 5; sin 30 degrees is the sine of 30 radians, and not 1/2. Six of the 500 golds of
# MATH-500 are numbers in bases, such as 2516 in base 8.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet math-verify==0.9.0 "latex2sympy2_extended[antlr4_13_2]==1.11.0"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from math_verify import parse, verify

EXPECTED = {
    (r"0.\overline{3}", r"0.\overline{7}"): False,
    (r"0.\overline{3}", r"\frac{1}{3}"): True,
    (r"101_2", r"101_3"): False,
    (r"101_2", r"101"): False,
    (r"101_2", r"5"): True,
    (r"\sin 30^\circ", r"\sin 30"): False,
    (r"\sin 30^\circ", r"\frac{1}{2}"): True,
}
print("math-verify", version("math-verify"))
print(f"{'gold':16} {'answer':16} expected  seen   gold is read as")
num_missed = 0
for (gold, answer), expected in EXPECTED.items():
    gold_values = parse(f"${gold}$")
    seen = verify(gold_values, parse(f"${answer}$"))
    num_missed += seen != expected
    print(f"{gold:16} {answer:16} {expected!s:8}  {seen!s:5}  {gold_values[0]}")
assert num_missed == len(EXPECTED), "what was seen has changed"
PYTHON
