"""Settings without an effect beside the recipe's other settings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from debate_train.evaluation.modes import DebateChanges
from debate_train.evaluation.settings import DIRECT
from debate_train.recipe.policies import used_policies
from debate_train.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Condition:
    """Keys read by a phase only under a condition."""

    keys: tuple[str, ...]
    """Paths of keys; one that ends with `*` is all keys of a mapping but those of `switches`."""
    is_idle: Callable[[Recipe], bool]
    """Whether a phase never reads them."""
    reason: str
    expected: str
    switches: tuple[str, ...] = ()


def _has_no_penalty(phase: Recipe) -> bool:
    kl = getattr(phase.loss, "kl", None)
    return kl is not None and kl.weight == 0


def _samples_are_own(phase: Recipe) -> bool:
    return not phase.trainer.makes_several and phase.pipeline.max_staleness == 0


def _ratios_are_to_the_sampler(phase: Recipe) -> bool:
    against = phase.loss.ratio_against
    return against == "sampler" or (against == "auto" and not phase.trainer.makes_several)


def _streams_have_baselines(phase: Recipe) -> bool:
    streams = phase.advantage.streams
    trained = [streams[name] for name in phase.reward.streams if name in streams]
    return bool(trained) and all(getattr(stream, "baseline", None) for stream in trained)


def _is_local(phase: Recipe) -> bool:
    return _is_local_file(getattr(phase.data, "path", None))


def _test_is_local(phase: Recipe) -> bool:
    test_path = getattr(phase.data, "test_path", None)
    return _is_local(phase) if test_path is None else _is_local_file(test_path)


def _is_local_file(path: str | None) -> bool:
    return path is not None and path.endswith((".jsonl", ".json"))


def _model_is_local(phase: Recipe) -> bool:
    return phase.model.source is not None and Path(phase.model.source).exists()


def _ends_at_its_steps(phase: Recipe) -> bool:
    criterion = phase.exit_criterion
    return criterion is not None and criterion.max_steps <= phase.steps


def _reads_examples(phase: Recipe) -> bool:
    return phase.offline is not None and phase.offline.path is not None


CONDITIONS = (
    Condition(
        ("loss.kl.reference",),
        _has_no_penalty,
        "loss.kl.weight is 0",
        "a weight above 0",
    ),
    Condition(
        ("loss.importance_cap",),
        _ratios_are_to_the_sampler,
        "ratios are to the sampler itself",
        "loss.old_policy: trainer, or several updates of a batch",
    ),
    Condition(
        ("loss.allow_off_policy",),
        _samples_are_own,
        "all samples are of the weights that they train",
        "pipeline.max_staleness, trainer.epochs or trainer.minibatch_size",
    ),
    Condition(
        ("trainer.min_lr_ratio",),
        lambda phase: phase.trainer.schedule == "constant",
        "trainer.schedule is constant",
        "linear or cosine",
    ),
    Condition(
        ("advantage.baseline",),
        _streams_have_baselines,
        "each stream of the reward has a baseline of its own",
        "a stream without one",
    ),
    Condition(
        ("debate.gate_after",),
        lambda phase: phase.rollout.select is None,
        "rollout.select is null, so all debates go on",
        "a rule",
    ),
    Condition(
        (
            "rollout.debates_per_question",
            "rollout.direct_per_question",
            "rollout.other_forms",
            "rollout.select",
            "rollout.oversample",
        ),
        _reads_examples,
        "offline.path is read and nothing is played",
        "examples that are played",
    ),
    Condition(
        ("pipeline.max_staleness",),
        lambda phase: phase.offline is not None,
        "offline examples are made before the first step",
        "0",
    ),
    Condition(
        ("offline.imported",),
        lambda phase: phase.offline is not None and phase.offline.path is None,
        "offline.path is null",
        "a file",
    ),
    Condition(
        ("data.config", "data.split"),
        _is_local,
        "data.path is a file",
        "the id of a hub data set",
    ),
    Condition(
        ("data.test_split",),
        _test_is_local,
        "test questions come from a file",
        "the id of a hub data set",
    ),
    Condition(
        ("model.revision",),
        _model_is_local,
        "model.name is a folder or file",
        "a hub id",
    ),
    Condition(
        ("evaluation.*",),
        lambda phase: phase.evaluation.questions == 0,
        "evaluation.questions is 0",
        "at least 1",
        switches=("questions",),
    ),
    Condition(
        ("evaluation.direct_samples",),
        lambda phase: DIRECT in phase.evaluation.modes,
        f"evaluation.modes names {DIRECT} itself",
        f"evaluation.modes.{DIRECT}.samples",
    ),
    Condition(
        ("recording.every",),
        lambda phase: phase.recording.debates == 0,
        "recording.debates is 0",
        "at least 1",
    ),
    Condition(
        ("health.*",),
        lambda phase: not phase.health.enabled,
        "health.enabled is false",
        "true",
        switches=("enabled", "stop_on"),
    ),
    Condition(
        ("exit_criterion.every",),
        _ends_at_its_steps,
        "exit_criterion.max_steps leaves one evaluation",
        "more than steps",
    ),
)


def idle_settings(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each cause of settings without effect in all phases.

    A setting is a written value other than the default. A setting read by some phase is no
    mistake: the other phases inherit it.
    """
    phases = list(recipe.phase_recipes().values())
    sentences = [list(_idle_in(phase)) for phase in phases]
    for sentence in sentences[0]:
        if all(sentence in others for others in sentences[1:]):
            yield sentence
    if not recipe.phases:
        yield from _idle_without_phases(recipe)
    yield from _idle_streams(phases)
    speaking_policies = used_policies(recipe)
    for name in recipe.rollout.policies:
        if name not in speaking_policies:
            yield (
                f"rollout.policies.{name}: changes nothing: no role names it; expected "
                f"debate.roles.NAME.policy: {name}, or an evaluation mode against it"
            )


