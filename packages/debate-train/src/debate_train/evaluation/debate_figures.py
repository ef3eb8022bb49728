"""Figures of debates: which there are by a debate's rules, and their rows in tables."""

from collections.abc import Iterable

from debate_protocol.parsing import get_contract
from debate_protocol.types import Protocol, agents_by_policy, judging_agents

_FIGURES = (
    *("maj/last", "decision/majority", "decision/peer_vote", "decision/bradley_terry"),
    *("decision/confidence", "judge/accuracy", "judge/strict_accuracy", "judge/owed_accuracy"),
    *("format_all", "format_strict", "correct", "judge/equal_share", "comparisons_made"),
    *("pass@k", "cons@k"),
    *("maj/first", "maj/delta", "flips/right_to_wrong", "flips/wrong_to_right"),
    *("tokens/answer", "agreement/reached", "agreement/accuracy"),
)
"""Names of `debate_rewards.metrics`."""
_CENTRAL = ("decision/central", "central/first", "central/last", "central/delta")
_OF_JUDGED = (
    *("decision/judged", "judged/vote", "judged/for_right", "judged/brier", "judged/gap"),
    *("judged/first_shown", "judged/longer", "judged/both_orders", "judged/words", "speech/words"),
    *("speech/impersonates", "speech/own_side", "speech/verified"),
)
_OF_CRITICS = ("critic/ok_when_right", "critic/no_when_wrong")
_RENAMED = {"format_all": "format", "correct": "last_round/accuracy"}
_SHOWN = {
    "maj/last": "majority vote",
    "peer_vote/accuracy": "peer-vote decision",
    "judge/accuracy": "judge accuracy",
    "format": "valid format",
    "central/accuracy": "the center's answer, of one agent",
}
"""Rows of the table, by our names."""
_OF_ROUNDS = ("accuracy", "maj", "pass@k", "drift", "diversity")
_RATIOS_OF_ROUNDS = ("rho", "n_eff", "right/tokens", "wrong/tokens")
_RATIOS = ("improvement", "agreement/tokens_saved")
DETAILS = {
    "maj/first": "majority of first answers (Maj)",
    "maj/delta": "majority vote − Maj (Δ)",
    "last_round/accuracy": "accuracy of an agent, last round",
    "improvement": "improvement of an agent's accuracy",
    "critic/ok_when_right": "critic agrees with a right answer",
    "critic/no_when_wrong": "critic objects to a wrong one",
    "tokens/answer": "sampled tokens an answer",
    "judged/for_right": "judges decide for who is right",
    "judged/vote": "share of judges for agent 0",
    "judged/gap": "share of judges who say right, beyond the truth",
    "judged/mcc": "judges' Matthews coefficient",
}
CENTRAL_DETAILS = {
    "central/first": "the center's first answer, of one agent",
    "central/delta": "gain of the center's answers",
}


def values_of(rules: Protocol) -> dict[str, tuple[str, str]]:
    """Return the figures of debates that are means over questions: our name and row, by theirs."""
    names = [*_FIGURES, *(_CENTRAL if rules.topology == "central" else ())]
    known = [*map(get_contract, rules.contracts or (rules.contract,))]
    sections = {section for one in known for section in one.sections}
    if "comparison" not in sections:
        names = [n for n in names if n not in ("decision/peer_vote", "decision/bradley_terry")]
    names += ("critique/corrects", "critique/harms") if "evaluation" in sections else ()
    names = [name for name in names if rules.topology != "pair" or name != "maj/delta"]
    if known[0].kind == "answer_line" and not all(role.answers for role in rules.roles):
        names += _OF_CRITICS
    names += _OF_JUDGED if judging_agents(rules) else ()
    more = [f"{name}/round_{n}" for name in _OF_ROUNDS for n in range(rules.max_rounds)]
    for kind in ("right_to_wrong", "wrong_to_right"):
        more += [f"flips/{kind}/dissent_{k}" for k in range(rules.num_agents)]
    found = dict(map(_named, names)) | {name: (name, "") for name in more}
    return found | _figures_of(agents_by_policy(rules))


def _named(theirs: str) -> tuple[str, tuple[str, str]]:
    kind, _, rule = theirs.partition("/")
    ours = f"{rule}/accuracy" if kind == "decision" else _RENAMED.get(theirs, theirs)
    return theirs, (ours, _SHOWN.get(ours, ""))


def ratios_of(rules: Protocol) -> list[str]:
    """Return the figures of debates that are ratios of sums over questions."""
    rounds = range(rules.max_rounds)
    own = ["judged/mcc"] if judging_agents(rules) else []
    return [
        *_RATIOS,
        *own,
        *(f"{name}/round_{round}" for name in _RATIOS_OF_ROUNDS for round in rounds),
    ]


def _figures_of(policies: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the same for figures of the agents of one policy, as `agents_by_policy` names it."""
    own = {"correct": "accuracy", "format_all": "format", "judge/accuracy": "judge/accuracy"}
    rows = {"correct": "accuracy, ", "judge/accuracy": "judge accuracy, "}
    return {
        f"{of}/{theirs}": (f"{of}/{ours}", f"{rows[theirs]}{of}" if theirs in rows else "")
        for of in policies
        for theirs, ours in own.items()
    }
