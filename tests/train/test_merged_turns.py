"""What a step's metrics count: turns in the row of the turn before, tokens beside a debate."""

from collections.abc import Callable, Sequence

import pytest

from debate_protocol.forms import ActorCritic, Simultaneous
from debate_protocol.types import Question, Reply, Transcript
from debate_rewards.reward import Credit, Score
from debate_rollout.drivers import play
from debate_rollout.engine import Request
from debate_rollout.engines import ScriptedEngine, TransformersEngine
from debate_rollout.engines.scripted import ScriptedPlayer
from debate_train.advantages import Stream
from debate_train.batches.row_types import Batch
from debate_train.batches.rows import Step, build_batch
from debate_train.models.loaded_model import LoadedModel
from debate_train.recipe import Recipe
from debate_train.running.step_metrics import step_metrics

RECIPE = Recipe.model_validate(
    {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle"},
        "debate": {"num_agents": 2, "max_rounds": 3, "style": "compact", "personas": "none"},
        "reward": {"type": "verifiable"},
    }
)
GROWING = (
    "{% for m in messages %} <|{{ m.role }}|> {{ m.content }} <|end|>{% endfor %}"
    "{% if add_generation_prompt %} <|assistant|>{% endif %}"
)
# As a template that marks the newest message: what stood before is written anew each time.
REWRITING = GROWING.replace("{{ m.content }}", "{% if loop.last %} make{% endif %} {{ m.content }}")


def metrics_of(transcripts: Sequence[Transcript], loaded: LoadedModel) -> dict[str, float]:
    given = [{} for _ in transcripts]
    batch = build_batch(transcripts, given, {"generator": Stream()}, loaded.tokenizer)
    scores = [Score(()) for _ in transcripts]
    return step_metrics(Step(0, transcripts, scores, batch, {}), RECIPE, 1.0)[0]


@pytest.mark.parametrize(
    ("template", "window", "merged"),
    [
        (GROWING, 512, 2 / 3),  # two of three turns of each agent
        (REWRITING, 512, 0.0),
        (GROWING, 20, 0.0),  # no later turn finds room: one row of each agent, one turn with tokens
        (GROWING, 4, None),  # nor does the first: nothing to tell
    ],
)
def test_fraction_tells_how_many_turns_were_merged(
    tiny: Callable[..., LoadedModel], template: str, window: int, merged: float | None
) -> None:
    loaded = tiny()
    engine = TransformersEngine(context_window=window).open(
        loaded.model, loaded.tokenizer, {"chat_template": template}
    )
    form = Simultaneous(num_agents=2, max_rounds=3, style="compact", personas="none")
    run = form.start(Question("q", "make 4 Q 6 5 1 6"), seed=0)
    transcripts = play([run], engine, max_tokens=8)
    found = metrics_of(transcripts, loaded)
    assert found.get("rollout/merged_turn_fraction") == (
        None if merged is None else pytest.approx(merged)
    )


def test_tokens_of_branches_and_continuations_are_counted(
    tiny: Callable[..., LoadedModel],
) -> None:
    loaded = tiny()
    said: list[tuple[int, int]] = []

    class Counting(ScriptedPlayer):
        def generate(self, requests: Sequence[Request]) -> list[Reply]:
            replies = super().generate(requests)
            said.extend((len(r.prompt_ids), len(r.token_ids)) for r in replies)
            return replies

    config = ScriptedEngine()
    engine = Counting(
        lambda turn_request: "ok " * turn_request.round + "\\boxed{7}", config, loaded.tokenizer, {}
    )
    form = ActorCritic(max_rounds=3, guided=True, continuations=2)
    run = form.start(Question("q", "make 4 Q 6 5 1 6", "7"), seed=0)
    found = metrics_of(play([run], engine, max_tokens=32), loaded)
    prompts, sampled = (sum(column) for column in zip(*said, strict=True))
    assert len(said) == form.turn_count() > 2 * 3 - 1
    assert found["env/all/total_turns"] == len(said)
    assert found["env/all/ac_tokens_per_turn"] == sampled / len(said)
    assert found["env/all/ob_tokens_per_turn"] == prompts / len(said)
    assert found["tokens_per_s"] == sampled


def test_replies_that_ended_by_length_are_a_fraction_and_lengths_have_bounds(
    tiny: Callable[..., LoadedModel],
) -> None:
    loaded = tiny()
    texts = {0: "\\boxed{7}", 1: "+ + + \\boxed{7}"}  # Agent 1 does not come to its end.
    script = ScriptedEngine().open(
        None, loaded.tokenizer, script=lambda turn_request: texts[turn_request.agent]
    )
    form = Simultaneous(num_agents=2, max_rounds=1, style="compact", personas="none")
    room = len(loaded.tokenizer.encode(texts[0])) + 2  # An end token is one more.
    run = form.start(Question("q", "make 4 Q 6 5 1 6", "7"), seed=0)
    found = metrics_of(play([run], script, max_tokens=room), loaded)
    assert found["rollout/truncated_fraction"] == 1 / 2
    assert found["rollout/reply_tokens_min"] < found["rollout/reply_tokens_max"]
    assert found["rollout/reply_tokens_max"] == room
    assert found["memory/peak_gib"] > 0.01  # An interpreter with torch is larger than 10 MB.


def test_a_step_without_debates_has_no_speed_of_sampling() -> None:
    found, problem = step_metrics(Step(0, (), (), Batch((), (), 0, 0), {}), RECIPE, 1.0)
    assert problem is None and "tokens_per_s" not in found


def test_step_metrics_hold_the_names_of_the_papers(tiny: Callable[..., LoadedModel]) -> None:
    loaded = tiny()
    engine = ScriptedEngine(replies=("<solution> + + + </solution>",)).open(None, loaded.tokenizer)
    form = Simultaneous(num_agents=2, max_rounds=2, style="compact", personas="none")
    transcripts = play(
        [form.start(Question("q", "make 4 Q 6 5 1 6", "+ - -"), seed=0)], engine, max_tokens=8
    )
    batch = build_batch(transcripts, [{}], {"generator": Stream()}, loaded.tokenizer)
    scores = [Score((), agents=(1.0, 0.5))]
    found, problem = step_metrics(Step(0, transcripts, scores, batch, {}), RECIPE, 1.0)
    assert problem is None
    assert found["env/all/reward/total"] == found["reward/total"] == 0.75
    assert found["train_signs_puzzle/correct"] == found["train/correct"] == 0.0
    assert (found["round"], found["parse_error"]) == (0.5, 0.0)


def test_step_metrics_hold_how_far_the_reward_goes_with_the_truth(
    tiny: Callable[..., LoadedModel],
) -> None:
    loaded = tiny()
    replies = {"0/*": "<solution> + - - </solution>", "1/*": "<solution> + + + </solution>"}
    engine = ScriptedEngine(replies=replies).open(None, loaded.tokenizer)
    form = Simultaneous(num_agents=2, max_rounds=1, style="compact", personas="none")
    question = Question("q", "make 4 Q 6 5 1 6", "+ - -", {"kind": "text"})
    transcripts = play([form.start(question, seed=0)], engine, max_tokens=8)
    batch = build_batch(transcripts, [{}], {"generator": Stream()}, loaded.tokenizer)
    given = Score((Credit(0, 0, "generator", 0.0), Credit(1, 0, "generator", 1.0)))
    found, problem = step_metrics(Step(0, transcripts, [given], batch, {}), RECIPE, 1.0)
    assert problem is None and "train/reward/accuracy" not in found
    assert (found["train/correct"], found["reward/accuracy"]) == (0.5, 0.0)
