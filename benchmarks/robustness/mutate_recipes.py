"""Mutate recipes and look how debate-train takes them: refused with exit code 2, or accepted.

- override: every key of every variant, set to each of some fifty bad values, with --check
- file: recipe files with hostile text in place of one value, and files that are no recipes
- command: some of both through the real command, in a process of its own
- kept: each recipe that was accepted, written as a run keeps it and read again, must be the same

    python -m benchmarks.robustness.mutate_recipes --most 12000 --log runs/mutate_recipes.jsonl

The order of overrides follows from the seed. A second call with the same log goes on.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.robustness.mutations import Log, Outcome, quiet_environment, tried
from debate_train.commands.cli import main as command
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.resolved import resolved_yaml
from debate_train.recipe.schema import PHASES, Schema, annotation_of, schema_of

BASE = """\
name: t
steps: 3
model: {type: scratch}
data: {type: signs_puzzle, batch_size: 2}
debate: {num_agents: 5, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 16}
advantage: {baseline: question_round}
evaluation: {questions: 4}
"""
VALUES = (
    "", "null", "~", "true", "no", "-1", "0", "1", "1.5", "1e400", "1e-400", ".inf", "-.inf",
    ".nan", "0x7f", "1_000", "99999999999999999999", "9" * 5000, "-" + "9" * 400, "[]", "{}",
    "[1, 2]", "[[[[]]]]", "{a: 1}", "{type: no}", "{type: python}", "[{}]", "text", "../../x",
    "/dev/null", "/", "caf\udce9", "\udcff", "é\u202e", "\x1b[31m", '"\\0"', '"\\UFFFFFFFF"',
    "n" * 300, "./" + "n" * 300, "x" * 70_000, "${oc.env:NO_SUCH_VARIABLE}", "${nope}", "${name}",
    "${", "\\${x}", "???", "!!int abc", "!!timestamp 2020-99-99", "[!!float x]", "'", "[", "{a",
    "2020-01-01", "&a [*a]", "*a", "a: b: c", "# c",
)  # fmt: skip
TEXTS = (
    "!!int abc", "!!bool maybe", "!!float x", "!!null x", "!!timestamp 2020-99-99", "!!binary x",
    "!!set {a}", "!!omap [a: 1]", "!!pairs [a: 1]", "!!python/object/apply:os.getcwd []", "!foo 1",
    '"\\UFFFFFFFF"', '"\\x"', '"\\e[2J"', "9" * 5000, "0x" + "f" * 500, "1e400", "=", "<<",
    "[" * 2000, "{a: " * 500, "&a [*a]", "*nothing", "&a {b: *a}", "? a", "- a", "\t- a", "%TAG",
    "---", "...", "\x00", "\ufeff", "\u2028", "{<<: 1}", "{<<: [1]}", "{? [1]: 2}", "{1: 2}",
    "{null: 2}", "{true: 2}", "{a: 1, a: 2}", "[" + "1," * 20_000 + "1]", "y" * 300_000, "|\n x",
    ">\n x", "'", '"', "[1", "{1", "${", "${a.b.c}", "${.}", "${..seed}", "${oc.env:}",
    "${oc.create:[1]}", "${oc.decode:'['}", "${oc.env:HOME,${oc.env:NO}}", "${seed}${seed}",
    "{type: [1]}", "{type: {a: 1}}", "{type: null}", "{type: 1}", "${oc.select:nope,3}",
    "&x [a, b]", "!!seq a", "!!map a", "!!str [a]", "2001-12-14t21:59:43.10-05:00", "190:20:30",
)  # fmt: skip
Keys = Iterator[tuple[tuple[str, ...], str]]


def key_paths(schema: Schema, path: str = "", chosen: tuple[str, ...] = (), depth: int = 4) -> Keys:
    """Yield each key of each variant, with the choices of `type` that lead to it."""
    several = len(schema.models) > 1
    for tag, model in schema.variants.items() if several else [("", m) for m in schema.models]:
        types = (*chosen, f"{path}type={tag}") if several else chosen
        for key, field in model.model_fields.items():
            yield types, path + key
            if key != PHASES and depth:
                yield from key_paths(
                    schema_of(annotation_of(field)), f"{path}{key}.", types, depth - 1
                )


def overrides() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of each trial of an override."""
    keys = dict.fromkeys(key_paths(Schema((Recipe,))))
    keys |= dict.fromkeys(
        ((), f"phases.a.{key}") for _, key in key_paths(Schema((Recipe,)), depth=0)
    )
    for types, key in keys:
        for number, value in enumerate(VALUES):
            yield f"override:{' '.join(types)} {key}:{number}", [*types, f"{key}={value}"]


