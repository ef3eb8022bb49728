"""Legal but doubtful settings."""

import re
from collections.abc import Iterator, Sequence

from debate_protocol.forms import DebateForm
from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Question
from debate_train.advantages import SECTIONS
from debate_train.data import DataSource
from debate_train.data.source import Split
from debate_train.data.splits import identity
from debate_train.models.loaded_model import trained_adapters
from debate_train.models.model_files import is_adapter
from debate_train.recipe.figure_check import figure_warnings
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.signal_check import SignalCheck, other_form_warnings, reward_context
from debate_train.recipe.step_counts import many

ONE_LINE_CONTRACT = "answer_line"
# A stop string that is a tag.
_TAG = re.compile(r"</?(?P<name>[^<>/]+)>")


def warnings_of(phase: Recipe, *, answers: bool = True) -> Iterator[str]:
    """Yield a sentence for each legal but doubtful setting of a phase.

    Args:
        phase: The phase.
        answers: Whether questions have answers.
    """
    yield from _rounding_warnings(phase)
    yield from _stop_warnings(phase)
    yield from figure_warnings(phase, answers=answers)
    if phase.loss.supervised:
        return
    streams = phase.advantage.streams
    context = reward_context(phase)
    signal = SignalCheck.of(phase, answers=answers) if phase.steps else None
    has_comparisons = signal is None or (signal.can_compare and not signal.teaches_nothing)
    for part in phase.reward.parts().values():
        for note in part.reward.notes(context):
            if note.kind == "doubt" or (note.kind == "few_judges" and has_comparisons):
                yield note.text
        for name in part.reward.streams:
            if name not in streams:
                yield (
                    f"advantage.streams: the reward has values, but no stream {name} is named; "
                    f"expected {name}: {{weight: 1}}"
                )
    yield from _section_warnings(phase)
    if signal is not None:
        yield from signal.warnings(phase)
        yield from other_form_warnings(phase, answers=answers)
    if getattr(phase.debate, "style", "") == "compact" and _chooses_personas(phase.debate):
        yield (
            "debate.personas: compact prompts do not show them, so only their temperatures "
            "apply; expected style: full, or personas: none"
        )


def _chooses_personas(form: DebateForm) -> bool:
    is_set = "personas" in getattr(form, "model_fields_set", ())
    return is_set and getattr(form, "personas", "none") not in ("none", ())


def _section_warnings(phase: Recipe) -> Iterator[str]:
    """Name sections without a stream to weigh their tokens."""
    usual_sections = {"solution"}.union(*SECTIONS.values())
    for section in phase.debate.contract_rules().sections:
        is_covered = any(
            stream.section_weights(name, [section])[section]
            for name, stream in phase.advantage.streams.items()
        )
        if section not in usual_sections and not is_covered:
            yield (
                f"advantage.streams: no stream covers section {section} of the contract; "
                "expected it in the sections of a stream"
            )


def _rounding_warnings(phase: Recipe) -> Iterator[str]:
    has_masters = phase.model.lora is not None or phase.trainer.keeps_masters
    if phase.model.dtype != "float32" and not has_masters:
        yield (
            f"model.dtype: small updates of {phase.model.dtype} weights are lost to rounding; "
            "expected float32, model.lora, or trainer.type: deepspeed with bf16: true"
        )


def _stop_warnings(phase: Recipe) -> Iterator[str]:
    """Name stop strings outside of all sections' tags: replies never end at them."""
    named_stops = set()
    for key, form in phase.forms_by_key().items():
        contract = form.contract_rules()
        tag = _TAG.fullmatch(contract.stop or "")
        if tag is None or tag["name"] in contract.sections or contract.stop in named_stops:
            continue
        named_stops.add(contract.stop)
        closing_tags = [f"</{section}>" for section in contract.sections]
        yield (
            f"{key}.contract.stop: found {contract.stop!r}, which closes no section of the "
            f"contract; expected one of {', '.join(closing_tags) or 'no tag, as it has no section'}"
            f"{did_you_mean(contract.stop, closing_tags)}"
        )


