"""Which policy speaks for which role, what is trained, and what keeps a policy from speaking."""

from collections.abc import Iterator

from debate_protocol.roles import roles_of
from debate_protocol.types import TRAINED
from debate_rollout.engine_settings import EngineConfig
from debate_train.adapters import trained_adapters
from debate_train.models.policies import START, PolicyConfig, StartPolicy, Trained
from debate_train.recipe import Recipe


def known_policies(recipe: Recipe) -> dict[str, PolicyConfig]:
    """Return the policies that roles may name besides the trained one."""
    return {START: StartPolicy(), **recipe.rollout.policies}


def used_policies(recipe: Recipe) -> dict[str, PolicyConfig]:
    """Return the policies that speak in the recipe's debates besides the trained one."""
    known = known_policies(recipe)
    names: list[str] = []
    for phase in recipe.phase_recipes().values():
        for form in (phase.debate, *(one.form for _, one in phase.evaluated().plays())):
            names += [role.policy for role in roles_of(form.protocol())]
    return {name: known[name] for name in dict.fromkeys(names) if name in known}


def role_lines(phase: Recipe) -> list[str]:
    """Say who speaks for each role and what is trained; nothing where all are equals."""
    roles = roles_of(phase.debate.protocol())
    if len(roles) == 1 and roles[0].trains:
        return []
    trained = Trained(phase.rollout.engine, phase.model, phase.seed)
    known = known_policies(phase)
    said = []
    for role in roles:
        agents = f"{role.count} agent{'' if role.count == 1 else 's'}"
        speaker = "the trained policy"
        if role.adapter is not None:
            speaker += f", adapter {role.adapter}"
        if role.policy != TRAINED:
            speaker = f"policy {role.policy} ({known[role.policy].described(trained)})"
        fate = "trained on" if role.trains else "not trained on"
        answers = "" if role.answers else ", owes no answer"
        said.append(f"  role {role.name}: {agents}, {speaker}, {fate}{answers}")
    return said


def missing_libraries(recipe: Recipe) -> list[str]:
    """Return what the engines of a recipe need and is not installed here."""
    return [
        f"{key}.type: found {engine.type}, which {missing}, or another engine"
        for key, engine in engines_used(recipe).items()
        if (missing := engine.missing_library()) is not None
    ]


def engines_used(recipe: Recipe) -> dict[str, EngineConfig]:
    """Return the engines of all policies by where they are chosen, the trained one's first."""
    trained = Trained(recipe.rollout.engine, recipe.model, recipe.seed)
    found = {"rollout.engine": trained.engine}
    for name, policy in used_policies(recipe).items():
        key = f"rollout.policies.{name}.engine"
        if name not in recipe.rollout.policies:
            key = f"rollout.engine (for policy {name})"
        found[key] = policy.engine_config(trained)
    return found


def key_lines(recipe: Recipe) -> list[str]:
    """Return which environment variables' values are sent where."""
    engines = engines_used(recipe).items()
    return [f"{key}: {text}" for key, engine in engines if (text := engine.sent_key()) is not None]


def policy_errors(recipe: Recipe, *, with_tokenizer: bool = True) -> list[str]:
    """Return what keeps the recipe's other policies from speaking.

    Without their tokenizers, models in directories need a configuration alone.
    """
    trained = Trained(recipe.rollout.engine, recipe.model, recipe.seed)
    found = [*_adapter_errors(recipe)] + [
        f"phases.{name}.rollout.policies: found a difference, but a run opens its policies once; "
        "expected it outside of phases"
        for name, phase in recipe.phase_recipes().items()
        if phase.rollout.policies != recipe.rollout.policies
    ]
    found += [
        f"rollout.policies.{name}.{problem}"
        for name, policy in used_policies(recipe).items()
        for problem in policy.problems(trained, with_tokenizer=with_tokenizer)
    ]
    engines = engines_used(recipe)
    first, *others = [key for key, one in engines.items() if one.one_in_process] or [""]
    return found + [
        f"{key}: found a {engines[key].type} inside this process, which can hold one, and "
        f"{first} is there; expected process: own, or type: vllm_server"
        for key in others
    ]


def _adapter_errors(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps several adapters from being served and trained."""
    lora, engine = recipe.model.lora, recipe.rollout.engine
    if lora is None or len(lora.adapters) < 2:
        return
    if "lora" in engine.capabilities and "adapters" not in engine.capabilities:
        yield (
            f"rollout.engine.type: found {engine.type}, which serves one adapter, with "
            f"{len(lora.adapters)} in model.lora.adapters; expected transformers, vllm or "
            "vllm_server"
        )
    for name, phase in recipe.phase_recipes().items():
        where = f"phases.{name}." if recipe.phases else ""
        most, trained = phase.trainer.adapters_at_once, trained_adapters(lora, phase.debate)
        if len(trained) > most:
            yield (
                f"{where}trainer.type: found {phase.trainer.type}, which trains "
                f"{most or 'no'} adapter by its name at a time, with {' and '.join(trained)}; "
                "expected torch, or phases that train one after the other "
                "(debate.roles.NAME.train: false)"
            )


def adapter_warnings(recipe: Recipe) -> Iterator[str]:
    """Yield which adapters no role trains."""
    lora, phases = recipe.model.lora, recipe.phase_recipes().values()
    used = {name for phase in phases for name in trained_adapters(lora, phase.debate)}
    for name in () if lora is None else lora.adapters:
        if name not in used:
            yield (
                f"model.lora.adapters: found {name!r}, which no role that is trained on names, so "
                f"it stays as it is; expected debate.roles.NAME.adapter: {name}"
            )
