"""What a recipe will do, said before it does it: batch arithmetic, context length, warnings."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from debate_protocol.forms import DebateForm
from debate_protocol.types import TRAINED
from debate_train.advantages import SECTIONS
from debate_train.data import DataSettings, DataSource
from debate_train.data.source import Split, identity
from debate_train.interrupts import UsageError
from debate_train.losses import reference_error
from debate_train.models.policies import folder_problems
from debate_train.playing import direct_form
from debate_train.recipe import Recipe
from debate_train.recipe.check_parts import (
    Windows,
    adapter_warnings,
    engine_errors,
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
from debate_train.recipe.signal_check import (
    learning_warnings,
    lessons_of,
    truth_errors,
    use_of,
)


def warnings_of(phase: Recipe, *, answers: bool = True) -> Iterator[str]:
    """Yield one sentence for each setting of a phase that is legal but should be looked at.

    Args:
        phase: The phase.
        answers: Whether its questions have answers.
    """
    yield from _precision_warnings(phase)
    yield from _overlap_warnings(phase)
    yield from _schedule_warnings(phase)
    if phase.loss.supervised:
        return
    streams = phase.advantage.streams
    lessons = lessons_of(phase, answers=answers) if phase.steps else None
    judged = lessons is None or (lessons.asked and not lessons.teaches_nothing)
    use = use_of(phase)
    for reward in phase.reward.parts().values():
        few = reward.few_judges(use)
        yield from ((few,) if judged and few else ())
        yield from reward.warnings(use)
        for name in reward.streams:
            if name not in streams:
                yield (
                    f"advantage.streams: the reward gives {name} values, but no stream {name} is "
                    f"named, so nothing learns from them; expected {name}: {{weight: 1}}"
                )
    known = {"solution", *(section for own in SECTIONS.values() for section in own)}
    for section in phase.debate.contract_rules().sections:
        weights = (one.section_weight(name, section) for name, one in streams.items())
        if section not in known and not any(weights):
            yield (
                f"advantage.streams: no stream covers section {section} of the contract, so "
                "nothing in it is learned; expected it in the sections of a stream"
            )
    if lessons is not None:
        yield from learning_warnings(phase, lessons)


def crash_cost(recipe: Recipe) -> str:
    """Return one line: when checkpoints are written, and what a crash costs."""
    saving = recipe.checkpoint
    often = [f"{saving.every:,} steps"] if saving.every else []
    often += [f"{saving.every_minutes:g} minutes"] if saving.every_minutes else []
    if not often:
        return "checkpoints: at the end of phases; a crash costs all of a phase"
    return f"checkpoints: after {' or '.join(often)}; a crash costs at most as much, and a step"


def process_crash_cost(size: int) -> tuple[str, ...]:
    """Return a line that says what a crash costs with so many processes, none with one."""
    if size == 1:
        return ()
    return (
        f"  with {size} processes: so much is lost where one of them ends or fails in the trainer, "
        "as its share of the optimizer is gone; other failures lose a step",
    )


def run_warnings(recipe: Recipe) -> Iterator[str]:
    """Yield one sentence for each such setting of the run as a whole."""
    saving = recipe.checkpoint
    if saving.every_minutes == 0:
        for name, phase in recipe.phase_recipes().items():
            if phase.steps > 1 and not 0 < saving.every < phase.steps:
                yield (
                    f"checkpoint.every: found {saving.every} and no every_minutes, so a crash "
                    f"costs all {phase.steps:,} steps of phase {name}; expected fewer steps than "
                    f"that, such as {max(1, phase.steps // 4)}, or every_minutes: 15"
                )
    best = saving.keep_best
    looks = any(
        p.exit_criterion is not None or p.evaluation.every > 0
        for p in recipe.phase_recipes().values()
    )
    if best is not None and not looks:
        yield (
            f"checkpoint.keep_best: {best.metric} is never measured while the run trains, so no "
            "checkpoint is the best; expected evaluation.every above 0, or an exit criterion"
        )


def _overlap_warnings(phase: Recipe) -> Iterator[str]:
    engine = phase.rollout.engine
    if phase.pipeline.max_staleness and engine.in_trainer:
        yield (
            f"pipeline.max_staleness: {engine.type} samples in the process that trains, so little "
            "runs at once; expected an engine with a device or a process of its own, such as "
            "vllm_server"
        )


def _schedule_warnings(phase: Recipe) -> Iterator[str]:
    trainer, criterion = phase.trainer, phase.exit_criterion
    falls_to_0 = trainer.schedule != "constant" and trainer.min_lr_ratio == 0
    if falls_to_0 and criterion is not None and criterion.max_steps > phase.steps:
        yield (
            f"trainer.schedule: {trainer.schedule} has a learning rate of 0 after {phase.steps:,} "
            f"steps, so nothing is learned while the exit criterion is waited for, up to step "
            f"{criterion.max_steps:,}; expected trainer.min_lr_ratio above 0, or schedule: constant"
        )


def _precision_warnings(phase: Recipe) -> Iterator[str]:
    has_masters = phase.model.lora is not None or phase.trainer.keeps_masters
    if phase.model.dtype != "float32" and not has_masters:
        yield (
            f"model.dtype: every parameter is trained in {phase.model.dtype}, where updates below "
            "about a 500th of a weight are lost to rounding; expected float32, model.lora, or "
            "trainer.type: deepspeed with bf16: true, which keeps float32 weights beside"
        )


def split_warnings(phase: Recipe, source: DataSource) -> list[str]:
    """Say which splits that a phase is measured on hold no question, or one that it trains on."""
    looks = phase.evaluation.every or phase.exit_criterion or phase.keep_if
    measured: list[Split] = ["dev", "test"] if looks else ["test"]
    size = phase.evaluation.questions
    if not size:
        return []
    trained = {identity(question) for question in source.batch(0)}
    held = {
        name: {identity(question) for question in source.split(name, size)} for name in measured
    }
    return [
        f"data: {len(trained & asked)} of the {len(trained)} questions of step 1 are in the "
        f"{split} split, too, whose measures then say little; expected splits that share none"
        for split, asked in held.items()
        if trained & asked
    ] + [
        f"evaluation: the {split} split holds no question, so that nothing is measured on it; "
        "expected more questions, a larger data.holdout, or data.test_path"
        for split, asked in held.items()
        if not asked
    ]


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
        found.lines += role_lines(phase)
        if (mode := phase.start_mode()) is not None:
            counted = mode.counted(phase.evaluated().form)
            found.lines.append(f"  evaluations from its start on also have {counted}")
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


def _identity(data: DataSettings) -> str:
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
