"""The model of a recipe: keys, phases and played debates."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from debate_protocol.forms import DebateForm, FormConfig
from debate_protocol.plugins import Config
from debate_protocol.types import TRAINED, agents_by_policy, judging_agents, roles_of
from debate_rewards.rewards import RewardChoice
from debate_train.advantages import AdvantageChoice, Grouped
from debate_train.checkpoints import Checkpointing
from debate_train.data import DataChoice
from debate_train.evaluation.debates import Opponents
from debate_train.evaluation.settings import Evaluation, ExitCriterion, KeepIf, Setup
from debate_train.losses import LossConfig
from debate_train.models import ModelChoice
from debate_train.monitoring import Health
from debate_train.monitoring.tracking import Tracking
from debate_train.offline import OfflineChoice
from debate_train.playing import Pipeline, Rollout
from debate_train.playing.rollouts import start_mode
from debate_train.recipe.conflicts import conflicts_of
from debate_train.recipe.merging import merge_recipes
from debate_train.recipe.schema import WHOLE_PHASES, Schema
from debate_train.trainers import TrainerChoice

PARTS = ("model", "data", "debate", "reward", "loss", "trainer")
"""Keys that may be left out where their first variant has a default for everything."""

FolderName = Annotated[str, Field(pattern=r"^\w[\w .,+=@~-]{0,99}$")]
"""One file name, of a length that every disk takes."""


class Recording(Config):
    """Samples of rollouts in the run directory.

    Args:
        every: Steps between two recorded samples.
        debates: Debates in each sample: their transcripts, and their tokens with credits.
    """

    every: int = Field(10, ge=1)
    debates: int = Field(4, ge=0)


class Recipe(Config):
    """A run. We stand by every default.

    `phases` maps a name to the differences of that phase from the rest of the recipe; phases run
    in the order they are written. Without phases the recipe itself is the only phase.
    """

    name: FolderName
    """Names the run's folder below `runs/`."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Decides everything that is drawn."""
    steps: int = Field(ge=0)
    """Optimizer steps; a step plays `data.batch_size` questions once."""
    model: ModelChoice
    """What is trained."""
    data: DataChoice
    """The questions that are debated, and those that are measured on."""
    debate: FormConfig
    """The form of the debates: who speaks when, and what they see of each other."""
    rollout: Rollout = Rollout()
    """How debates are sampled."""
    pipeline: Pipeline = Pipeline()
    """How far ahead of training debates are played."""
    reward: RewardChoice
    """What turns, or parts of them, are worth."""
    advantage: AdvantageChoice = Grouped()
    """What values are compared with before they weigh tokens."""
    loss: LossConfig
    """What an update minimises."""
    offline: OfflineChoice | None = None
    """Learn from a set of examples that is made once, at the phase's start."""
    trainer: TrainerChoice
    """The optimizer, its schedule, and the processes that train."""
    evaluation: Evaluation = Evaluation()
    """When and how the policy is measured on held-out questions."""
    exit_criterion: ExitCriterion | None = None
    """What a phase must reach on the dev split before later phases run."""
    keep_if: KeepIf | None = None
    """Keep a phase's weights only if what is measured on the dev split has not fallen."""
    health: Health = Health()
    """What is watched while a phase samples and learns, and what stops it."""
    checkpoint: Checkpointing = Checkpointing()
    """When the run can be resumed from."""
    recording: Recording = Recording()
    """Samples of rollouts in the run directory."""
    tracking: Tracking = Tracking()
    """Whether and where the run is tracked."""
    phases: dict[FolderName, dict[str, Any]] = Field(default_factory=dict, max_length=100)
    """Names to differences from the rest of the recipe, run in the order they are written."""

    @model_validator(mode="before")
    @classmethod
    def _parts_may_be_left_out(cls, data: object) -> object:
        return {**{key: {} for key in PARTS}, **data} if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> Self:
        conflict = next(conflicts_of(self), None)
        if conflict is not None:
            raise ValueError(conflict)
        return self

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Copy the recipe; the copy's phases follow from the update."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop(WHOLE_PHASES, None)
        return copied

    def phase_recipes(self) -> dict[str, "Recipe"]:
        """List each phase as a whole recipe, in order.

        Differences are merged into the written keys of the recipe, not into defaults: a phase of
        another variant gets the variant's defaults.
        """
        return dict(self.whole_phases) if self.phases else {"train": self}

    @cached_property
    def whole_phases(self) -> dict[str, "Recipe"]:
        """The phases, resolved and validated once: by the reader of a file, or here."""
        base = self.model_dump(exclude={"phases"}, exclude_unset=True)
        schema = Schema((Recipe,))
        return {
            name: Recipe.model_validate(merge_recipes(base, difference, schema))
            for name, difference in self.phases.items()
        }

    @property
    def most_measured(self) -> int:
        """Most measured questions of a split, over all phases."""
        return max(phase.evaluation.questions for phase in self.phase_recipes().values())

    @property
    def forms(self) -> tuple[DebateForm, ...]:
        """The forms of debates on questions, in turn; `debate` is the first."""
        return (self.debate, *self.rollout.other_forms)

    def forms_by_key(self) -> dict[str, DebateForm]:
        """List the chosen forms of this recipe by their keys."""
        forms = {"debate": self.debate, "evaluation.debate": self.evaluated().form}
        for number, form in enumerate(self.rollout.other_forms):
            forms[f"rollout.other_forms.{number}"] = form
        return forms

    def evaluated(self) -> Setup:
        """Build the setup of this phase's evaluations."""
        setup = self.evaluation.setup(self.debate, self.rollout, self.seed)
        if self.evaluation.headline is None:
            return replace(setup, headline=self._trained_figures(setup))
        return replace(setup, headline=self.evaluation.headline)

    def start_mode(self) -> Opponents | None:
        """Build the mode of measuring this phase against the phase's start, if any."""
        if self.loss.supervised or self.offline is not None:
            return None
        return start_mode(self.evaluation, self.evaluated(), self.debate, self.rollout.engine)

    def _trained_figures(self, setup: Setup) -> list[str]:
        """List the names of the figures trained in this phase."""
        trained_streams = set()
        for name in self.reward.streams:
            stream = self.advantage.streams.get(name)
            if stream is not None and stream.weight != 0:
                trained_streams.add(name)
        protocol = setup.form.protocol()
        has_judges = bool(judging_agents(protocol))
        figures = []
        if self.debate.protocol().topology == "pair":  # A second turn trains for debates.
            figures += ["eval/maj/last", "eval/maj/delta"]
        elif not all(role.answers for role in roles_of(protocol)):
            if has_judges:
                figures.append("eval/judged/for_right")
            # One of two assigned sides is always right, so their accuracy says nothing.
            if not protocol.extra.get("assigned"):
                figures.append("eval/last_round/accuracy")
        if trained_streams != {"judge"}:
            figures.append("eval/direct/accuracy")
        if "judge" in trained_streams and not has_judges:
            by_policy = f"{TRAINED}/" if TRAINED in agents_by_policy(protocol) else ""
            figures.append(f"eval/{by_policy}judge/accuracy")
        return figures
