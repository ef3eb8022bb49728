"""Writes results.md beside it: what each study of benchmarks/studies asked, and what came out.

python docs/make_results.py
"""

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from debate_studies.lines import FinishedRun, Lines
from debate_studies.study_file import Study, read_study
from debate_studies.tables import summary
from debate_train.recipe_names import opening

PAGE = Path(__file__).with_name("results.md")
STUDIES = Path(__file__).parents[1] / "benchmarks/studies"
HEAD = """# Results

Each study runs several arms over several seeds. The head of its file says what decides, written
before its first run. `docs/make_results.py` writes this page from the runs in `benchmarks/data/`.

- A row is a difference paired by seed, with its 95 % interval (Student's t). *− start* is after
  minus before training. **Bold** survives Holm's correction for all tests of the study.
- Seeds are those whose start met its exit criterion; a row with fewer says how many.
- Tables have the main comparisons. `debate study FILE --tables` prints all of them, with all
  measures, p values and alarms ([studies](studies.md)).
"""
WITHOUT_TABLE = {
    "acc", "estimators", "hidden_invented", "incentives_long", "judge_share", "labels",
    "methods_updates",
    "quickstart_five", "quickstart_five_adamw", "quickstart_five_plain", "sdrl", "shared",
    "smollm2", "smollm2_methods", "sorting",
}  # fmt: skip
"""Studies that the page sums up in words alone; most have their figures on another page."""
SHOWN = {
    "conl": r"(rises|peer|leave_one_out|shuffled) − start|(accepted|own_ranking) − rises, .*",
    "hidden": r"debate − consultancy|untrained − .*|.*_learns? − untrained|.*_learns? − .*_alone",
    "incentives": r"(majority|truth|certainty) − start|(peer_prediction|truth_single) − .*",
    "methods": r".* − untrained",
    "own_judge": r"live_.* − start|shuffled_.*5 − start",
}
"""Comparisons of long studies that the page shows; the study's own tables have the others."""
TOPICS = {
    "Methods": ("methods", "methods_updates"),
    "Votes without labels": (
        "quickstart_start", "quickstart_five_priced", "quickstart_five", "quickstart_five_plain",
        "quickstart_five_adamw", "controls", "incentives", "incentives_long", "labels", "own_judge",
        "estimators", "judge_share",
    ),
    "Other debates": ("conl", "acc", "sdrl", "judged", "hidden", "hidden_invented", "shared"),
    "A real model": ("smollm2", "smollm2_methods", "sorting"),
}  # fmt: skip


def page() -> str:
    """Return the text of the page."""
    lines = [HEAD]
    for topic, names in TOPICS.items():
        lines.append(f"## {topic}\n")
        for name in names:
            lines += section(STUDIES / f"{name}.yaml")
    return "\n".join(lines).rstrip("\n") + "\n"


def section(file: Path) -> list[str]:
    """Return the lines on one study: its question, what came out, and its main comparisons."""
    study = read_study(file)
    assert study.results is not None, file
    finished_runs = Lines(file.parent / study.results).read()
    question = " ".join(takewhile(str.strip, opening(file)))
    link = f"[Arms and rules](../benchmarks/studies/{file.name})"
    return [
        f"### {study.name}\n",
        f"{question} {link}.\n",
        f"{study.about.strip()}\n",
        *(table_of(study, finished_runs) if study.name not in WITHOUT_TABLE else []),
    ]


def table_of(study: Study, finished_runs: Sequence[FinishedRun]) -> list[str]:
    """List the lines of the table of a study's main comparisons, and an empty one."""
    header, rule, *rows = summary(study, finished_runs)
    shown = re.compile(rf"\| ({SHOWN.get(study.name, '.*')})( \(\d+\))? \|")
    return [header, rule, *(row for row in rows if shown.match(row)), ""]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
