"""What a recipe will do, said before it does it: batch arithmetic, context length, warnings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from debate_protocol.forms import DebateForm
from debate_protocol.plugins import did_you_mean
from debate_protocol.types import TRAINED
from debate_train.advantages import SECTIONS
from debate_train.data import DataSettings, DataSource
from debate_train.data.source import Split
from debate_train.data.splits import identity
from debate_train.errors import UsageError
from debate_train.losses import reference_error
from debate_train.models import ModelConfig
from debate_train.models.policies import folder_problems
from debate_train.playing import direct_form
from debate_train.recipe import Recipe
from debate_train.recipe.check_parts import (
    Windows,
    adapter_warnings,
    engine_errors,
    hidden_keys,
    imitation_errors,
    key_lines,
    made_of,
    missing_libraries,
    phase_errors,
    policy_errors,
    role_lines,
    see_demonstrations,
)
from debate_train.recipe.context import (
    DataView,
    StepCounts,
    TokenCounter,
    look_at_data,
    many,
    overlap_lines,
    step_counts,
)
from debate_train.recipe.figure_check import figure_warnings
from debate_train.recipe.idle_settings import idle_settings
from debate_train.recipe.signal_check import (
    SignalCheck,
    other_form_warnings,
    streams_error,
    truth_error,
    use_of,
)

_TAG = re.compile(r"</?(?P<name>[^<>/]+)>")
"""A stop string that is a tag."""


def warnings_of(phase: Recipe, *, answers: bool = True) -> Iterator[str]:
    """Yield one sentence for each setting of a phase that is legal but should be looked at.

    Args:
        phase: The phase.
        answers: Whether its questions have answers.
    """
    yield from _trainer_warnings(phase)
    yield from _stop_warnings(phase)
    yield from figure_warnings(phase, answers=answers)
    if phase.loss.supervised:
        return
    streams, use = phase.advantage.streams, use_of(phase)
    signal = SignalCheck.of(phase, answers=answers) if phase.steps else None
    judged = signal is None or (signal.asked and not signal.teaches_nothing)
    for reward in phase.reward.parts().values():
        few = reward.few_judges(use)
        yield from ((few,) if judged and few else ())
        yield from reward.warnings(use)
        for name in reward.streams:
            if name not in streams:
                said = f"advantage.streams: the reward has values, but no stream {name} is named"
                yield f"{said}; expected {name}: {{weight: 1}}"
    known = {"solution", *(section for own in SECTIONS.values() for section in own)}
    for section in phase.debate.contract_rules().sections:
        weights = (one.section_weights(name, [section])[section] for name, one in streams.items())
        if section not in known and not any(weights):
            said = f"advantage.streams: no stream covers section {section} of the contract"
            yield f"{said}; expected it in the sections of a stream"
    if signal is not None:
        yield from signal.warnings(phase)
        yield from other_form_warnings(phase, answers=answers)
    if getattr(phase.debate, "style", "") == "compact" and _has_personas(phase.debate):
        yield (
            "debate.personas: compact prompts do not show them, so only their temperatures "
            "apply; expected style: full, or personas: none"
        )


def _has_personas(form: DebateForm) -> bool:
    chosen = "personas" in getattr(form, "model_fields_set", ())
    return chosen and getattr(form, "personas", "none") not in ("none", ())


def _trainer_warnings(phase: Recipe) -> Iterator[str]:
    has_masters = phase.model.lora is not None or phase.trainer.keeps_masters
    if phase.model.dtype != "float32" and not has_masters:
        yield (
            f"model.dtype: small updates of {phase.model.dtype} weights are lost to rounding; "
            "expected float32, model.lora, or trainer.type: deepspeed with bf16: true"
        )


def _stop_warnings(phase: Recipe) -> Iterator[str]:
    """Name stop strings that are tags of no section, so that no reply ever ends at them."""
    forms = {"debate": phase.debate, "evaluation.debate": phase.evaluated().form}
    stops_named = set()
    for where, form in forms.items():
        contract = form.contract_rules()
        tag = _TAG.fullmatch(contract.stop or "")
        if tag is None or tag["name"] in contract.sections or contract.stop in stops_named:
            continue
        stops_named.add(contract.stop)
        closing_tags = [f"</{section}>" for section in contract.sections]
        yield (
            f"{where}.contract.stop: found {contract.stop!r}, which closes no section of the "
            f"contract; expected one of {', '.join(closing_tags) or 'no tag, as it has no section'}"
            f"{did_you_mean(contract.stop, closing_tags)}"
        )


def run_warnings(recipe: Recipe) -> Iterator[str]:
    """Yield one sentence for each such setting of the run as a whole."""
    saving, phases = recipe.checkpoint, recipe.phase_recipes()
    measured = any(p.exit_criterion or p.evaluation.every > 0 for p in phases.values())
    if saving.keep_best is not None and not measured:
        yield (
            f"checkpoint.keep_best: {saving.keep_best.metric} is never measured while the run "
            "trains; expected evaluation.every above 0, or an exit criterion"
        )


def split_warnings(phase: Recipe, source: DataSource) -> list[str]:
    """Say which splits that a phase is measured on hold no question, or one that it trains on."""
    measures_dev = phase.evaluation.every or phase.exit_criterion or phase.keep_if
    measured: list[Split] = ["dev", "test"] if measures_dev else ["test"]
    size, found = phase.evaluation.questions, list[str]()
    trained = {identity(question) for question in source.batch(0)} if size else set()
    asked = {s: {identity(q) for q in source.split(s, size)} for s in (measured if size else ())}
    if shared := {split: trained & held for split, held in asked.items() if trained & held}:
        both = f"{len(set().union(*shared.values()))} of the {len(trained)} questions of step 1"
        splits = f"the {' and the '.join(shared)} split, too; expected splits that share none"
        found.append(f"data: {both} are in {splits}")
    for split, held in asked.items():
        if not held:
            found.append(
                f"evaluation: the {split} split holds no question; expected more questions, a "
                "larger data.holdout, or data.test_path"
            )
    return found


@dataclass(slots=True)
class CheckReport:
    """What is found while a recipe is checked. A recipe with errors must not run."""

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def check(
    recipe: Recipe, *, with_tokenizer: bool = True, model: ModelConfig | None = None
) -> CheckReport:
    """Check a recipe; loads no weights, downloads nothing, writes nothing.

    Args:
        recipe: What is checked.
        with_tokenizer: Without its tokenizer, a model in a directory needs a configuration alone.
        model: What stands for the recipe's model, if that is a checkpoint that there is not yet.
    """
    found = CheckReport()
    model = model or recipe.model
    check_model(model, found, with_tokenizer)
    phases = recipe.phase_recipes()
    stages = {_identity(one.data): one.data for one in (recipe, *phases.values())}
    views = {key: look_at_data(data) for key, data in stages.items()}
    for view in views.values():
        found.lines += view.lines
        found.errors += view.errors
    try:
        found.lines += overlap_lines(views, stages)
    except UsageError as refusal:
        found.errors.append(str(refusal))
    windows = Windows(found.lines, found.errors, model)
    counter = None if found.errors else windows.counter(TRAINED, model)
    found.errors += recipe.keep_problems() + list(engine_errors(recipe))
    found.errors += policy_errors(recipe, with_tokenizer=with_tokenizer)
    for name, phase in phases.items():
        view = views[_identity(phase.data)]
        _arithmetic(name, phase, found)
        found.lines += role_lines(phase)
        if (mode := phase.start_mode()) is not None:
            counted = mode.counted(phase.evaluated().form)
            found.lines.append(f"  evaluations from its start on also have {counted}")
        if counter is not None:
            for form in phase.forms:
                windows.look(phase, form, view.longest)
            for form in other_forms(phase):
                windows.look(phase, form, view.longest, "evaluation: ")
        if recipe.rollout.engine.is_sampled:
            _check_learning(name if recipe.phases else "", phase, view, counter, found)
        found.errors += phase_errors(name, phase, recipe, view.source)
        if problem := phase.sampling_problem():
            found.errors.append(f"phase {name}: {problem}" if recipe.phases else problem)
        if error := reference_error(phase.loss.reference_policy):
            found.errors.append(error)
    found.lines += key_lines(recipe)
    found.warnings += [*run_warnings(recipe), *adapter_warnings(recipe), *idle_settings(recipe)]
    # What to install before it can run here: it may run elsewhere.
    found.warnings += [*missing_libraries(recipe), *recipe.tracking.missing_libraries()]
    found.warnings, found.errors = ([*dict.fromkeys(one)] for one in (found.warnings, found.errors))
    return found


def _check_learning(
    name: str, phase: Recipe, view: DataView, counter: TokenCounter | None, found: CheckReport
) -> None:
    """Say what a phase cannot learn; `name` is empty where there are no phases."""
    where, key = (f"phase {name}: ", f"phases.{name}.") if name else ("", "")
    answers, rule = view.has_answers(phase.data), phase.rollout.select
    refused = truth_error(phase) if phase.steps and not answers else None
    warnings, errors = list(warnings_of(phase, answers=answers)), list[str]()
    if refused is not None:  # What is refused needs no warning.
        errors.append(f"reward.type: {refused}")
        warnings = [text for text in warnings if not text.endswith(refused)]
    if phase.steps and not answers and rule is not None and rule.needs_answers:
        errors.append(
            "rollout.select: found informative, but no training question has an answer; expected "
            "data.fields.answer to name a key that rows have, or another rule"
        )
    if phase.steps and (problem := streams_error(phase)) is not None:
        errors.append(problem)
        warnings = [text for text in warnings if not text.startswith("nothing is learned")]
    if view.source is not None:
        questions = phase.data.checked_questions(view.source)
        hidden, partly = hidden_keys(phase, questions, answers=answers)
        errors += hidden
        warnings += partly
    errors += imitation_errors(phase) if phase.steps else ()
    if view.source is not None:
        warnings += split_warnings(phase, view.source)
        if counter is not None and phase.steps:
            wrong, weightless = see_demonstrations(phase, view.source, counter)
            errors += filter(None, [wrong])
            warnings += filter(None, [weightless])
    found.warnings += [where + text for text in warnings]
    found.errors += [key + text for text in errors]


def check_collecting(recipe: Recipe) -> CheckReport:
    """Check what `debate-rollout` takes of a recipe; loads no weights, downloads nothing."""
    found = CheckReport()
    if "tokens" in recipe.rollout.engine.capabilities:
        check_model(recipe.model, found)
    view = look_at_data(recipe.data)
    found.lines += view.lines
    found.errors += view.errors
    steps, size = recipe.steps, recipe.data.batch_size
    debates, direct, turns = (steps * n for n in step_counts(recipe, size)[:3])
    beside = f" and {many(direct, 'direct reply')}" if direct else ""
    found.lines.append(
        f"collect: {many(steps, 'step')} x {many(size, 'question')} = "
        f"{many(steps * size, 'question')}; {many(debates, 'debate')}{beside}; "
        f"{many(turns, 'turn')}, at most {turns * recipe.rollout.max_tokens:,} tokens in replies"
    )
    found.lines += key_lines(recipe)
    if not found.errors:
        for form in recipe.forms:
            Windows(found.lines, found.errors).look(recipe, form, view.longest)
    found.warnings += missing_libraries(recipe)
    return found


def _identity(data: DataSettings) -> str:
    """Return the same text for data that differs in nothing but its batch size."""
    return cast(BaseModel, data).model_dump_json(exclude={"batch_size"}, fallback=repr)


def check_model(model: ModelConfig, found: CheckReport, with_tokenizer: bool = True) -> None:
    """Say which model it is, and what is wrong with its directory."""
    if model.source is None:
        found.lines.append(f"model: made from scratch, window {model.context_window:,} tokens")
        return
    problems = folder_problems(model, with_tokenizer=with_tokenizer)
    found.errors += problems
    if not problems and Path(model.source).is_dir():
        found.lines.append(f"model: {model.name}")
    elif not problems:
        found.lines.append(f"model: {model.name} (not here: a hub id, or one to fetch)")


def _arithmetic(name: str, phase: Recipe, found: CheckReport) -> None:
    """Say what one step and the whole phase play, in one vocabulary."""
    steps, offline, criterion = phase.steps, phase.offline, phase.exit_criterion
    counts = step_counts(phase, phase.data.batch_size)
    most = "" if phase.trainer.minibatch_size is None else "at most "
    rows = counts.samples if offline is None else offline.batch_size
    updates = phase.trainer.update_count(rows)
    extended = f" to {criterion.max_steps:,} (exit criterion)" if criterion else ""
    found.lines.append(
        f"phase {name}: {steps:,}{extended} steps of "
        f"{most}{'one optimizer update' if updates == 1 else f'{updates} optimizer updates'} each"
    )
    if phase.keep_if is not None:
        found.lines.append(f"  {phase.keep_if.described(name)}")
    if offline is None:
        found.lines += _played_lines(phase, counts, f"{most}{many(steps * updates, 'update')}")
    else:
        try:
            taken = made_of(phase, offline)
        except UsageError as error:
            found.errors.append(str(error))
            return
        found.lines += [
            f"  examples ({offline.type}), made once: {taken}",
            f"  a step: {offline.batch_size:,} of them; in all {offline.batch_size * steps:,}, "
            "epoch after epoch",
        ]
    if offline is not None or phase.loss.supervised:
        found.lines.append("  supervised: log-probabilities are taken at temperature 1")
    else:
        each = dict.fromkeys(phase.debate.temperature_of(i) for i in range(phase.debate.num_agents))
        temperatures = ", ".join(f"{t:g}" for t in each)
        found.lines.append(f"  temperatures {temperatures}: log-probabilities are taken at them")
    if phase.evaluation.questions:
        found.lines.append(evaluation_line(phase))


def _played_lines(phase: Recipe, counts: StepCounts, updates: str) -> Iterator[str]:
    debates, direct, turns, samples = counts[:4]
    steps, questions, rollout = phase.steps, phase.data.batch_size, phase.rollout
    of_what = "turn" if samples == turns else "turn that is trained on"
    if samples < turns and samples - direct == debates * len(phase.debate.trained_agents()):
        of_what = "agent and debate"
    beside = f" + {many(direct, 'direct reply')}" if direct else ""
    yield (
        f"  a step: {many(questions, 'question')} x {many(rollout.debates_per_question, 'debate')} "
        f"= {many(debates, 'debate')}; x {_shape(phase, counts)}{beside} = {many(turns, 'turn')}; "
        f"{many(samples, 'sample')} (one for each {of_what})"
    )
    yield (
        f"  in all: {many(questions * steps, 'question')}, {many(debates * steps, 'debate')}, "
        f"{many(turns * steps, 'turn')}, {many(samples * steps, 'sample')}, {updates}, "
        f"at most {turns * steps * rollout.max_tokens:,} tokens in replies"
    )
    yield from (f"  {change}" for change in phase.reward.changes())
    if rollout.oversample > 1:
        yield (
            f"  a step draws up to {rollout.oversample} batches of {many(questions, 'question')} "
            f"until {questions:,} are kept: at most {counts.drawn_turns * rollout.max_tokens:,} "
            "tokens in replies"
        )
    if phase.pipeline.max_staleness:
        ahead = many(phase.pipeline.max_staleness, "step")
        yield f"  up to {ahead} played ahead of training, with weights at most {ahead} old"


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
