"""Hold one debate between scripted agents and print it: no model, no torch.

python examples/one_debate.py
"""

from debate_protocol import Question, Simultaneous, TurnRequest, shown_debate
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine

SUMS = {0: 42, 1: 32, 2: 42}
REVIEWS = {
    0: ("Agent 1 forgets to carry. Agent 2 is right.", "Agent 2 > Agent 1"),
    1: ("Agents 0 and 2 carry the one; I did not.", "Agent 0 = Agent 2"),
    2: ("Agent 0 is right. Agent 1 forgets to carry.", "Agent 0 > Agent 1"),
}


def speak(request: TurnRequest) -> str:
    """Say what the agent says; a model would answer `ask.messages`."""
    total = SUMS[request.agent] if request.round == 0 else 42
    review, vote = REVIEWS[request.agent] if request.shown else ("N/A", "N/A")
    return (
        f"<solution>17 + 25 = {total}</solution>\n<evaluation>{review}</evaluation>\n"
        f"<comparison>{vote}</comparison>"
    )


def main() -> None:
    """Play two rounds of three agents."""
    form = Simultaneous(num_agents=3, max_rounds=2)
    debate = form.start(Question("sum", "What is 17 + 25?", answer="42"), seed=0)
    engine = ScriptedEngine().open(script=speak)
    (transcript,) = play([debate], engine, max_tokens=256)
    print(shown_debate(transcript), end="")


if __name__ == "__main__":
    main()
