"""Score debates without a model: rewards from transcripts, in memory or in a file.

python examples/score_transcript.py [TRANSCRIPTS.jsonl]
"""

import sys

from debate_protocol import from_json, read_transcripts
from debate_rewards import V2, WinRate, check, debate_metrics, peer_vote

TURN = "<solution>{}</solution><evaluation>{}</evaluation><comparison>{}</comparison>"
DEBATE = {
    "id": "rope",
    "question": {"text": "A rope of 15 m is cut in 3 equal parts. How long is one, in m?"}
    | {"answer": "5", "meta": {"kind": "number"}},
    "protocol": {"num_agents": 3},
    "turns": [
        {"agent": 0, "round": 0, "text": TURN.format("15 / 3 = 5", "N/A", "N/A")},
        {"agent": 1, "round": 0, "text": TURN.format("15 - 3 = 12", "N/A", "N/A")},
        {"agent": 2, "round": 0, "text": "It is five metres."},
        {"agent": 0, "round": 1, "text": TURN.format("5", "1 subtracts", "Agent 1 > Agent 2")},
        {"agent": 1, "round": 1, "text": TURN.format("5", "0 divides", "N/A")},
        {"agent": 2, "round": 1, "text": TURN.format("5", "0 divides", "Agent 0 > Agent 1")},
    ],
}


def main(path: str | None = None) -> None:
    """Print the value of each turn in each stream, returns per agent, and what it all means."""
    debates = read_transcripts(path) if path else [from_json(DEBATE)]
    for debate, score in zip(debates, V2()(debates), strict=True):
        for credit in score.credits:
            value = "no signal" if credit.value is None else f"{credit.value:+.2f}"
            print(f"{debate.id}: agent {credit.agent} round {credit.round} {credit.stream} {value}")
    for debate, score in zip(debates, WinRate()(debates), strict=True):
        print(f"{debate.id}: win rates with failures {score.agents}")
        print(
            f"{debate.id}: decided by peers {check(debate.question, peer_vote(debate, 0)).verdict}"
        )
    metrics = debate_metrics(debates)
    print({name: round(metrics[name], 3) for name in ("format_all", "avg@k", "failed_turns")})


if __name__ == "__main__":
    main(*sys.argv[1:])
