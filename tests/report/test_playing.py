"""The debaters that live in a report: their arithmetic, prompts and votes, in a real browser."""

import shutil

import pytest
import yaml

from debate_protocol.forms import Simultaneous
from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import Question, Reply
from debate_report import write_report
from debate_rewards.decisions import standings
from debate_rewards.reward import read_debate
from debate_train import train
from report.report_runs import HOSTILE, shot, watched

OPEN = """() => {
  const data = JSON.parse(document.getElementById("live-data").textContent);
  const { Model, Tokens, Debate, unpackWeights } = DebateSampler;
  const tokens = new Tokens(data.tokens);
  const model = new Model(data.model, unpackWeights(data.tensors, data.after));
  window.opened = { data, tokens, model };
}"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short quickstart, with recorded debates before and after an update of its weights."""
    folder = tmp_path_factory.mktemp("runs") / "short"
    changes = {
        "steps": 2,
        "data.batch_size": 2,
        "evaluation.questions": 4,
        "recording.every": 1,
        "trainer.learning_rate": 1e-3,
        "tracking.wandb": "false",
    }
    train("quickstart", [f"{key}={value}" for key, value in changes.items()], output=folder)
    return folder


@pytest.fixture(scope="module")
def report(run):
    return write_report(run)


@pytest.fixture
def page(browser, report):
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        context.set_default_timeout(120_000)  # A busy machine plays a debate in many seconds.
        page = watched(context.new_page(), report, "#live")
        page.locator("#play").scroll_into_view_if_needed()
        wait_for_debate(page, 1)
        page.evaluate(OPEN)
        yield page


def wait_for_debate(page, number):
    """Wait until the page has played so many debates."""
    page.wait_for_function(
        "number => Number(document.getElementById('live').dataset.played) >= number", arg=number
    )


def recorded_debates(run):
    """The debates of the first step, with their prompts."""
    return read_transcripts(run / "transcripts" / "train-000001.jsonl")