def files() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each trial of a file."""
    lines = BASE.splitlines()
    for at, line in enumerate(lines):
        key = line.split(":")[0]
        for number, text in enumerate(TEXTS):
            changed = [*lines[:at], f"{key}: {text}", *lines[at + 1 :]]
            yield f"file:{key}:{number}", "\n".join(changed).encode("utf-8", "surrogateescape")
    for number, text in enumerate(TEXTS):
        yield f"file:whole:{number}", text.encode()
        yield f"file:key:{number}", f"{BASE}? {text}\n: 1\n".encode()
        yield f"file:extends:{number}", f"{BASE}extends: {text}\n".encode()
    for name, coding in (("utf-16", "utf-16"), ("utf-32", "utf-32"), ("latin", "latin-1")):
        yield f"file:{name}:0", (BASE + "# é\n").encode(coding)
    noise = random.Random(0)
    for number in range(200):
        cut = bytearray(BASE.encode())
        for _ in range(noise.randrange(1, 6)):
            cut[noise.randrange(len(cut))] = noise.randrange(256)
        yield f"file:noise:{number}", bytes(cut)


def whole(recipe: Recipe) -> Recipe:
    """Return a recipe without its phases, which may be written in more than one way."""
    return recipe.model_copy(update={"phases": {}})


class Trials:
    """Trials in one folder, which holds the recipe that is mutated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base = folder / "base.yaml"
        self._base.write_text(BASE)

    def all(self, seed: int) -> list[tuple[str, Callable[[], Outcome]]]:
        """Return all trials, those of overrides in an order of the seed's."""
        changed, order = [*overrides()], random.Random(seed)
        order.shuffle(changed)
        found: list[tuple[str, Callable[[], Outcome]]] = []
        for name, held in files():
            found.append((name, lambda n=name, h=held: self._file(n, h)))
        found += self._commands(changed[:15])
        for name, arguments in changed:
            found.append((name, lambda n=name, a=arguments: self._override(n, a)))
        return found

    def _commands(
        self, changed: list[tuple[str, list[str]]]
    ) -> Iterator[tuple[str, Callable[[], Outcome]]]:
        for kind in ("fifo", "ring", "directory", "zero", "missing", "large"):
            yield f"command:{kind}", lambda k=kind: self._place(k)
        for name, arguments in changed:
            yield f"command:{name}", lambda n=name, a=arguments: self._command(n, a)

    def _override(self, name: str, arguments: list[str]) -> Outcome:
        outcome = tried(name, lambda: command([str(self._base), *arguments, "--check"]))
        return self._kept(outcome, self._base, arguments)

    def _file(self, name: str, held: bytes) -> Outcome:
        path = self._folder / "mutated.yaml"
        path.write_bytes(held)
        outcome = tried(name, lambda: command([str(path), "--check"]))
        return self._kept(outcome, path, [])

    def _kept(self, outcome: Outcome, path: Path, arguments: list[str]) -> Outcome:
        """Read an accepted recipe again as a run keeps it; another one is a silent difference."""
        if outcome.ended != "accepted":
            return outcome
        kept = self._folder / "kept.yaml"

        def again() -> int:
            first = load_recipe(path, arguments, model=Recipe)
            kept.write_text(resolved_yaml(first), encoding="utf-8")
            second = load_recipe(kept, model=Recipe)
            one, other = first.recipe, second.recipe
            same = one.phase_recipes() == other.phase_recipes()
            same &= whole(one) == whole(other)
            return 0 if same and resolved_yaml(second) == kept.read_text("utf-8") else 3

        found = tried(outcome.trial, again)
        if found.ended == "accepted":
            return outcome
        ended = "differs" if found.ended == "exit 3" else f"kept {found.ended}"
        return Outcome(outcome.trial, ended, outcome.seconds, found.said)

    def _command(self, name: str, arguments: list[str], recipe: str | None = None) -> Outcome:
        def act() -> int:
            line = [sys.executable, "-m", "debate_train", recipe or str(self._base), *arguments]
            raw = [os.fsencode(part) for part in (*line, "--check")]
            if any(b"\0" in part for part in raw):
                return 2  # No process can be given it.
            done = subprocess.run(raw, capture_output=True, timeout=180, check=False)
            sys.stderr.write(done.stderr.decode("utf-8", "replace"))
            return done.returncode

        return tried(name if name.startswith("command:") else f"command:{name}", act)

    def _place(self, kind: str) -> Outcome:
        path = self._folder / f"{kind}.yaml"
        if not os.path.lexists(path):
            if kind == "fifo":
                os.mkfifo(path)
            elif kind == "ring":
                path.symlink_to(path)
            elif kind == "directory":
                path.mkdir()
            elif kind == "zero":
                path.symlink_to("/dev/zero")
            elif kind == "large":
                path.write_text("# " + "x" * 10_000_000)
        return self._command(kind, [], str(path))


def main(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all or some trials; return their counts."""
    log = Log(arguments.log)
    with quiet_environment(), tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder)).all(arguments.seed)
        log.run(trials[: arguments.most : arguments.every])
    return log.counts()


def parsed(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seed", type=int, default=0, help="order of the trials")
    parser.add_argument("--most", type=int, help="trials to make (default: all)")
    parser.add_argument("--every", type=int, default=1, help="make every n-th trial only")
    parser.add_argument("--log", type=Path, help="outcomes, one a line; those in it are kept")
    return parser.parse_args(argv)


if __name__ == "__main__":
    print(json.dumps({"benchmark": "mutate_recipes"} | main(parsed())))
