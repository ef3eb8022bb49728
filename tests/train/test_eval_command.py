"""The debate-eval command: which policies it measures, what it writes, and what it refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from debate_protocol.transcripts.files import read_transcripts
from debate_train.commands.cli import main as train
from debate_train.commands.evaluate import main
from debate_train.commands.evaluation_files import print_equal_tokens
from debate_train.models import ScratchModel
from train.small_runs import RECIPE

SIZES = {"hidden_size": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn_size": 8}
CHANGES = ["debate.max_rounds=2", "evaluation.questions=2", "evaluation.direct_samples=2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a run of it, with a checkpoint of each of its three steps."""
    home = tmp_path_factory.mktemp("home")
    (home / "small.yaml").write_text(RECIPE)
    kept = ["checkpoint.every=1", "checkpoint.keep_last=3", "evaluation.questions=0"]
    assert train([str(home / "small.yaml"), "--output", str(home / "run"), *kept]) == 0
    wider = ScratchModel.model_validate(SIZES | {"hidden_size": 16}).load(1)
    for part in (wider.model, wider.tokenizer):
        part.save_pretrained(home / "wider")
    return home


def evaluated(home: Path, *policies: str, name: str = "found", more: tuple[str, ...] = ()) -> Any:
    """Return results.json of an evaluation in a new folder."""
    shutil.rmtree(home / name, ignore_errors=True)
    named = [word for policy in policies for word in ("--policy", policy)]
    output = ["--output", str(home / name)]
    assert main([str(home / "small.yaml"), *CHANGES, *named, *output, *more]) == 0
    return json.loads((home / name / "results.json").read_text())


def said(home: Path, policy: str, name: str = "found") -> list[str]:
    """What a policy said in all modes."""
    folder = home / name / "transcripts" / policy
    debates = [
        one for mode in ("direct", "debate") for one in read_transcripts(folder / f"{mode}.jsonl")
    ]
    return [turn.text for debate in debates for turn in debate.turns]


def test_each_policy_is_measured_with_its_own_weights_in_any_order(home: Path) -> None:
    run, checkpoints = home / "run", home / "run" / "checkpoints"
    results = evaluated(home, "recipe", f"{run}@1", str(checkpoints / "step-000003"), f"last={run}")
    assert [one["name"] for one in results["policies"]] == ["recipe", "run@1", "run@3", "last"]
    assert said(home, "run@3") == said(home, "last")
    assert len({tuple(said(home, name)) for name in ("recipe", "run@1", "last")}) == 3
    first = {name: said(home, name) for name in ("recipe", "run@1", "last")}
    # Weights of another shape, in an engine of their own, before and between them.
    evaluated(home, str(home / "wider"), f"last={run}", f"again={home / 'wider'}", "recipe")
    assert said(home, "last") == first["last"]
    assert said(home, "recipe") == first["recipe"]
    assert said(home, "wider") not in first.values()


def test_adapters_are_loaded_into_one_engine_and_merged_for_another_model(
    home: Path, base: str
) -> None:
    """What a run of an adapter ended with says the same as adapter and as merged weights."""
    lora = f"model={{type: pretrained, name: '{base}', dtype: float32, lora: {{rank: 2}}}}"
    fast = ["trainer.learning_rate=0.5", "steps=2", "evaluation.questions=0"]
    run = home / "adapter"
    assert train([str(home / "small.yaml"), lora, *fast, "--output", str(run)]) == 0
    evaluated(home, f"after={run}", "recipe", f"again={run}", more=(lora,))
    assert said(home, "after") == said(home, "again") != said(home, "recipe")
    assert said(home, "recipe") != said(home, "after")
    first = said(home, "after")
    evaluated(home, f"merged={run}", more=(lora.replace(", lora: {rank: 2}", ""),))
    assert said(home, "merged") == first


def test_adapter_that_goes_on_from_another_is_measured_on_what_it_was_trained_on(
    home: Path, base: str
) -> None:
    """An adapter of an adapter's checkpoint fits the first one's base in every shape."""
    fast = ["trainer.learning_rate=0.5", "steps=2", "evaluation.questions=0"]
    models, name = [], base
    for run in ("begun", "gone_on"):
        models.append(
            f"model={{type: pretrained, name: '{name}', dtype: float32, lora: {{rank: 2}}}}"
        )
        command = [str(home / "small.yaml"), models[-1], *fast, "--output", str(home / run)]
        assert train(command) == 0
        name = str(max((home / run).glob("checkpoints/step-*")))
    evaluated(home, f"own={home / 'gone_on'}", more=(models[1],))
    own = said(home, "own")
    # Beside others of the first recipe, by its run and, without one, by the folder of its base.
    bare = shutil.copytree(name, home / "bare" / "adapter")
    begun, gone_on = home / "begun", home / "gone_on"
    evaluated(
        home, "recipe", f"begun={begun}", f"later={gone_on}", f"bare={bare}", f"again={begun}",
        more=(models[0],),
    )  # fmt: skip
    assert said(home, "later") == said(home, "bare") == own
    assert said(home, "begun") == said(home, "again") not in (own, said(home, "recipe"))


