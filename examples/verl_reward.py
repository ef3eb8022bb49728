"""Train with right answers in verl: name this file as its custom reward function.

python examples/verl_reward.py

    custom_reward_function.path=examples/verl_reward.py
    custom_reward_function.name=compute_score
"""

from collections.abc import Mapping
from typing import Any

from debate_protocol import Question
from debate_rewards import check


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | float | None,
    extra_info: Mapping[str, Any] | None = None,
    **settings: Any,
) -> dict[str, float]:
    """Score one response; verl trains on `score` and logs the others.

    `extra_info` may hold `kind` (math, choice, yes_no, number, text), `choices` and `accept`.
    verl has no way to leave a row out: one whose gold cannot be used counts 0 and is visible.
    """
    meta = {key: (extra_info or {}).get(key) for key in ("kind", "choices", "accept")}
    known = {key: value for key, value in meta.items() if value is not None}
    gold = None if ground_truth is None else str(ground_truth)
    found = check(Question(data_source, "", gold, known), solution_str)
    return {
        "score": float(found.verdict == "right"),
        "unverifiable": float(found.verdict == "unverifiable"),
        "timeout": float(found.reason == "timeout"),
    }


def main() -> None:
    """Print what verl would be given."""
    print(compute_score("math500", r"So it is \boxed{90}.", r"90^\circ"))
    print(compute_score("arc", "The answer is (B).", "A", {"kind": "choice"}))
    print(compute_score("aime24", r"\boxed{204}", 204))
    print(compute_score("math500", r"\boxed{5}", None))


if __name__ == "__main__":
    main()
