"""How debates are sampled: the recipe's keys `rollout` and `pipeline`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from debate_protocol.forms import FormConfig
from debate_protocol.plugins import Config
from debate_protocol.types import DebateRun, Gate, Transcript
from debate_rewards.decisions import GateRule, divided
from debate_rollout.drivers import AUTO, DriverChoice, Select, play
from debate_rollout.engine import Engine, EngineSettings
from debate_rollout.engines import TransformersEngine
from debate_train.data.signs_puzzle import ENGINES
from debate_train.models.policies import PolicyChoice


class Pipeline(Config):
    """Rollouts for later steps while this one trains."""

    renamed: ClassVar[Mapping[str, str]] = {"depth": "max_staleness"}

    max_staleness: int = Field(0, ge=0)
    """Steps that are played ahead, with weights at most this many steps old; 0 is on-policy."""


class Rollout(Config):
    """How debates are sampled."""

    engine: Annotated[EngineSettings, ENGINES] = TransformersEngine()
    """Where and how replies are sampled."""
    policies: dict[str, PolicyChoice] = Field(default_factory=dict)
    """Policies that stay as they are, by the names that roles of the debate give them."""
    driver: DriverChoice = AUTO
    """Which debates wait for which, and how long for a reply."""
    max_tokens: int = Field(1024, ge=1)
    """Most tokens of one reply."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Tokens are drawn from the smallest set of at least this probability; 1 cuts nothing."""
    top_k: int = Field(0, ge=0)
    """Tokens are drawn from this many of the likeliest; 0 cuts nothing."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Tokens less likely than this share of the likeliest are not drawn; 0 cuts nothing."""
    debates_per_question: int = Field(1, ge=1)
    """Independent debates of each question; the group of GRPO when the form is `direct`."""
    direct_per_question: int = Field(0, ge=0)
    """Single-turn replies to each question beside its debates, prompted as a debate begins."""
    other_forms: tuple[FormConfig, ...] = ()
    """Further forms that the questions of a step are debated in, in turn: question n of a step in
    form n mod (1 + their number), of which `debate` is the first."""
    select: GateRule | None = None
    """Answers the gates of the debates: which go on, end, or are left out; all go on without."""
    oversample: int = Field(1, ge=1)
    """Most batches of questions that a step draws from until `data.batch_size` are kept."""

    @property
    def sampling(self) -> dict[str, float | int]:
        """Sampling settings that cut the distribution; neutral in RL."""
        return {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}

    def select_problem(self, gates: Sequence[int], turns: int) -> str | None:
        """Return what is wrong with `select` and `oversample`, if anything.

        Args:
            gates: Rounds of the form after which it yields a gate.
            turns: Of a debate.
        """
        rule = self.select
        if rule is None and self.oversample > 1:
            return (
                f"oversample: found {self.oversample} without select, so nothing is left out and "
                "nothing drawn in its place; expected select: {type: informative}"
            )
        if rule is None:
            return None
        if not gates:
            return (
                f"select: found {rule.type}, but the debate has no gate for it to answer; expected "
                "debate.gate_after, such as [0]"
            )
        alone, counting = divided(rule)
        if self.oversample > 1 and counting is not None and (alone is None or counting.drops):
            return (
                f"oversample: found {self.oversample} with a rule at_most that comes first or "
                "drops, but it counts the debates of a step once its questions are drawn; expected "
                "select: {type: in_order, rules: [{type: informative}, {type: at_most, go_on: …}]}"
            )
        if turns == 1 and rule.compares_turns:
            return (
                "select: found informative within each debate, which here is a single reply and "
                "never both right and wrong; expected group: question"
            )
        return None

    def play(
        self, runs: Sequence[DebateRun], engine: Engine, select: Select | None = None
    ) -> list[Transcript]:
        """Run debates to their ends as these settings say; `select` answers their gates."""
        return play(
            runs,
            engine,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            select=select,
            driver=self.driver,
        )


class StepDebates(list[Transcript]):
    """The debates that a step trains on; `metrics` say how many were left out, and why."""

    def __init__(
        self, transcripts: Sequence[Transcript], metrics: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(transcripts)
        self.metrics: dict[str, float] = dict(metrics or {})


def metrics_of(debates: Sequence[Transcript]) -> dict[str, float]:
    """Return the metrics that came with debates, none where nothing was selected."""
    return debates.metrics if isinstance(debates, StepDebates) else {}


Watch = Callable[[Sequence[DebateRun], int, str], list[DebateRun]]
"""Returns the same debates to be played in their place; each has at most so many turns, and the
text says what is played."""


def unwatched(runs: Sequence[DebateRun], turns: int, what: str) -> list[DebateRun]:
    """Return the debates as they are."""
    return list(runs)


def counted(
    runs: Sequence[DebateRun], turns: int, changed: Callable[[int, int], None]
) -> list[DebateRun]:
    """Return the debates; while they are played, `changed` hears (turns played, turns known).

    Args:
        runs: Not started; they are played in one thread.
        turns: Most of one debate; those that one which ends early leaves out count as played.
        changed: Is called when the number of played turns grows.
    """
    total, played = len(runs) * turns, 0

    def add(more: int) -> None:
        nonlocal played
        if more:
            played += more
            changed(played, total)

    return [_counted(run, turns, add) for run in runs]


def _counted(run: DebateRun, left: int, add: Callable[[int], None]) -> DebateRun:
    try:
        waits = next(run)
        while True:
            sent = yield waits
            if not isinstance(waits, Gate):
                found = min(left, len(waits))
                left -= found
                add(found)
            waits = run.send(sent)
    except StopIteration as stop:
        add(left)
        return stop.value  # type: ignore[no-any-return]
    finally:
        run.close()
