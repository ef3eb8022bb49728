"""What a recipe will do, said before it does it: batch arithmetic, context length, warnings."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from debate_protocol.forms import DebateForm
from debate_protocol.types import TRAINED
from debate_train.checks.check_context import TokenCounter
from debate_train.checks.check_data import DataView, look_at_data, many, overlap_lines
from debate_train.checks.check_engines import engine_errors, phase_errors
from debate_train.checks.check_imitation import imitation_errors, made_of, see_demonstrations
from debate_train.checks.check_learning import truth_errors
from debate_train.checks.check_policies import (
    adapter_warnings,
    key_lines,
    missing_libraries,
    policy_errors,
    role_lines,
)
from debate_train.checks.check_warnings import crash_cost, run_warnings, split_warnings, warnings_of
from debate_train.checks.check_windows import Windows
from debate_train.checks.step_counts import StepCounts, step_counts
from debate_train.data import DataConfig
from debate_train.errors import UsageError
from debate_train.evaluation import direct_form
from debate_train.losses.loss_inputs import reference_error
from debate_train.models.policies import folder_problems
from debate_train.playing.phase_start import start_lines
from debate_train.recipe import Recipe

SHARED_BY_PHASES = ("name", "seed", "model", "checkpoint", "tracking")
"""Keys that a run takes from the recipe as a whole; a phase cannot change them."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found. A recipe with errors must not run."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]

    def __str__(self) -> str:
        """Return all of it, one finding a line."""
        marked = [f"warning: {text}" for text in self.warnings]
        marked += [f"error: {text}" for text in self.errors]
        return "\n".join([*self.lines, *marked])


