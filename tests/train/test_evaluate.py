"""The debate-eval command: the policies it measures, what it writes, resumes and refuses."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import TRAINED, Question, Reply, TurnRequest
from debate_train.commands.cli import main as train
from debate_train.commands.evaluate import main
from debate_train.commands.evaluation_files import ReplyJournal, print_equal_tokens
from debate_train.errors import UsageError
from debate_train.models import ScratchModel
from debate_train.recipe import Recipe
from train.evaluated_puzzles import ScriptedEvaluation
from train.small_runs import RECIPE
from train.two_adapters import settings

CHANGES = ["debate.max_rounds=2", "evaluation.questions=2", "evaluation.direct_samples=2"]
FAST = ["trainer.learning_rate=0.5", "steps=2", "evaluation.questions=0"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a run of it, with a checkpoint of each of its three steps."""
    home = tmp_path_factory.mktemp("home")
    (home / "small.yaml").write_text(RECIPE)
    every_step = ["checkpoint.every=1", "checkpoint.keep_last=3", "evaluation.questions=0"]
    assert train([str(home / "small.yaml"), "--output", str(home / "run"), *every_step]) == 0
    wider = ScratchModel(
        hidden_size=16, layers=1, heads=1, kv_heads=1, head_dim=8, ffn_size=8
    ).load(1)
    wider.model.save_pretrained(home / "wider")
    wider.tokenizer.save_pretrained(home / "wider")
    shutil.copytree(home / "run" / "checkpoints" / "step-000002", home / "torn")
    flip_last_byte(home / "torn" / "model.safetensors")
    return home


def flip_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def command(home: Path, *arguments: str, output: str = "evaluation") -> list[str]:
    return [str(home / "small.yaml"), *CHANGES, *arguments, "--output", str(home / output)]


def policies(*names: str) -> list[str]:
    return [word for name in names for word in ("--policy", name)]


def evaluated(home: Path, *arguments: str, output: str = "evaluation") -> Any:
    """The results of an evaluation in a new folder."""
    shutil.rmtree(home / output, ignore_errors=True)
    assert main(command(home, *arguments, output=output)) == 0
    return json.loads((home / output / "results.json").read_text())


def texts(home: Path, policy: str, output: str = "evaluation") -> list[str]:
    """What a policy wrote in all modes."""
    folder = home / output / "transcripts" / policy
    debates = [
        *read_transcripts(folder / "direct.jsonl"),
        *read_transcripts(folder / "debate.jsonl"),
    ]
    return [turn.text for debate in debates for turn in debate.turns]


def test_each_policy_is_measured_with_its_own_weights_in_any_order(home: Path) -> None:
    run = home / "run"
    third = run / "checkpoints" / "step-000003"
    results = evaluated(home, *policies("recipe", f"{run}@1", str(third), f"last={run}"))
    assert [policy["name"] for policy in results["policies"]] == [
        "recipe",
        "run@1",
        "run@3",
        "last",
    ]
    recipe_texts, first_texts, last_texts = (texts(home, n) for n in ("recipe", "run@1", "last"))
    assert texts(home, "run@3") == last_texts
    assert recipe_texts != first_texts != last_texts != recipe_texts
    # Weights of another shape, in an engine of their own, before and between them.
    wider = home / "wider"
    evaluated(home, *policies(str(wider), f"last={run}", f"again={wider}", "recipe"))
    assert texts(home, "last") == last_texts
    assert texts(home, "recipe") == recipe_texts
    assert texts(home, "wider") not in (recipe_texts, first_texts, last_texts)


def with_adapter(model: str) -> str:
    return f"model={{type: pretrained, name: '{model}', dtype: float32, lora: {{rank: 2}}}}"


