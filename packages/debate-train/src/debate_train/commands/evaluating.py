"""One call of `debate-eval`: every policy is measured in every mode, and all of it is kept."""

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from debate_protocol.types import Question
from debate_rollout.engine import Engine
from debate_train.checkpoints.policy_files import load_policy, refuse_other_base
from debate_train.checkpoints.run_directory import json_hash, new_folder
from debate_train.commands.evaluate import weights_hash
from debate_train.commands.evaluation_files import (
    SCHEMA,
    EvaluationDirectory,
    Found,
    NamedPolicy,
    Plan,
    found_of,
    journaled,
    print_table,
    write_results,
)
from debate_train.data import DataSource
from debate_train.data.source import Split
from debate_train.errors import ModelError, UsageError
from debate_train.evaluation import Opponents
from debate_train.evaluation.measuring import evaluate
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import LoadedModel, export_weights
from debate_train.models.policies import START, ModelPolicy
from debate_train.monitoring.progress import Progress
from debate_train.playing.shared_turns import SharedTurns
from debate_train.recipe import Recipe
from debate_train.recipe.arithmetic import evaluation_line
from debate_train.recipe.check import CheckReport, check_model
from debate_train.recipe.data_view import look_at_data
from debate_train.recipe.policies import missing_libraries
from debate_train.recipe.refusals import Launch, policy_errors
from debate_train.recipe.step_counts import many
from debate_train.recipe.windows import Windows
from debate_train.running.open_engines import open_engine, open_sampling


class Serving:
    """Serves policies of a recipe; close it.

    Checkpoints of the recipe's model are loaded into one engine. A model of another shape, or an
    adapter of another model, is opened in an engine of its own, after that before it is closed.

    Args:
        recipe: Whose model, engine and other policies are used.
        source: Its questions.
        alone: Whether nothing but the recipe's own model is measured.
    """

    def __init__(self, recipe: Recipe, source: DataSource, *, alone: bool) -> None:
        self._recipe, self._source, self._alone = recipe, source, alone
        self._engine: Engine | None = None
        self._loaded: LoadedModel | None = None
        self._is_own = False
        """Whether the model in memory has the recipe's own weights."""
        self._is_other = False
        """Whether the engine serves a model of another shape."""

    def serve(self, policy: NamedPolicy, version: int) -> Engine:
        """Return the engine, which samples from this policy; `version` marks its weights.

        Raises:
            ModelError: The weights cannot be loaded.
        """
        if self._alone:
            if self._engine is None:
                self._engine = open_sampling(self._recipe, self._source)
            return self._engine
        loaded = self._own_model(policy)
        if policy.model is not None and not self._fits(Path(policy.model), loaded):
            return self._serve_other(policy.model)
        if self._is_other:
            self.close()
        if self._engine is None:
            # Roles that the start speaks for begin with the recipe's model, whoever comes first.
            opened = loaded if self._is_own else self._fresh()
            self._engine = open_engine(self._recipe, opened)
        self._engine.load(export_weights(loaded, version))
        return self._engine

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine, self._is_other = None, False

    def _own_model(self, policy: NamedPolicy) -> LoadedModel:
        if self._loaded is None or (policy.model is None and not self._is_own):
            self._loaded, self._is_own = self._fresh(), True
        return self._loaded

    def _fresh(self) -> LoadedModel:
        import torch

        if not torch.cuda.is_available():  # Keeps DeepSpeed, which transformers imports, quiet.
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        return self._recipe.model.load(self._recipe.seed)

    def _fits(self, folder: Path, loaded: LoadedModel) -> bool:
        """Load a checkpoint of the recipe's model; return whether it is one."""
        if not folder.is_dir():
            return False
        self._is_own = False
        with suppress(ModelError):
            refuse_other_base(folder, loaded)
            load_policy(folder, loaded)
            return True
        return False

    def _serve_other(self, name: str) -> Engine:
        other = _other_model(self._recipe, name)
        try:
            loaded = other.load(self._recipe.seed)
        except UsageError as error:
            text = str(error).removeprefix("model.name: ")
            raise ModelError(f"--policy: {text}") from error
        self.close()
        self._loaded = None
        self._engine = open_engine(self._recipe.model_copy(update={"model": other}), loaded)
        self._is_other = True
        return self._engine


