"""Several runs, or seeds of a recipe, side by side on a page."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from markupsafe import Markup

from debate_report.before_after import change_text, result_rows
from debate_report.number_texts import write_value
from debate_report.page_templates import render
from debate_report.run_files import RunFiles
from debate_report.stages import recipe_of

MAX_KEYS = 24
SETTING_KEYS = ("model", "data", "reward", "loss")
# Runs that differ in these alone are seeds of one recipe.
SEED_KEYS = ("seed", "name")


def setting_of(run: RunFiles) -> dict[str, str]:
    """Collect the type or name of a recipe's main parts, and the seed."""
    recipe = recipe_of(run)
    setting = {}
    for key in SETTING_KEYS:
        part = recipe.get(key)
        if isinstance(part, Mapping):
            name = part.get("name") or part.get("type")
            if name:
                setting[key] = str(name)[:100]
    if "seed" in recipe:
        setting["seed"] = str(recipe["seed"])[:20]
    return setting


def shared_setting(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Collect the number of runs, and the settings shared by all."""
    settings = [setting_of(run) for run in runs]
    shared = [("runs", str(len(runs)))]
    for key, name in settings[0].items():
        if all(setting.get(key) == name for setting in settings):
            shared.append((key, name))
    return shared


def comparison(runs: Sequence[RunFiles]) -> Markup:
    """Render the differing keys of runs, and their results; of seeds of a recipe the mean."""
    run_names = [run.name for run in runs]
    recipes = [dict(_leaves(recipe_of(run))) for run in runs]
    all_keys: dict[str, None] = {}
    for recipe in recipes:
        all_keys.update(dict.fromkeys(recipe))
    # Keys at the top of the recipe say most.
    keys = sorted(all_keys, key=lambda key: key.count("."))
    differences = []
    for key in keys:
        if len({recipe.get(key) for recipe in recipes}) > 1:
            differences.append([key[:80], *(recipe.get(key, "–")[:60] for recipe in recipes)])
    are_seeds = all(row[0] in SEED_KEYS for row in differences)
    columns = ["measure", *run_names]
    if are_seeds:
        columns.append("mean ± deviation")
    return render(
        "comparison.html",
        head=["key of the recipe", *run_names],
        about=differences[:MAX_KEYS],
        more=max(0, len(differences) - MAX_KEYS),
        columns=columns,
        results=list(_compared_results(runs, with_mean=are_seeds)),
    )


def _leaves(value: object, dotted_key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of a recipe with their values."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{dotted_key}.{key}" if dotted_key else str(key))
    else:
        yield dotted_key, str(value)


def _compared_results(runs: Sequence[RunFiles], *, with_mean: bool) -> Iterator[list[str]]:
    """Yield each measure with the mean after each run, and the change."""
    tables = []
    for run in runs:
        rows = result_rows((run.results or {}).get("table"))
        tables.append({row.label: row for row in rows})
    labels: dict[str, None] = {}
    for table in tables:
        labels.update(dict.fromkeys(table))
    for label in labels:
        cells = []
        changes = []
        for table in tables:
            if label not in table:
                cells.append("–")
                continue
            row = table[label]
            change = change_text(row.difference, are_shares=False)
            cells.append(f"{write_value(row.after.mean, 'number')} ({change})")
            changes.append(row.difference)
        if with_mean:
            mean = change_text(fmean(changes), are_shares=False)
            deviation = f" ± {stdev(changes):.3f}" if len(changes) > 1 else ""
            cells.append(f"{mean}{deviation}")
        yield [label, *cells]
