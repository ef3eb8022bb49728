"""Opening a run's engine on the policy that is trained."""

from contextlib import ExitStack

from debate_rollout.engine import Engine
from debate_rollout.routing import RoutedEngine
from debate_train.checks.check_engines import engine_errors
from debate_train.checks.check_policies import missing_libraries, policy_errors, used_policies
from debate_train.errors import RecipeError
from debate_train.models.loaded_model import LoadedModel
from debate_train.models.policies import Trained, open_on
from debate_train.recipe import Recipe


def refuse_unusable_engine(recipe: Recipe) -> None:
    """Refuse an engine that cannot be opened, before a model is loaded for it.

    Raises:
        RecipeError: Its library is missing, or it has not what training needs.
    """
    errors = [*engine_errors(recipe), *policy_errors(recipe), *missing_libraries(recipe)]
    if errors:
        raise RecipeError("\n".join(errors))


def open_engine(recipe: Recipe, loaded: LoadedModel) -> Engine:
    """Return the engine that samples from the policy, and from all others that speak."""
    trained = Trained(recipe.rollout.engine, recipe.model, recipe.seed)
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
