"""Opening the engines of a recipe; imports no torch, for a quick start of commands."""

from contextlib import ExitStack

from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine
from debate_rollout.routing import RoutedEngine
from debate_train.data import DataSource
from debate_train.models.loaded_model import LoadedModel
from debate_train.models.policies import TrainedPolicy, brings_model, open_on
from debate_train.recipe import Recipe
from debate_train.recipe.policies import used_policies


def open_engine(recipe: Recipe, loaded: LoadedModel) -> Engine:
    """Open the engine of the policy, and engines of all other policies in the debates."""
    trained = TrainedPolicy(recipe.rollout.engine, recipe.model, recipe.seed)
    policies = used_policies(recipe)
    if not policies:
        return open_on(trained.engine, trained.model, loaded)
    with ExitStack() as opened:
        engine = open_on(trained.engine, trained.model, loaded)
        opened.callback(engine.close)
        others: dict[str, Engine] = {}
        for name, policy in policies.items():
            others[name] = policy.open(trained, loaded)
            opened.callback(others[name].close)
        opened.pop_all()
    return RoutedEngine(engine, others)


def open_sampling(recipe: Recipe, source: DataSource) -> Engine:
    """Open the engine of the recipe's model for sampling without training.

    Weights are loaded here only for engines of local models: endpoints need no weights.
    """
    config, model = recipe.rollout.engine, recipe.model
    script = config.script(source.demonstrate)
    if script is not None:
        return ScriptedEngine().open(script=script)
    trained = TrainedPolicy(config, model, recipe.seed)
    others = used_policies(recipe)
    all_bring_models = all(brings_model(policy, trained) for policy in others.values())
    if others and not config.needs_model and all_bring_models:
        engines = {
            name: policy.engine_config(trained).open(None, None) for name, policy in others.items()
        }
        return RoutedEngine(config.open(None, None), engines)
    if others:
        return open_engine(recipe, model.load(recipe.seed))
    if not config.needs_model:
        return config.open(None, None)
    folder = model.folder() if config.takes_folders else None
    if folder is None:
        loaded = model.load(recipe.seed)
        return config.alone().open(loaded.model, loaded.tokenizer, loaded.template_kwargs)
    if "tokens" not in config.capabilities:
        return config.open(folder, None)
    config = config.for_checkpoint(model.dtype)
    return config.open(folder, model.load_tokenizer(), model.template_kwargs)
