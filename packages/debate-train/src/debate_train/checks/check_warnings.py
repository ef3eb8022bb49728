"""What a recipe may say but should not: settings known to teach little or to do harm."""

from collections.abc import Iterator

from debate_train.advantages import SECTIONS
from debate_train.checks.check_learning import (
    learning_warnings,
    lessons_of,
    use_of,
)
from debate_train.data import DataSource
from debate_train.data.question_source import identity
from debate_train.data.source import Split
from debate_train.recipe import Recipe


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
            "runs at once; expected an engine with a device or a process of its own, such as vllm "
            "with process: own, or vllm_server"
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
