"""Rows of metrics, recorded and made up, and what the health monitor says of them.

`health_rows.json` holds what detectors read of some runs, as benchmarks/learning/health_runs.py
writes it.
"""

import json
from pathlib import Path
from typing import Any

from debate_train.monitoring.health import HealthMonitor, alarms_of, is_evaluation
from debate_train.recipe import Recipe
from debate_train.running.step_metrics import facts_of
from train.small_recipes import recipe_of

RECORDED = json.loads(Path(__file__).with_name("health_rows.json").read_text())
ALARMS: dict[str, dict[str, int]] = RECORDED["alarms"]
"""What the watch said during each run: the step of each alarm, by detector."""
Rows = list[dict[str, Any]]


RECIPE = """\
name: t
steps: 100
model: {type: scratch}
data: {type: signs_puzzle, batch_size: 3}
debate: {type: simultaneous, num_agents: 3, max_rounds: 2, style: compact, personas: none}
reward: {type: v2}
loss: {type: ppo_clip, kl: {weight: 0.1}}
"""
PAIRS = """\
debate.type=actor_critic debate.contract=answer_line debate.guided=true debate.continuations=1
offline.type=guided_pairs offline.role=critic reward.type=partial_trajectory loss.type=dpo
evaluation.questions=256
"""
"""Changes that make a phase learn from guided pairs."""


def recipe(changes: str = "", **sections: Any) -> Recipe:
    return recipe_of(RECIPE, changes, **sections)


def of_pairs(changes: str = "") -> Recipe:
    return recipe_of(RECIPE, f"{PAIRS} {changes}")


def recorded(name: str) -> Rows:
    """Read the rows of a recorded run; a metric that a row lacks is null in the file."""
    columns, *table = RECORDED[name]
    rows = []
    for values in table:
        row = {key: v for key, v in zip(columns, values, strict=True) if v is not None}
        rows.append(row | {"phase": "t"})
    return rows


def watch_of(form: Recipe, rows: Rows, start: int) -> HealthMonitor:
    return HealthMonitor("t", form.health, facts_of(form), rows, start)


def watched(rows: Rows, form: Recipe | None = None) -> dict[str, int]:
    """Let a watch see the rows, to which it adds its figures; the step of each alarm."""
    if form is None:
        is_of_pairs = "optim/preference_margin" in rows[-1] | rows[1]
        form = of_pairs() if is_of_pairs else recipe()
    start_rows = [row for row in rows[:1] if is_evaluation(row)]  # What was measured of the start.
    watch = watch_of(form, start_rows, rows[0]["step"] - (not start_rows))
    for row in rows[len(start_rows) :]:
        kind = "evaluation" if is_evaluation(row) else "step"
        figures, warnings = watch.see(row["step"], row, kind)
        row.update(figures)
        assert len(warnings) == sum(key.startswith("health/alarm/") for key in figures)
    return {alarm["detector"]: alarm["step"] for alarm in alarms_of(rows)}


def steady(num_steps: int = 20, **metrics: float) -> Rows:
    return [{"step": n + 1, "phase": "t", "loss": 0.0, **metrics} for n in range(num_steps)]


def evaluation(step: int, **figures: float) -> dict[str, Any]:
    named = {f"eval/{name}": value for name, value in figures.items()}
    return {"step": step, "phase": "t", **named}


def changing(metric: str, before: float, after: float) -> Rows:
    """Rows in which one metric goes from a value to another at step 11."""
    rows = steady()
    for row in rows:
        row[metric] = before if row["step"] <= 10 else after
    return rows