def test_adapters_are_measured_on_the_base_that_they_were_trained_on(home: Path, base: str) -> None:
    """An adapter of an adapter's checkpoint fits the first one's base in every shape."""
    first, second = home / "first", home / "second"
    small = str(home / "small.yaml")
    assert train([small, with_adapter(base), *FAST, "--output", str(first)]) == 0
    trained_base = str(max(first.glob("checkpoints/step-*")))
    assert train([small, with_adapter(trained_base), *FAST, "--output", str(second)]) == 0
    evaluated(home, with_adapter(trained_base), *policies(f"second={second}"))
    second_texts = texts(home, "second")
    # Merged into the model of a recipe without adapters, it writes the same.
    plain = f"model={{type: pretrained, name: '{base}', dtype: float32}}"
    evaluated(home, plain, *policies(f"merged={first}"))
    merged_texts = texts(home, "merged")
    # Beside others of the first recipe, by its run and, without one, by the folder of its base.
    bare = shutil.copytree(max(second.glob("checkpoints/step-*")), home / "bare" / "adapter")
    named = policies(
        "recipe", f"first={first}", f"second={second}", f"bare={bare}", f"again={first}"
    )
    evaluated(home, with_adapter(base), *named)
    assert texts(home, "second") == texts(home, "bare") == second_texts
    assert texts(home, "first") == texts(home, "again") == merged_texts
    assert merged_texts not in (second_texts, texts(home, "recipe"))


def test_results_and_values_agree(home: Path) -> None:
    arguments = ["evaluation.runs=2", "--split", "dev", "--questions", "3"]
    results = evaluated(home, *policies("recipe", str(home / "run")), *arguments)
    assert results["schema"] == "debate-eval/1"
    assert (results["split"], results["questions"]["count"], results["runs"]) == ("dev", 3, 2)
    for policy in results["policies"]:
        path = home / "evaluation" / "policies" / f"{policy['name']}.json"
        values = json.loads(path.read_text())["values"]
        assert len(policy["figures"]) > 4
        assert policy["figures"]["eval/format"]["run_deviation"] >= 0
        for figure, measure in policy["figures"].items():
            by_question = list(values.get(figure, {}).values())
            if not by_question and "tokens" in figure:
                continue  # A ratio of sums over all questions has no value of a single question.
            assert len(by_question) == measure["questions"]
            mean = sum(by_question) / len(by_question)
            assert mean == pytest.approx(measure["mean"], abs=1e-12)
            assert measure["low"] <= measure["mean"] <= measure["high"]


def test_ways_to_answer_are_compared_within_the_tokens_of_a_debate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def curve(*points: tuple[int, float | None, float]) -> list[dict[str, float | None]]:
        return [{"x": x, "tokens": tokens, "mean": mean} for x, tokens, mean in points]

    # A debate takes 200 tokens for first answers and 520 with second ones; a reply takes 50.
    curves = {
        "eval/direct/maj@k": curve(*((k, 50.0 * k, 0.3 + k / 100) for k in range(1, 9))),
        "eval/direct/pass@k": curve((1, 50.0, 1.0)),
        "eval/debate/majority": curve((0, 200.4, 0.4), (1, 520.0, 0.5)),
        "eval/listening/self_correction": curve((0, 50.0, 0.3), (1, 130.0, 0.25)),
        "eval/other/majority": curve((1, None, 0.9)),
    }
    print_equal_tokens(Console(width=100), {"name": "warm", "curves": curves})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines] == [
        ["direct/maj@k", "0.380 (8)"],
        ["debate/majority", "0.500 (1)"],
        ["listening/self_correction", "0.250 (1)"],
    ]