def _other_model(recipe: Recipe, name: str) -> PretrainedModel:
    kwargs = dict(recipe.model.template_kwargs)
    return PretrainedModel(name=name, dtype=recipe.model.dtype, template_kwargs=kwargs)


_DECIDES = ("seed", "model", "data", "debate", "rollout", "evaluation")
"""Keys of a recipe that decide what is said and measured."""
_FREE = ("engine", "driver")
"""Keys of the rollout that may be others when an evaluation is resumed."""
_LONGEST_MODE = 40
"""Of the name of a mode in `evaluation.modes`."""


@dataclass(frozen=True, slots=True)
class Evaluating:
    """What is to be evaluated."""

    recipe: Recipe
    """A phase, with as many questions in `evaluation` as are asked at most."""
    policies: Sequence[NamedPolicy]
    split: Split = "test"
    against: Sequence[NamedPolicy] = ()
    """Opponents that the recipe does not name, in modes of their own."""


def measured_phase(recipe: Recipe, most: int | None) -> Recipe:
    """Return the last phase of a recipe, which is what a run measures, with so many questions.

    Where its debates are demonstrated, policies answer through the engine of the other phases.
    """
    phase = list(recipe.phase_recipes().values())[-1]
    if not phase.rollout.engine.is_sampled:
        rollout = phase.rollout.model_copy(update={"engine": recipe.rollout.engine})
        phase = phase.model_copy(update={"rollout": rollout})
    if most is None:
        return phase
    return phase.model_copy(
        update={"evaluation": phase.evaluation.model_copy(update={"questions": most})}
    )


def with_opponents(recipe: Recipe, opponents: Sequence[NamedPolicy]) -> Recipe:
    """Return the recipe with a mode for each opponent, in which it has all seats but one.

    Raises:
        UsageError: The name of one is taken, or too long for a mode's name.
    """
    policies, modes = dict(recipe.rollout.policies), dict(recipe.evaluation.modes)
    for one in opponents:
        mode = f"against-{one.name}"
        name = START if one.model is None else mode
        if one.model is not None:
            if mode in policies or mode in modes or len(mode) > _LONGEST_MODE:
                raise UsageError(
                    f"--against: found {one.name!r}, which is taken or too long; expected another "
                    f"name, as in --against rival={one.source}"
                )
            policies[name] = ModelPolicy(model=_other_model(recipe, one.model))
        modes[mode] = Opponents(opponent=name)
    rollout = recipe.rollout.model_copy(update={"policies": policies})
    evaluation = recipe.evaluation.model_copy(update={"modes": modes})
    return recipe.model_copy(update={"rollout": rollout, "evaluation": evaluation})


def run_evaluation(
    wanted: Evaluating, text: str, output: Path | None, *, resume: bool, all_figures: bool = False
) -> Path:
    """Measure all policies, write the results, print them; return the folder.

    Args:
        wanted: What is evaluated.
        text: The recipe as it is kept.
        output: The folder; None makes `runs/NAME-eval-TIME`.
        resume: Go on with an evaluation in that folder.
        all_figures: Print also the figures that the table does not list.

    Raises:
        UsageError: The folder cannot be used, or there is nothing to measure.
    """
    path = output or new_folder(f"{wanted.recipe.name}-eval")
    source = wanted.recipe.data.open(wanted.recipe.seed)
    questions = source.split(wanted.split, wanted.recipe.evaluation.questions)
    if not questions:
        raise UsageError(
            f"--split {wanted.split}: found no questions; expected --questions and data with some"
        )
    setup, plan = wanted.recipe.evaluated(), _plan(wanted, questions)
    alone = all(policy.model is None for policy in wanted.policies)
    with (
        EvaluationDirectory(path, plan, text, resume=resume) as directory,
        closing(Serving(wanted.recipe, source, alone=alone)) as serving,
        Progress() as progress,
    ):

        def measured(number: int, policy: NamedPolicy) -> Found:
            if (known := directory.measured(policy.name)) is not None:
                progress.note(f"{policy.name}: is measured already")
                return known
            progress.start(policy.name)
            with closing(directory.journal(policy.name)) as journal:
                engine = journaled(serving.serve(policy, version=number), journal)
                shared = SharedTurns(journal.known)
                made = evaluate(setup, engine, questions, wanted.split, progress.watch, shared)
            found = found_of(policy, made, setup.runs)
            directory.keep(found, made.played)
            return found

        found = [measured(number, policy) for number, policy in enumerate(wanted.policies, 1)]
        serving.close()
        progress.close()
        write_results(directory, plan, setup, found)
        print_table(setup, f"{wanted.split} split", found, all_=all_figures)
        print(f"results: {directory.path}")
    return path


