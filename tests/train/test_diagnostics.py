"""Shares of the gradient, and of turns that have none, worked by hand."""

import numpy as np
import pytest

from debate_protocol.types import AgentRole, Protocol, Question, Transcript, Turn, TurnKey
from debate_train.advantages import Advantage, Advantages
from debate_train.batches.row_types import Batch, Row
from debate_train.losses import Dapo, divide_gradient, gradient_shares


def row(agent: int, credits: list[list[float]], streams: list[int]) -> Row:
    size = len(streams)
    parts = np.array(credits, np.float32)
    sampled = np.arange(size) > 0
    return Row.of_tokens(
        tokens=np.arange(size),
        mask=sampled.astype(np.float32),
        advantages=parts.sum(0),
        sampler_logps=np.zeros(size, np.float32),
        temperatures=np.ones(size, np.float32),
        streams=np.array(streams),
        versions=np.zeros(size, np.int64),
        segments=sampled.astype(np.int64),
        agent=agent,
        debate=0,
        credits=parts,
    )


BATCH = Batch(
    (
        row(1, [[0, 3, -1], [0, 0, 2]], [0, 1, 3]),
        row(0, [[0, 0], [0, -2]], [0, 2]),
    ),
    ("generator", "judge"),
    3,
    2,
)


def test_shares_are_of_weighted_sizes() -> None:
    # Token means: the generator covers two tokens, the judge two: every credit counts a half.
    # Agent 1: |3|/2 + |-1 + 2|/2 = 2, agent 0: 2/2 = 1. Streams: 3/2 + 1/2 = 2 and 2/2 + 2/2 = 2.
    assert gradient_shares(BATCH, Dapo()) == pytest.approx(
        {
            "optim/gradient_share/agent_0": 1 / 3,
            "optim/gradient_share/agent_1": 2 / 3,
            "optim/gradient_share/generator": 0.5,
            "optim/gradient_share/judge": 0.5,
        }
    )


def test_streams_are_scaled_to_the_shares_of_the_recipe() -> None:
    # Each stream has 2 of 4. For a fifth, the judge's credits are scaled by .8/2 and the
    # generator's by 3.2/2. Row of agent 1: (3, -1) * 1.6 + (0, 2) * .4 = 4.8, -.8.
    divided = divide_gradient(BATCH, Dapo(), {"judge": 0.2})
    shares = gradient_shares(divided, Dapo())
    assert shares["optim/gradient_share/judge"] == pytest.approx(0.2)
    assert shares["optim/gradient_share/generator"] == pytest.approx(0.8)
    assert divided.rows[0].advantages == pytest.approx([4.8, -0.8])
    assert divided.rows[1].advantages == pytest.approx([-0.8])
    # Set for both, .5 and .25 are 2 to 1.
    both = divide_gradient(BATCH, Dapo(), {"judge": 0.25, "generator": 0.5})
    assert gradient_shares(both, Dapo())["optim/gradient_share/judge"] == pytest.approx(1 / 3)


def test_a_stream_without_credits_leaves_its_share_to_the_others() -> None:
    batch = Batch((row(0, [[0, 0], [0, -2]], [0, 2]),), ("generator", "judge"), 1, 1)
    for shares in ({"judge": 0.2}, {"generator": 0.9}, {"generator": 0.5, "judge": 0.5}):
        divided = divide_gradient(batch, Dapo(), shares)
        assert divided.rows[0].advantages == pytest.approx([-2])
    assert divide_gradient(Batch((), ("judge",), 0, 0), Dapo(), {"judge": 0.5}).rows == ()


def test_nothing_has_no_share() -> None:
    assert gradient_shares(Batch((), ("generator",), 0, 0), Dapo()) == {}


def turns_of(question: str, name: str, *agents: int) -> Transcript:
    turns = tuple(Turn(agent, 0, "said") for agent in agents)
    rules = Protocol(
        num_agents=3, roles=(AgentRole("solver", 2), AgentRole("judge", 1, trains=False))
    )
    return Transcript(name, Question(question, "?"), rules, turns)


def test_turns_that_teach_nothing_are_counted_by_cause() -> None:
    one, zero = [Advantage("generator", 0.5)], [Advantage("generator", 0.0)]
    debates = [turns_of("q", "a", 0, 1, 2), turns_of("q", "b", 0), turns_of("p", "c", 0, 1)]
    # Agent 2 is not trained on. Of q agent 1 is at its baseline; nobody's of p has an advantage.
    given = [{(0, 0): one, (1, 0): zero}, {}, {(0, 0): zero, (1, 0): zero}]
    turns = [{TurnKey(*key): own for key, own in found.items()} for found in given]
    assert Advantages(turns, {"x": 2.0}).metrics(debates) == {
        "advantage/baseline/x": 2.0,
        "advantage/zero/share": 4 / 5,
        "advantage/zero/no_value": 1 / 5,
        "advantage/zero/no_contrast": 2 / 5,
        "advantage/zero/at_baseline": 1 / 5,
    }
    assert Advantages([]).metrics([]) == {}
