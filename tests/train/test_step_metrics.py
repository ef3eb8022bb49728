"""Metrics of a step, worked by hand: turns, tokens, rewards, and names of the papers."""

import pytest

from debate_protocol.forms import ActorCritic, Simultaneous
from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Question
from debate_rewards.metrics import debate_metrics
from debate_rewards.reward import Score
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine, TransformersEngine
from debate_rollout.engines.scripted import ScriptedPlayer
from debate_train.advantages import Stream
from debate_train.batches.rows import Step, build_batch
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe import Recipe
from debate_train.running.step_metrics import paper_metrics, step_metrics
from train.made_rows import row_of

COMPACT = {"style": "compact", "personas": "none"}
RECIPE = Recipe.model_validate(
    {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle"},
        "debate": {"num_agents": 2, "max_rounds": 3, **COMPACT},
        "reward": {"type": "verifiable"},
    }
)
TOKENIZER = word_tokenizer()


PUZZLE = Question("q", "make 4 Q 6 5 1 6", "+ - -", {"kind": "text"})


def play_puzzle(form, engine, max_tokens=8, question=PUZZLE):
    return play([form.start(question, seed=0)], engine, max_tokens=max_tokens)


def measure(transcripts, score=Score(())):  # noqa: B008
    streams = {"generator": Stream()}
    batch = build_batch(transcripts, [{} for _ in transcripts], streams, TOKENIZER)
    scores = [score for _ in transcripts]
    metrics, problem = step_metrics(Step(0, transcripts, scores, batch, {}), RECIPE, 1.0)
    assert problem is None
    return metrics


GROWING = (
    "{% for m in messages %} <|{{ m.role }}|> {{ m.content }} <|end|>{% endfor %}"
    "{% if add_generation_prompt %} <|assistant|>{% endif %}"
)
# As a template that marks the newest message: what stood before is written anew each time.
REWRITING = GROWING.replace("{{ m.content }}", "{% if loop.last %} make{% endif %} {{ m.content }}")


@pytest.mark.parametrize(
    ("template", "window", "expected"),
    [
        (GROWING, 512, 2 / 3),  # two of three turns of each agent
        (REWRITING, 512, 0.0),
        (GROWING, 20, 0.0),  # no later turn finds room: a row of each agent has one turn
        (GROWING, 4, None),  # nor does the first: nothing to tell
    ],
)
def test_fraction_tells_how_many_turns_were_merged(tiny, template, window, expected):
    loaded = tiny()
    engine = TransformersEngine(context_window=window).open(
        loaded.model, loaded.tokenizer, {"chat_template": template}
    )
    transcripts = play_puzzle(Simultaneous(num_agents=2, max_rounds=3, **COMPACT), engine)
    fraction = measure(transcripts).get("rollout/merged_turn_fraction")
    assert fraction == (None if expected is None else pytest.approx(expected))


def test_tokens_of_branches_and_continuations_are_counted():
    prompt_sizes = []
    reply_sizes = []

    class CountingPlayer(ScriptedPlayer):
        def generate(self, requests):
            replies = super().generate(requests)
            prompt_sizes.extend(len(reply.prompt_ids) for reply in replies)
            reply_sizes.extend(len(reply.token_ids) for reply in replies)
            return replies

    def say(request):
        return "ok " * request.round + "\\boxed{7}"

    engine = CountingPlayer(say, ScriptedEngine(), TOKENIZER, {})
    form = ActorCritic(max_rounds=3, guided=True, continuations=2)
    boxed = Question("q", "3 + 4?", "7")
    metrics = measure(play_puzzle(form, engine, 32, boxed))
    num_turns = len(reply_sizes)
    assert num_turns == form.turn_count()
    assert metrics["env/all/total_turns"] == num_turns
    assert metrics["env/all/ac_tokens_per_turn"] == sum(reply_sizes) / num_turns
    assert metrics["env/all/ob_tokens_per_turn"] == sum(prompt_sizes) / num_turns
    assert metrics["tokens_per_s"] == sum(reply_sizes)


def test_replies_that_ended_by_length_are_a_fraction_and_lengths_have_bounds():
    replies = {"0/*": "\\boxed{7}", "1/*": "+ + + \\boxed{7}"}  # Agent 1 does not come to its end.
    engine = ScriptedEngine(replies=replies).open(None, TOKENIZER)
    max_tokens = len(TOKENIZER.encode(replies["0/*"])) + 2  # An end token is one more.
    form = Simultaneous(num_agents=2, max_rounds=1, **COMPACT)
    metrics = measure(play_puzzle(form, engine, max_tokens))
    assert metrics["rollout/truncated_fraction"] == 1 / 2
    assert metrics["rollout/reply_tokens_min"] < metrics["rollout/reply_tokens_max"] == max_tokens
    assert metrics["memory/peak_gib"] > 0.01  # An interpreter with torch is larger than 10 MB.


# Names of the papers


