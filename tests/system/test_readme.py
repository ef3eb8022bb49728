"""What documents show is true: Python runs and prints what it says, commands run or are rehearsed.

A plain block of a document is shell, line by line; so is what stands between backticks and begins
with a program. `RULES` says how each is run; one that fits none fails. YAML is a part of a recipe.
"""

import argparse
import ast
import importlib
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from debate_protocol.cli import main as protocol
from debate_protocol.subcommands import SUBCOMMANDS
from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.transcripts.log_files import lines_for
from debate_report import report_main
from debate_rewards.cli import main as rewards
from debate_studies.command import main as study
from debate_studies.theory import main as theory
from debate_train.commands.ask import main as request
from debate_train.commands.cli import main as train
from debate_train.commands.evaluate import main as evaluate
from debate_train.commands.options import ask_parser
from debate_train.commands.preflight import main as preflight
from debate_train.commands.rollout import main as rollout
from debate_train.models.gguf import PACKAGED
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md")),
    *(
        ROOT / f"packages/debate-{name}/README.md"
        for name in ("protocol", "rollout", "train", "report", "studies")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = [
    pytest.param(page, code, id=f"{page.parent.name}-{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize(("page", "code"), SNIPPETS)
def test_snippet_prints_what_its_comments_say(
    page: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(code, str(page), "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", code, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text("utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings]
            assert anchor in slugs, f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_source_files_exist(page: Path) -> None:
    sources = [str(path) for path in ROOT.glob("packages/*/src/**/*.py")]
    for name in re.findall(r"`(?!test_)([\w/]+\.py)`", page.read_text("utf-8")):
        assert (ROOT / name).exists() or any(s.endswith("/" + name) for s in sources), name


SHELL = [
    *(ROOT / name for name in ("CONTRIBUTING.md", "recipes/README.md", "benchmarks/README.md")),
    *sorted({*PAGES, *ROOT.glob("packages/*/README.md")} - {ROOT / "ARCHITECTURE.md"}),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAM = (
    rf"(?:debate(?:-[a-z]+| (?:{'|'.join(SUBCOMMANDS)})\b)"
    r"|python3?|\.venv/bin/\w+|make(?= [a-z])|uv|pip|torchrun|deepspeed"
    r"|wandb|tensorboard|inspect|pytest|PYTHONPATH=\S+ \S+|vf-eval)"
)


def shown() -> Iterator[str]:
    """Yield each command of the documents and the examples."""
    for page in SHELL:
        text = page.read_text("utf-8")
        for language, block in FENCE.findall(text):
            lines = block.replace("\\\n", " ").splitlines() if not language else []
            yield from (" ".join(line.split()) for line in lines if line and line[0] != "#")
        yield from re.findall(rf"`({PROGRAM} [^`]+)`", FENCE.sub("", text))
    for example in sorted([*ROOT.glob("examples/*.py"), *ROOT.glob("examples/**/*.yaml")]):
        text = example.read_text("utf-8")
        yield from re.findall(rf"^[# ]*({PROGRAM} .+)$", text, re.MULTILINE)


DEBATES = "examples/data/debates.jsonl"
FILLED = (
    (r"^debate (?=[a-z])", "debate-"),  # Its subcommands have the programs as aliases.
    (r"(\|(jsonl|inspect|verifiers|trl))+", ""),
    (r" #.*| …|\|-|(?<![=\w'])\[[^\]]*\]|\[:[A-Z]+\]|^env-cpu/bin/", ""),
    (r"\bRECIPE (?=--nproc)", "selfplay_v2 rollout.engine.type=vllm_server "),
    (r"\bparse FILE.jsonl", "parse examples/data/replies.jsonl"),
    (r"\bown\.yaml", "selfplay_v2"),
    (r"\bRECIPE(?!_)|\bexamples/other_package/recipe.yaml", "quickstart"),
    (r"\b(study) FILE", r"\1 examples/compare_rewards.yaml"),
    (r"\b(import) FILE", r"\1 traces.jsonl"),
    (r"\b(init|--log|--keep) (FILE|mine.yaml)", r"\1 new.yaml"),
    (r"\S+/transcripts/POLICY/MODE.jsonl", DEBATES),
    (r"(runs/)?\w+/transcripts/\w+-000010.jsonl", DEBATES),
    (r"(?<!/)\b(DEBATES|FILE|[ab](?=\.))(\.jsonl)?(?= |$)", DEBATES),
    (r"\bANSWERS.jsonl", "examples/data/answers.jsonl"),
    (r"\bRUN (?=--csv)", "groups.jsonl "),  # The run has one step, of which no chart is drawn.
    (r"\bRUN2?\b|\bRUN_DIR\b|\bDIR\b|runs/(three|dapo|sdrl)\b", "runs/first"),
    (r"\bseed=S\b", "seed=0"),
    (r"evaluations/(?!first)\w+:\w+", "evaluations/first:before"),
    (r"evaluations/(?!first)\w+(?= |$)|\bFOLDER\b", "evaluations/first"),
    (r"--output [^\s\"]+", "--output out"),
    (r"--like RECIPE", "--like quickstart"),
    (r"--model Qwen/Qwen3-4B", "--model runs/tiny-model"),
    (r"\./my-model|\bruns/acc\w*", "runs/tiny-model"),
    (r"\bKEY\b", "reward"),
    (r"\bWORD\b", "sdrl"),
    (r"\$NODE", "0"),
    (r"\$FIRST", "localhost"),
)
"""What stands for a file, a folder or a name, and what it is in these tests."""
FEW = ["phases=null", "steps=1", "data.batch_size=2", "tracking.wandb=false"]
FEW += ["evaluation.questions=2", "evaluation.direct_samples=1"]


def runs(main: Callable[[list[str]], int], *more: str, codes: Sequence[int] = (0,)) -> "Action":
    """Return an action that runs a command of ours for real, with some more arguments."""

    def act(words: list[str]) -> None:
        assert main([*words[1:], *more]) in codes

    return act


def parses(main: Callable[[list[str]], object]) -> "Action":
    """Return an action that lets a command parse its arguments and do no more."""

    def act(words: list[str]) -> None:
        parse = argparse.ArgumentParser.parse_args
        parsed = list[object]()

        def once(self: argparse.ArgumentParser, *given: Any, **named: Any) -> None:
            parsed.append(parse(self, *given, **named))
            raise StopIteration

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "parse_args", once)
            with suppress(StopIteration):
                main(words[1:])
        assert parsed

    return act


def module(words: list[str]) -> None:
    """Run what `python -m` names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)


def imports(words: list[str]) -> None:
    """Import what `python -m` names: without arguments it would begin to measure."""
    importlib.import_module(words[2])


def makes(words: list[str]) -> None:
    """Let make say what it would do."""
    subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)


def installs(words: list[str]) -> None:
    """See that the packages that are named, and their extras, are there, with what they need."""
    named = dict(re.findall(r"(?:packages/)?(debate-\w+)(?:\[(\w+)\])?", " ".join(words)))
    for name, extra in named.items():
        text = (ROOT / "packages" / name / "pyproject.toml").read_text()
        project = tomllib.loads(text)["project"]
        assert not extra or extra in project["optional-dependencies"]
        if "debate-protocol" in named:  # Into an empty environment; no index has ours.
            needed = re.findall(r"debate-\w+", " ".join(project["dependencies"]))
            assert named.keys() >= {*needed}


def launches(words: list[str]) -> None:
    """Parse what a launcher takes, and check the recipe that it starts."""
    from deepspeed.launcher.runner import parse_args
    from torch.distributed.run import get_args_parser

    arguments = words[1:]
    parser = parse_args if words[0] == "deepspeed" else get_args_parser().parse_args
    assert parser(arguments)
    assert train([arguments[-1], "--check"]) == 0


def is_tested(words: list[str]) -> None:
    """See that a test runs it, as it needs what this environment has not."""
    (name,) = [word for word in words if word.endswith(".py") or word in TESTED]
    test = (ROOT / "tests" / TESTED.get(name, "integration/test_examples.py")).read_text("utf-8")
    assert Path(name).name in test


def vllm_takes(words: list[str]) -> None:
    """See that our own servers are started with these options."""
    folder = ROOT / "packages/debate-rollout/src/debate_rollout/engines"
    code = "".join(file.read_text("utf-8") for file in folder.glob("vllm*/*.py"))
    for option in (word.removeprefix("--") for word in words if word.startswith("--")):
        assert option in code or option.replace("-", "_") in code, option


def is_installed(words: list[str]) -> None:
    """See that the program is there: it waits for a login, or for a browser."""
    assert shutil.which(Path(words[0]).name, path=str(Path(sys.executable).parent))


def is_known(words: list[str]) -> None:
    """See that a command which is shown in part has these subcommands and options."""
    program = str(Path(sys.executable).parent / words[0])
    parts = ("study", "compare", "export", "show", "validate")
    named = [word for word in words[1:] if word in parts]
    help_ = [program, *named, "--help"]
    said = subprocess.run(help_, capture_output=True, text=True, check=True).stdout
    assert all(word in said for word in words if word.startswith("--"))


def nothing(words: list[str]) -> None:
    """Do nothing: it prepares a shell, or installs what a lock file names."""


Action = Callable[[list[str]], object]
TESTED = {
    ".ci/readability.py": "system/test_readability.py",
    "verifiers_debate": "integration/test_examples.py",
    "view": "protocol/test_log_files.py",
    "docs/pictures/make_pictures.py": "system/test_site.py",
    "docs/reference/make_keys.py": "train/test_recipe_file.py",
}
RULES: tuple[tuple[str, Action], ...] = (
    (r"\. |python3? -m venv |uv venv |uv (sync|run|build)|(uv )?pip install$", nothing),
    (r"(wandb sync|inspect view|vf-eval --save-results)$", nothing),  # Named whole beside.
    (r"\.venv/bin/python -m tests.system.public_names", nothing),  # It writes into packages.
    (r"(uv )?pip install ", installs),
    (r"make ", makes),
    (r"(\.venv/bin/(python -m )?)?(pytest|ruff|mypy)\b", is_installed),
    (r"(wandb|tensorboard) ", is_installed),
    (r"python (docs|examples|\.ci)/|PYTHONPATH=examples vf-eval|inspect view ", is_tested),
    (r".*python -m vllm", vllm_takes),
    (r"debate-train (quickstart .*--resume|.*--nproc)$", is_known),
    (r"debate-study$|debate-protocol (export|show|validate)$", is_known),
    (r"debate-eval ((compare|quickstart)$|smollm2_selfplay )", is_known),  # The last needs a study.
    (r"(torchrun|deepspeed) ", launches),
    (r"debate-train .*--slurm", runs(train, "--dry-run")),
    (r"srun ", lambda words: runs(train, "--check")(words[-2:])),
    (r"python3? -m (benchmarks|debate_train)\.[\w.]+$", imports),
    (r"python3? -m benchmarks\.", parses(module)),
    (r"debate-protocol ", runs(protocol)),
    (r"debate-rewards ", runs(rewards)),
    (r"debate-study ", runs(study, "--check")),
    (r"debate-theory( |$)", runs(theory)),
    (r"debate-report ", runs(report_main)),
    (r"debate-rollout ", runs(rollout, *FEW)),
    # The exit code is 1 where it is no-go, and where random weights answer nothing.
    (r"debate-preflight ", runs(preflight, "--questions=2", "--no-update", *FEW, codes=(0, 1))),
    (r"debate-ask .*--url", lambda words: ask_parser().parse_intermixed_args(words[1:])),
    (r"debate-ask ", runs(request, "--max-tokens=8", codes=(0, 1))),
    (r"debate-eval compare ", runs(evaluate)),
    (r"debate-eval (acc_|recipes/selfplay|.*rival|.*--benchmark)", runs(evaluate, "--check")),
    (r"debate-eval ", runs(evaluate, *FEW)),
    (r"debate-train fetch ", lambda words: PACKAGED[words[2]]),  # test_model_files.py runs one.
    (r"debate-train (recipes|init|import|--explain)(?= |$)", runs(train)),
    (r"debate-train .*--(explain|print|plan|check|check-data)\b", runs(train)),
    (r"debate-train .*tiny-model .*type=transformers", runs(train, "rollout.max_tokens=4", *FEW)),
    (r"debate-train ", runs(train, "--check")),
)
"""How a command is run, by how it begins; the first that fits."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the repository, with a run and an evaluation of it."""
    home = tmp_path_factory.mktemp("home")
    for name in ("recipes", "benchmarks", "packages", "tests"):
        (home / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "examples", home / "examples")  # Reports are written beside its files.
    questions = (ROOT / "recipes/data/gsm8k_50.jsonl").read_text()
    (home / "questions.jsonl").write_text(questions)
    (home / "mine.yaml").write_text(FOUR_LINES)
    (home / "hosts").write_text("localhost slots=8\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        run = ["quickstart", *FEW, "evaluation.questions=0"]
        assert train([*run, "--output", "runs/first"]) == 0
        policies = ["--policy", "before=runs/first@1", "--policy", "after=runs/first"]
        assert evaluate(["quickstart", *policies, *FEW, "--output", "evaluations/first"]) == 0
        debates = read_transcripts(DEBATES)
        Path("traces.jsonl").write_bytes(b"".join(lines_for("verifiers", debates, "debates")))
        group = [{"question": "1 + 1?", "response": "2" * n, "reward": n % 2} for n in range(1, 5)]
        Path("groups.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in group))
        for step in (1, 2):
            folder = Path(f"rollouts/step_{step}/train/all")
            folder.mkdir(parents=True)
            shutil.copy("groups.jsonl", folder / "rollouts.jsonl")
        patch.setattr(sys, "argv", ["tiny_model.py", "runs/tiny-model"])
        runpy.run_path("examples/tiny_model.py", run_name="__main__")
    return home


FOUR_LINES = FENCE.search((ROOT / "docs/recipes.md").read_text().partition("Four lines")[2])[2]


def filled(command: str) -> list[str]:
    """Return a command with what stands for something filled in; several where it joins several."""
    for pattern, meant in FILLED:
        command = re.sub(pattern, meant, command)
    return [part.strip() for part in re.split(r" && | \| tee.*| > .*", command) if part.strip()]


COMMANDS = list(dict.fromkeys(part for one in shown() for part in filled(one)))


@pytest.mark.parametrize("command", COMMANDS, ids=[one[:80] for one in COMMANDS])
def test_command_that_is_shown_runs(
    home: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    shutil.rmtree("out", ignore_errors=True)
    Path("new.yaml").unlink(missing_ok=True)
    action = next((act for begin, act in RULES if re.match(begin, command)), None)
    assert action is not None, f"no rule for {command!r}; RULES takes one"
    action(shlex.split(command))


@pytest.mark.parametrize("page", dict.fromkeys([*PAGES, *SHELL]), ids=lambda page: page.stem)
def test_yaml_that_is_shown_is_a_part_of_a_recipe(page: Path, tmp_path: Path) -> None:
    for language, block in FENCE.findall(page.read_text("utf-8")):
        if language != "yaml" or "arms:" in block or "extends: evaluation" in block:
            continue
        again = len(re.findall(r"^offline:", block, re.MULTILINE)) > 1
        for text in block.splitlines() if again else [block]:
            part = yaml.safe_load(text)
            is_debate = not part.keys() & Recipe.model_fields.keys()
            recipe = yaml.safe_load(FOUR_LINES) | ({"debate": part} if is_debate else part)
            file = tmp_path / "recipe.yaml"
            file.write_text(yaml.safe_dump(recipe, sort_keys=False))
            assert load_recipe(file, model=Recipe).recipe.phase_recipes()


def test_four_lines_are_a_recipe_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(FOUR_LINES)
    shutil.copy(ROOT / "recipes/data/gsm8k_50.jsonl", "questions.jsonl")
    assert train(["mine.yaml", "--check"]) == 0
    assert capsys.readouterr().err == ""


def test_readme_and_loop_are_as_short_as_promised() -> None:
    assert len(TEXT.splitlines()) < 200
    (loop,) = re.findall(r"\[fits on one screen\]\((\S+)\)", TEXT)
    functions = ast.parse((ROOT / loop).read_text("utf-8")).body
    (train_function,) = [
        node for node in functions if isinstance(node, ast.FunctionDef) and node.name == "train"
    ]
    assert train_function.end_lineno is not None
    assert train_function.end_lineno - train_function.lineno < 60
