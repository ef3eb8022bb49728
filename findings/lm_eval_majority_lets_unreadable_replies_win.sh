#!/usr/bin/env bash
# lm-eval 0.4.13, maj@8 of its task gsm8k_cot_self_consistency, gold 1000: one would expect a vote
# of the answers that were read, with answers that the metric takes for equal as one. The vote
# comes before the metric, of texts: "[invalid]", which stands for a reply that could not be read,
# is an answer like others, and four such replies beat three right ones; "1,000" and "1000", which
# the metric both takes for the gold, split their votes, and three replies of 990 beat four right
# ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lm_eval==0.4.13 pyyaml==6.0.3
HF_HOME="$folder/cache" "$folder/venv/bin/python" -W ignore - 2>/dev/null <<'PYTHON'
from importlib.metadata import version
from pathlib import Path

import lm_eval
import yaml
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.filters import build_filter_ensemble

EXPECTED = "1000"
CASES = {
    "three right, one wrong, four unreadable": ["1000"] * 3 + ["850"] + [None] * 4,
    "four right, three 990, one 850": ["1,000"] * 2 + ["1000"] * 2 + ["990"] * 3 + ["850"],
}
SEEN = [("[invalid]", 0.0), ("990", 0.0)]
tasks = Path(lm_eval.__file__).parent / "tasks/gsm8k"
with_votes = yaml.safe_load((tasks / "gsm8k-cot-self-consistency.yaml").read_text())
(metric,) = yaml.safe_load((tasks / "gsm8k-cot.yaml").read_text())["metric_list"]
(maj8,) = [pipeline for pipeline in with_votes["filter_list"] if pipeline["name"] == "maj@8"]
components = [(step.pop("function"), step) for step in maj8["filter"]]


def score(answer: str) -> float:
    settings = {key: metric[key] for key in ("ignore_case", "regexes_to_ignore")}
    return float(exact_match_hf_evaluate([answer], [EXPECTED], **settings)["exact_match"])


def decide(answers: list[str | None]) -> str:
    question = Instance(request_type="generate_until", doc={}, arguments=("",), idx=0)
    for answer in answers:
        question.resps.append(f"The answer is {answer}." if answer else "There are 40 boxes of")
    build_filter_ensemble("maj@8", components).apply([question])
    return question.filtered_resps["maj@8"]


print("lm-eval", version("lm_eval"))
decisions = [(decide(answers), score(decide(answers))) for answers in CASES.values()]
for case, (decision, decision_score) in zip(CASES, decisions):
    print(f"  {case}: expected {EXPECTED}, seen {decision}, score {decision_score}")
assert decisions == SEEN, "what was seen has changed"
assert score("1,000") == score("1000") == 1.0, "the metric tells them apart now"
PYTHON