def test_results_and_values_say_the_same(home: Path) -> None:
    results = evaluated(home, "recipe", f"{home / 'run'}", more=("evaluation.runs=2",))
    assert results["schema"] == "debate-eval/1"
    assert (results["split"], results["questions"]["count"], results["runs"]) == ("test", 2, 2)
    found = home / "found"
    kept = [json.loads(file.read_text()) for file in (found / "policies").iterdir()]
    values = {policy["name"]: policy["values"] for policy in kept}
    assert sum(len(one["figures"]) for one in results["policies"]) > 8
    for policy in results["policies"]:
        for figure, measure in policy["figures"].items():
            own = list(values[policy["name"]].get(figure, {}).values())
            if not own and "tokens" in figure:
                continue  # A ratio of sums over all questions; a question has no value of its own.
            assert len(own) == measure["questions"]
            assert sum(own) / len(own) == pytest.approx(measure["mean"], abs=1e-12)
            assert measure["low"] <= measure["mean"] <= measure["high"]
            assert measure["run_deviation"] >= 0


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
    rows = [[cell.strip() for cell in line.split("│")[1:-1]]
            for line in capsys.readouterr().out.splitlines() if line.startswith("│")]  # fmt: skip
    assert rows == [
        ["direct/maj@k", "0.380 (8)"],
        ["debate/majority", "0.500 (1)"],
        ["listening/self_correction", "0.250 (1)"],
    ]