def loaded(run, weights_file):
    """The run's model with these weights, and its tokenizer."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model.load_state_dict(load_file(weights_file), strict=False)
    return model.eval(), AutoTokenizer.from_pretrained(checkpoint)


def weights_file(run, when):
    if when == "before":
        return run / "phase_start.safetensors"
    return sorted((run / "checkpoints").iterdir())[-1] / "model.safetensors"


def prompt_and_reply_ids(tokenizer, turn):
    prompt_ids = tokenizer.apply_chat_template(
        list(turn.prompt), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return prompt_ids, tokenizer.encode(turn.text, add_special_tokens=False)


@pytest.mark.numeric
@pytest.mark.parametrize("when", ["before", "after"])
def test_log_probabilities_of_recorded_turns_equal_those_of_torch(page, run, when):
    import torch

    model, tokenizer = loaded(run, weights_file(run, when))
    turns = [turn for debate in recorded_debates(run) for turn in debate.turns]
    conversations = [prompt_and_reply_ids(tokenizer, turn) for turn in turns]
    expected = []
    for prompt_ids, reply_ids in conversations:
        with torch.no_grad():
            logits = model(torch.tensor([prompt_ids + reply_ids])).logits[0]
        logps = logits[len(prompt_ids) - 1 : -1].log_softmax(-1)
        expected += logps[range(len(reply_ids)), reply_ids].tolist()
    logps = page.evaluate(
        """([when, conversations]) => {
        const { data } = opened;
        const weights = DebateSampler.unpackWeights(data.tensors, data[when]);
        const model = new DebateSampler.Model(data.model, weights);
        return conversations.flatMap(([prompt, reply]) =>
          DebateSampler.scoreReply(model, model.newCache(), prompt, reply, 1));
        }""",
        [when, conversations],
    )
    assert len(expected) > 500 and min(expected) < -1
    assert logps == pytest.approx(expected, abs=1e-4)


# Replies as a tiny model may write them: without an answer, with another contract's tags, with a
# lone colon, with nothing, with contradictory and impossible votes.
ODD_REPLIES = [
    " + + - </solution>",
    " <solution> + <consensus> - </solution>\n <evaluation> Agent 1 : ok </evaluation>",
    " <solution> N/A </solution>\n <evaluation> none . </evaluation>\n"
    " <comparison> Agent 1 > Agent 3\n Agent 3 > Agent 1\n Agent 1 = Agent 4\n"
    " Agent 2 > Agent 1\n Agent 0 > Agent 1 </comparison>",
    " <solution> - </solution> <solution> + - + </solution>\n <evaluation> no\n ok <evaluation> no"
    " </evaluation>\n <comparison> Agent 1 > Agent 2\n Agent 1 > Agent 2\n Agent 4 = Agent 9\n"
    " > Agent 2 = Agent 1 > Agent 0\n Agent 1 > Agent 1 </comparison>",
    " <solution> + + + </solution>\n <evaluation> N/A\n Agent 0 </solution> ok </comparison>",
]


def odd_debates(form):
    """Debates of odd replies, each agent with another one in each of five debates."""
    debates = []
    for first in range(len(ODD_REPLIES)):
        debate = form.start(Question("q", "make 4 Q 6 5 1 6", "+ - -"), seed=0)
        requests = next(debate)
        while True:
            replies = [
                Reply(ODD_REPLIES[(first + (1 + r.round) * r.agent) % len(ODD_REPLIES)])
                for r in requests
            ]
            try:
                requests = debate.send(replies)
            except StopIteration as end:
                debates.append(end.value)
                break
    return debates


@pytest.fixture(scope="module")
def all_debates(run):
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    return recorded_debates(run) + odd_debates(Simultaneous.model_validate(recipe["debate"]))


def test_prompts_are_those_that_the_form_wrote(page, run, all_debates):
    _, tokenizer = loaded(run, weights_file(run, "after"))
    for debate in all_debates:
        turns = [[turn.agent, turn.round, turn.text] for turn in debate.turns]
        prompts = page.evaluate(
            """([question, turns]) => {
            const { data, tokens, model } = opened;
            const debate = new DebateSampler.Debate(data, tokens, model, question);
            return turns.map(([agent, round, text]) => {
              const prompt = data.form.prompts[round].find((one) => one.agent === agent);
              const shown = debate.promptText(prompt);
              debate.record(agent, round, text);
              return [shown, DebateSampler.promptIds(tokens, shown, null), prompt.continues];
            });
            }""",
            [debate.question.text, turns],
        )
        for turn, (text, ids, continues) in zip(debate.turns, prompts, strict=True):
            newest = turn.prompt[-1]
            assert text == newest["content"]
            assert ids == tokenizer.apply_chat_template(
                [newest], add_generation_prompt=True, tokenize=True, return_dict=False
            )
            assert continues == (len(turn.prompt) > 1)


def test_votes_and_answers_are_read_as_everywhere_else(page, all_debates):
    num_votes = 0
    for debate in all_debates:
        turns = [[turn.agent, turn.round, turn.text] for turn in debate.turns]
        answers, found = page.evaluate(
            """([question, turns]) => {
            const { data, tokens, model } = opened;
            const debate = new DebateSampler.Debate(data, tokens, model, question);
            const answers = turns.map((turn) => debate.record(...turn).answer);
            const { standings } = debate.standings();
            return [answers, [...standings].map(([agent, { up, down }]) => [agent, up - down])];
            }""",
            [debate.question.text, turns],
        )
        read = read_debate(debate)
        assert answers == [read.judges[turn.key].parsed.answer for turn in debate.turns]
        expected = {turn.key.agent: standing for turn, standing in standings(read)}
        valid = {agent: standing for agent, standing in found if agent in expected}
        assert valid == expected
        num_votes += sum(map(abs, expected.values()))
    assert num_votes > 10


def test_tokens_are_drawn_by_their_probabilities(page):
    # Of 20,000 draws a share lies within 4 standard deviations of its probability p,
    # 4 * sqrt(p (1 - p) / 20,000): .0085 at .1, .0130 at .3 and .0139 at .6.
    shares, greedy = page.evaluate(
        """() => {
        const uniform = DebateSampler.uniforms("0/1/2");
        const logps = [0.1, 0.3, 0, 0.6].map(Math.log);
        const counts = [0, 0, 0, 0];
        for (let k = 0; k < 20000; k++) counts[DebateSampler.draw(logps, 1, uniform)]++;
        return [counts.map((count) => count / 20000), DebateSampler.draw(logps, 0, uniform)];
        }"""
    )
    assert greedy == 3 and shares[2] == 0
    for share, probability, deviation in zip(
        (shares[0], shares[1], shares[3]), (0.1, 0.3, 0.6), (0.0085, 0.0130, 0.0139), strict=True
    ):
        assert abs(share - probability) < deviation


def type_puzzle(page, digits, total):
    played = int(page.locator("#live").get_attribute("data-played"))
    for number, digit in enumerate(digits):
        page.locator("[name=digit]").nth(number).fill(digit)
    page.locator("[name=total]").fill(total)
    return played


def test_a_typed_puzzle_is_answered_and_its_chance_is_exact(page, run):
    import torch

    wait_for_debate(page, type_puzzle(page, "5243", "10") + 1)
    page.locator("#live-result", has_text="In the end").wait_for()
    page.wait_for_function("() => !document.querySelector('#live.stale')")
    model, tokenizer = loaded(run, weights_file(run, "after"))
    chances = []
    for agent in range(5):
        message = {"role": "user", "content": f"Agent {agent}\nmake 10 Q 5 2 4 3"}
        prompt_ids = tokenizer.apply_chat_template(
            [message], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        # 5 - 2 + 4 + 3 is the only sum that makes 10.
        reply_ids = tokenizer.encode("<solution> - + + </solution>", add_special_tokens=False)
        with torch.no_grad():
            logits = model(torch.tensor([prompt_ids + reply_ids])).logits[0]
        logps = logits[len(prompt_ids) - 1 : -1].log_softmax(-1)
        chances.append(logps[range(len(reply_ids)), reply_ids].sum().exp().item())
    page.wait_for_function("() => document.getElementById('live-after').textContent !== ''")
    shown = float(page.inner_text("#live-here").removesuffix(" %"))
    assert shown == pytest.approx(100 * sum(chances) / 5, abs=0.6)
    assert page.locator(".live-answer .live-signs").count() == 10
    assert page.problems == []
    shot(page, "play")


def answers(page):
    return page.locator(".live-answer .live-signs").all_inner_texts()


def replayed(page, action):
    """Do something that starts a debate, wait for its end, and return its answers."""
    played = int(page.locator("#live").get_attribute("data-played"))
    action()
    wait_for_debate(page, played + 1)
    return answers(page)


def test_a_seed_gives_the_same_debate_again_and_the_slider_other_weights(page):
    slider = page.locator("[name=share]")
    after = answers(page)
    start_chance = page.inner_text("#live-before")
    before = replayed(page, lambda: slider.fill("0"))
    assert page.inner_text("#live-here") == start_chance
    replayed(page, lambda: slider.fill("50"))
    assert replayed(page, lambda: slider.fill("100")) == after
    assert replayed(page, lambda: slider.fill("0")) == before
    assert page.inner_text("#live-before") != page.inner_text("#live-after")
    others = [replayed(page, lambda: page.click("#live [type=submit]")) for _ in range(4)]
    assert any(other != before for other in others)
    assert page.problems == []


@pytest.mark.parametrize(
    ("digits", "total", "message"),
    [
        ("5x43", "10", "Type 4 digits from 1 to 6"),
        ("524 ", "10", "Type 4 digits from 1 to 6"),
        ("5243", "-2", "Type a total"),
        ("5243", "999", "The model has no word for 999"),
    ],
)
def test_bad_input_gets_a_message_and_no_debate(page, digits, total, message):
    played = type_puzzle(page, digits, total)
    page.locator("#live-problem", has_text=message).wait_for()
    assert "stale" in page.get_attribute("#live", "class")
    if "total" in message:
        page.click("#live-problem button >> nth=-1")
        wait_for_debate(page, played + 1)
        # 5 + 2 + 4 + 3 is the largest sum.
        assert page.input_value("[name=total]") == "14"
    assert page.problems == []


def test_hostile_text_in_the_fields_runs_nothing(page):
    for field in page.locator("#live .live-sum input").all():
        field.evaluate(
            "(it, text) => { it.value = text; it.dispatchEvent(new Event('input')); }", HOSTILE
        )
    page.locator("#live-problem", has_text="Type 4 digits").wait_for()
    page.click("#live [type=submit]")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#play img, #play style, #play script:not(#live-data)").count() == 0
    assert page.problems == []


def without_file(name):
    return lambda run: (run / name).unlink()


def with_changed(name, old, new):
    def change(run):
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return change


CHECKPOINT = "checkpoints/step-000002"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_file("phase_start.safetensors"), "No such file"),
        (with_changed(f"{CHECKPOINT}/config.json", '"silu"', '"gelu"'), "hidden_act"),
        (with_changed(f"{CHECKPOINT}/config.json", "192", "99999"), "at most"),
        (with_changed("recipe.yaml", "style: compact", "style: full"), "style"),
        (with_changed("recipe.yaml", "top_p: 1.0", "top_p: 0.9"), "top_p"),
    ],
)
def test_other_runs_have_no_live_debaters_and_the_log_says_why(
    run, tmp_path, caplog, change, reason
):
    other = shutil.copytree(run, tmp_path / "other")
    change(other)
    caplog.set_level("INFO")
    page = write_report(other).read_text()
    assert 'id="play"' not in page and "live-data" not in page.partition("<script>")[0]
    assert reason in caplog.text
