"""Rows of metrics, recorded and made up, and what the health watch says of them.

`health_rows/` holds what detectors read of some runs, as benchmarks/learning/health_runs.py writes
it.
"""

import json
from pathlib import Path
from typing import Any

from debate_train.monitoring.health import HealthWatch, alarms_of, is_evaluation
from debate_train.recipe import Recipe
from debate_train.running.step_metrics import facts_of

ROWS = Path(__file__).parent / "health_rows"
ALARMS: dict[str, dict[str, int]] = json.loads((ROWS / "alarms.json").read_text())
"""What the watch said during each run: the step of each alarm, by detector."""
Rows = list[dict[str, Any]]


def recipe(health: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 100,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 3},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "reward": {"type": "v2"},
        "loss": {"type": "ppo_clip", "kl": {"weight": 0.1}},
        "health": health or {},
    }
    return Recipe.model_validate(settings | changes)


def of_pairs(health: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """Return a recipe whose phase learns from guided pairs, with evaluations on 256 questions."""
    settings: dict[str, Any] = {
        "debate": {
            "type": "actor_critic",
            "contract": "answer_line",
            "guided": True,
            "continuations": 1,
        },
        "offline": {"type": "guided_pairs", "role": "critic"},
        "reward": {"type": "partial_trajectory"},
        "loss": {"type": "dpo"},
        "evaluation": {"questions": 256},
    }
    return recipe(health, **(settings | changes))


def recorded(name: str) -> Rows:
    columns, *rows = json.loads((ROWS / f"{name}.json").read_text())
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    return [{key: v for key, v in row.items() if v is not None} | {"phase": "t"} for row in found]


def watch_of(form: Recipe, rows: Rows, start: int) -> HealthWatch:
    return HealthWatch("t", form.health, facts_of(form), rows, start)


def watched(rows: Rows, form: Recipe | None = None) -> dict[str, int]:
    """Return the step of each alarm, by detector."""
    own = of_pairs if "optim/preference_margin" in rows[-1] | rows[1] else recipe
    begun = [row for row in rows[:1] if is_evaluation(row)]  # What was measured of the start.
    watch = watch_of(form or own(), begun, rows[0]["step"] - (not begun))
    for row in rows[len(begun) :]:
        found, said = watch.see(row["step"], row, "evaluation" if is_evaluation(row) else "step")
        row.update(found)
        assert len(said) == sum(key.startswith("health/alarm/") for key in found)
    return {one["detector"]: one["step"] for one in alarms_of(rows)}


def steady(count: int = 20, **values: float) -> Rows:
    return [{"step": n + 1, "phase": "t", "loss": 0.0, **values} for n in range(count)]


def evaluation(step: int, **figures: float) -> dict[str, Any]:
    return {"step": step, "phase": "t"} | {f"eval/{k}": v for k, v in figures.items()}


def changing(metric: str, before: float, after: float, **values: float) -> Rows:
    """Return rows in which one metric goes from a value to another at step 11."""
    rows = steady(**values)
    for row in rows:
        row[metric] = before if row["step"] <= 10 else after
    return rows