def test_opponents_can_be_named_beside_those_of_the_recipe(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = str(home / "run")
    both = ("--against", f"start={last}@1", "--against", "recipe")
    results = evaluated(home, last, f"{last}@1", more=both)
    assert results["modes"] == ["direct", "debate", "against-start", "against-recipe"]
    own, opponent = results["policies"]
    name = "eval/against-start/learned/format"
    assert name in own["figures"] and name in opponent["figures"]
    played = read_transcripts(home / "found" / "transcripts" / "run" / "against-start.jsonl")
    # 2 questions, each in 2 seats; the opponent's first turns are those of its own debates.
    assert [one.id.rpartition("/")[2] for one in played] == ["seat-1"] * 2 + ["seat-2"] * 2
    first = {(t.question.id, t.id[-1]): t.turns[1 if t.id[-1] == "1" else 0].text for t in played}
    alone = read_transcripts(home / "found" / "transcripts" / "run@1" / "debate.jsonl")
    for debate in alone:
        assert debate.turns[1].text == first[debate.question.id, "1"]
        assert debate.turns[0].text == first[debate.question.id, "2"]
    twice = ("--against", f"rival={last}") * 2
    assert main([str(home / "small.yaml"), *twice]) == 2
    assert "--against: found 'rival', which is taken" in capsys.readouterr().err


def test_questions_and_split_can_be_chosen(home: Path) -> None:
    results = evaluated(home, more=("--split", "dev", "--questions", "3"))
    assert (results["split"], results["questions"]["count"]) == ("dev", 3)


def test_finished_evaluation_is_shown_again_and_another_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(home, "recipe", name="once")
    before = {path: path.read_bytes() for path in (home / "once").glob("*.[cj]s*")}
    again = [str(home / "small.yaml"), *CHANGES, "--output", str(home / "once")]
    capsys.readouterr()
    assert main([*again, "--resume"]) == 0
    shown = capsys.readouterr()
    assert "recipe: is measured already" in shown.err and "valid format" in shown.out
    assert {path: path.read_bytes() for path in before} == before
    assert main(again) == 2
    assert "it holds environment.json" in capsys.readouterr().err
    for change, what in (
        (["rollout.max_tokens=3"], "another recipe"),
        (["--questions", "1"], "another recipe"),
        (["--split", "dev"], "another split"),
        (["--policy", str(home / "run")], "another policies"),
    ):
        assert main([*again, *change, "--resume"]) == 2
        assert what in capsys.readouterr().err
    # The engine may be another: replies do not depend on it.
    assert main([*again, "rollout.engine.max_batch=1", "--resume"]) == 0


def test_evaluation_goes_on_only_with_the_models_that_it_began_with(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights of one size are told apart, and so are two policies by their files."""
    model = shutil.copytree(home / "wider", tmp_path / "model")
    named = ["--policy", f"a={model}", "--policy", "b=recipe", "--output", str(tmp_path / "found")]
    arguments = [str(home / "small.yaml"), *CHANGES, *named]
    assert main(arguments) == 0
    policies = tmp_path / "found" / "policies"
    kept = {name: (policies / f"{name}.json").read_text() for name in "ab"}
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    capsys.readouterr()
    assert main([*arguments, "--resume"]) == 2
    assert "found another policies than the one that it was begun with" in capsys.readouterr().err
    (model / "model.safetensors").write_bytes(weights)
    for changed in (kept["a"], kept["b"].replace('"mean": 0', '"mean": 1', 1), "[]"):
        (policies / "b.json").write_text(changed)
        assert main([*arguments, "--resume"]) == 2
        assert "b.json: is not as debate-eval has written it" in capsys.readouterr().err
    (policies / "b.json").unlink()
    assert main([*arguments, "--resume"]) == 0
    assert (policies / "b.json").read_text() == kept["b"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_recipes_own_model_is_known_by_its_files(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    model = shutil.copytree(home / "wider", tmp_path / "model")
    own = f"model={{type: pretrained, name: {model}, dtype: float32}}"
    arguments = [str(home / "small.yaml"), *CHANGES, own, "--output", str(tmp_path / "found")]
    assert main(arguments) == 0
    content = (model / name).read_bytes()
    is_json = name.endswith(".json")  # A space more is the same JSON in another file.
    changed = content + b" " if is_json else content[:-1] + bytes([content[-1] ^ 1])
    (model / name).write_bytes(changed)
    assert main([*arguments, "--resume"]) == 2
    assert "found another policies" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("{home}/rum", "found no '{home}/rum'; did you mean 'run'?; expected the directory of a"),
        ("{home}/run@7", "has no checkpoint @7; expected best or one of 1, 2, 3"),
        ("{home}/run@bets", "did you mean 'best'?"),
        ("{home}/run@best", "keeps no best checkpoint"),
        ("{home}/wider@3", "is no run directory"),
        ("{home}/run/transcripts", "holds neither checkpoints/ nor a model"),
        ("recipe", "found 'recipe' 2 times; expected another name for each"),
        ("\ud800", "not UTF-8"),
    ],
)
def test_policy_that_is_not_there_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], policy: str, message: str
) -> None:
    named = ["--policy", "recipe", "--policy", policy.format(home=home)]
    assert main([str(home / "small.yaml"), *named, "--output", str(home / "none")]) == 2
    assert message.format(home=home) in capsys.readouterr().err
    assert not (home / "none").exists()


def test_mistyped_run_beside_others_is_no_hub_id(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)
    assert main([str(home / "small.yaml"), "--policy", f"{home.name}/rum"]) == 2
    assert f"found no '{home.name}/rum'; did you mean 'run'?" in capsys.readouterr().err


def test_damaged_checkpoint_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(home / "run" / "checkpoints" / "step-000002", home / "torn")
    with (home / "torn" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert main([str(home / "small.yaml"), "--policy", str(home / "torn")]) == 2
    assert "not as it was written (SHA-256 differs)" in capsys.readouterr().err


def test_weights_are_refused_where_the_engine_takes_none(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = 'rollout.engine={type: scripted, replies: {"*": "<solution> + - </solution>"}}'
    arguments = [str(home / "small.yaml"), engine, "--output", str(home / "scripted")]
    assert main([*arguments, "--policy", str(home / "run")]) == 2
    assert "rollout.engine.type scripted, which takes no weights" in capsys.readouterr().err
    assert main(arguments) == 0
    assert "valid format" in capsys.readouterr().out


def test_policies_answer_by_the_other_phases_engine_where_the_last_one_imitates(home: Path) -> None:
    imitate = (
        "phases={imitate: {rollout: {engine: {type: demonstrations}}, loss: {type: sft}, "
        "reward: {type: verifiable}, advantage: {baseline: none, scale: none}}}"
    )
    run = str(home / "run")
    evaluated(home, f"last={run}", more=(imitate,))
    imitating = said(home, "last")
    evaluated(home, f"last={run}")
    assert imitating == said(home, "last")


def test_check_counts_turns_and_context_and_writes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(home / "small.yaml"), *CHANGES, "--output", str(home / "checked"), "--check"]
    assert main([*arguments, "--policy", "recipe", "--policy", str(home / "run")]) == 0
    shown = capsys.readouterr().out
    # 2 questions, each with 2 direct replies and 2 agents x 2 rounds.
    assert "at most 12 turns, 48 tokens in replies" in shown
    assert "2 policies: recipe, run" in shown
    assert "evaluation: context: at most" in shown
    assert not (home / "checked").exists()
    assert main([*arguments, "rollout.max_tokens=510"]) == 2
    assert "is above the window of 512" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*arguments, "--questions", "0"])
    assert "argument --questions: found 0; expected at least 1" in capsys.readouterr().err
    assert main([*arguments, "evaluation.modes={direct: null, debate: null}"]) == 2
    assert "evaluation.modes: found none that plays anything" in capsys.readouterr().err
