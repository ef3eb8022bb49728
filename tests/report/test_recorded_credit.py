import numpy as np

from debate_protocol.types import Protocol, Question, Reply, Transcript, Turn
from debate_report.debates import read_credit
from debate_rewards.reward import Credit, Score
from debate_train.batches.row_types import Batch, Row
from debate_train.checkpoints import RunState
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.running.run_records import credit_of, write_credit


def reply(ids, starts):
    return Reply("abcdef", token_ids=ids, starts=starts)


def row(tokens, advantages, streams, segments, agent=0, debate=0):
    size = len(tokens)
    ones = np.ones(size, np.float32)
    return Row.of_tokens(
        tokens=np.array(tokens),
        mask=ones,
        advantages=np.array(advantages, np.float32),
        sampler_logps=ones,
        temperatures=ones,
        streams=np.array(streams),
        versions=np.zeros(size, np.int64),
        segments=np.array(segments),
        agent=agent,
        debate=debate,
    )


def test_credit_is_that_of_the_turns_own_tokens_in_characters(tmp_path):
    # One row holds both turns of agent 0, with a shown token (9) before each; agent 1 has no row.
    turns = (
        Turn(0, 0, "abcdef", reply=reply((1, 2, 3), (0, 2, 4))),
        Turn(1, 0, "abcdef", reply=reply((1, 2), (0, 3))),
        Turn(0, 1, "abcdef", reply=reply((1, 2), (0, 1))),
    )
    debate = Transcript("d", Question("q", "?"), Protocol(2, 2), turns)
    joined = row(
        [9, 1, 2, 3, 9, 1, 2],
        [0, 0.5, 0.5, -1.25, 0, 2, 2],
        [0, 1, 1, 3, 0, 1, 1],
        [0, 1, 1, 1, 0, 2, 2],
    )
    other = row([1, 2], [7, 7], [1, 1], [1, 1], agent=1, debate=1)  # Of another debate.
    credits = (
        Credit(0, 0, "generator", 0.123456),
        Credit(0, 0, "generator", 9.0, span=(0, 1)),
        Credit(0, 1, "judge", None),
        Credit(0, 1, "judge", -1.0, component="truth"),
    )
    score = Score(credits, (0.5, None))
    batch = Batch((other, joined), ("generator", "judge"), 7, 3)
    found = credit_of([debate], [score], batch, None, demonstrated=False)

    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    path = write_credit(run, 3, found)
    assert path.relative_to(run.path).as_posix() in run.records
    assert read_credit(path) == {
        "schema": "debate-credit/1",
        "demonstrated": False,
        "streams": ["generator", "judge"],
        "debates": [
            {
                "id": "d",
                "returns": [0.5, None],
                "turns": [
                    {"agent": 0, "round": 0, "values": {"generator": 0.1235},
                     "starts": [0, 2, 4], "tokens": [[2, 0.5, 1], [1, -1.25, 3]]},
                    {"agent": 1, "round": 0, "values": {}, "starts": [], "tokens": []},
                    {"agent": 0, "round": 1, "values": {"judge/truth": -1.0},
                     "starts": [0, 1], "tokens": [[2, 2.0, 1]]},
                ],
            }
        ],
    }  # fmt: skip
    run.begin(RunState(step=2))
    assert not path.exists()


def test_credit_that_cannot_be_read_is_none(tmp_path):
    path = tmp_path / "step-1.json"
    assert read_credit(path) == {}
    for text in ("{", "[1]", '{"schema": "another"}', "[" * 100_000):
        path.write_text(text)
        assert read_credit(path) == {}
