"""Hostile transcripts, answers and run files, drawn by a seeded generator."""

import json
import random
from typing import Any

from debate_protocol import from_json, to_xml

SECTIONS = ("solution", "evaluation", "comparison")
TEXTS = (
    "", " ", "\n", "\x00", "\x1b[31m\x07", "\x9b31m", "\x7f\x85\u2028", "\u202e\u2066", "\ud800",
    "\udfff\ud83d",
    "\ufeff", "\uffff", "e\u0301", "\u0315\u0300", "\ufdfa", "日本 🙂", "NaN", "null", "-1",
    "1e999",
    "<think>", "</think>", "<solution>", "</solution>", "<comparison>", "Agent 1 > Agent 2\n",
    "Agent 0 = Agent 1\n", "Agent 1 is wrong. ", "\\boxed{", "}", "{", "\\(", "$", "Answer: ",
    "answer is ", "#### ", "```\n", "~~~\n", "9", "1,111", "(", "A ", "no ", "\\text{", "\\frac",
    "]]>", "<![CDATA[", "&b;", "<!--", "=HYPERLINK(1)", "../../x", "${oc.env:HOME}",
    "__import__('os')",
)  # fmt: skip
REPEATS = (1, 1, 2, 9, 300, 20_000)
# Written into the JSON as they stand, so that also numbers beyond Python's are there.
VALUES = (
    "null", "true", "false", "0", "-1", "1", "2", "3", "999", "1000", "1001", "10000", "1000000000",
    "100000000000000000000", "-9223372036854775809", "1.5", "1e308", "-1e308", "5e-324", "1e999",
    "NaN", "Infinity", "9" * 5000, '""', '"text"', "[]", "{}", "[[]]", "[[0, 0]]", "[[0, 0, 0]]",
    '[["0", 0]]', "[1000000000]", '{"a": {"a": []}}', "[" * 60 + "]" * 60, "[" * 3000 + "]" * 3000,
)  # fmt: skip
QUESTIONS: tuple[dict[str, Any], ...] = (
    {"text": "6 * 7?", "answer": "42", "meta": {"kind": "number"}},
    {"text": "Capital?", "answer": "B", "meta": {"kind": "choice", "choices": ["Rome", "Paris"]}},
    {"text": "Is it?", "answer": "yes", "meta": {"kind": "yes_no"}},
    {"text": "Who?", "answer": "Ada", "meta": {"kind": "text", "accept": ["Ada Lovelace"]}},
    {"text": "Half?", "answer": "\\frac{1}{2}", "meta": {}},
    {"text": "Why?"},
)
SAID = ("42", "41", "B", "yes", "Ada", "\\boxed{\\frac{1}{2}}", "Answer: 0.5", "\\sqrt{2}")
KEYS = (
    "id", "question", "protocol", "turns", "meta", "text", "answer", "agent", "round", "shown",
    "prompt", "failure", "branches", "continuations", "guide", "turn", "kind", "choices", "accept",
    "num_agents", "max_rounds", "schedule", "contract", "topology", "history_rounds", "degree",
    "center", "think", "first_turns", "schema", "name", "sections", "stop", "instructions",
    "roles", "count", "answers", "rounds", "sees", "policy", "trains",
)  # fmt: skip


def hostile_text(rng: random.Random) -> str:
    """Return a text of a few pieces, some of them many times."""
    pieces = (rng.choice(TEXTS) * rng.choice(REPEATS) for _ in range(rng.randint(1, 4)))
    return "".join(pieces)[:100_000]


def debate(rng: random.Random) -> dict[str, Any]:
    """Return a sound debate."""
    agents, rounds = rng.randint(1, 5), rng.randint(1, 3)
    protocol: dict[str, Any] = {"num_agents": agents, "max_rounds": rounds}
    kind = rng.choice(("table", "table", "boxed", "own", "critic", "pair", "sequential", "roles"))
    if kind == "boxed":
        protocol["contract"] = "boxed"
    elif kind == "own":
        protocol["contract"] = {"name": "own", "sections": ["poem", "comparison"], "stop": None}
    elif kind == "critic":
        protocol |= {"num_agents": 2, "topology": "actor_critic"}
    elif kind == "pair":
        protocol |= {"num_agents": 4, "max_rounds": 2, "topology": "pair", "first_turns": 2}
    elif kind == "roles":
        judge = {"name": "judge", "answers": False, "sees": {"debater": 1}, "policy": "start"}
        roles = [{"name": "debater", "count": 2}, judge | {"trains": False}]
        protocol |= {"num_agents": 3, "schedule": "sequential", "roles": roles}
    elif kind == "sequential":
        protocol |= {"schedule": "sequential", "topology": "central", "center": 0}
    if kind == "pair":
        keys = [(0, 0), (1, 0), (2, 1), (3, 1)]
    else:
        keys = [
            (a, r) for r in range(protocol["max_rounds"]) for a in range(protocol["num_agents"])
        ]
    turns = [turn(rng, agent, round_, keys, kind) for agent, round_ in keys]
    name = f"d{rng.randint(0, 99)}"
    return {
        "id": name,
        "question": dict(rng.choice(QUESTIONS)),
        "protocol": protocol,
        "turns": turns,
    }


