"""The part of a page in which all recorded debates can be read."""

import json
from collections.abc import Sequence

from markupsafe import Markup

from debate_train.report.browsing.data import blocks_of
from debate_train.report.browsing.reading import Debates
from debate_train.report.debates import without_scripts
from debate_train.report.render import render
from debate_train.report.run_files import RunFiles


def read_all(runs: Sequence[RunFiles]) -> Debates:
    """Return all recorded debates of these runs."""
    debates = Debates()
    for place, run in enumerate(runs):
        debates.add(place, run.transcripts, run.tokens, run.phases)
        debates.add(place, run.evaluations, None, run.phases)
    return debates


def browser(runs: Sequence[RunFiles], debates: Debates) -> Markup:
    """Return the list of debates, the place of the one that is open, and their data."""
    blocks = blocks_of(debates, [run.name for run in runs])
    return render(
        "browser.html",
        index=as_data(blocks.index),
        files=sum(len(run.transcripts) for run in runs),
        entries=len(blocks.index["debates"]),
        runs=blocks.index["runs"],
        phases=blocks.index["phases"],
        texts=blocks.texts,
        prompts=blocks.prompts,
        left_out=blocks.left_out[0],
        left_prompts=blocks.left_out[1],
        unreadable=debates.unreadable,
        problem=debates.problem,
        unchecked=debates.checking.skipped,
        without_scripts=without_scripts(runs[0].transcripts),
    )


def as_data(value: object) -> Markup:
    """Return a value as JSON that can stand in a script element: nothing in it ends the element."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
