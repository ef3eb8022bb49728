"""What an evaluation without a run will do, said before it does it."""

from debate_train.checks.check import CheckReport, Findings, check_model, evaluation_line
from debate_train.checks.check_data import look_at_data, many
from debate_train.checks.check_policies import missing_libraries, policy_errors
from debate_train.checks.check_windows import Windows
from debate_train.evaluating.evaluating import Evaluating

_WEIGHTS = ("full_weights", "lora")


def check_evaluating(wanted: Evaluating) -> CheckReport:
    """Check what an evaluation takes of a recipe; loads no weights, downloads nothing."""
    recipe, engine, found = wanted.recipe, wanted.recipe.rollout.engine, Findings()
    if "tokens" in engine.capabilities:
        check_model(recipe, found)
    view = look_at_data(recipe.data, trains=False)
    found.lines += view.lines
    found.errors += [*view.errors, *policy_errors(recipe)]
    named = [policy.source for policy in wanted.policies if policy.model is not None]
    if named and not engine.capabilities.intersection(_WEIGHTS):
        found.errors.append(
            f"--policy: found {named[0]!r} with rollout.engine.type {engine.type}, which takes "
            "no weights; expected transformers, vllm or vllm_server, or the recipe's own model"
        )
    setup = recipe.evaluated()
    if recipe.evaluation.questions < 1:
        found.errors.append(
            "evaluation.questions: found 0; expected at least one question (--questions)"
        )
    elif not any(True for _ in setup.plays()):
        found.errors.append("evaluation.modes: found none that plays anything; expected one")
    else:
        found.lines.append(evaluation_line(recipe))
        count = many(len(wanted.policies), "policy")
        found.lines.append(f"  {count}: {', '.join(one.name for one in wanted.policies)}")
    if not found.errors:
        windows, known = Windows(found.lines, found.errors), []
        for _, plays in sorted(setup.plays(), key=lambda one: -one[1].form.turn_count()):
            if plays.form not in known:
                windows.look(recipe, plays.form, view.longest, "evaluation: ")
                known.append(plays.form)
    lines = tuple(dict.fromkeys(found.lines))  # Seats of one mode have much in common.
    return CheckReport(lines, tuple(missing_libraries(recipe)), tuple(found.errors))
