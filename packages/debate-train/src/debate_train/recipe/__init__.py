"""The recipe: everything that one run is made of."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from debate_protocol.forms import DebateForm, FormConfig
from debate_protocol.plugins import Config, did_you_mean
from debate_protocol.types import TRAINED, agents_by_policy, judging_agents, roles_of
from debate_rewards.rewards import RewardChoice
from debate_train.advantages import AdvantageChoice, Grouped
from debate_train.checkpoints import Checkpointing
from debate_train.data import DataChoice
from debate_train.evaluation.debates import Opponents
from debate_train.evaluation.settings import Evaluation, ExitCriterion, KeepIf, Setup
from debate_train.losses import LossConfig
from debate_train.models import ModelChoice
from debate_train.models.loaded_model import trained_adapters, unknown_adapter
from debate_train.models.policies import START
from debate_train.monitoring import Health
from debate_train.monitoring.tracking import Tracking
from debate_train.offline import OfflineChoice
from debate_train.playing import Pipeline, Rollout
from debate_train.playing.rollouts import start_mode
from debate_train.recipe.merging import merge_recipes
from debate_train.recipe.problems import WHOLE_PHASES, Schema
from debate_train.trainers import TrainerChoice


class Recording(Config):
    """What the run directory keeps of rollouts.

    Args:
        every: Steps between two recorded samples.
        debates: Debates in each sample: their transcripts, and their tokens with credits.
    """

    every: int = Field(10, ge=1)
    debates: int = Field(4, ge=0)


FolderName = Annotated[str, Field(pattern=r"^\w[\w .,+=@~-]{0,99}$")]
"""One file name, of a length that every disk takes."""


PARTS = ("model", "data", "debate", "reward", "loss", "trainer")
"""Keys that may be left out where their first variant has a default for everything."""


class Recipe(Config):
    """One run; every key that is left out is a default that we stand by.

    `phases` maps a name to the differences of that phase from the rest of the recipe; phases run
    in the order they are written. Without phases the recipe is its own only phase.
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
    """What the run directory keeps of rollouts."""
    tracking: Tracking = Tracking()
    """Whether and where the run is tracked."""
    phases: dict[FolderName, dict[str, Any]] = Field(default_factory=dict, max_length=100)
    """Names to differences from the rest of the recipe, run in the order they are written."""

    def phase_recipes(self) -> dict[str, "Recipe"]:
        """Return each phase as a whole recipe, in order.

        Differences are merged into what the recipe says, not into its defaults: a phase of
        another variant gets that variant's defaults.
        """
        return dict(self.whole_phases) if self.phases else {"train": self}

    @property
    def forms(self) -> tuple[DebateForm, ...]:
        """The forms that questions are debated in, in turn; `debate` is the first."""
        return (self.debate, *self.rollout.other_forms)

    def evaluated(self) -> Setup:
        """Return what an evaluation of this phase is made with."""
        setup = self.evaluation.setup(self.debate, self.rollout, self.seed)
        wanted = self.evaluation.headline
        return replace(setup, headline=self._trained_figures(setup) if wanted is None else wanted)

    def start_mode(self) -> Opponents | None:
        """Return the mode in which this phase is measured against its start, if it is."""
        if self.loss.supervised or self.offline is not None:
            return None
        return start_mode(self.evaluation, self.evaluated(), self.debate, self.rollout.engine)

    def _trained_figures(self, setup: Setup) -> list[str]:
        """Return the names of the figures that this phase trains the policy for."""
        weights = {name: stream.weight for name, stream in self.advantage.streams.items()}
        trained = {name for name in self.reward.streams if weights.get(name)}
        rules, names = setup.form.protocol(), list[str]()
        if self.debate.protocol().topology == "pair":  # A second turn trains for debates.
            names += ["eval/maj/last", "eval/maj/delta"]
        elif not all(role.answers for role in roles_of(rules)):
            names += ["eval/judged/for_right"] if judging_agents(rules) else []
            # Of assigned sides always one is right.
            names += [] if rules.extra.get("assigned") else ["eval/last_round/accuracy"]
        if trained != {"judge"}:
            names.append("eval/direct/accuracy")
        if "judge" in trained and not judging_agents(rules):
            own = f"{TRAINED}/" if TRAINED in agents_by_policy(rules) else ""
            names.append(f"eval/{own}judge/accuracy")
        return names

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy, whose phases follow from what was changed."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop(WHOLE_PHASES, None)
        return copied

    @cached_property
    def whole_phases(self) -> dict[str, "Recipe"]:
        """The phases, resolved and validated once: by the reader of a file, or here."""
        base = self.model_dump(exclude={"phases"}, exclude_unset=True)
        schema = Schema((Recipe,))
        return {
            name: Recipe.model_validate(merge_recipes(base, difference, schema))
            for name, difference in self.phases.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _parts_may_be_left_out(cls, data: object) -> object:
        return {**{key: {} for key in PARTS}, **data} if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _parts_fit_each_other(self) -> Self:
        problems = chain(
            self._evaluation_problems(),
            self._policy_problems(),
            self._other_form_problems(),
            self._update_problems(),
        )
        if (problem := next(problems, None)) is not None:
            raise ValueError(problem)
        return self

    def _evaluation_problems(self) -> Iterator[str]:
        criterion, keep, best = self.exit_criterion, self.keep_if, self.checkpoint.keep_best
        before = self.evaluation.before
        if criterion is not None and criterion.max_steps < self.steps:
            yield (
                f"exit_criterion.max_steps: found {criterion.max_steps}, but the phase has "
                f"{self.steps} steps before the criterion is looked at; expected at least as many"
            )
        if (criterion or keep) is not None and self.evaluation.questions == 0:
            what = "keep_if" if criterion is None else "an exit criterion"
            yield f"evaluation.questions: found 0, but {what} measures on them; expected at least 1"
        if self.phases and before and before not in self.phases:
            yield (
                f"evaluation.before: found {before!r}, expected one of {', '.join(self.phases)}"
                f"{did_you_mean(before, self.phases)}"
            )
        setup = self.evaluated()
        # What is best may be measured in another phase; an exit criterion in its own.
        for where, names, known in (
            ("exit_criterion.metric", [criterion.metric] if criterion else (), setup.measured()),
            (
                "exit_criterion.also_at_least",
                criterion.also_at_least if criterion else (),
                setup.measured(),
            ),
            ("keep_if.metric", [keep.metric] if keep else (), setup.measured()),
            ("checkpoint.keep_best.metric", [best.metric] if best else (), list(setup.figures())),
            ("evaluation.headline", self.evaluation.headline or (), list(setup.rows())),
        ):
            for name in names:
                if name not in known:
                    yield (
                        f"{where}: {name!r} is not measured; expected one of "
                        f"{', '.join(known)}{did_you_mean(name, known)}"
                    )

    def _policy_problems(self) -> Iterator[str]:
        for name in {TRAINED, START} & self.rollout.policies.keys():
            yield f"rollout.policies.{name}: the name is taken; expected another one"
        known = [TRAINED, START, *self.rollout.policies]
        setup = self.evaluated()
        forms = [("debate", self.debate), ("evaluation.debate", setup.form)]
        forms += [(f"rollout.other_forms.{n}", x) for n, x in enumerate(self.rollout.other_forms)]
        forms += [(f"evaluation.modes.{name}", one.form) for name, one in setup.plays()]
        for where, form in forms:
            for role in roles_of(form.protocol()):
                if role.policy not in known:
                    yield (
                        f"{where}.roles.{role.name}.policy: found {role.policy!r}, expected one of "
                        f"{', '.join(known)} (rollout.policies){did_you_mean(role.policy, known)}"
                    )
                if problem := unknown_adapter(self.model.lora, role.adapter):
                    yield f"{where}.roles.{role.name}.adapter: {problem}"

    def _other_form_problems(self) -> Iterator[str]:
        lora, mine = self.model.lora, self.debate
        for number, form in enumerate(self.rollout.other_forms):
            where = f"rollout.other_forms.{number}"
            if set(trained_adapters(lora, form)) - set(trained_adapters(lora, mine)):
                yield f"{where}.roles: expected adapters that debate trains, too"

    def _update_problems(self) -> Iterator[str]:
        """Yield what no update can use, such as stale samples under a loss without any bound."""
        loss, trainer, stale = self.loss, self.trainer, self.pipeline.max_staleness
        if not self.phases:
            if problem := trainer.type_problem({self.model.dtype}):
                yield problem
            gates = getattr(self.debate, "gate_after", ())
            if problem := self.rollout.select_problem(gates, self.debate.turn_count()):
                yield f"rollout.{problem}"
        if not loss.takes_off_policy and (trainer.makes_several or stale > 0):
            several = f"trainer.epochs {trainer.epochs} and minibatch_size {trainer.minibatch_size}"
            found = several if trainer.makes_several else f"pipeline.max_staleness {stale}"
            yield (
                f"loss.type: found {loss.type} with {found}, so samples are of older weights; "
                "expected ppo_clip, dapo or grpo, or loss.allow_off_policy: true"
            )

    def keep_problems(self) -> list[str]:
        """Return what is wrong with the phases that `keep_if` of phases name."""
        names, found = list(self.phase_recipes()), list[str]()
        for place, (name, phase) in enumerate(self.phase_recipes().items(), start=1):
            since = None if phase.keep_if is None else phase.keep_if.since
            if since is not None and since not in names[:place]:
                found.append(
                    f"phases.{name}.keep_if.since: found {since!r}; expected this phase or one "
                    f"before it: {', '.join(names[:place])}{did_you_mean(since, names[:place])}"
                )
        return found

    def sampling_problem(self) -> str | None:
        """Return why what is sampled cannot be trained on; collecting debates may do it.

        The log-probabilities of the sampler must be those of the policy that is trained.
        """
        if self.loss.supervised:
            return None
        trained = self.debate.trained_agents()
        if not trained:
            return f"debate.roles: found no role that is trained on; expected policy: {TRAINED}"
        greedy = [i for i in trained if self.debate.temperature_of(i) == 0]
        if greedy:
            return (
                f"debate: agent {greedy[0]} has temperature 0, which draws nothing to learn from; "
                "expected temperatures above 0 (evaluation.temperature may be 0)"
            )
        lowest = self.rollout.engine.lowest_temperature
        for agent in trained:
            temperature = self.debate.temperature_of(agent)
            if temperature < lowest:
                return (
                    f"debate: agent {agent} has temperature {temperature:g}, which engine "
                    f"{self.rollout.engine.type} raises to {lowest:g}, so its log-probabilities "
                    f"would be those of another policy; expected at least {lowest:g}"
                )
        if self.rollout.top_p < 1 or self.rollout.top_k > 0 or self.rollout.min_p > 0:
            return (
                "rollout: top_p < 1, top_k and min_p cut the distribution, so ratios to it are "
                "biased; expected neutral values in reinforcement learning"
            )
        return None
