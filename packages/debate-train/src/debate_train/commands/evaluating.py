"""A call of `debate-eval`: every policy is measured in every mode, and results are written."""

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
    NamedPolicy,
    Plan,
    PolicyResults,
    journaled,
    policy_results,
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

# Keys of a recipe that decide what is said and measured.
_DECISIVE_KEYS = ("seed", "model", "data", "debate", "rollout", "evaluation")
# Keys of the rollout that may differ when an evaluation is resumed.
_FREE_ROLLOUT_KEYS = ("engine", "driver")
# The limit of names in `evaluation.modes`.
_MAX_MODE_LENGTH = 40
# An engine with either capability takes the weights of another policy.
_WEIGHT_CAPABILITIES = ("full_weights", "lora")


class Serving:
    """Serves policies of a recipe; close it.

    Checkpoints of the recipe's model share an engine. A model of another shape, or an adapter of
    another model, gets a new engine after the previous engine is closed.

    Args:
        recipe: The model, engine and other policies to use.
        source: Questions of the recipe.
        recipe_model_only: Whether only the recipe's own model is measured.
    """

    def __init__(self, recipe: Recipe, source: DataSource, *, recipe_model_only: bool) -> None:
        self._recipe = recipe
        self._source = source
        self._recipe_model_only = recipe_model_only
        self._engine: Engine | None = None
        self._loaded: LoadedModel | None = None
        self._has_recipe_weights = False
        """Whether the model in memory has the recipe's own weights."""
        self._serves_other_model = False
        """Whether the engine serves a model of another shape."""

    def serve(self, policy: NamedPolicy, version: int) -> Engine:
        """Open the engine, or load it with this policy's weights.

        Args:
            policy: The policy to sample from.
            version: Marks the weights in replies.

        Raises:
            ModelError: The weights cannot be loaded.
        """
        if self._recipe_model_only:
            if self._engine is None:
                self._engine = open_sampling(self._recipe, self._source)
            return self._engine

        if self._loaded is None or (policy.model is None and not self._has_recipe_weights):
            self._loaded = self._load_recipe_model()
            self._has_recipe_weights = True
        if policy.model is not None and not self._load_checkpoint(Path(policy.model), self._loaded):
            return self._serve_other(policy.model)
        if self._serves_other_model:
            self.close()
        if self._engine is None:
            # Roles that `start` speaks for need the recipe's weights, even where a checkpoint is
            # measured first and its weights are in memory.
            has_recipe_weights = self._has_recipe_weights
            opened = self._loaded if has_recipe_weights else self._load_recipe_model()
            self._engine = open_engine(self._recipe, opened)
        self._engine.load(export_weights(self._loaded, version))
        return self._engine

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self._serves_other_model = False

    def _load_recipe_model(self) -> LoadedModel:
        import torch

        if not torch.cuda.is_available():  # Keeps DeepSpeed, which transformers imports, quiet.
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        return self._recipe.model.load(self._recipe.seed)

    def _load_checkpoint(self, folder: Path, loaded: LoadedModel) -> bool:
        """Load a checkpoint of the recipe's model; False where it is of another model."""
        if not folder.is_dir():
            return False
        # Even a refused checkpoint may have overwritten some weights.
        self._has_recipe_weights = False
        with suppress(ModelError):
            refuse_other_base(folder, loaded)
            load_policy(folder, loaded)
            return True
        return False

    def _serve_other(self, name: str) -> Engine:
        model = _other_model(self._recipe, name)
        try:
            loaded = model.load(self._recipe.seed)
        except UsageError as error:
            text = str(error).removeprefix("model.name: ")
            raise ModelError(f"--policy: {text}") from error
        # Both models may not fit into memory beside each other.
        self.close()
        self._loaded = None
        self._engine = open_engine(self._recipe.model_copy(update={"model": model}), loaded)
        self._serves_other_model = True
        return self._engine


def _other_model(recipe: Recipe, name: str) -> PretrainedModel:
    return PretrainedModel(
        name=name,
        dtype=recipe.model.dtype,
        template_kwargs=dict(recipe.model.template_kwargs),
    )


