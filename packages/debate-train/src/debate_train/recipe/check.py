"""`--check`: the plan and the problems of a recipe, without loading weights."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from debate_protocol.types import TRAINED
from debate_rewards.decisions import Informative, single_rules
from debate_train.data import DataSettings
from debate_train.errors import UsageError
from debate_train.models import ModelConfig
from debate_train.models.policies import folder_problems
from debate_train.recipe.arithmetic import collecting_line, forms_of_evaluations, phase_lines
from debate_train.recipe.context import TokenCounter
from debate_train.recipe.data_view import DataView, look_at_data, overlap_lines
from debate_train.recipe.doubts import (
    adapter_warnings,
    private_key_problems,
    run_warnings,
    split_warnings,
    warnings_of,
)
from debate_train.recipe.idle_settings import idle_settings
from debate_train.recipe.imitation import check_demonstrations, imitation_errors
from debate_train.recipe.policies import key_lines, missing_libraries, role_lines
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.refusals import Launch, run_errors
from debate_train.recipe.served_training import ask_server
from debate_train.recipe.signal_check import learns_from_rewards, streams_error, truth_error
from debate_train.recipe.stream_shares import stream_share_lines, valued_answers_line
from debate_train.recipe.windows import Windows


@dataclass(slots=True)
class CheckReport:
    """Lines, warnings and errors of a check. A recipe with errors must not run."""

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def check(
    recipe: Recipe, launch: Launch | None = None, *, model: ModelConfig | None = None
) -> CheckReport:
    """Check a recipe; loads no weights, downloads nothing, writes nothing.

    Args:
        recipe: The recipe.
        launch: The intended use; `None` for a single process, perhaps on another machine.
        model: Replaces the recipe's model while its checkpoint does not exist yet.
    """
    launch = launch or Launch()
    report = CheckReport()
    model = model or recipe.model
    check_model(model, report, launch.with_tokenizer)
    phases = recipe.phase_recipes()
    # Phases mostly share their data, which is read once: it may be large.
    data_by_identity = {_identity(stage.data): stage.data for stage in (recipe, *phases.values())}
    views = {key: look_at_data(data) for key, data in data_by_identity.items()}
    for view in views.values():
        report.lines += view.lines
        report.errors += view.errors
    try:
        report.lines += overlap_lines(views, data_by_identity, recipe.most_measured)
    except UsageError as refusal:
        report.errors.append(str(refusal))
    # Without a readable model folder there is no tokenizer to measure prompts with.
    windows = Windows(report.lines, report.errors, model)
    counter = None if report.errors else windows.counter(TRAINED, model)
    report.errors += run_errors(recipe, launch)
    for name, phase in phases.items():
        view = views[_identity(phase.data)]
        try:
            report.lines += phase_lines(name, phase)
        except UsageError as refusal:
            report.errors.append(str(refusal))
        report.lines += role_lines(phase)
        start_mode = phase.start_mode()
        if start_mode is not None:
            start_plays = start_mode.counted(phase.evaluated().form)
            report.lines.append(f"  evaluations from its start on also have {start_plays}")
        if counter is not None:
            phase_windows = replace(windows, lines=[])
            for form in phase.forms:
                phase_windows.compare(phase, form, view.longest)
            for form in forms_of_evaluations(phase):
                phase_windows.compare(phase, form, view.longest, "evaluation: ")
            # Forms that differ in other things than lengths have the same line.
            report.lines += dict.fromkeys(phase_windows.lines)
        if recipe.rollout.engine.is_sampled:
            _check_learning(name if recipe.phases else "", phase, view, counter, report)
        source = view.source
        is_demonstrated = not phase.rollout.engine.is_sampled
        if is_demonstrated and source is not None and not source.can_demonstrate:
            report.errors.append(
                f"phases.{name}.rollout.engine.type: found demonstrations, but data of type "
                f"{phase.data.type} has none; expected data.fields.solution in every row"
            )
    report.lines += key_lines(recipe)
    server_lines, server_warnings, server_errors = ask_server(recipe)
    report.lines += server_lines
    report.warnings += server_warnings
    report.errors += server_errors
    report.warnings += [*run_warnings(recipe), *adapter_warnings(recipe), *idle_settings(recipe)]
    # Missing libraries are no errors of a check: the recipe may run on another machine.
    if not launch.is_here:
        report.warnings += [*missing_libraries(recipe), *recipe.tracking.missing_libraries()]
    # Phases that share a fault report it each.
    report.warnings = list(dict.fromkeys(report.warnings))
    report.errors = list(dict.fromkeys(report.errors))
    return report


def _check_learning(
    name: str, phase: Recipe, view: DataView, counter: TokenCounter | None, report: CheckReport
) -> None:
    """Report obstacles to a phase's learning; `name` is empty in a recipe without phases."""
    has_answers = view.has_answers(phase.data)
    warnings = list(warnings_of(phase, answers=has_answers))
    errors = []
    select_rule = phase.rollout.select
    if phase.steps:
        # An error replaces the warning with the same cause.
        answers_problem = None if has_answers else truth_error(phase)
        if answers_problem is not None:
            errors.append(f"reward.type: {answers_problem}")
            warnings = [text for text in warnings if not text.endswith(answers_problem)]
        select_rules = () if select_rule is None else single_rules(select_rule)
        needs_answers = any(isinstance(rule, Informative) for rule in select_rules)
        if needs_answers and not has_answers:
            errors.append(
                "rollout.select: found informative, but no training question has an answer; "
                "expected data.fields.answer to name a key that rows have, or another rule"
            )
        streams_problem = streams_error(phase)
        if streams_problem is not None:
            errors.append(streams_problem)
            warnings = [text for text in warnings if not text.startswith("nothing is learned")]
        elif learns_from_rewards(phase):
            share_lines, share_warnings = stream_share_lines(
                phase, view.source, answers=has_answers
            )
            report.lines += share_lines
            valued_line = valued_answers_line(phase, view.source, answers=has_answers)
            if valued_line is not None:
                report.lines.append(valued_line)
            warnings += share_warnings
        errors += imitation_errors(phase)
    if view.source is not None:
        questions = phase.data.checked_questions(view.source)
        key_errors, key_warnings = private_key_problems(phase, questions, answers=has_answers)
        errors += key_errors
        warnings += key_warnings + split_warnings(phase, view.source)
        if counter is not None and phase.steps:
            error, warning = check_demonstrations(phase, view.source, counter)
            if error is not None:
                errors.append(error)
            if warning is not None:
                warnings.append(warning)
    report.warnings += [f"phase {name}: {text}" if name else text for text in warnings]
    report.errors += [f"phases.{name}.{text}" if name else text for text in errors]