def run_warnings(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each doubtful setting of the whole run."""
    keep_best = recipe.checkpoint.keep_best
    is_measured = any(
        phase.exit_criterion or phase.evaluation.every > 0
        for phase in recipe.phase_recipes().values()
    )
    if keep_best is not None and not is_measured:
        yield (
            f"checkpoint.keep_best: {keep_best.metric} is never measured while the run "
            "trains; expected evaluation.every above 0, or an exit criterion"
        )


def adapter_warnings(recipe: Recipe) -> Iterator[str]:
    """Name adapters without a role to train them, and an adapter lost by rounding."""
    lora = recipe.model.lora
    trained_names: set[str] = set()
    for phase in recipe.phase_recipes().values():
        trained_names.update(trained_adapters(lora, phase.debate))
    for name in () if lora is None else lora.adapters:
        if name not in trained_names:
            yield (
                f"model.lora.adapters: found {name!r}, which no role that is trained on names; "
                f"expected debate.roles.NAME.adapter: {name}"
            )
    source = recipe.model.source
    if source is not None and is_adapter(source) and recipe.model.dtype != "float32":
        # A weight in bfloat16 has eight bits: most of what an adapter adds is below its last.
        yield (
            f"model.dtype: found {recipe.model.dtype} for the adapter {source!r}, which is merged "
            "into its base; most of a small change is lost in rounding; expected float32"
        )


def split_warnings(phase: Recipe, source: DataSource) -> list[str]:
    """Name empty splits of a phase, and splits with training questions."""
    num_questions = phase.evaluation.questions
    if not num_questions:
        return []
    measures_dev = phase.evaluation.every or phase.exit_criterion or phase.keep_if
    splits: list[Split] = ["dev", "test"] if measures_dev else ["test"]
    trained_ids = {identity(question) for question in source.batch(0)}
    warnings = []
    shared_ids = set()
    sharing_splits = []
    for split in splits:
        if source.split_rule is None:
            split_ids = {identity(question) for question in source.split(split, num_questions)}
            if trained_ids & split_ids:
                shared_ids |= trained_ids & split_ids
                sharing_splits.append(split)
            is_empty = not split_ids
        else:
            is_empty = source.is_empty(split)
        if is_empty:
            warnings.append(
                f"evaluation: the {split} split holds no question; expected more questions, a "
                "larger data.holdout, or data.test_path"
            )
    if sharing_splits:
        warnings.insert(
            0,
            f"data: {len(shared_ids)} of the {len(trained_ids)} questions of step 1 are in "
            f"the {' and the '.join(sharing_splits)} split, too; expected splits that share none",
        )
    return warnings


def private_key_problems(
    phase: Recipe, questions: Sequence[Question], *, answers: bool
) -> tuple[list[str], list[str]]:
    """Compare the keys hidden or needed by forms with the questions' keys.

    Args:
        phase: The phase.
        questions: Of its data.
        answers: Whether questions have answers.

    Returns:
        Errors: keys of `private` missing in all questions, sides without an agent. Warnings: keys
        missing in some questions, answers too long for a contract of a single line.
    """
    errors = []
    warnings = []
    known_keys = dict.fromkeys(key for question in questions for key in question.meta)
    num_multiline = sum("\n" in (question.answer or "").strip() for question in questions)
    all_questions = many(len(questions), "question")
    for where, form in phase.forms_by_key().items() if questions else ():
        if num_multiline and getattr(form, "contract", None) == ONE_LINE_CONTRACT:
            warnings.append(
                f"{where}.contract: found {ONE_LINE_CONTRACT}, and the answers of "
                f"{num_multiline:,} of {all_questions} have several lines, so they cannot be "
                "given; expected boxed, or a contract with sections"
            )
        for key in getattr(form, "private", ()):
            num_with_key = sum(question.meta.get(key) is not None for question in questions)
            problem = f"{where}.private: found {key!r}, which {num_with_key:,} of {all_questions}"
            if num_with_key == 0:
                errors.append(
                    f"{problem} have, so nothing is hidden; expected one of "
                    f"{', '.join(known_keys) or 'no keys'}{did_you_mean(key, known_keys)}"
                )
            elif num_with_key < len(questions):
                warnings.append(f"{problem} have")
        if getattr(form, "assigned", False) and not answers:
            errors.append(
                f"{where}.assigned: found true, and no question has an answer, so nobody is given "
                "a side; expected data.fields.answer to name a key that rows have"
            )
    return errors, warnings