def _idle_in(phase: Recipe) -> Iterator[str]:
    for condition in CONDITIONS:
        if not condition.is_idle(phase):
            continue
        keys: list[str] = []
        for path in condition.keys:
            keys += _set_keys(phase, path, condition)
        if keys:
            change = "changes" if len(keys) == 1 else "change"
            yield (
                f"{', '.join(keys)}: {change} nothing: {condition.reason}; expected "
                f"{condition.expected}"
            )
    if phase.evaluation.questions:
        yield from _unplayed_changes(phase)


def _unplayed_changes(phase: Recipe) -> Iterator[str]:
    """Name changes of the evaluated debate without a mode to play it."""
    evaluation = phase.evaluation
    setup = phase.evaluated()
    played = list(setup.plays())
    for key in DebateChanges.model_fields:
        if not is_set(evaluation, key):
            continue
        default = DebateChanges.model_fields[key].default
        try:
            without = phase.model_copy(
                update={"evaluation": evaluation.model_copy(update={key: default})}
            ).evaluated()
            is_played = list(without.plays()) != played
        except ValueError:  # The other changes do not go without this one.
            continue
        # A value that training has, too, is written twice, which is no mistake.
        if without.form != setup.form and not is_played:
            yield (
                f"evaluation.{key}: changes nothing: no mode of evaluation.modes plays that "
                "debate; expected a mode that does"
            )


def _idle_without_phases(recipe: Recipe) -> Iterator[str]:
    if recipe.evaluation.questions and recipe.evaluation.target:
        yield (
            "evaluation.target: changes nothing: there are no phases with data of their own; "
            "expected false"
        )
    if recipe.evaluation.questions and isinstance(recipe.evaluation.before, str):
        yield (
            "evaluation.before: changes nothing: there are no phases to name; expected null or "
            "false"
        )


def _idle_streams(phases: list[Recipe]) -> Iterator[str]:
    """Name weighed streams missing in the rewards of all phases."""
    reward_streams: dict[str, None] = {}
    for phase in phases:
        if any(part.reward.needs().policy for part in phase.reward.parts().values()):
            return
        reward_streams |= dict.fromkeys(phase.reward.streams)
    weighed_streams: dict[str, None] = {}
    for phase in phases:
        if is_set(phase.advantage, "streams"):
            streams = phase.advantage.streams
            # A weight of 0 leaves out what the recipe inherits.
            weighed_streams |= dict.fromkeys(n for n, s in streams.items() if s.weight != 0)
    for name in weighed_streams:
        if name not in reward_streams:
            yield (
                f"advantage.streams.{name}: changes nothing: the reward has no such stream; "
                f"expected one of {', '.join(reward_streams)}"
            )


def is_set(settings: BaseModel, key: str) -> bool:
    """Whether settings name a key with a value other than the default."""
    if key not in settings.model_fields_set:
        return False
    default = type(settings).model_fields[key].get_default(call_default_factory=True)
    return bool(getattr(settings, key) != default)


def _set_keys(phase: Recipe, path: str, condition: Condition) -> Iterator[str]:
    """Yield the keys of a path set by a phase."""
    *parents, last = path.split(".")
    settings: object = phase
    for key in parents:
        settings = getattr(settings, key, None)
    if not isinstance(settings, BaseModel):
        return
    names = list(type(settings).model_fields) if last == "*" else [last]
    for name in names:
        is_known = name in type(settings).model_fields and name not in condition.switches
        if is_known and is_set(settings, name):
            yield ".".join((*parents, name))
