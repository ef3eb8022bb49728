"""The speaking policies of a recipe's debates, and their engines."""

from debate_protocol.types import TRAINED, roles_of
from debate_rollout.engine import EngineSettings
from debate_train.models import ModelConfig
from debate_train.models.policies import START, PolicyConfig, StartPolicy, TrainedPolicy
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.step_counts import many


def known_policies(recipe: Recipe) -> dict[str, PolicyConfig]:
    """List the policies allowed in roles besides the trained policy."""
    return {START: StartPolicy(), **recipe.rollout.policies}


def used_policies(recipe: Recipe) -> dict[str, PolicyConfig]:
    """List the speaking policies of the recipe's debates besides the trained policy."""
    policies = known_policies(recipe)
    role_policies: dict[str, None] = {}  # in order of first use
    for phase in recipe.phase_recipes().values():
        evaluated_forms = [play.form for _, play in phase.evaluated().plays()]
        for form in (phase.debate, *evaluated_forms):
            for role in roles_of(form.protocol()):
                role_policies[role.policy] = None
    return {name: policies[name] for name in role_policies if name in policies}


def trained_policy(recipe: Recipe, model: ModelConfig | None = None) -> TrainedPolicy:
    """Build the trained policy for references by other policies; `model` replaces the model."""
    return TrainedPolicy(recipe.rollout.engine, model or recipe.model, recipe.seed)


def engines_by_key(recipe: Recipe) -> dict[str, EngineSettings]:
    """List the engines of all policies by their keys, the trained policy's first."""
    engines: dict[str, EngineSettings] = {"rollout.engine": recipe.rollout.engine}
    for name, policy in used_policies(recipe).items():
        key = f"rollout.policies.{name}.engine"
        if name not in recipe.rollout.policies:
            key = f"rollout.engine (for policy {name})"
        engines[key] = policy.engine_config(trained_policy(recipe))
    return engines


def missing_libraries(recipe: Recipe) -> list[str]:
    """List the libraries needed by the recipe's engines but missing on this machine."""
    missing = []
    for key, engine in engines_by_key(recipe).items():
        reason = engine.missing_library()
        if reason is not None:
            missing.append(f"{key}.type: found {engine.type}, which {reason}, or another engine")
    return missing


def key_lines(recipe: Recipe) -> list[str]:
    """Describe the receivers of environment variables."""
    lines = []
    for key, engine in engines_by_key(recipe).items():
        sent_key = engine.sent_key()
        if sent_key is not None:
            lines.append(f"{key}: {sent_key}")
    return lines


def role_lines(phase: Recipe) -> list[str]:
    """Describe each role's speaker and the trained turns; empty for equals."""
    roles = roles_of(phase.debate.protocol())
    if len(roles) == 1 and roles[0].trains:
        return []
    policies = known_policies(phase)
    lines = []
    for role in roles:
        speaker = "the trained policy"
        if role.adapter is not None:
            speaker += f", adapter {role.adapter}"
        if role.policy != TRAINED:
            description = policies[role.policy].described(trained_policy(phase))
            speaker = f"policy {role.policy} ({description})"
        lines.append(
            f"  role {role.name}: {many(role.count, 'agent')}, {speaker}, "
            f"{'trained on' if role.trains else 'not trained on'}"
            f"{'' if role.answers else ', owes no answer'}"
        )
    return lines