def _plan(wanted: Evaluating, questions: Sequence[Question]) -> Plan:
    """Return what is measured, by which an evaluation that is resumed is known to be the same."""
    phase = wanted.recipe.model_dump(mode="json")
    decisive = {key: phase[key] for key in _DECIDES}
    decisive["evaluation"].pop("headline")  # Decides what is listed first, and nothing else.
    decisive["rollout"] = {k: v for k, v in phase["rollout"].items() if k not in _FREE}
    setup = wanted.recipe.evaluated()
    asked = [(q.id, q.text, q.answer) for q in questions]
    return {
        "schema": SCHEMA,
        "recipe": {"name": wanted.recipe.name, "sha256": json_hash(decisive)},
        "split": wanted.split,
        "questions": {"count": len(questions), "sha256": json_hash(asked)},
        "runs": setup.runs,
        "seed": setup.seed,
        "modes": list(setup.modes),
        "against": [_shown(policy, wanted.recipe) for policy in wanted.against],
        "policies": [_shown(policy, wanted.recipe) for policy in wanted.policies],
    }


def _shown(policy: NamedPolicy, recipe: Recipe) -> dict[str, str]:
    name = getattr(recipe.model, "name", "") if policy.model is None else ""
    digest = weights_hash(name, "model.name") if name else policy.sha256
    return {"name": policy.name, "source": policy.source, "sha256": digest}


_WEIGHTS = ("full_weights", "lora")


def check_evaluating(wanted: Evaluating) -> CheckReport:
    """Check what an evaluation takes of a recipe; loads no weights, downloads nothing."""
    recipe, engine, found = wanted.recipe, wanted.recipe.rollout.engine, CheckReport()
    if "tokens" in engine.capabilities:
        check_model(recipe.model, found)
    view = look_at_data(recipe.data, trains=False)
    found.lines += view.lines
    found.errors += [*view.errors, *policy_errors(recipe, Launch())]
    named = [policy.source for policy in wanted.policies if policy.model is not None]
    if named and not engine.capabilities.intersection(_WEIGHTS):
        found.errors.append(
            f"--policy: found {named[0]!r} with rollout.engine.type {engine.type}, which takes "
            "no weights; expected transformers, vllm or vllm_server, or the recipe's own model"
        )
    setup = recipe.evaluated()
    if recipe.evaluation.questions < 1:
        found.errors.append(
            "evaluation.questions: found 0; expected at least one question (--questions)"
        )
    elif not any(True for _ in setup.plays()):
        found.errors.append("evaluation.modes: found none that plays anything; expected one")
    else:
        found.lines.append(evaluation_line(recipe))
        count = many(len(wanted.policies), "policy")
        found.lines.append(f"  {count}: {', '.join(one.name for one in wanted.policies)}")
    if not found.errors:
        windows, known = Windows(found.lines, found.errors), []
        for _, plays in sorted(setup.plays(), key=lambda one: -one[1].form.turn_count()):
            if plays.form not in known:
                windows.compare(recipe, plays.form, view.longest, "evaluation: ")
                known.append(plays.form)
    found.lines = [*dict.fromkeys(found.lines)]  # Seats of one mode have much in common.
    found.warnings += missing_libraries(recipe)
    return found
