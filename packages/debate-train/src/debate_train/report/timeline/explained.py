"""What measures mean, in a sentence or two, for where they stand in a table."""

from debate_train.report.timeline.panels import MAJORITY

MEANINGS = {
    "direct/accuracy": "Right answers of single replies, without a debate.",
    "majority/accuracy": f"The answer of most agents in the last round; ties are drawn. {MAJORITY}",
    "peer_vote/accuracy": "The answer of the agent whom the others voted up most. It may lie above "
    "the majority: votes look at answers, a majority counts them.",
    "bradley_terry/accuracy": "The answer of the agent who is strongest when all votes are read as "
    "games (Bradley and Terry).",
    "confidence/accuracy": "The majority, where a reply weighs the more the likelier it was.",
    "central/accuracy": "The last answer of the agent in the center.",
    "judge/accuracy": "Of votes on a right and a wrong answer, those for the right one; = counts "
    "half, a coin is at 50 %.",
    "judge/strict_accuracy": "The same, where = is wrong.",
    "judge/owed_accuracy": "The same over all such pairs that a judge was shown; one that it left "
    "out counts half.",
    "judge/equal_share": "Votes that call both answers equal.",
    "last_round/accuracy": "Right answers of single agents in the last round.",
    "comparisons_made": "Votes that were cast of those that agents were asked for.",
    "maj/first": f"The majority of first answers is right. {MAJORITY}",
    "maj/last": f"The majority of last answers is right. {MAJORITY}",
    "maj/delta": "What the debate adds to a vote on first answers.",
    "pass@k": "Some agent is right in the last round: the most that any choice could reach.",
    "pass@k/round_0": "Some first answer is right: the most that a choice among them could reach.",
    "cons@k": "More than half of the agents are right in the last round.",
    "format": "Replies in which an answer can be read.",
    "flips/right_to_wrong": "Steps to the next round in which a right answer turned wrong.",
    "flips/wrong_to_right": "Steps to the next round in which a wrong answer turned right.",
    "improvement": "Accuracy of the last round over that of the first, minus 1.",
    "agreement/reached": "Debates in which all agents give one answer in some round.",
    "tokens/answer": "Sampled tokens that one answer costs.",
}


def meaning(name: str) -> str:
    """Return what a measure means by its name, such as `eval/ring/majority/accuracy`; else nothing.

    The longest ending that is known counts, so that modes and roles need no entry.
    """
    parts = name.split("/")
    for start in range(len(parts)):
        found = MEANINGS.get("/".join(parts[start:]))
        if found:
            return found
    return ""
