"""How often the policy is measured, on what, and in which debates."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from debate_protocol.config import Config
from debate_protocol.forms import DebateForm, FormConfig
from debate_protocol.visibility import TopologyName

if TYPE_CHECKING:
    from debate_train.recipe import Recipe, Rollout

_DEBATE_KEYS = (
    "num_agents",
    "max_rounds",
    "topology",
    "degree",
    "center",
    "history_rounds",
    "conversation",
)
_NEUTRAL = {"top_p": 1, "top_k": 0, "min_p": 0}


class Evaluation(Config):
    """When, on how many held-out questions and in what kind of debate the policy is measured.

    What is None is as in training. SDRL's protocol is `debate: {type: simultaneous, num_agents: 5,
    max_rounds: 2, history_rounds: 1, contract: boxed, personas: none}`, `temperature: 1`,
    `top_p: 0.9`, `runs: 5`.
    """

    every: int = Field(0, ge=0)
    """Steps between evaluations on the dev split; 0 leaves them out."""
    questions: int = Field(128, ge=0)
    """Questions of each evaluation; 0 leaves out the one before and after the run, too."""
    direct_samples: int = Field(4, ge=1)
    """Single-turn replies to each question, in each run."""
    runs: int = Field(1, ge=1)
    """Independent repetitions on the same questions."""
    debate: FormConfig | None = None
    """A whole form in place of the recipe's `debate`; the keys below change it, too."""
    num_agents: int | None = None
    max_rounds: int | None = None
    topology: TopologyName | None = None
    """With it `degree` and `center` are those of the evaluation, not of training."""
    degree: int | None = None
    center: int | None = None
    history_rounds: int | None = None
    conversation: Literal["append", "rebuild"] | None = None
    temperature: float | None = Field(None, ge=0)
    """Of all agents and direct replies, whatever their personas say; 0 is greedy."""
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, lt=1)

    def form(self, training: DebateForm) -> DebateForm:
        """Return the form of evaluated debates.

        Raises:
            ValueError: It has no such setting, or its settings do not go together.
        """
        form = training if self.debate is None else self.debate
        changes = self._changes()
        if not changes and self.temperature is None:
            return form
        try:
            if self.temperature is not None:
                form = form.at_temperature(self.temperature)
            return form.changed(changes)
        except ValidationError as error:
            found = error.errors()[0]
            where = ".".join(("evaluation", *map(str, found["loc"])))
            raise ValueError(f"{where}: {found['msg'].removeprefix('Value error, ')}") from error
        except ValueError as error:
            raise ValueError(
                f"evaluation.{error}; expected evaluation.debate to name another form"
            ) from error

    def _changes(self) -> dict[str, Any]:
        changes = {
            name: value for name in _DEBATE_KEYS if (value := getattr(self, name)) is not None
        }
        if self.topology is not None:
            changes |= {"degree": self.degree, "center": self.center}
        return changes

    def rollout(self, training: "Rollout") -> "Rollout":
        """Return how evaluated debates are sampled."""
        names = ("top_p", "top_k", "min_p")
        changes = {name: value for name in names if (value := getattr(self, name)) is not None}
        return training.model_copy(update=changes)


def sampled_as(recipe: "Recipe") -> str:
    """Return how direct replies and debates of an evaluation are sampled, in one line."""
    evaluation = recipe.evaluation
    form, rollout = evaluation.form(recipe.debate), evaluation.rollout(recipe.rollout)
    direct = f"{form.speaking().temperature_of(0):g}"
    each = [f"{form.temperature_of(agent):g}" for agent in range(form.num_agents)]
    single = form.turn_count() == 1
    if single or set(each) == {direct}:
        said = f"temperature {direct}"
    else:
        said = f"direct replies at temperature {direct}, debates at {', '.join(each)}"
    cuts = {name: value for name, value in rollout.sampling.items() if value != _NEUTRAL[name]}
    said += "".join(f", {name} {value:g}" for name, value in cuts.items())
    if not single:
        said += f"; {form.num_agents} agents, {form.max_rounds} rounds"
    return said + (f"; {evaluation.runs} runs" if evaluation.runs > 1 else "")