def make_transcript(texts, num_agents, **protocol):
    """Make a debate from what agent a says in round r, by (a, r)."""
    turns = [{"agent": a, "round": r, "text": text} for (a, r), text in texts.items()]
    if protocol.get("topology") == "pair":
        for turn in turns:
            turn["shown"] = [[0, 0], [1, 0]] if turn["round"] else []
    question = {"text": "?", "answer": "7", "meta": {"kind": "number"}}
    rules = {"num_agents": num_agents, **protocol}
    return from_json({"id": "d", "question": question, "protocol": rules, "turns": turns})


def measure_paper(*transcripts, rows=(), num_agents=3):
    same_form = [debate for debate in transcripts if debate.protocol.num_agents == num_agents]
    return paper_metrics(transcripts, rows, debate_metrics(same_form), "gsm8k", num_agents)


def solution(answer, consensus="NO"):
    return f"<solution>{answer}</solution><consensus>{consensus}</consensus>"


def test_format_is_a_filled_box_in_the_last_round():
    texts = {
        (0, 0): solution("no box"),
        (1, 0): "unreadable",
        (2, 0): solution("\\boxed{7}"),
        (0, 1): solution("so \\boxed{7}"),
        (1, 1): solution("\\boxed{}"),
        (2, 1): solution("7"),
    }
    metrics = measure_paper(make_transcript(texts, 3, contract="three_section"))
    expected = {
        # One of three replies of the last round holds a box with something in it.
        "train_gsm8k/format": 1 / 3,
        # 7 and 7 are right, an empty box is not: 2 of 3.
        "train_gsm8k/correct": 2 / 3,
        "train_gsm8k/avg@k": 2 / 3,
        "train_gsm8k/pass@k": 1.0,
        "train_gsm8k/cons@k": 1.0,
        # One turn of six cannot be read; rounds 0, 0, 0, 1, 1, 1.
        "parse_error": 1 / 6,
        "round": 0.5,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert "consensus_reached" not in metrics


@pytest.mark.parametrize(
    ("contract", "last", "expected"),
    [
        ({"contract": "answer_line"}, "Answer: 8", 2 / 3),
        ({"contract": "boxed"}, "\\boxed{8}", 2 / 3),
        ({"contract": "three_section", "style": "compact"}, "\\boxed{8}", None),
    ],
    ids=["line", "boxed", "not asked"],
)
def test_format_follows_the_contract(contract, last, expected):
    texts = {(0, 0): "Work.\nAnswer: 7", (1, 0): "\\boxed{7}", (2, 0): last}
    share = measure_paper(make_transcript(texts, 3, **contract)).get("train_gsm8k/format")
    assert share == (None if expected is None else pytest.approx(expected, abs=1e-12))


@pytest.mark.parametrize(("schedule", "num_turns"), [("parallel", 3), ("sequential", 1)])
def test_consensus_is_reached_after_the_last_yes_of_a_round(schedule, num_turns):
    texts = {(agent, 1): solution("7", "YES") for agent in range(3)}
    for agent, consensus in enumerate(("YES", "NO", "YES")):
        texts[agent, 0] = solution("7", consensus)
    debate = make_transcript(texts, 3, contract="five_section", schedule=schedule)
    # In parallel all three turns of round 1 end together; in sequence only the last one.
    assert measure_paper(debate)["consensus_reached"] == pytest.approx(num_turns / 6, abs=1e-12)


def make_row(debate, agent, advantage):
    return row_of([0, 0], [0, 1], advantages=advantage, agent=agent, debate=debate)


def self_debate(first, second):
    texts = {(agent, 0): f"\\boxed{{{answer}}}" for agent, answer in enumerate(first)}
    for agent, answer in enumerate(second, start=len(first)):
        texts[agent, 1] = f"\\boxed{{{answer}}}"
    rules = {"topology": "pair", "first_turns": len(first), "max_rounds": 2, "contract": "boxed"}
    return make_transcript(texts, len(first) + max(2, len(second)), **rules)


def test_self_debates_are_counted_before_and_after_the_filter():
    single = make_transcript({(0, 0): "\\boxed{7}"}, 1, contract="boxed")
    teaches = self_debate("78", "79")
    filtered = self_debate("78", "77")
    undebated = self_debate("77", "")
    rows = (
        make_row(1, 0, 1.0),  # first answers are no debate samples
        make_row(1, 2, 1.0),
        make_row(1, 3, -1.0),
        make_row(2, 2, 0.0),
        make_row(2, 3, 0.0),
    )
    metrics = measure_paper(single, teaches, filtered, undebated, rows=rows, num_agents=4)
    assert {name: value for name, value in metrics.items() if name.startswith("sdrl/")} == {
        "sdrl/debate_prompts": 1.0,
        "sdrl/debate_samples": 2.0,
        "sdrl/debate_prompts_built": 2.0,
        "sdrl/debate_samples_drawn": 4.0,
        # 3 of 4 second answers are right; 2 of 4 first ones to the questions that were debated.
        "sdrl/debate_accuracy": 0.75,
        "sdrl/debate_accuracy_improvement": 0.25,
    }
