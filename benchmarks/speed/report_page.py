"""How large the report of many debates is, and how soon a browser shows it.

    .venv/bin/python -m benchmarks.speed.report_page --debates 5000

writes a run of debates of five agents in three rounds, each turn of about 1,200 characters that do
not repeat, then its report, and opens that in headless Chromium (`CHROMIUM` names another one).
"""

import argparse
import os
import random
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Message, Protocol, Question, Transcript, Turn, TurnKey
from debate_report import write_report

AGENTS, ROUNDS = 5, 3
EACH_FILE = 100


def main() -> None:
    """Print one line a measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--debates", type=int, default=5000)
    parser.add_argument("--characters", type=int, default=1200, help="of one turn")
    parser.add_argument("--attempts", type=int, default=5, help="of opening the page")
    parser.add_argument("--report", type=Path, help="open this page, and write none")
    arguments = parser.parse_args()
    if arguments.report is not None:
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        opened(arguments.report, arguments.attempts)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "recipe.yaml").write_text("steps: 1\n")
        (path / "transcripts").mkdir()
        rng = random.Random(0)
        for start in range(0, arguments.debates, EACH_FILE):
            size = min(EACH_FILE, arguments.debates - start)
            made = [debate(rng, start + k, arguments.characters) for k in range(size)]
            write_transcripts(path / "transcripts" / f"rl-{start + 1:06d}.jsonl", made)
        began = time.perf_counter()
        report = write_report(path)
        print(f"written in {time.perf_counter() - began:.1f} s")
        print(f"size {report.stat().st_size / 1e6:.1f} MB")
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        opened(report, arguments.attempts)


def debate(rng: random.Random, number: int, characters: int) -> Transcript:
    """Return a debate of random words."""

    def words() -> str:
        return " ".join(f"{rng.choice(WORDS)}{rng.randrange(30)}" for _ in range(characters // 9))

    question = Question(f"q{number}", f"{words()[:200]}?", str(number % 7), {"kind": "number"})
    turns = []
    for round in range(ROUNDS):
        for agent in range(AGENTS):
            shown = tuple(TurnKey(k, round - 1) for k in range(AGENTS) if k != agent and round)
            text = f"<solution>{words()} {rng.randrange(7)}</solution>"
            prompt = (Message(role="user", content=question.text + words()),)
            turns.append(Turn(agent, round, text, shown, prompt))
    return Transcript(str(number), question, Protocol(AGENTS, ROUNDS), tuple(turns))


def opened(report: Path, attempts: int) -> None:
    """Print how long it takes until a page shows a debate, is read to its end, and is searched."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        taken: dict[str, list[float]] = {"shown": [], "loaded": [], "searched": []}
        for _ in range(attempts):
            page = browser.new_page()
            began = time.perf_counter()
            page.goto(report.as_uri(), wait_until="commit")
            page.wait_for_selector("#debate h3")
            taken["shown"].append(time.perf_counter() - began)
            page.wait_for_load_state("load")
            taken["loaded"].append(time.perf_counter() - began)
            began = time.perf_counter()
            page.fill("[name=search]", "no such words in any reply")
            # Not wait_for_function, which evaluates text as code: the page's policy forbids that.
            page.locator("#found", has_text=re.compile(r"^0 of")).wait_for()
            taken["searched"].append(time.perf_counter() - began)
            page.close()
        browser.close()
    for name, seconds in taken.items():
        every = ", ".join(f"{one:.2f}" for one in sorted(seconds))
        print(f"{name:8} {statistics.median(seconds):.2f} s, the median of {every}")


WORDS = [
    "the",
    "sum",
    "of",
    "both",
    "sides",
    "is",
    "even",
    "so",
    "one",
    "agent",
    "must",
    "have",
    "made",
    "an",
    "error",
    "before",
    "line",
]

if __name__ == "__main__":
    main()
