"""How evaluated debates differ from those of training."""

from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from debate_protocol.config import Config
from debate_protocol.forms import DebateForm, FormConfig
from debate_protocol.forms.settings import PersonaChoice
from debate_protocol.visibility import TopologyName

_DEBATE_KEYS = (
    "num_agents",
    "max_rounds",
    "topology",
    "degree",
    "center",
    "history_rounds",
    "conversation",
)


class DebateChanges(Config):
    """Changes of a debate form; what is None stays as it is."""

    # Forms of other packages are imported when the first is made, not with this module: such a
    # package may have an evaluation mode in the same file, and import this.
    model_config = ConfigDict(defer_build=True)

    debate: FormConfig | None = None
    """A whole form in place of the recipe's `debate`; the keys below change it, too."""
    num_agents: int | None = None
    """Agents that debate."""
    max_rounds: int | None = None
    """Rounds at most."""
    topology: TopologyName | None = None
    """Whom an agent sees; with it `degree` and `center` are those of the evaluation."""
    degree: int | None = None
    """How many others each agent sees on `sparse`."""
    center: int | None = None
    """The agent that sees all on `central`."""
    history_rounds: int | None = None
    """Rounds that an agent sees: -1 all, 0 none, K the last K."""
    conversation: Literal["append", "rebuild"] | None = None
    """Whether an agent's dialogue only grows (`append`) or is a new prompt each turn."""
    personas: PersonaChoice | None = None
    """`default`, `none` or a list, in place of the recipe's."""
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature of agents and direct replies, over their personas'; 0 is greedy."""

    def form(self, training: DebateForm, where: str = "") -> DebateForm:
        """Return the form of evaluated debates.

        Args:
            training: What is changed.
            where: The key of these settings, for messages.

        Raises:
            ValueError: It has no such setting, or its settings do not go together.
        """
        form = training if self.debate is None else self.debate
        changes = self._changes()
        if not changes and self.personas is None and self.temperature is None:
            return form
        try:
            if self.personas is not None:  # Before the temperature, which is that of all of them.
                form = form.changed({"personas": self.personas})
            if self.temperature is not None:
                form = form.at_temperature(self.temperature)
            return form.changed(changes)
        except ValidationError as error:
            found = error.errors()[0]
            key = ".".join(filter(None, (where, *map(str, found["loc"]))))
            text = found["msg"].removeprefix("Value error, ")
            raise ValueError(f"{key}: {text}" if key else text) from error
        except ValueError as error:
            key = f"{where}." if where else ""
            raise ValueError(f"{key}{error}; expected {key}debate to name another form") from error

    def _changes(self) -> dict[str, object]:
        changes = {
            name: value for name in _DEBATE_KEYS if (value := getattr(self, name)) is not None
        }
        if self.topology is not None:
            changes |= {"degree": self.degree, "center": self.center}
        return changes
