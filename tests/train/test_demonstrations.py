"""Demonstrations of the signs puzzle: what they check, how they vote, in which sections."""

from typing import Any

from debate_protocol.forms import Judged, Simultaneous
from debate_protocol.parsing import Contract, parse
from debate_protocol.types import Question, Transcript, TurnRequest
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle
from debate_train.models.scratch import word_tokenizer

PUZZLES = SignsPuzzle(batch_size=48).open()


def total(digits: tuple[int, ...], signs: str) -> int:
    """The arithmetic by Python itself."""
    return eval(str(digits[0]) + "".join(s + str(d) for s, d in zip(signs.split(), digits[1:])))  # noqa: B905


def debates(rounds: int = 2, agents: int = 3) -> list[Transcript]:
    form = Simultaneous(num_agents=agents, max_rounds=rounds, style="compact", personas="none")
    engine = ScriptedEngine().open(None, word_tokenizer(), script=PUZZLES.demonstrate)
    questions = [q for step in range(3) for q in PUZZLES.batch(step)]
    runs = [form.start(q, seed=n) for n, q in enumerate(questions)]
    return play(runs, engine, max_tokens=200)


def test_demonstrations_check_and_vote_by_the_truth() -> None:
    shares = []
    for debate in debates():
        digits, target = read_puzzle(debate.question)
        first = {t.agent: parse(t.text, "three_section") for t in debate.turns if t.round == 0}
        said = {agent: parsed.answer or "" for agent, parsed in first.items()}
        right = {agent: total(digits, signs) == target for agent, signs in said.items()}
        shares.append(sum(right.values()) / 3)
        for turn in debate.turns:
            parsed = parse(turn.text, "three_section", author=turn.agent, num_agents=3)
            assert parsed.problems == ()
            if turn.round == 0:
                assert (parsed.sections["evaluation"].text, parsed.comparisons) == ("N/A", ())
                continue
            peers = [agent for agent in range(3) if agent != turn.agent]
            checked = []
            for agent in peers:
                signs = said[agent].split()
                steps = [
                    f"{sign} {digit} {total(digits[: n + 2], ' '.join(signs[: n + 1]))}"
                    for n, (sign, digit) in enumerate(zip(signs, digits[1:], strict=True))
                ]
                verdict = "ok" if right[agent] else "no"
                checked.append(f"Agent {agent} {digits[0]} {' '.join(steps)} {verdict}")
            assert parsed.sections["evaluation"].text == " ".join(checked)
            (vote,) = parsed.comparisons
            if right[peers[0]] == right[peers[1]]:
                assert vote.op == "="
            else:
                assert vote.op == ">"
                assert right[vote.left] and not right[vote.right]
            assert total(digits, parsed.answer or "") == target
    # Candidates are right and wrong in every mixture: chances are even from 0 to 1.
    assert {0.0, 1.0} < set(shares)
    assert 0.4 < sum(shares) / len(shares) < 0.6


CRITIQUE = Contract("critique", ("comparison", "solution"))


def test_demonstrations_follow_the_order_of_the_contract() -> None:
    settings: Any = {
        "contract": CRITIQUE,
        "style": "compact",
        "personas": "none",
        "conversation": "rebuild",
        "history_rounds": 1,
    }
    form = Simultaneous(num_agents=3, max_rounds=2, **settings)
    engine = ScriptedEngine().open(None, word_tokenizer(), script=PUZZLES.demonstrate)
    runs = [form.start(q, seed=n) for n, q in enumerate(PUZZLES.batch(0))]
    for debate in play(runs, engine, max_tokens=200):
        said = {t.agent: parse(t.text, CRITIQUE).answer for t in debate.turns if t.round == 0}
        digits, target = read_puzzle(debate.question)
        for turn in debate.turns:
            parsed = parse(turn.text, CRITIQUE, author=turn.agent, num_agents=3)
            assert parsed.answer is not None
            assert turn.text.index("</comparison>") < turn.text.index("<solution>")
            if turn.round == 0:
                assert parsed.sections["comparison"].text == "N/A"
                continue
            # All three lines are checked, the reader's own included; it ranks the others alone.
            checks, *votes = parsed.sections["comparison"].text.splitlines()
            assert [f"Agent {agent} {digits[0]} " in checks for agent in range(3)] == [True] * 3
            right = [total(digits, said[agent] or "") == target for agent in range(3)]
            assert checks.count(" ok") == sum(right)
            (vote,) = parsed.comparisons
            assert len(votes) == 1 and turn.agent not in (vote.left, vote.right)
            assert total(digits, parsed.answer) == target