@dataclass(frozen=True, slots=True)
class Evaluating:
    """An evaluation to make: policies, questions and modes."""

    recipe: Recipe
    """A phase; its `evaluation.questions` is the largest number of questions."""
    policies: Sequence[NamedPolicy]
    split: Split = "test"
    against: Sequence[NamedPolicy] = ()
    """Opponents from the command line, in modes of their own."""


def measured_phase(recipe: Recipe, num_questions: int | None) -> Recipe:
    """Select the last phase of a recipe, as a run does, and limit the questions.

    In a phase of demonstrations, policies answer through the engine of the other phases.
    """
    phase = list(recipe.phase_recipes().values())[-1]
    if not phase.rollout.engine.is_sampled:
        rollout = phase.rollout.model_copy(update={"engine": recipe.rollout.engine})
        phase = phase.model_copy(update={"rollout": rollout})
    if num_questions is None:
        return phase
    evaluation = phase.evaluation.model_copy(update={"questions": num_questions})
    return phase.model_copy(update={"evaluation": evaluation})


def with_opponents(recipe: Recipe, opponents: Sequence[NamedPolicy]) -> Recipe:
    """Add a mode for each opponent, with the opponent in all seats but the policy's.

    Raises:
        UsageError: An opponent's name is taken, or longer than a mode's may be.
    """
    policies = dict(recipe.rollout.policies)
    modes = dict(recipe.evaluation.modes)
    for opponent in opponents:
        mode = f"against-{opponent.name}"
        if opponent.model is None:
            # The recipe's own model has a policy already.
            modes[mode] = Opponents(opponent=START)
            continue
        if mode in policies or mode in modes or len(mode) > _MAX_MODE_LENGTH:
            raise UsageError(
                f"--against: found {opponent.name!r}, which is taken or too long; expected another "
                f"name, as in --against rival={opponent.source}"
            )
        policies[mode] = ModelPolicy(model=_other_model(recipe, opponent.model))
        modes[mode] = Opponents(opponent=mode)
    rollout = recipe.rollout.model_copy(update={"policies": policies})
    evaluation = recipe.evaluation.model_copy(update={"modes": modes})
    return recipe.model_copy(update={"rollout": rollout, "evaluation": evaluation})


def run_evaluation(
    evaluating: Evaluating,
    recipe_text: str,
    output: Path | None,
    *,
    resume: bool,
    all_figures: bool = False,
) -> Path:
    """Measure all policies, write and print the results, and return the folder.

    Args:
        evaluating: Policies, questions and modes.
        recipe_text: The recipe as the folder has it.
        output: The folder; `None` makes `runs/NAME-eval-TIME`.
        resume: Go on with an evaluation in the folder.
        all_figures: Print also the figures without a place in the table.

    Raises:
        UsageError: The folder cannot be used, or the split has no question.
    """
    recipe = evaluating.recipe
    path = output or new_folder(f"{recipe.name}-eval")
    source = recipe.data.open(recipe.seed)
    questions = source.split(evaluating.split, recipe.evaluation.questions)
    if not questions:
        raise UsageError(
            f"--split {evaluating.split}: found no questions; expected --questions and data with "
            "some"
        )
    setup = recipe.evaluated()
    plan = _plan(evaluating, questions)
    recipe_model_only = all(policy.model is None for policy in evaluating.policies)
    with (
        EvaluationDirectory(path, plan, recipe_text, resume=resume) as directory,
        closing(Serving(recipe, source, recipe_model_only=recipe_model_only)) as serving,
        Progress() as progress,
    ):
        results: list[PolicyResults] = []
        for number, policy in enumerate(evaluating.policies, 1):
            earlier = directory.read_measured(policy.name)
            if earlier is not None:
                progress.note(f"{policy.name}: is measured already")
                results.append(earlier)
                continue
            progress.start(policy.name)
            with closing(directory.journal(policy.name)) as journal:
                engine = journaled(serving.serve(policy, version=number), journal)
                shared_turns = SharedTurns(journal.replies)
                measures = evaluate(
                    setup, engine, questions, evaluating.split, progress.watch, shared_turns
                )
            measured = policy_results(policy, measures, setup.runs)
            directory.save(measured, measures.played)
            results.append(measured)
        # The table is printed below the progress display, not within it.
        serving.close()
        progress.close()
        write_results(directory, plan, setup, results)
        print_table(setup, f"{evaluating.split} split", results, all_=all_figures)
        print(f"results: {directory.path}")
    return path


