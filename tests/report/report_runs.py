"""Runs and pages for tests of the report: rows of metrics, debates, hostile text, a browser."""

import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import yaml

from debate_protocol.types import Message, Protocol, Question, Transcript, Turn, TurnKey
from debate_report.curves import curves
from debate_report.run_files import RunFiles
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.running.run_records import write_credit

HOSTILE = (
    "</script></noscript><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    "<svg onload='window.hacked = 3'><style>body{display:none}</style>{{ 7 * 7 }} ${7 * 7} "
    "\u202egnitirwer\u202c \x00\x1b[31m &lt;b&gt; 🦉👩‍👩‍👧‍👦 漢字かな <!-- ]]> '\"`"
)
SHOTS = os.environ.get("REPORT_SCREENSHOTS")
"""A folder that screenshots are written to, as CI asks for."""


def run_of(
    rows: Sequence[Mapping[str, object]],
    recipe: Mapping[str, object] | None = None,
    results: Mapping[str, object] | None = None,
    name: str = "run",
) -> RunFiles:
    """Return a run that holds these rows, of this recipe, with these results."""
    return RunFiles(
        name=name,
        rows=tuple(dict(row) for row in rows),
        recipe=yaml.safe_dump(dict(recipe or {}), sort_keys=False),
        results=dict(results) if results is not None else None,
        environment={},
        transcripts=(),
        tokens=Path("tokens"),
    )


def drawn(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the learning curves of rows."""
    return curves(run_of(rows))


def turn(agent, number, answer, votes="N/A", text="", **more):
    shown_turns = tuple(
        TurnKey(other, number - 1) for other in range(3) if other != agent and number
    )
    sections = f"<solution>{text}{answer}</solution>\n<evaluation>Because.</evaluation>\n"
    prompt = (Message(role="user", content=f"Asked of {agent} in {number}. {text}"),)
    return Turn(
        agent, number, f"{sections}<comparison>{votes}</comparison>", shown_turns, prompt, **more
    )


def debate(name, first, last, text=""):
    """Three agents and two rounds; the right answer is 4."""
    votes = ("Agent 1 > Agent 2", "Agent 2 > Agent 0", "Agent 0 = Agent 1")
    turns = [turn(agent, 0, answer, text=text) for agent, answer in enumerate(first)]
    turns += [turn(agent, 1, answer, votes[agent]) for agent, answer in enumerate(last)]
    question = Question(f"q-{name}", f"What is 2 + 2, {name}?{text}", "4", {"kind": "number"})
    return Transcript(str(name), question, Protocol(3, 2, contract="three_section"), tuple(turns))


def credit(*debates, demonstrated=False):
    """Credit of two tokens of each turn: the first up to character 10, the second from there."""
    turns = [
        {"agent": agent, "round": number, "values": {"generator": 0.5 - agent},
         "starts": [0, 10], "tokens": [[1, 0.25, 1], [1, -1.5, 2]]}
        for number, agent in product(range(2), range(3))
    ]  # fmt: skip
    return {
        "schema": "debate-credit/1",
        "demonstrated": demonstrated,
        "streams": ["generator", "judge"],
        "debates": [
            {"id": debate.id, "returns": [0.5, None, -1.5], "turns": turns} for debate in debates
        ],
    }


def fill(path):
    run = RunDirectory.create(path, "steps: 4\n")
    warm = debate("warm", "444", "444")
    run.write_transcripts("warm_start", 1, [warm])
    write_credit(run, 1, credit(warm, demonstrated=True))
    broken = debate("broken", "455", "455")
    failed = Turn(0, 0, f"no tags {HOSTILE}", failure=f"no_solution {HOSTILE}")
    broken = Transcript("broken", broken.question, broken.protocol, (failed, *broken.turns[1:]))
    debates = [debate("mended", "455", "444"), debate("spoiled", "445", "555"), broken]
    debates.append(debate(f"hostile{HOSTILE}", "444", "444", HOSTILE))
    run.write_transcripts("self_play", 2, debates)
    write_credit(run, 2, credit(*debates))
    for step in (1, 2):
        run.metrics.log("warm_start", step, {"loss": 1 / step})
    for step in (3, 4, 5, 6):
        run.metrics.log("self_play", step, {"loss": 1 / step, "reward/total": step})
    return run


def watched(page, path, selector="#debate h3"):
    """Open a file; the page's problems are what it printed, raised or asked the network for."""
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda event: page.problems.append(event.text))
    page.on("request", lambda event: page.problems.append(event.url))
    page.goto(path.as_uri())
    page.wait_for_selector(selector)
    page.problems.remove(path.as_uri())
    return page


def listed(page):
    return page.locator("#debate-list .about").all_inner_texts()


def shot(page, name):
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)
