"""The debate-eval command: the policies it measures, what it writes, resumes and refuses."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.forms import Simultaneous
from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import Reply
from debate_train.commands.cli import main as train
from debate_train.commands.evaluate import main
from debate_train.commands.evaluation_files import (
    EvaluationDirectory,
    ReplyJournal,
    write_results,
)
from debate_train.evaluation import Debate, DirectAnswers
from debate_train.evaluation.settings import Setup
from debate_train.models import ScratchModel
from train.small_runs import RECIPE

CHANGES = ["debate.max_rounds=2", "evaluation.questions=2", "evaluation.direct_samples=2"]


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
        (["--policy", str(home / "run")], "other policies"),
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
        message = "found other policies than it was begun with"
        assert message in capsys.readouterr().err
        (model / name).write_bytes(content)
    for text in (a_text, b_text.replace('"mean": 0', '"mean": 1', 1), "[]"):
        results["b"].write_text(text)
        assert main([*arguments, "--resume"]) == 2
        assert "b.json: is not as debate-eval has written it" in capsys.readouterr().err
    results["b"].unlink()
    assert main([*arguments, "--resume"]) == 0
    assert results["b"].read_text() == b_text
    # The same files in another place are the same policy.
    moved = shutil.copytree(model, tmp_path / "moved")
    results["a"].unlink()
    elsewhere = command(home, recipe_model, *policies(f"a={moved}", "b=recipe"), output="models")
    assert main([*elsewhere, "--resume"]) == 0
    assert json.loads(results["a"].read_text())["figures"] == json.loads(a_text)["figures"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("{home}/rum", "found no '{home}/rum'; did you mean 'run'?; expected the directory of a"),
        ("{home}/run@7", "has no checkpoint @7; expected best or one of 1, 2, 3"),
        ("{home}/run@best", "keeps no best checkpoint"),
        ("{home}/run/transcripts", "holds neither checkpoints/ nor a model"),
        ("recipe", "found 'recipe' 2 times; expected another name for each"),
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


SETUP = Setup(Simultaneous(num_agents=3), {"direct": DirectAnswers(), "debate": Debate()})
MAJORITY, DIRECT, UNLISTED = "eval/maj/last", "eval/direct/accuracy", "eval/pass@k"
Values = Mapping[str, Sequence[float]]
BEFORE: Values = {
    # Of 8 questions 5 are lost or won: 1 lost, 4 won.
    MAJORITY: [1, 1, 1, 0, 0, 0, 0, 0],
    DIRECT: [0.5, 0.5, 0.25, 0, 0, 0.75, 1, 0],
    UNLISTED: [1] * 8,
}
AFTER: Values = {
    MAJORITY: [1, 1, 0, 1, 1, 1, 1, 0],
    DIRECT: [0.75, 0.5, 0.5, 0.25, 0, 1, 1, 0.25],
    UNLISTED: [1] * 7 + [0],
}


def write_evaluation(path: Path, digest: str = "a", **policies: Values) -> str:
    """Write a finished evaluation by its own writer; return its folder."""
    questions = [f"q{number}\u2028" for number in range(8)]
    measured: list[dict[str, Any]] = []
    for name, figures in policies.items():
        by_question = {
            n: dict(zip(questions, values, strict=True)) for n, values in figures.items()
        }
        measured.append({"name": name, "figures": {}, "curves": {}, "values": by_question})
    plan = {"questions": {"count": 8, "sha256": digest}}
    with EvaluationDirectory(path, plan, "name: t\n") as directory:
        for policy in measured:
            directory.save(policy)
        write_results(directory, plan, SETUP, measured)
    return str(path)


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, Any]]:
    """The baseline's name, and the rows by figure."""
    assert main(["compare", *arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    return printed["baseline"], {row["figure"]: row for row in printed["compared"]}


def test_policies_of_one_evaluation_are_compared_in_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_evaluation(tmp_path / "both", old=BEFORE, new=AFTER)
    baseline, rows = compared(capsys, folder)
    assert baseline == "old"
    assert set(rows) == {MAJORITY, DIRECT}
    majority = rows[MAJORITY]
    assert (majority["before"], majority["after"], majority["difference"]) == (3 / 8, 6 / 8, 3 / 8)
    assert (majority["lost"], majority["won"], majority["test"]) == (1, 4, "mcnemar")
    # Two-sided, of 5 fair coins at most one shows tails: 2 (1 + 5) / 32.
    assert majority["p"] == pytest.approx(12 / 32, abs=1e-15)
    assert rows[DIRECT]["test"] == "bootstrap"
    assert rows[DIRECT]["difference"] == pytest.approx(1.25 / 8)
    # In the other direction all is turned round.
    _, turned = compared(capsys, f"{folder}:new", folder, "--all")
    assert set(turned) == {MAJORITY, DIRECT, UNLISTED}
    assert turned[MAJORITY]["difference"] == -3 / 8
    assert turned[MAJORITY]["p"] == majority["p"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{one}", "found 'old' alone; expected another policy"),
        ("{one} {other}", "8 and 8; expected the same data"),
        ("{one} {begun}", "found an evaluation that is not finished: go on with --resume"),
        ("{one} {changed}", "results.json: is not as debate-eval has written it"),
    ],
)
def test_evaluations_that_cannot_be_compared_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    folders = {
        "one": write_evaluation(tmp_path / "one", old=BEFORE),
        "two": write_evaluation(tmp_path / "two", new=AFTER),
        "other": write_evaluation(tmp_path / "other", digest="b", new=AFTER),
    }
    for name in ("begun", "torn", "changed"):
        folders[name] = str(shutil.copytree(folders["two"], tmp_path / name))
    (tmp_path / "begun" / "results.json").unlink()
    policy = tmp_path / "torn" / "policies" / "new.json"
    policy.write_text(policy.read_text()[:-20])
    results = tmp_path / "changed" / "results.json"
    results.write_text(results.read_text().replace('"count": 8', '"count": 9'))
    assert main(["compare", *arguments.format(**folders).split()]) == 2
    assert message in capsys.readouterr().err
