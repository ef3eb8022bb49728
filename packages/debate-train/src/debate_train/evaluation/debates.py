"""Modes that hold debates: the recipe's own with changes, and a society of minds."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from debate_protocol.forms import DebateForm, Simultaneous
from debate_protocol.forms.own_contract import ContractChoice
from debate_protocol.forms.settings import MOST, PersonaChoice
from debate_protocol.parsing.contract import get_contract
from debate_protocol.roles import agents_by_policy
from debate_protocol.types import Protocol, Transcript
from debate_train.evaluation.changes import DebateChanges
from debate_train.evaluation.curves import Curves, debate_curves
from debate_train.evaluation.mode import ModeSettings, Plays, Ratios, Values

Named = Mapping[str, tuple[str, str]]
"""A name of `debate_rewards.metrics` to ours, and its row in the table or an empty text."""

_FIGURES: Named = {
    "maj/last": ("maj/last", "majority vote"),
    "decision/majority": ("majority/accuracy", ""),
    "decision/peer_vote": ("peer_vote/accuracy", "peer-vote decision"),
    "decision/bradley_terry": ("bradley_terry/accuracy", ""),
    "decision/confidence": ("confidence/accuracy", ""),
    "judge/accuracy": ("judge/accuracy", "judge accuracy"),
    "judge/strict_accuracy": ("judge/strict_accuracy", ""),
    "judge/owed_accuracy": ("judge/owed_accuracy", ""),
    "format_all": ("format", "valid format"),
    "correct": ("last_round/accuracy", ""),
    "judge/equal_share": ("judge/equal_share", ""),
    "comparisons_made": ("comparisons_made", ""),
    "pass@k": ("pass@k", ""),
    "cons@k": ("cons@k", ""),
    "maj/first": ("maj/first", ""),
    "maj/delta": ("maj/delta", ""),
    "flips/right_to_wrong": ("flips/right_to_wrong", ""),
    "flips/wrong_to_right": ("flips/wrong_to_right", ""),
    "tokens/answer": ("tokens/answer", ""),
    "agreement/reached": ("agreement/reached", ""),
    "agreement/accuracy": ("agreement/accuracy", ""),
}
_OF_ROUNDS = ("accuracy", "maj", "pass@k", "drift", "diversity")
_RATIOS_OF_ROUNDS = ("rho", "n_eff", "right/tokens", "wrong/tokens")
_RATIOS = ("improvement", "agreement/tokens_saved")
_CENTRAL: Named = {
    "decision/central": ("central/accuracy", "the center's answer, of one agent"),
    "central/first": ("central/first", ""),
    "central/last": ("central/last", ""),
    "central/delta": ("central/delta", ""),
}

_DETAILS = {
    "maj/first": "majority of first answers (Maj)",
    "maj/delta": "majority vote − Maj (Δ)",
    "last_round/accuracy": "accuracy of an agent, last round",
    "improvement": "improvement of an agent's accuracy",
    "tokens/answer": "sampled tokens an answer",
}
_CENTRAL_DETAILS = {
    "central/first": "the center's first answer, of one agent",
    "central/delta": "gain of the center's answers",
}


def values_of(rules: Protocol) -> dict[str, tuple[str, str]]:
    """Return the figures of debates that are means over questions."""
    found = dict(_FIGURES)
    if "comparison" not in get_contract(rules.contract).sections:
        del found["decision/peer_vote"], found["decision/bradley_terry"]
    if rules.topology == "pair":
        del found["maj/delta"]
    for name in _OF_ROUNDS:
        rounds = [f"{name}/round_{round}" for round in range(rules.max_rounds)]
        found |= {figure: (figure, "") for figure in rounds}
    if rules.topology == "central":
        found |= _CENTRAL
    return {**found, **_figures_of(agents_by_policy(rules))}


def ratios_of(rules: Protocol) -> list[str]:
    """Return the figures of debates that are ratios of sums over questions."""
    rounds = range(rules.max_rounds)
    return [*_RATIOS, *(f"{name}/round_{round}" for name in _RATIOS_OF_ROUNDS for round in rounds)]


def _figures_of(policies: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the same for figures of the agents of one policy, as `agents_by_policy` names it."""
    own = {"correct": "accuracy", "format_all": "format", "judge/accuracy": "judge/accuracy"}
    rows = {"correct": "accuracy, ", "judge/accuracy": "judge accuracy, "}
    return {
        f"{of}/{theirs}": (f"{of}/{ours}", f"{rows[theirs]}{of}" if theirs in rows else "")
        for of in policies
        for theirs, ours in own.items()
    }