def test_demonstrations_fit_the_words_of_the_tokenizer() -> None:
    tokenizer = word_tokenizer()
    for debate in debates():
        for turn in debate.turns:
            assert turn.reply is not None
            assert tokenizer.unk_token_id not in (*turn.reply.prompt_ids, *turn.reply.token_ids)
            assert turn.reply.finish == "stop"
    (longest,) = {len(t.reply.token_ids) for d in debates() for t in d.turns if t.round and t.reply}
    assert longest <= 48  # what a recipe for three agents must let a reply have


def test_demonstration_heeds_a_failed_peer() -> None:
    question = PUZZLES.batch(0)[0]
    form = Simultaneous(num_agents=3, max_rounds=2, style="compact", personas="none")

    def script(request: object) -> str:
        fails = (request.agent, request.round) == (1, 0)  # type: ignore[attr-defined]
        return "no" if fails else PUZZLES.demonstrate(request)  # type: ignore[arg-type]

    engine = ScriptedEngine().open(None, word_tokenizer(), script=script)
    (debate,) = play([form.start(question, seed=0)], engine, max_tokens=200)
    judge = parse(debate.turns[3].text, "three_section")
    assert judge.sections["evaluation"].text.startswith("Agent 2 ")
    assert judge.comparisons == ()


def before_a_judge(**settings: Any) -> list[Transcript]:
    contract = {"name": "worked", "sections": ["evaluation", "solution"]}
    form = Judged(style="compact", reasons=False, contract=contract, **settings)  # type: ignore[arg-type]
    words = ["<decision>", "</decision>", "right", "wrong"]
    engine = ScriptedEngine().open(None, word_tokenizer(words), script=PUZZLES.demonstrate)
    questions = [q for step in range(5) for q in PUZZLES.batch(step)]
    runs = [form.start(q, seed=n) for n, q in enumerate(questions)]
    return play(runs, engine, max_tokens=200)


def test_a_weak_judge_checks_the_last_total_and_the_step_that_a_critic_names() -> None:
    kinds = set()
    for debate in before_a_judge(opponent="critic"):
        digits, target = read_puzzle(debate.question)
        proposed, named, decision = (
            parse(turn.text, debate.protocol.contract_of(turn.round)) for turn in debate.turns
        )
        signs, work = proposed.answer or "", proposed.sections["evaluation"].text.split()
        assert work[1::3] == signs.split()
        assert work[2::3] == [str(digit) for digit in digits[1:]]
        totals = [int(one) for one in work[::3]]
        true = [
            total((before, digits[n + 1]), sign) == after
            for n, (before, sign, after) in enumerate(
                zip(totals, signs.split(), totals[1:], strict=False)
            )
        ]
        accused = named.sections["evaluation"].text.split()
        steps = [work[3 * n : 3 * n + 4] for n in range(len(true))]
        assert accused in steps
        is_false = not true[steps.index(accused)]
        right = total(digits, signs) == target
        assert sum(true) >= len(true) - 1  # One false total at most.
        assert right == (all(true) and totals[-1] == target)
        says = decision.sections["decision"].text
        assert says == ("right" if totals[-1] == target and not is_false else "wrong")
        kinds.add((right, says))
    assert kinds == {(True, "right"), (False, "right"), (False, "wrong")}


def test_a_weak_judge_alone_takes_every_work_that_reaches_the_target() -> None:
    for debate in before_a_judge(opponent="none", max_rounds=2):
        work = parse(debate.turns[0].text, debate.protocol.contract).sections["evaluation"].text
        reaches = int(work.split()[-1]) == read_puzzle(debate.question)[1]
        assert (
            debate.turns[1].text.strip()
            == f"<decision> {'right' if reaches else 'wrong'} </decision>"
        )


def test_claims_that_are_no_sign_between_each_two_digits_are_not_checked() -> None:
    question = Question("p", "make 9 Q 4 3 4 6")
    claims = {1: "+ -", 2: "++-", 3: "+ - +", 4: "the answer"}
    text = PUZZLES.demonstrate(TurnRequest(question, 0, 1, (), claims=claims))
    # 4 + 3 = 7, 7 - 4 = 3, 3 + 6 = 9.
    checks = parse(text, "three_section").sections["evaluation"].text
    assert checks == "Agent 3 4 + 3 7 - 4 3 + 6 9 ok"
