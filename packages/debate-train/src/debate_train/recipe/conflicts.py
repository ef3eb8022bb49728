"""Conflicts between valid settings of a phase."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import TRAINED, roles_of
from debate_train.models.loaded_model import trained_adapters, unknown_adapter
from debate_train.models.policies import START
from debate_train.recipe.served_training import served_conflicts

if TYPE_CHECKING:
    from debate_train.recipe.recipe import Recipe


def conflicts_of(phase: "Recipe") -> Iterator[str]:
    """Yield each conflict with the key to change; conflicts make a recipe invalid."""
    yield from _evaluation_conflicts(phase)
    yield from _metric_conflicts(phase)
    yield from _role_conflicts(phase)
    yield from _other_form_conflicts(phase)
    yield from _proposal_conflicts(phase)
    yield from _update_conflicts(phase)
    yield from served_conflicts(phase)


def _evaluation_conflicts(phase: "Recipe") -> Iterator[str]:
    criterion = phase.exit_criterion
    if criterion is not None and criterion.max_steps < phase.steps:
        yield (
            f"exit_criterion.max_steps: found {criterion.max_steps}, but the phase has "
            f"{phase.steps} steps before it checks the criterion; expected at least as many"
        )
    if phase.evaluation.questions == 0 and (criterion or phase.keep_if) is not None:
        measuring = "keep_if" if criterion is None else "an exit criterion"
        yield (
            f"evaluation.questions: found 0, but {measuring} measures on them; expected at least 1"
        )
    before = phase.evaluation.before
    if phase.phases and before and before not in phase.phases:
        yield (
            f"evaluation.before: found {before!r}, expected one of {', '.join(phase.phases)}"
            f"{did_you_mean(before, phase.phases)}"
        )


def _metric_conflicts(phase: "Recipe") -> Iterator[str]:
    """Yield metrics without an evaluation to measure them in this phase."""
    setup = phase.evaluated()
    metrics_by_key: list[tuple[str, Collection[str], Collection[str]]] = []
    if phase.exit_criterion is not None:
        criterion = phase.exit_criterion
        metrics_by_key += [
            ("exit_criterion.metric", [criterion.metric], setup.measured()),
            ("exit_criterion.also_at_least", criterion.also_at_least, setup.measured()),
        ]
    if phase.keep_if is not None:
        metrics_by_key.append(("keep_if.metric", [phase.keep_if.metric], setup.measured()))
    # Another phase may measure the metric of keep_best, so any figure is allowed.
    if phase.checkpoint.keep_best is not None:
        best_metric = phase.checkpoint.keep_best.metric
        metrics_by_key.append(("checkpoint.keep_best.metric", [best_metric], setup.figures()))
    headline = phase.evaluation.headline or ()
    metrics_by_key.append(("evaluation.headline", headline, setup.rows()))

    for key, metrics, measured_metrics in metrics_by_key:
        for metric in metrics:
            if metric not in measured_metrics:
                yield (
                    f"{key}: {metric!r} is not measured; expected one of "
                    f"{', '.join(measured_metrics)}{did_you_mean(metric, measured_metrics)}"
                )


def _role_conflicts(phase: "Recipe") -> Iterator[str]:
    """Yield policies and adapters named by roles but missing in the recipe."""
    for name in sorted({TRAINED, START} & phase.rollout.policies.keys()):
        yield f"rollout.policies.{name}: the name is taken; expected another one"
    policies = [TRAINED, START, *phase.rollout.policies]
    forms = list(phase.forms_by_key().items())
    forms += [(f"evaluation.modes.{name}", play.form) for name, play in phase.evaluated().plays()]
    for key, form in forms:
        for role in roles_of(form.protocol()):
            if role.policy not in policies:
                yield (
                    f"{key}.roles.{role.name}.policy: found {role.policy!r}, expected one of "
                    f"{', '.join(policies)} (rollout.policies)"
                    f"{did_you_mean(role.policy, policies)}"
                )
            problem = unknown_adapter(phase.model.lora, role.adapter)
            if problem:
                yield f"{key}.roles.{role.name}.adapter: {problem}"


def _other_form_conflicts(phase: "Recipe") -> Iterator[str]:
    debate_adapters = set(trained_adapters(phase.model.lora, phase.debate))
    for number, form in enumerate(phase.rollout.other_forms):
        if not debate_adapters.issuperset(trained_adapters(phase.model.lora, form)):
            yield (f"rollout.other_forms.{number}.roles: expected adapters that debate trains, too")


def _proposal_conflicts(phase: "Recipe") -> Iterator[str]:
    """Yield forms with questions of agents, without a checker in the data."""
    if phase.data.checks_proposals:
        return
    for key, form in phase.forms_by_key().items():
        if form.proposes:
            yield (
                f"{key}.type: found {form.type}, whose agents write questions, with data.type "
                f"{phase.data.type}, which cannot check them; expected data.type: signs_puzzle"
            )


def _update_conflicts(phase: "Recipe") -> Iterator[str]:
    """Yield settings unusable in updates, such as old samples for an unbounded loss."""
    trainer = phase.trainer
    if not phase.phases:
        problem = trainer.type_problem({phase.model.dtype})
        if problem:
            yield problem
        gates = getattr(phase.debate, "gate_after", ())
        problem = phase.rollout.select_problem(gates, phase.debate.turn_count())
        if problem:
            yield f"rollout.{problem}"
    max_staleness = phase.pipeline.max_staleness
    if phase.loss.takes_off_policy or not (trainer.makes_several or max_staleness > 0):
        return
    cause = f"pipeline.max_staleness {max_staleness}"
    if trainer.makes_several:
        cause = f"trainer.epochs {trainer.epochs} and minibatch_size {trainer.minibatch_size}"
    yield (
        f"loss.type: found {phase.loss.type} with {cause}, so samples are of older weights; "
        "expected ppo_clip, dapo or grpo, or loss.allow_off_policy: true"
    )


def sampling_problems(phase: "Recipe") -> Iterator[str]:
    """Yield reasons against training on a phase's samples; debates may still be collected.

    The sampler's log-probabilities must equal the trained policy's.
    """
    debate = phase.debate
    rollout = phase.rollout
    if phase.loss.supervised:
        return
    temperatures = {agent: debate.temperature_of(agent) for agent in debate.trained_agents()}
    if not temperatures:
        yield f"debate.roles: found no role that is trained on; expected policy: {TRAINED}"
    lowest = rollout.engine.lowest_temperature
    only = rollout.engine.only_temperature
    for agent, temperature in temperatures.items():
        if temperature == 0:
            yield (
                f"debate: agent {agent} has temperature 0, which draws nothing to learn from; "
                "expected temperatures above 0 (evaluation.temperature may be 0)"
            )
            break  # Agents mostly share a temperature, so the first one is enough.
        if only is not None and temperature != only:
            yield (
                f"debate: agent {agent} has temperature {temperature:g}; expected {only:g}: engine "
                f"{rollout.engine.type} gives log-probabilities of temperature {only:g} alone"
            )
            break
        if temperature < lowest:
            yield (
                f"debate: agent {agent} has temperature {temperature:g}, which engine "
                f"{rollout.engine.type} raises to {lowest:g}, so its log-probabilities "
                f"would be those of another policy; expected at least {lowest:g}"
            )
            break
    if rollout.top_p < 1 or rollout.top_k > 0 or rollout.min_p > 0:
        yield (
            "rollout: top_p < 1, top_k and min_p cut the distribution, so ratios to it are "
            "biased; expected neutral values in reinforcement learning"
        )


def keep_problems(recipe: "Recipe") -> Iterator[str]:
    """Yield each `keep_if` compared with a later phase."""
    phase_names = []
    for name, phase in recipe.phase_recipes().items():
        phase_names.append(name)
        since = None if phase.keep_if is None else phase.keep_if.since
        if since is not None and since not in phase_names:
            yield (
                f"phases.{name}.keep_if.since: found {since!r}; expected this phase or one "
                f"before it: {', '.join(phase_names)}{did_you_mean(since, phase_names)}"
            )