class Findings:
    """What is found while a recipe is checked."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.errors: list[str] = []


def check(recipe: Recipe, *, with_tokenizer: bool = True) -> CheckReport:
    """Check a recipe; loads no weights, downloads nothing, writes nothing.

    Without its tokenizer, a model in a directory needs a configuration alone.
    """
    found = Findings()
    check_model(recipe, found, with_tokenizer)
    phases = recipe.phase_recipes()
    views: dict[str, DataView] = {}
    for data in (recipe.data, *(phase.data for phase in phases.values())):
        if _identity(data) not in views:
            view = views[_identity(data)] = look_at_data(data)
            found.lines += view.lines
            found.errors += view.errors
    stages = {_identity(one.data): one.data for one in (recipe, *phases.values())}
    try:
        found.lines += overlap_lines(views, stages)
    except UsageError as refusal:
        found.errors.append(str(refusal))
    windows = Windows(found.lines, found.errors)
    counter = None if found.errors else windows.counter(TRAINED, recipe.model)
    found.errors += recipe.keep_problems() + list(engine_errors(recipe))
    found.errors += policy_errors(recipe, with_tokenizer=with_tokenizer)
    for name, phase in phases.items():
        view = views[_identity(phase.data)]
        _arithmetic(name, phase, found)
        found.lines += [*role_lines(phase), *start_lines(phase)]
        if counter is not None:
            for form in phase.forms:
                windows.look(phase, form, view.longest)
            for form in other_forms(phase):
                windows.look(phase, form, view.longest, "evaluation: ")
        where = f"phase {name}: " if recipe.phases else ""
        if recipe.rollout.engine.is_sampled:
            _check_learning(name if recipe.phases else "", phase, view, counter, found)
        found.errors += phase_errors(name, phase, recipe, view)
        if problem := phase.sampling_problem():
            found.errors.append(where + problem)
        if error := reference_error(phase.loss.reference_policy):
            found.errors.append(error)
        found.errors += [
            f"phases.{name}.{key}: found a difference, but a run has one {key}; expected it "
            "outside of phases"
            for key in SHARED_BY_PHASES
            if getattr(phase, key) != getattr(recipe, key)
        ]
    found.lines += key_lines(recipe)
    found.lines.append(crash_cost(recipe))
    found.warnings += [*run_warnings(recipe), *adapter_warnings(recipe)]
    # What to install before it can run here: it may run elsewhere.
    found.warnings += [*missing_libraries(recipe), *recipe.tracking.missing_libraries()]
    warnings, errors = (tuple(dict.fromkeys(one)) for one in (found.warnings, found.errors))
    return CheckReport(tuple(found.lines), warnings, errors)


def _check_learning(
    name: str, phase: Recipe, view: DataView, counter: TokenCounter | None, found: Findings
) -> None:
    """Say what a phase cannot learn; `name` is empty where there are no phases."""
    where, key = (f"phase {name}: ", f"phases.{name}.") if name else ("", "")
    answers = view.has_answers(phase.data)
    refused = list(truth_errors(phase, answers=answers)) if phase.steps else []
    found.errors += [key + f"reward.type: {text}" for text in refused]
    rule = phase.rollout.select
    if phase.steps and not answers and rule is not None and rule.needs_answers:
        found.errors.append(
            f"{key}rollout.select: found informative, which keeps questions answered both right "
            "and wrong, but no training question has an answer, so that all are left out; expected "
            "data.fields.answer to name a key that rows have, or another rule"
        )
    found.warnings += [
        where + text
        for text in warnings_of(phase, answers=answers)
        if not text.endswith(tuple(refused))  # What is refused needs no warning.
    ]
    if phase.steps:
        found.errors += [key + text for text in imitation_errors(phase)]
    if view.source is not None:
        found.warnings += [where + text for text in split_warnings(phase, view.source)]
    if view.source is not None and counter is not None:
        seen = see_demonstrations(phase, view.source, counter)
        found.warnings += [where + text for text in seen.warnings]
        found.errors += [key + text for text in seen.errors]


def check_collecting(recipe: Recipe) -> CheckReport:
    """Check what `debate-rollout` takes of a recipe; loads no weights, downloads nothing."""
    found = Findings()
    engine = recipe.rollout.engine
    if "tokens" in engine.capabilities:
        check_model(recipe, found)
    view = look_at_data(recipe.data)
    found.lines += view.lines
    found.errors += view.errors
    questions = recipe.steps * recipe.data.batch_size
    debates, direct, turns = (
        recipe.steps * n for n in step_counts(recipe, recipe.data.batch_size)[:3]
    )
    beside = f" and {many(direct, 'direct reply')}" if direct else ""
    found.lines.append(
        f"collect: {many(recipe.steps, 'step')} x {many(recipe.data.batch_size, 'question')} = "
        f"{many(questions, 'question')}; {many(debates, 'debate')}{beside}; "
        f"{many(turns, 'turn')}, at most {turns * recipe.rollout.max_tokens:,} tokens in replies"
    )
    found.lines += key_lines(recipe)
    if not found.errors:
        for form in recipe.forms:
            Windows(found.lines, found.errors).look(recipe, form, view.longest)
    return CheckReport(tuple(found.lines), tuple(missing_libraries(recipe)), tuple(found.errors))


def _identity(data: DataConfig) -> str:
    """Return the same text for data that differs in nothing but its batch size."""
    return cast(BaseModel, data).model_dump_json(exclude={"batch_size"})


def check_model(recipe: Recipe, found: Findings, with_tokenizer: bool = True) -> None:
    """Say which model it is, and what is wrong with its directory."""
    model = recipe.model
    if model.source is None:
        found.lines.append(f"model: made from scratch, window {model.context_window:,} tokens")
        return
    problems = folder_problems(model, with_tokenizer=with_tokenizer)
    found.errors += problems
    if Path(model.name).is_dir():
        found.lines.append(f"model: {model.name}")
    elif not problems:
        found.lines.append(f"model: {model.name} (hub id, not looked up here)")


def _arithmetic(name: str, phase: Recipe, found: Findings) -> None:
    """Say what one step and the whole phase play, in one vocabulary."""
    questions, copies = phase.data.batch_size, phase.rollout.debates_per_question
    counts = step_counts(phase, questions)
    debates, direct, turns, samples = counts[:4]
    trained = len(phase.debate.trained_agents())
    of_what = "turn" if samples == turns else "turn that is trained on"
    if samples < turns and samples - direct == debates * trained:
        of_what = "agent and debate"
    beside = f" + {many(direct, 'direct reply')}" if direct else ""
    steps, most = phase.steps, "" if phase.trainer.minibatch_size is None else "at most "
    rows = samples if phase.offline is None else phase.offline.batch_size
    updates = phase.trainer.update_count(rows)
    criterion = phase.exit_criterion
    extended = f" to {criterion.max_steps:,} (exit criterion)" if criterion else ""
    found.lines.append(
        f"phase {name}: {steps:,}{extended} steps of "
        f"{most}{'one optimizer update' if updates == 1 else f'{updates} optimizer updates'} each"
    )
    if phase.keep_if is not None:
        found.lines.append(f"  {phase.keep_if.described(name)}")
    if phase.offline is not None:
        try:
            found.lines += offline_lines(phase)
        except UsageError as error:
            found.errors.append(str(error))
        return
    found.lines += [
        f"  a step: {many(questions, 'question')} x {many(copies, 'debate')} = "
        f"{many(debates, 'debate')}; x {_shape(phase, counts)}{beside} = "
        f"{many(turns, 'turn')}; {many(samples, 'sample')} "
        f"(one for each {of_what})",
        f"  in all: {many(questions * steps, 'question')}, {many(debates * steps, 'debate')}, "
        f"{many(turns * steps, 'turn')}, {many(samples * steps, 'sample')}, "
        f"{most}{many(steps * updates, 'update')}, "
        f"at most {turns * steps * phase.rollout.max_tokens:,} tokens in replies",
    ]
    found.lines += [f"  {change}" for change in phase.reward.changes()]
    if phase.rollout.oversample > 1:
        found.lines.append(_oversampling_line(phase, counts.drawn_turns))
    if phase.pipeline.max_staleness:
        ahead = many(phase.pipeline.max_staleness, "step")
        found.lines.append(
            f"  up to {ahead} played ahead of training, with weights at most {ahead} old"
        )
    if phase.loss.supervised:
        found.lines.append("  supervised: log-probabilities are taken at temperature 1")
    else:
        found.lines.append(
            f"  temperatures {_temperatures(phase)}: log-probabilities are taken at them"
        )
    if phase.evaluation.questions:
        found.lines.append(evaluation_line(phase))


def _shape(phase: Recipe, counts: StepCounts) -> str:
    """Say how many turns a debate has, and how many debates go on after a gate."""
    form, forms, (first, *later) = phase.debate, phase.forms, counts.parts
    if len(forms) > 1:
        return f"{' or '.join(str(form.turn_count()) for form in forms)} turns"
    if later:
        more = (f", {part.debates:,} of them x {part.turns:,} more" for part in later)
        return many(first.turns, "turn") + "".join(more)
    if form.turn_count() != form.num_agents * form.max_rounds:
        return many(form.turn_count(), "turn")
    return f"{many(form.num_agents, 'agent')} x {many(form.max_rounds, 'round')}"


def offline_lines(phase: Recipe) -> list[str]:
    """Say what a phase plays once for its set of examples, and how many of these a step takes."""
    offline = phase.offline
    assert offline is not None
    lines = [
        f"  examples ({offline.type}), made once: {made_of(phase)}",
        f"  a step: {offline.batch_size:,} of them; in all {offline.batch_size * phase.steps:,}, "
        "epoch after epoch",
        "  supervised: log-probabilities are taken at temperature 1",
    ]
    return lines + ([evaluation_line(phase)] if phase.evaluation.questions else [])


def _oversampling_line(phase: Recipe, turns: int) -> str:
    """Say how many questions a step may draw; `turns` are those of all of them."""
    batches, questions = phase.rollout.oversample, phase.data.batch_size
    return (
        f"  a step draws up to {batches} batches of {many(questions, 'question')} until "
        f"{questions:,} are kept: at most {turns * phase.rollout.max_tokens:,} tokens in replies"
    )


def evaluation_line(phase: Recipe) -> str:
    """Say what an evaluation plays, in all its modes."""
    setup, questions = phase.evaluated(), phase.evaluation.questions
    each = [mode.counted(setup.form) for mode in setup.modes.values()]
    turns = sum(one.turns for _, one in setup.plays()) * questions * setup.runs
    return (
        f"  an evaluation: {many(questions, 'question')} at most, each with "
        f"{' and '.join(filter(None, each)) or 'nothing to play'}; {setup.described()}; at most "
        f"{many(turns, 'turn')}, {turns * phase.rollout.max_tokens:,} tokens in replies"
    )


def other_forms(phase: Recipe) -> list[DebateForm]:
    """Return the forms that evaluations play and training does not, each once."""
    if not phase.evaluation.questions:
        return []
    known, found = [*phase.forms, direct_form(phase.debate)], []
    played = sorted(phase.evaluated().plays(), key=lambda one: -one[1].form.turn_count())
    for form in (one.form for _, one in played):
        if form not in known:
            found.append(form)
            known += [form, direct_form(form)]  # Whose prompt is none longer than the debate's.
    return found


def _temperatures(phase: Recipe) -> str:
    each = [phase.debate.temperature_of(i) for i in range(phase.debate.num_agents)]
    return ", ".join(f"{t:g}" for t in (each if len(set(each)) > 1 else each[:1]))