def _plan(evaluating: Evaluating, questions: Sequence[Question]) -> Plan:
    """Describe the evaluation; resuming compares the descriptions."""
    recipe = evaluating.recipe
    phase = recipe.model_dump(mode="json")
    decisive = {key: phase[key] for key in _DECISIVE_KEYS}
    decisive["evaluation"].pop("headline")  # Decides what is listed first, and nothing else.
    decisive["rollout"] = {
        key: value for key, value in phase["rollout"].items() if key not in _FREE_ROLLOUT_KEYS
    }
    setup = recipe.evaluated()
    question_values = [(question.id, question.text, question.answer) for question in questions]
    return {
        "schema": SCHEMA,
        "recipe": {"name": recipe.name, "sha256": json_hash(decisive)},
        "split": evaluating.split,
        "questions": {"count": len(questions), "sha256": json_hash(question_values)},
        "runs": setup.runs,
        "seed": setup.seed,
        "modes": list(setup.modes),
        "against": [_describe_policy(policy, recipe) for policy in evaluating.against],
        "policies": [_describe_policy(policy, recipe) for policy in evaluating.policies],
    }


def _describe_policy(policy: NamedPolicy, recipe: Recipe) -> dict[str, str]:
    sha256 = policy.sha256
    if policy.model is None:
        # The recipe's model may be a folder with weights that have changed since.
        name = getattr(recipe.model, "name", "")
        if name:
            sha256 = weights_hash(name, "model.name")
    return {"name": policy.name, "source": policy.source, "sha256": sha256}


def check_evaluating(evaluating: Evaluating) -> CheckReport:
    """Check the recipe's keys for an evaluation, without weights and downloads."""
    recipe = evaluating.recipe
    engine = recipe.rollout.engine
    report = CheckReport()
    if "tokens" in engine.capabilities:
        check_model(recipe.model, report)
    view = look_at_data(recipe.data, trains=False)
    report.lines += view.lines
    report.errors += [*view.errors, *policy_errors(recipe, Launch())]
    sources = [policy.source for policy in evaluating.policies if policy.model is not None]
    if sources and not engine.capabilities.intersection(_WEIGHT_CAPABILITIES):
        report.errors.append(
            f"--policy: found {sources[0]!r} with rollout.engine.type {engine.type}, which takes "
            "no weights; expected transformers, vllm or vllm_server, or the recipe's own model"
        )

    setup = recipe.evaluated()
    if recipe.evaluation.questions < 1:
        report.errors.append(
            "evaluation.questions: found 0; expected at least one question (--questions)"
        )
    elif not any(True for _ in setup.plays()):
        report.errors.append("evaluation.modes: found none that plays anything; expected one")
    else:
        report.lines.append(evaluation_line(recipe))
        names = ", ".join(policy.name for policy in evaluating.policies)
        report.lines.append(f"  {many(len(evaluating.policies), 'policy')}: {names}")
    if not report.errors:
        windows = Windows(report.lines, report.errors)
        # The longest form comes first, and each form once: modes may differ in their seats alone.
        longest_first = sorted(setup.plays(), key=lambda play: -play[1].form.turn_count())
        compared_forms = []
        for _, play in longest_first:
            if play.form not in compared_forms:
                windows.compare(recipe, play.form, view.longest, "evaluation: ")
                compared_forms.append(play.form)
    report.lines = list(dict.fromkeys(report.lines))  # Seats of one mode have much in common.
    report.warnings += missing_libraries(recipe)
    return report
