"""Advice of `--check` on rewards by votes: why a stream has no signal or teaches little."""

from dataclasses import replace

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Protocol, roles_of, sees
from debate_rewards.reward import RewardContext

# The judges of a pair in a ring do not depend on its size beyond this one.
_MAX_AGENTS_TO_COUNT = 64


def judges_of_a_pair(protocol: Protocol) -> tuple[int, int]:
    """Count the agents shown both of a pair: the fewest over all pairs, and the most."""
    if protocol.topology == "all":
        return protocol.num_agents - 2, protocol.num_agents - 2
    # Agents of a ring are alike, and so are all but the center of `central`: the pairs of agents 0
    # and 1 represent all.
    num_agents = min(protocol.num_agents, _MAX_AGENTS_TO_COUNT)
    center = min(protocol.center or 0, num_agents - 1)
    protocol = replace(protocol, num_agents=num_agents, center=center)
    judges_per_pair = []
    for left in range(min(2, num_agents)):
        for right in range(left + 1, num_agents):
            sees_both = [
                sees(protocol, judge, left) and sees(protocol, judge, right)
                for judge in range(num_agents)
            ]
            judges_per_pair.append(sum(sees_both))
    return min(judges_per_pair), max(judges_per_pair)


def why_nobody_votes(votes_of: str | None, context: RewardContext) -> str | None:
    """Explain an unknown role in `votes_of`."""
    role_names = [role.name for role in roles_of(context.rules)]
    if votes_of is None or votes_of in role_names:
        return None
    return (
        f"votes_of: found {votes_of!r}, expected a role of the debate, one of "
        f"{', '.join(role_names)}{did_you_mean(votes_of, role_names)}"
    )


def why_few_questions(consensus: str, least_questions: int, context: RewardContext) -> str:
    """Explain too few questions of a step for a comparison across questions."""
    num_questions = context.questions
    questions = "one question" if num_questions == 1 else f"{num_questions} questions"
    return (
        f"{consensus} compares verdicts with those on other questions of the step, and a step "
        f"has {questions}; expected data.batch_size above {least_questions - 1}"
    )


def why_few_judges(context: RewardContext, *, is_inclusive: bool) -> str | None:
    """Explain why a consensus of few judges teaches little; `None` with enough judges.

    Args:
        context: What the reward is used on.
        is_inclusive: Whether a judge's own votes count in the consensus.
    """
    protocol = context.rules
    fewest, most = judges_of_a_pair(protocol)
    if fewest < protocol.num_agents - 2:
        # A topology in which not everybody sees everybody.
        if most >= 3:
            return None
        return (
            f"debate.topology: under {protocol.topology} at most {most} agents see both of a pair; "
            "expected topology all or judge weight 0"
        )
    if most not in (1, 2):
        return None
    if most == 1:
        judges = "one judge"
        values = "the value +1 whatever it says" if is_inclusive else "nobody to agree with"
    else:
        judges = "two judges"
        values = "never the value -1" if is_inclusive else "only each other to copy"
    return (
        f"v2 with {protocol.num_agents} agents and judge weight {context.judge_weight:g}: each pair"
        f" has {judges} a round, with {values}. Use 5 or more agents, or judge weight 0."
    )


def v2_warnings(context: RewardContext, *, is_literal: bool) -> list[str]:
    """List settings of v2 that were worse where they were measured.

    Args:
        context: What the reward is used on.
        is_literal: Whether turns without votes are worth −1.
    """
    warnings = []
    if is_literal:
        warnings.append(
            "reward.unvoted: literal gives -1 to turns that nobody could vote on; mask does not"
        )
    if context.baseline == "debate" and context.rules.max_rounds > 1:
        warnings.append(
            "advantage.baseline: debate compares turns of different rounds, which were judged "
            "by different votes; question_round was safer where it was measured"
        )
    return warnings
