"""`debate-ask`: one question, any engine, each turn as it comes, the answer and its votes."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.chat_server import Answer, Endpoint, Seen, said, serving

from debate_train.commands.ask import Printer, main

QUESTION = "What is 17 * 23?"


def reply(answer: str, votes: str = "N/A") -> str:
    return (
        f"<solution>\\boxed{{{answer}}}</solution><evaluation>read</evaluation>"
        f"<comparison>{votes}</comparison><consensus>NO</consensus>"
        "<consensus_reason>none</consensus_reason>"
    )


class Agents:
    """Three agents, of which the last two agree; votes go to agent 0, who stands alone."""

    def __init__(self, answers: tuple[str, ...] = ("391", "381", "381")) -> None:
        self.answers = answers
        self.endpoint = Endpoint(self._say)

    def _say(self, number: int, seen_request: Seen) -> Answer:
        agent, later = number % len(self.answers), number >= len(self.answers)
        votes = {0: "N/A", 1: "Agent 0 > Agent 2", 2: "Agent 0 > Agent 1"}
        return said(reply(self.answers[agent], votes[agent] if later else "N/A"))


def asked(agents: Agents, *more: str) -> int:
    options = ["--kind", "number", "rollout.engine.max_in_flight=1", "rollout.engine.backoff_s=0"]
    with serving(agents.endpoint) as url:
        arguments = [QUESTION, "--url", url, *more, *options]
        return main(arguments if "--model" in more else [*arguments, "--model", "org/one"])


def test_turns_come_one_by_one_and_the_peers_decide(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(Agents()) == 0
    printed = capsys.readouterr().out
    heads = [line for line in printed.splitlines() if line.startswith("---")]
    assert heads == [f"--- Agent {a}, round {r}, 3 tokens" for r in (1, 2) for a in range(3)]
    end = printed[printed.index("answer:") :].splitlines()
    assert end[0] == "answer: 391"
    assert end[1] == "  by the votes of the others on the answers of round 1"
    assert "peer_vote, after 2 rounds" in end[2]
    # The endpoint counts 10 tokens of prompt and 3 of reply in each of six responses.
    assert end[2].endswith("; 18 tokens sampled, 60 read")
    assert end[3].endswith("381: 2, 391: 1")
    assert "majority: 381" in end[4] and "peer_vote: 391" in end[4]


def test_a_turn_is_printed_while_others_of_its_round_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed, agents = threading.Semaphore(0), Agents()
    say_at_once, waited = agents.endpoint.behave, list[bool]()

    def say(number: int, seen_request: Seen) -> Answer:
        if number:
            waited.append(printed.acquire(timeout=20))
        return say_at_once(number, seen_request)

    agents.endpoint.behave = say
    monkeypatch.setattr(Printer, "turn", lambda *_: printed.release())
    assert asked(agents) == 0
    assert waited == [True] * 5


def test_json_has_the_answer_of_every_rule_and_all_turns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked(Agents(), "--json", "--decision", "majority") == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (printed["answer"], printed["decision"], printed["rounds"]) == ("381", "majority", 2)
    assert printed["decisions"]["peer_vote"] == "391" and printed["votes"] == {"381": 2, "391": 1}
    assert [(turn["agent"], turn["round"]) for turn in printed["turns"]] == [
        (agent, number) for number in (0, 1) for agent in range(3)
    ]
    assert {turn["answer"] for turn in printed["turns"]} == {"391", "381"}


@pytest.mark.parametrize(("answers", "requests"), [(("5", "5", "5"), 3), (("5", "5", "6"), 6)])
def test_a_debate_ends_once_all_agree(answers: tuple[str, ...], requests: int) -> None:
    agents = Agents(answers)
    assert asked(agents, "--until-agreed", "-q") == 0
    assert len(agents.endpoint.seen) == requests


def test_no_answer_is_a_failure_and_nothing_acts_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agents = Agents()
    agents.endpoint.behave = lambda number, seen_request: said("\x1b[2Jnothing that can be read")
    assert asked(agents) == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "none that can be read" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--decision", "central"), "--topology central"),
        (("--decision", "judged"), "--form judged"),
        (("--decision", "confidence"), "log-probabilities"),
        (("--decision", "peer_vote", "debate.contract=boxed"), "a contract with comparisons"),
        (("--choice", "a", "--choice", "b"), "--choice: found with --kind number"),
        (("--agents", "4", "debate.num_agents=3"), "debate.num_agents: found beside the option"),
        (("--topology", "rnig"), "found 'rnig'; expected all, ring, sparse or central"),
        (("--model", "a", "--model", "b", "--agents", "1"), "--agents: found 1 for 2 models"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = Agents()
    assert asked(agents, *options) == 2
    assert message in capsys.readouterr().err and not agents.endpoint.seen


def test_a_model_in_a_folder_debates_under_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from debate_train.models import ScratchModel

    loaded = ScratchModel().load(0)
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    small = ["--model", str(tmp_path / "model"), "--rounds", "1", "--max-tokens", "4"]
    # Its weights are random: what it says can hardly be read.
    assert main(["make 7 Q 3 1 4 1", "--recipe", "quickstart", *small, "--json"]) in (0, 1)
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["turns"]) == 5 and 0 < printed["tokens"]["sampled"] <= 20