def check_collecting(recipe: Recipe) -> CheckReport:
    """Check the keys used by `debate-rollout`, without weights and downloads."""
    report = CheckReport()
    if "tokens" in recipe.rollout.engine.capabilities:
        check_model(recipe.model, report)
    view = look_at_data(recipe.data)
    report.lines += view.lines
    report.errors += view.errors
    report.lines.append(collecting_line(recipe))
    report.lines += key_lines(recipe)
    if not report.errors:
        for form in recipe.forms:
            Windows(report.lines, report.errors).compare(recipe, form, view.longest)
    report.warnings += missing_libraries(recipe)
    return report


def _identity(data: DataSettings) -> str:
    """Write data as text, equal for all batch sizes."""
    return cast(BaseModel, data).model_dump_json(exclude={"batch_size"}, fallback=repr)


def check_model(model: ModelConfig, report: CheckReport, with_tokenizer: bool = True) -> None:
    """Report the model's name and problems of the directory."""
    if model.source is None:
        report.lines.append(f"model: made from scratch, window {model.context_window:,} tokens")
        return
    problems = folder_problems(model, with_tokenizer=with_tokenizer)
    report.errors += problems
    if not problems:
        is_here = Path(model.source).is_dir()
        note = "" if is_here else " (not here: a hub id, or one to fetch)"
        report.lines.append(f"model: {model.name}{note}")