def turn(
    rng: random.Random, agent: int, round_: int, keys: list[tuple[int, int]], kind: str
) -> dict[str, Any]:
    """Return a turn that was shown what others said before."""
    first, *others = [other for other, number in keys if other != agent and number < round_] or [0]
    votes = "".join(f"Agent {first} {rng.choice('>=<')} Agent {other}\n" for other in others)
    texts = {
        "solution": rng.choice(SAID), "poem": rng.choice(SAID), "comparison": votes or "N/A",
        "evaluation": f"Agent {first} is wrong." if round_ else "N/A",
    }  # fmt: skip
    names = ("poem", "comparison") if kind == "own" else SECTIONS
    text = "".join(f"<{name}>{texts[name]}</{name}>" for name in names)
    made: dict[str, Any] = {"agent": agent, "round": round_, "text": text}
    if kind == "boxed":
        made["text"] = f"So \\boxed{{{rng.choice(SAID)}}}"
    if kind == "pair" or rng.random() < 0.5:
        made["shown"] = [[a, r] for a, r in keys if a != agent and r < round_]
    if rng.random() < 0.1:
        made["failure"] = rng.choice(("length", hostile_text(rng)))
    if rng.random() < 0.2:
        made["prompt"] = [{"role": "user", "content": "Go."}]
    if rng.random() < 0.15:
        following = {"agent": agent, "round": round_ + 1, "text": text}
        made["branches"] = [{"guide": rng.choice(SAID), "turn": dict(made)}]
        made["continuations"] = [following] * rng.randint(1, 3)
    return made


def debates_file(rng: random.Random) -> bytes:
    """Return a file of one to three debates, at least one of them mutated."""
    debates = [debate(rng) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.2:
        document = to_xml(map(from_json, debates))
        return _damaged(rng, document, rng.choice((0, 1, 1, 2)))
    hurt = rng.randrange(len(debates))
    raw = [json.dumps(one).encode() for one in debates]
    raw[hurt] = mutated(rng, debates[hurt])
    lines = b"\n".join(raw) + b"\n"
    return _damaged(rng, lines, rng.choice((0, 0, 0, 1)))


def answers_file(rng: random.Random) -> bytes:
    """Return lines to verify."""
    lines = []
    for name in range(rng.randint(1, 4)):
        gold = rng.choice((rng.choice(SAID), hostile_text(rng)))
        row: dict[str, Any] = {"id": name, "gold": gold, "prediction": hostile_text(rng)}
        if rng.random() < 0.3:
            row["accept"] = [rng.choice(SAID)]
        if rng.random() < 0.3:
            row["choices"] = {"A": rng.choice(SAID), "B": hostile_text(rng)[:100]}
        lines.append(mutated(rng, row) if rng.random() < 0.5 else json.dumps(row).encode())
    return _damaged(rng, b"\n".join(lines) + b"\n", rng.choice((0, 0, 0, 1)))


def run_files(rng: random.Random) -> dict[str, bytes]:
    """Return the other files of a run, some of them mutated."""
    rows = [{"phase": "rl", "step": n, "loss": 1 / (n + 1), "time_s": n} for n in range(4)]
    measure = {"mean": 0.5, "low": 0.4, "high": 0.6}
    results = {"table": [{"measure": "m", "before": measure, "after": measure}], "steps": 4}
    environment = {"device": "cpu", "resumed": [{"from_step": 1, "changes": {"a": {"now": 1}}}]}
    files = {
        "metrics.jsonl": b"\n".join(mutated(rng, row) for row in rows),
        "results.json": mutated(rng, results),
        "environment.json": mutated(rng, environment),
        "recipe.yaml": b"steps: 4\n",
    }
    hurt = rng.choice(sorted(files))
    return files | {hurt: _damaged(rng, files[hurt], 1)}


def mutated(rng: random.Random, value: dict[str, Any]) -> bytes:
    """Return a value as JSON in which up to three places hold something else."""
    copy = json.loads(json.dumps(value))
    raw: dict[str, str] = {}
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        action = rng.random()
        holder, key = _place(rng, copy, of_texts=0.3 <= action < 0.75)
        if action < 0.3:
            mark = f"@{rng.getrandbits(64):x}@"
            raw[mark] = rng.choice(VALUES)
            holder[key] = mark
        elif action < 0.75:
            holder[key] = hostile_text(rng)
        elif action < 0.85:
            del holder[key]
        elif isinstance(holder, list):
            holder += [holder[key]] * rng.choice((1, 2, 50, 1200))
        else:
            holder[rng.choice((rng.choice(KEYS), hostile_text(rng)[:200]))] = holder[key]
    text = json.dumps(copy, ensure_ascii=rng.random() < 0.5)
    for mark, spelled in raw.items():
        text = text.replace(f'"{mark}"', spelled)
    return text.encode("utf-8", "surrogatepass")


def _place(rng: random.Random, value: Any, *, of_texts: bool) -> tuple[Any, Any]:
    """Return a container inside a value and one of its keys, perhaps one that holds a text."""
    places = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            if not of_texts or isinstance(holder[key], str):
                places.append((holder, key))
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
    return rng.choice(places) if places else ({"": 0}, "")


def _damaged(rng: random.Random, content: bytes, times: int) -> bytes:
    """Return the bytes with pieces cut, changed, doubled or put in."""
    for _ in range(times):
        at = rng.randrange(len(content) + 1)
        end = min(len(content), at + rng.choice((1, 1, 5, 400)))
        piece = rng.choice((
            b"", b"\x00", b"\xff", b"\n", b"\r", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"<", b'"', b"}",
            b" " * 9999, hostile_text(rng).encode("utf-8", "surrogatepass"), content[at:end] * 3,
        ))  # fmt: skip
        content = content[:at] + piece + content[end:]
        if rng.random() < 0.05:
            content = content.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32")))
    return content
