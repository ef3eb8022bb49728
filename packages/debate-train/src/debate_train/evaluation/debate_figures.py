"""Figures of debates, by the debate's protocol, and their rows in tables."""

from debate_protocol.parsing import get_contract
from debate_protocol.types import Protocol, agents_by_policy, judging_agents

# Names of `debate_rewards.metrics`.
_FIGURES = (
    "maj/last",
    "decision/majority",
    "decision/peer_vote",
    "decision/bradley_terry",
    "decision/confidence",
    "judge/accuracy",
    "judge/strict_accuracy",
    "judge/owed_accuracy",
    "format_all",
    "format_strict",
    "correct",
    "judge/equal_share",
    "comparisons_made",
    "pass@k",
    "cons@k",
    "maj/first",
    "maj/delta",
    "flips/right_to_wrong",
    "flips/wrong_to_right",
    "tokens/answer",
    "agreement/reached",
    "agreement/accuracy",
)
_VOTE_FIGURES = ("decision/peer_vote", "decision/bradley_terry")
_CENTRAL_FIGURES = ("decision/central", "central/first", "central/last", "central/delta")
_CRITIQUE_FIGURES = ("critique/corrects", "critique/harms")
_CRITIC_FIGURES = ("critic/ok_when_right", "critic/no_when_wrong")
_JUDGED_FIGURES = (
    "decision/judged",
    "judged/vote",
    "judged/for_right",
    "judged/brier",
    "judged/gap",
    "judged/first_shown",
    "judged/longer",
    "judged/both_orders",
    "judged/words",
    "speech/words",
    "speech/impersonates",
    "speech/own_side",
    "speech/verified",
)
_ROUND_FIGURES = ("accuracy", "maj", "pass@k", "drift", "diversity")
_RATIOS = ("improvement", "agreement/tokens_saved")
_ROUND_RATIOS = ("rho", "n_eff", "right/tokens", "wrong/tokens")
# Our names of metrics, where they differ.
_RENAMED = {"format_all": "format", "correct": "last_round/accuracy"}
# Rows of the table, by our names.
_ROWS = {
    "maj/last": "majority vote",
    "peer_vote/accuracy": "peer-vote decision",
    "judge/accuracy": "judge accuracy",
    "format": "valid format",
    "central/accuracy": "the center's answer, of one agent",
}
# Figures of one policy's agents: metric, our name, and the beginning of its row if it has one.
_POLICY_FIGURES = (
    ("correct", "accuracy", "accuracy, "),
    ("format_all", "format", None),
    ("judge/accuracy", "judge/accuracy", "judge accuracy, "),
)
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
    """List the figures of debates with means over questions: metric → our name and row."""
    figures = {}
    for name in _question_figures(rules):
        kind, _, rule = name.partition("/")
        our_name = _RENAMED.get(name, name)
        if kind == "decision":
            our_name = f"{rule}/accuracy"
        figures[name] = (our_name, _ROWS.get(our_name, ""))
    for name in _ROUND_FIGURES:
        for number in range(rules.max_rounds):
            figure = f"{name}/round_{number}"
            figures[figure] = (figure, "")
    for kind in ("right_to_wrong", "wrong_to_right"):
        for num_dissenting in range(rules.num_agents):
            figure = f"flips/{kind}/dissent_{num_dissenting}"
            figures[figure] = (figure, "")
    for policy in agents_by_policy(rules):
        for metric, our_name, row in _POLICY_FIGURES:
            policy_row = "" if row is None else f"{row}{policy}"
            figures[f"{policy}/{metric}"] = (f"{policy}/{our_name}", policy_row)
    return figures


def _question_figures(rules: Protocol) -> list[str]:
    contracts = [get_contract(contract) for contract in rules.contracts or (rules.contract,)]
    sections: set[str] = set()
    for contract in contracts:
        sections.update(contract.sections)
    names = list(_FIGURES)
    if rules.topology == "central":
        names += _CENTRAL_FIGURES
    if "comparison" not in sections:
        names = [name for name in names if name not in _VOTE_FIGURES]
    if "evaluation" in sections:
        names += _CRITIQUE_FIGURES
    if rules.topology == "pair":
        names.remove("maj/delta")
    has_critics = not all(role.answers for role in rules.roles)
    if contracts[0].kind == "answer_line" and has_critics:
        names += _CRITIC_FIGURES
    if judging_agents(rules):
        names += _JUDGED_FIGURES
    return names


def ratios_of(rules: Protocol) -> list[str]:
    """List the figures of debates with ratios of sums over questions."""
    names = list(_RATIOS)
    if judging_agents(rules):
        names.append("judged/mcc")
    for name in _ROUND_RATIOS:
        names += [f"{name}/round_{number}" for number in range(rules.max_rounds)]
    return names
