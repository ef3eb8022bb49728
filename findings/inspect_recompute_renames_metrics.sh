#!/usr/bin/env bash
# inspect-ai 0.3.285: recompute_metrics on a log whose results have the metric "mean", but whose
# header does not list the scorer (eval.scorers), as logs written by other tools do. One would
# expect the metrics of the log to be computed again under their names. It answers with "accuracy"
# and "stderr" instead, and its mean is of questions: three epochs of one question at 0 and one
# question at 1 give 0.5, not the 0.25 over samples.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet inspect-ai==0.3.285
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

from inspect_ai.log import read_eval_log, recompute_metrics

NOW = "2026-01-01T00:00:00+00:00"


def sample(name: str, epoch: int, won: float) -> dict:
    return {
        "id": name, "epoch": epoch, "input": "?", "target": "", "messages": [],
        "scores": {"won": {"value": won}},
    }


def log_file(scorers: list[dict]) -> dict:
    mean = {"mean": {"name": "mean", "value": 0.25}}
    return {
        "version": 2, "status": "success",
        "eval": {
            "created": NOW, "task": "t", "model": "m", "config": {"epochs": 3},
            "dataset": {"name": "t", "samples": 2, "sample_ids": ["q", "r"]},
        } | ({"scorers": scorers} if scorers else {}),
        "plan": {},
        "results": {
            "total_samples": 4, "completed_samples": 4,
            "scores": [{"name": "won", "scorer": "won", "metrics": mean}],
        },
        "stats": {"started_at": NOW, "completed_at": NOW},
        "samples": [sample("q", epoch, 0.0) for epoch in (1, 2, 3)] + [sample("r", 1, 1.0)],
    }


def recomputed(scorers: list[dict]) -> dict[str, float]:
    path = Path(sys.argv[1], "2026-01-01T00-00-00_t.json")
    path.write_text(json.dumps(log_file(scorers)))
    log = read_eval_log(str(path))
    recompute_metrics(log)
    return {name: metric.value for name, metric in log.results.scores[0].metrics.items()}


named = [{"name": "won", "metrics": [{"name": "inspect_ai/mean"}]}]
unnamed, with_names = recomputed([]), recomputed(named)
print("inspect-ai", version("inspect-ai"))
print("expected without eval.scorers: {'mean': 0.25}; seen:", unnamed)
print("with eval.scorers naming inspect_ai/mean:", with_names)
assert "mean" not in unnamed and with_names == {"mean": 0.5}, "this has changed"
PYTHON
