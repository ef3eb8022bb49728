"""Change the source in one place at a time and count the changes that the tests notice.

The changes are drawn by a seed from the module alone, so a suite before and a suite after
face the same ones:

    python -m benchmarks.robustness.source_mutants packages/X/src/X/votes.py \
        --mutants 20 --tests tests/rewards/test_votes.py

Committed files are what is changed and run, in a worktree of their own.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OTHER_OPERATOR: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


def code_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """List the nodes that run: no annotation, no type alias at the top of a module."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            children = value if isinstance(value, list) else [value]
            waiting += [child for child in children if isinstance(child, ast.AST)]


def mutate(node: ast.AST) -> bool:
    """Change `node` in place; False where there is nothing to change."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OTHER_COMPARISON:
            node.ops = [OTHER_COMPARISON[type(operator)]()]
        case ast.BinOp(op=operator) if type(operator) in OTHER_OPERATOR:
            node.op = OTHER_OPERATOR[type(operator)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not()):
            node.op = ast.UAdd()
            node.operand = ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int() | float()):
            node.value += 1
        case ast.Return(value=ast.AST()) if not isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
        case _:
            return False
    return True


def mutants(source: str, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Draw `count` changes of `source`: what was changed, and the whole text after it."""
    num_nodes = len(list(code_nodes(ast.parse(source))))
    order = list(range(num_nodes))
    random.Random(seed).shuffle(order)
    num_drawn = 0
    for index in order:
        tree = ast.parse(source)
        node = list(code_nodes(tree))[index]
        before = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
        if not mutate(node):
            continue
        ast.fix_missing_locations(tree)
        line = getattr(node, "lineno", 0)
        yield f"line {line}: {before}  ->  {ast.unparse(node)}", ast.unparse(tree)
        num_drawn += 1
        if num_drawn == count:
            return


def main() -> None:
    """Make the worktree, run the tests over each mutant in it and remove it again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", type=Path)
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--mutants", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300, help="seconds of a test run")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        worktree = Path(folder) / "worktree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(worktree)], check=True)
        try:
            sys.exit(count_killed(worktree, args))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(worktree)], check=True)


def count_killed(worktree: Path, args: argparse.Namespace) -> int:
    """Print each mutant and the share that the tests notice; 1 where they fail unchanged."""
    packages = [str(path) for path in worktree.glob("packages/*/src")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(worktree), *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",  # A mutant of the same size and second is read anew.
    }

    def tests_pass() -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-x", *args.tests]
        command += ["-m", "not slow", "-p", "no:cacheprovider"]
        try:
            finished = subprocess.run(
                command,
                cwd=worktree,
                env=environment,
                capture_output=True,
                timeout=args.limit,
            )
        except subprocess.TimeoutExpired:
            return False
        return finished.returncode == 0

    if not tests_pass():
        print("the tests fail before anything is changed", file=sys.stderr)
        return 1

    module = worktree / args.module
    source = module.read_text()
    num_mutants = num_killed = 0
    for change, mutant in mutants(source, args.mutants, args.seed):
        module.write_text(mutant)
        survived = tests_pass()
        num_mutants += 1
        num_killed += not survived
        print("SURVIVED" if survived else "killed  ", change.replace("\n", " ")[:150], flush=True)
    print(f"{args.module}: {num_killed} of {num_mutants} killed")
    return 0


if __name__ == "__main__":
    main()
