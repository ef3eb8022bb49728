"""Marks labelled pairs with one library, in whatever environment has that library.

python benchmarks/answers/markers.py NAME < PAIRS.jsonl

Prints one JSON list: true, false, or null where the library has no scorer for the kind of answer.
The libraries are used as their own documentation uses them, without our reading of the reply.
"""

import asyncio
import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

Pair = dict[str, Any]
Mark = Callable[[Pair], bool | None]
MATHEMATICS = ("math", "number")
PUZZLE = "puzzle"
"""A task of reasoning-gym, which only debate-rewards judges."""


def debate_rewards() -> Mark:
    """Mark with the build of debate-rewards that is first on the path."""
    from debate_protocol.types import Question
    from debate_rewards import check

    def mark(pair: Pair) -> bool:
        meta = {"kind": pair["kind"], "choices": pair.get("choices")}
        if pair["kind"] == PUZZLE:
            meta = {"kind": "text", "reasoning_gym": pair["task"]}
        question = Question("q", pair.get("question") or "?", pair["gold"], meta)
        return check(question, pair["reply"]).verdict == "right"

    return mark


def math_verify() -> Mark:
    """Mark with Math-Verify: formulas, numbers and single letters."""
    from math_verify import (
        ExprExtractionConfig,
        LatexExtractionConfig,
        StringExtractionConfig,
        parse,
        verify,
    )

    configs = {
        **dict.fromkeys(MATHEMATICS, (LatexExtractionConfig(), ExprExtractionConfig())),
        "choice": (StringExtractionConfig(strings=tuple("ABCDEFGHIJ"), lowercase=False),),
    }

    def mark(pair: Pair) -> bool | None:
        kind = pair["kind"]
        if kind not in configs:
            return None
        gold = pair["gold"].strip("()") if kind == "choice" else f"${pair['gold']}$"
        parsed_gold = parse(gold, configs[kind])
        return bool(verify(parsed_gold, parse(pair["reply"], configs[kind])))

    return mark


def trl() -> Mark:
    """Mark with TRL's `accuracy_reward`; a gold that it cannot parse counts as wrong."""
    from trl.rewards import accuracy_reward

    def mark(pair: Pair) -> bool | None:
        if pair["kind"] not in MATHEMATICS:
            return None
        completion = [[{"role": "assistant", "content": pair["reply"]}]]
        return accuracy_reward(completion, [f"${pair['gold']}$"]) == [1.0]

    return mark


def verl() -> Mark:
    """Mark with verl's scorers of MATH and GSM8K, whose files need nothing else of verl."""
    places = [Path(folder) / "verl" for folder in sys.path]
    package = next(place for place in places if (place / "utils" / "reward_score").is_dir())
    stand_in = types.ModuleType("verl.utils.import_utils")
    stand_in.deprecated = lambda *_, **__: lambda function: function
    sys.modules.update(
        {name: types.ModuleType(name) for name in ("verl", "verl.utils")},
        **{"verl.utils.import_utils": stand_in},
    )

    def load(name: str) -> Any:
        path = package / "utils" / "reward_score" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    math_reward, gsm8k = load("math_reward"), load("gsm8k")

    def mark(pair: Pair) -> bool | None:
        if pair["kind"] == "math":
            return bool(math_reward.compute_score(pair["reply"], pair["gold"]) == 1)
        if pair["kind"] == "number":
            score = gsm8k.compute_score(pair["reply"], pair["gold"], method="flexible")
            return bool(score == 1)
        return None

    return mark


def inspect() -> Mark:
    """Mark with inspect's scorers: `math`, `match`, `answer`, by the kind of answer."""
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import CORRECT, Target, answer, match, math
    from inspect_ai.solver import TaskState

    scorers = {
        "math": math(),
        "number": match(numeric=True),
        "choice": answer("letter"),
        "yes_no": answer("word"),
        "text": answer("line"),
    }

    def mark(pair: Pair) -> bool | None:
        if pair["kind"] not in scorers:
            return None
        state = TaskState(
            model="mockllm/model",
            sample_id=1,
            epoch=1,
            input=pair.get("question") or "?",
            messages=[],
            output=ModelOutput.from_content("mockllm/model", pair["reply"]),
        )
        gold = pair["gold"].strip("()") if pair["kind"] == "choice" else pair["gold"]
        score = asyncio.run(scorers[pair["kind"]](state, Target(gold)))
        return score is not None and score.value == CORRECT

    return mark


MARKERS: dict[str, Callable[[], Mark]] = {
    "debate-rewards": debate_rewards,
    "math-verify": math_verify,
    "trl": trl,
    "verl": verl,
    "inspect": inspect,
}


def main() -> None:
    """Mark the pairs of standard input; an error of a library is a wrong mark."""
    mark = MARKERS[sys.argv[1]]()
    marks: list[bool | None] = []
    for line in sys.stdin:
        pair = json.loads(line)
        try:
            marks.append(mark(pair))
        except Exception as error:
            print(f"{sys.argv[1]}: {pair['gold']!r}: {error!r}"[:200], file=sys.stderr)
            marks.append(False)
    print(json.dumps(marks))


if __name__ == "__main__":
    main()