class DebateMode(ModeSettings):
    """The base class of modes that hold one debate on each question."""

    @abstractmethod
    def debated(self, form: DebateForm) -> DebateForm:
        """Return the form of the debates."""

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return one debate; none where a form of one turn is no debate."""
        debated = self.debated(form)
        return (Plays(debated),) if debated.turn_count() > 1 else ()

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the figures of debates, and where several policies speak those of each."""
        rules = self.debated(form).protocol()
        return dict(values_of(rules).values()) | dict.fromkeys(ratios_of(rules), "")

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """Return the rows of Maj, Debate and Δ, of the improvement and of the cost."""
        central = self.debated(form).protocol().topology == "central"
        return _DETAILS | (_CENTRAL_DETAILS if central else {})

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return the figures of each question."""
        from debate_rewards.metrics.debate_metrics import question_values

        found = question_values(played[0])
        names = {theirs: ours for one in played[0] for theirs, (ours, _) in _named(one).items()}
        return {ours: found[theirs] for theirs, ours in names.items() if theirs in found}

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Return improvement, ρ, N_eff, lengths and what stopping at agreement saves."""
        from debate_rewards.metrics.debate_metrics import question_moments

        names = {name for one in played[0] for name in ratios_of(one.protocol)}
        found: dict[str, dict[str, tuple[float, ...]]] = {}
        for question, moments in question_moments(played[0]).items():
            for name in names & moments.keys():
                found.setdefault(name, {})[question] = moments[name]
        return found

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return the accuracy of each round beside all tokens until then."""
        return debate_curves(played[0])

    def counted(self, form: DebateForm) -> str:
        """Return the number of turns."""
        turns = sum(one.turns for one in self.plays(form))
        return f"{turns:,} turns of debate" if turns else ""


def _named(debate: Transcript) -> dict[str, tuple[str, str]]:
    return values_of(debate.protocol)


class Debate(DebateChanges, DebateMode):
    """The policy in debates: by majority, by the votes of its peers, and as a judge."""

    type: Literal["debate"] = "debate"

    def debated(self, form: DebateForm) -> DebateForm:
        """Return the recipe's debate as these settings change it."""
        return self.form(form)


class SocietyOfMinds(DebateMode):
    """Agents that read all others' last answers and answer again; nobody votes.

    The recipe's prompts, temperature of agent 0 and limits hold; its personas do not.

    Source: Du et al. (2023), Improving factuality and reasoning in language models through
    multiagent debate: 3 agents, 2 rounds. Deviation: the prompts' words are ours.
    """

    type: Literal["society_of_minds"] = "society_of_minds"
    num_agents: int = Field(3, ge=2, le=MOST)
    """Agents that answer."""
    max_rounds: int = Field(2, ge=1, le=MOST)
    """Rounds, the first answers included."""
    contract: ContractChoice | None = None
    """How answers are read; by default as the recipe's if that is free text, else `boxed`."""
    personas: PersonaChoice = "none"
    """Who the agents are to be; each brings a temperature, which `evaluation.temperature` does
    not change."""

    def debated(self, form: DebateForm) -> DebateForm:
        """Return the debate."""
        speaking = form.speaking()
        contract: object = speaking.contract
        if self.contract is not None:
            contract = self.contract
        elif speaking.contract_rules().kind == "xml":
            contract = "boxed"
        return Simultaneous.model_validate(
            {
                "num_agents": self.num_agents,
                "max_rounds": self.max_rounds,
                "history_rounds": 1,
                "contract": contract,
                "style": speaking.style,
                "personas": self.personas,
                "temperature": form.temperature_of(0),
                "think": speaking.think,
                "max_chars_per_field": speaking.max_chars_per_field,
            }
        )