def test_opponents_can_be_named_beside_those_of_the_recipe(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = str(home / "run")
    opponents = ["--against", f"start={last}@1", "--against", "recipe"]
    results = evaluated(home, *policies(last, f"{last}@1"), *opponents)
    assert results["modes"] == ["direct", "debate", "against-start", "against-recipe"]
    for policy in results["policies"]:
        assert "eval/against-start/learned/format" in policy["figures"]
    transcripts = home / "evaluation" / "transcripts"
    played = [*read_transcripts(transcripts / "run" / "against-start.jsonl")]
    # 2 questions, each in 2 seats; the opponent's first turns are those of its own debates.
    seats = [debate.id.rpartition("/")[2] for debate in played]
    assert seats == ["seat-1"] * 2 + ["seat-2"] * 2
    opponent_turns = {}
    for debate, seat in zip(played, seats, strict=True):
        opponent_agent = 1 if seat == "seat-1" else 0
        opponent_turns[debate.question.id, opponent_agent] = debate.turns[opponent_agent].text
    for debate in read_transcripts(transcripts / "run@1" / "debate.jsonl"):
        for agent in (0, 1):
            assert debate.turns[agent].text == opponent_turns[debate.question.id, agent]
    assert main([str(home / "small.yaml"), *(["--against", f"rival={last}"] * 2)]) == 2
    assert "--against: found 'rival', which is taken" in capsys.readouterr().err


def test_finished_evaluation_is_shown_again_and_another_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(home, *policies("recipe"), output="once")
    files = {path: path.read_bytes() for path in (home / "once").glob("*.[cj]s*")}
    again = command(home, output="once")
    capsys.readouterr()
    # The engine may be another: replies do not depend on it.
    assert main([*again, "rollout.engine.max_batch=1", "--resume"]) == 0
    printed = capsys.readouterr()
    assert "recipe: is measured already" in printed.err
    assert "valid format" in printed.out
    assert {path: path.read_bytes() for path in files} == files
    assert main(again) == 2
    assert "it holds environment.json" in capsys.readouterr().err
    for change, difference in (
        (["rollout.max_tokens=3"], "another recipe"),
        (["--questions", "1"], "another recipe"),
        (["--split", "dev"], "another split"),
        (["--policy", str(home / "run")], "another policies"),
    ):
        assert main([*again, *change, "--resume"]) == 2
        assert difference in capsys.readouterr().err


def test_evaluation_goes_on_only_with_the_models_that_it_began_with(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights of one size are told apart, and so are two policies by their files."""
    model = shutil.copytree(home / "wider", tmp_path / "model")
    recipe_model = f"model={{type: pretrained, name: {model}, dtype: float32}}"
    arguments = command(home, recipe_model, *policies(f"a={model}", "b=recipe"), output="models")
    assert main(arguments) == 0
    results = {name: home / "models" / "policies" / f"{name}.json" for name in "ab"}
    a_text, b_text = results["a"].read_text(), results["b"].read_text()
    for name in ("model.safetensors", "tokenizer.json"):
        content = (model / name).read_bytes()
        if name == "tokenizer.json":  # A space more is the same JSON in another file.
            (model / name).write_bytes(content + b" ")
        else:
            flip_last_byte(model / name)
        capsys.readouterr()
        assert main([*arguments, "--resume"]) == 2
        message = "found another policies than the one that it was begun with"
        assert message in capsys.readouterr().err
        (model / name).write_bytes(content)
    for text in (a_text, b_text.replace('"mean": 0', '"mean": 1', 1), "[]"):
        results["b"].write_text(text)
        assert main([*arguments, "--resume"]) == 2
        assert "b.json: is not as debate-eval has written it" in capsys.readouterr().err
    results["b"].unlink()
    assert main([*arguments, "--resume"]) == 0
    assert results["b"].read_text() == b_text


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("{home}/rum", "found no '{home}/rum'; did you mean 'run'?; expected the directory of a"),
        ("{home.name}/rum", "found no '{home.name}/rum'; did you mean 'run'?"),  # no hub id
        ("{home}/run@7", "has no checkpoint @7; expected best or one of 1, 2, 3"),
        ("{home}/run@bets", "did you mean 'best'?"),
        ("{home}/run@best", "keeps no best checkpoint"),
        ("{home}/wider@3", "is no run directory"),
        ("{home}/run/transcripts", "holds neither checkpoints/ nor a model"),
        ("{home}/torn", "not as it was written (SHA-256 differs)"),
        ("recipe", "found 'recipe' 2 times; expected another name for each"),
        ("\ud800", "not UTF-8"),
    ],
)
def test_policy_that_cannot_be_loaded_is_refused(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    message: str,
) -> None:
    monkeypatch.chdir(home.parent)
    named = policies("recipe", policy.format(home=home))
    assert main(command(home, *named, output="refused")) == 2
    assert message.format(home=home) in capsys.readouterr().err
    assert not (home / "refused").exists()


def test_weights_are_refused_where_the_engine_takes_none(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = 'rollout.engine={type: scripted, replies: {"*": "<solution> + - </solution>"}}'
    assert main(command(home, engine, *policies(str(home / "run")), output="scripted")) == 2
    assert "rollout.engine.type scripted, which takes no weights" in capsys.readouterr().err
    assert main(command(home, engine, output="scripted")) == 0
    assert "valid format" in capsys.readouterr().out


def test_policies_answer_by_the_other_phases_engine_where_the_last_one_imitates(home: Path) -> None:
    imitate = (
        "phases={imitate: {rollout: {engine: {type: demonstrations}}, loss: {type: sft}, "
        "reward: {type: verifiable}, advantage: {baseline: none, scale: none}}}"
    )
    last = policies(f"last={home / 'run'}")
    evaluated(home, imitate, *last)
    imitation_texts = texts(home, "last")
    evaluated(home, *last)
    assert texts(home, "last") == imitation_texts


def test_check_counts_turns_and_context_and_writes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(home, "--check", output="checked")
    assert main([*arguments, *policies("recipe", str(home / "run"))]) == 0
    printed = capsys.readouterr().out
    # 2 questions, each with 2 direct replies and 2 agents x 2 rounds.
    assert "at most 12 turns, 48 tokens in replies" in printed
    assert "2 policies: recipe, run" in printed
    assert "evaluation: context: at most" in printed
    assert not (home / "checked").exists()
    assert main([*arguments, "rollout.max_tokens=510"]) == 2
    assert "is above the window of 512" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*arguments, "--questions", "0"])
    assert "argument --questions: found 0; expected at least 1" in capsys.readouterr().err
    assert main([*arguments, "evaluation.modes={direct: null, debate: null}"]) == 2
    assert "evaluation.modes: found none that plays anything" in capsys.readouterr().err


CROSS_TABLE: dict[str, Any] = {
    "debate": {
        "type": "actor_critic",
        "contract": "boxed",
        "max_rounds": 2,
        "roles": {"actor": {"adapter": "first"}, "critic": {"adapter": "second"}},
    },
    "evaluation": {
        "direct_samples": 1,
        "questions": 2,
        "modes": {"cross": {"type": "opponents"}},
    },
}
YES_QUESTIONS = [Question(f"q{n}", "Is it so?", "yes", {"kind": "yes_no"}) for n in range(4)]


def cross_table_reply(request: TurnRequest) -> str:
    """Right on 1 question of 4, on 2 more if the actor is trained, on 1 more if the critic is."""
    is_trained = request.policy == TRAINED
    if request.agent == 1:
        return "trained feedback" if is_trained else "other feedback"
    has_feedback = any("trained feedback" in message["content"] for message in request.messages)
    num_right = 1 + 2 * is_trained + has_feedback
    is_right = YES_QUESTIONS.index(request.question) < num_right
    return f"\\boxed{{{'yes' if is_right else 'no'}}}"


def test_mode_opponents_is_the_cross_table(base: str) -> None:
    recipe = Recipe.model_validate(settings(base, {}, **CROSS_TABLE))
    evaluation = ScriptedEvaluation(cross_table_reply)
    means = evaluation.measure(recipe.evaluated(), YES_QUESTIONS).means()
    assert means["eval/last_round/accuracy"] == 1.0  # Both are trained.
    assert means["eval/cross/learned/accuracy/seat_1"] == 0.75  # The actor alone.
    assert means["eval/cross/opponent/accuracy"] == 0.5  # The critic alone: the actor is not.


def test_command_measures_each_side_of_the_cross_table_against_the_start(
    base: str, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    plain = CROSS_TABLE | {"evaluation": {"questions": 2}}
    file.write_text(json.dumps(settings(base, {}, steps=1, **plain)))
    run, output = tmp_path / "run", tmp_path / "evaluation"
    assert train([str(file), "evaluation.questions=0", "--output", str(run)]) == 0
    arguments = [str(file), *policies("recipe", f"acc={run}"), "--against", "start=recipe"]
    assert main([*arguments, "--output", str(output)]) == 0
    results = (output / "results.json").read_text()
    assert "against-start/learned/accuracy/seat_1" in results
    assert "against-start/opponent/accuracy" in results


JOURNALED = """\
name: t
steps: 1
model: {type: scratch}
data: {type: signs_puzzle, batch_size: 2}
debate: {num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout:
  max_tokens: 16
  engine: {type: scripted, replies: {"*": "<solution> + - </solution>"}}
reward: {type: win_rate}
loss: {type: sft}
evaluation: {questions: 3, direct_samples: 2}
"""
STREAMING = "rollout.engine.delay={median_s: 0.001, slots: 4}"
# 3 questions, each with 2 direct replies and 3 agents in 2 rounds.
NUM_REPLIES = 3 * (2 + 6)


@pytest.mark.parametrize("change", ["seed=0", STREAMING])
def test_stopped_evaluation_asks_only_for_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    (tmp_path / "r.yaml").write_text(JOURNALED)
    arguments = [str(tmp_path / "r.yaml"), change, "--output"]
    complete, stopped = tmp_path / "complete", tmp_path / "stopped"
    counts: list[int] = []
    append = ReplyJournal.append

    def count(journal: ReplyJournal, replies: Iterable[tuple[str, Reply]]) -> None:
        listed = list(replies)
        counts.append(len(listed))
        append(journal, listed)

    monkeypatch.setattr(ReplyJournal, "append", count)
    assert main([*arguments, str(complete)]) == 0
    assert sum(counts) == NUM_REPLIES
    # A batch engine is called for the replies and for each round; one that streams ends replies one
    # by one or some together.
    assert len(counts) == 3 if change == "seed=0" else 3 < len(counts) <= NUM_REPLIES

    def stop(journal: ReplyJournal, replies: Iterable[tuple[str, Reply]]) -> None:
        count(journal, replies)
        if sum(counts) > 3 * 2:  # How many come together is a matter of time.
            raise KeyboardInterrupt

    counts.clear()
    with monkeypatch.context() as patch:
        patch.setattr(ReplyJournal, "append", stop)
        assert main([*arguments, str(stopped)]) == 130
    assert 0 < sum(counts) < NUM_REPLIES
    journal = (stopped / "replies" / "recipe.jsonl").read_text()
    num_kept = sum(len(json.loads(line)["replies"]) for line in journal.splitlines())
    assert num_kept == sum(counts)
    assert main([*arguments, str(stopped), "--resume"]) == 0
    assert sum(counts) == NUM_REPLIES
    for name in ("results.json", "policies/recipe.json", "transcripts/recipe/debate.jsonl"):
        assert (stopped / name).read_bytes() == (complete / name).read_bytes()


def test_reply_comes_back_as_it_was(tmp_path: Path) -> None:
    reply = Reply(
        text="a\ud800 \u2028b",
        finish="length",
        prompt_ids=(1, 2),
        token_ids=(3, 4, 5),
        logps=(-0.1, -1e-17, float("-inf")),
        temperature=0.7,
        weight_version=9,
        version_spans=((8, 0, 1), (9, 1, 3)),
        starts=(0, 1, 2),
    )
    journal = ReplyJournal(tmp_path / "r.jsonl")
    journal.append([("key", reply), ("key", Reply("another of the same call")), ("other", reply)])
    journal.close()
    again = ReplyJournal(tmp_path / "r.jsonl")
    again.close()
    assert again.replies == {"key": reply, "other": reply}
    assert again.replies["key"].starts == (0, 1, 2)


def test_line_that_is_torn_is_cut_and_one_that_is_damaged_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    journal = ReplyJournal(path)
    journal.append([("a", Reply("a"))])
    journal.append([("b", Reply("b"))])
    journal.close()
    lines = path.read_bytes()
    path.write_bytes(lines[:-5])
    torn = ReplyJournal(path)
    torn.close()
    assert set(torn.replies) == {"a"}
    for damaged in (lines.replace(b'"text":"a"', b'"text":"c"'), b"[]\n", b"1e\n", b"{}\n"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"r\.jsonl:1: found other replies than an evaluation"):
            ReplyJournal(path)
