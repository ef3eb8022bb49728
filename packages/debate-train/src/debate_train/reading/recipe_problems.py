"""What pydantic finds wrong with a recipe, said to the person who wrote it."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from debate_train.errors import RecipeError
from debate_train.reading.recipe_schema import PHASES, Schema, find_key
from debate_train.reading.recipe_source import KeyPath, Origin, value_at
from debate_train.reading.recipe_values import Reading

MOST_PROBLEMS = 7
_MOST = 2**63
_WANT_TEXT = ("string_type", "literal_error", "enum", "path_type")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "model": "a mapping of keys",
    "dict": "a mapping of keys",
    "list": "a list",
    "tuple": "a list",
}
_PLAIN = {"none_required": "null", "finite_number": "a finite number"}
_BOUNDS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}


class Problems:
    """Turns the errors of one validation into one message with file, line and nearest name."""

    def __init__(
        self,
        model: type[BaseModel],
        reading: Reading,
        origins: Mapping[KeyPath, Origin],
        place: str,
    ) -> None:
        self._schema = Schema((model,))
        self._reading = reading
        self._origins = origins
        self._place_name = place
        self._tags: dict[KeyPath, str] = {}

    def describe(self, error: ValidationError) -> str:
        """Return one line for each place in error, at most `MOST_PROBLEMS` of them."""
        by_path: dict[KeyPath, list[ErrorDetails]] = {}
        for detail in error.errors(include_url=False):
            by_path.setdefault(self._path(detail), []).append(detail)
        lines = [self._line(path, details) for path, details in by_path.items()]
        if len(lines) > MOST_PROBLEMS:
            lines[MOST_PROBLEMS:] = [f"... and {len(lines) - MOST_PROBLEMS} more"]
        return self._reading.redact("\n".join(lines))

    def typed_text(self, error: ValidationError) -> dict[KeyPath, str]:
        """Return what was typed where text was wanted and YAML had read something else.

        `key=no` reads as false and `key=1.10` as 1.1; where the field takes text, the text holds.
        """
        typed: dict[KeyPath, str] = {}
        for detail in error.errors(include_url=False):
            path = self._path(detail)
            origin = self._origins.get(path)
            if detail["type"] not in _WANT_TEXT or origin is None or origin.raw is None:
                continue
            if detail["type"] == "literal_error" and repr(origin.raw) not in detail["msg"]:
                continue
            held = self._held(path, self._reading.resolved)
            if isinstance(held, bool | int | float):
                typed[path] = str(held) if "${" in origin.raw else origin.raw
        return typed

    def refuse_truth_as_number(self, recipe: BaseModel) -> None:
        """Refuse `yes` or `no` where a number stands: pydantic would read them as 1 and 0."""
        for path in _truths(self._reading.resolved):
            held: object = recipe
            for key in path:
                held = _below(held, key)
            if isinstance(held, int | float) and not isinstance(held, bool):
                raise RecipeError(self._say(path, f"found {self._found(path)}; expected a number"))

    def refuse_large_numbers(self, recipe: BaseModel) -> None:
        """Refuse whole numbers that no computer counts to, which cannot even be printed."""
        for path in _leaf_paths(self._reading.resolved):
            held: object = recipe
            for key in path:
                held = _below(held, key)
            if isinstance(held, int) and abs(held) >= _MOST:
                raise RecipeError(
                    self._say(
                        path, f"found a number of {held.bit_length()} bits; expected at most 63"
                    )
                )

    def _path(self, detail: ErrorDetails) -> KeyPath:
        """Return where in the data an error stands: its location without union branches."""
        path: KeyPath = ()
        held: object = self._reading.resolved
        is_missing = detail["type"] == "missing"
        for key in detail["loc"][:-1] if is_missing else detail["loc"]:
            try:
                held = value_at(held, (key,))
            except KeyError:
                place, data = self._place(path)
                if key in place.variants or key not in (place.keys(data) or ()):
                    self._tags[path] = str(key)
                    continue
                held = {}  # A part that was left out, which its defaults do not fill.
            path = (*path, key)
        return (*path, detail["loc"][-1]) if is_missing else path

    def _line(self, path: KeyPath, details: list[ErrorDetails]) -> str:
        first = details[0]
        if first["type"] == "extra_forbidden":
            return self._say(path, self._unknown_key(path))
        if first["type"].startswith("union_tag"):
            return self._say((*path, "type"), self._unknown_variant(path, first))
        if first["type"] == "missing":
            return self._say(path, f"missing; expected {_named(first)}")
        if first["type"] in ("value_error", "assertion_error"):
            return self._say(path, str(first["ctx"]["error"]))
        wanted = list(dict.fromkeys(_wanted(detail) for detail in details))
        hint = self._nearest(path, details)
        return self._say(path, f"found {self._found(path)}; expected {' or '.join(wanted)}{hint}")

    def _say(self, path: KeyPath, text: str) -> str:
        where = self._where(path)
        key = ".".join(map(str, path))
        return f"{where}: {key}: {text}" if key else f"{where}: {text}"

    def _where(self, path: KeyPath) -> str:
        """Return the origin of a path, or of the nearest mapping that holds it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._origins:
                return str(self._origins[path[:end]])
        return self._place_name

    def _unknown_key(self, path: KeyPath) -> str:
        name = str(path[-1])
        place, data = self._place(path[:-1])
        keys = place.keys(data) or ()
        near = get_close_matches(name, keys, n=1)
        owners = [tag for tag, model in place.variants.items() if name in model.model_fields]
        if owners:
            return f"unknown key; expected it with type {' or '.join(owners)}"
        elsewhere = [] if near else find_key(self._schema, name)
        if near or elsewhere:
            return f"unknown key; did you mean {(near or elsewhere)[0]}?"
        return f"unknown key; expected one of {', '.join(keys)}"

    def _unknown_variant(self, path: KeyPath, detail: ErrorDetails) -> str:
        known = str(detail.get("ctx", {}).get("expected_tags", "")).replace("'", "")
        tags = known.split(", ") if known else list(self._place(path)[0].variants)
        found = self._held((*path, "type"), self._reading.written)
        near = get_close_matches(str(found), tags, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        what = "missing" if found is None else f"found {found!r}"
        return f"{what}; expected one of {', '.join(tags)}{hint}"

    def _place(self, path: KeyPath) -> tuple[Schema, Mapping[str, object]]:
        schema, data = self._schema, self._reading.resolved
        path_so_far: KeyPath = ()
        for key in path:
            below = data.get(key)
            schema = schema.child(key, data)
            data = below if isinstance(below, dict) else {}
            path_so_far = (*path_so_far, key)
            tag = self._tags.get(path_so_far)
            if tag in schema.variants:
                data = {"type": tag, **data}
        return schema, data

    def _found(self, path: KeyPath) -> str:
        """Return a short form of what was written, never a value of the environment."""
        held = self._held(path, self._reading.written)
        origin = self._origins.get(path)
        if isinstance(held, dict):
            return "a mapping of keys"
        if isinstance(held, list):
            return "a list"
        if origin is not None and origin.raw is not None and "${" not in origin.raw:
            return repr(origin.raw) if isinstance(held, str) else origin.raw or "nothing"
        text = repr(held) if held is not None else "nothing"
        return text if len(text) <= 60 else text[:57] + "..."

    def _nearest(self, path: KeyPath, details: list[ErrorDetails]) -> str:
        held = self._held(path, self._reading.written)
        names = [
            name.strip("' ")
            for detail in details
            if detail["type"] == "literal_error"
            for name in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(",")
        ]
        near = get_close_matches(str(held), names, n=1)
        return f"; did you mean {near[0]}?" if near else ""

    def _held(self, path: KeyPath, data: object) -> object:
        try:
            return value_at(data, path)
        except KeyError:
            return None


def _wanted(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**context)
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind.endswith(("_type", "_parsing", "_from_float")):
        name = _KINDS.get(kind.split("_")[0])
        if name is not None:
            return name
    message = detail["msg"]
    return message[:1].lower() + message[1:]


def _named(detail: ErrorDetails) -> str:
    return f"a value for {detail['loc'][-1]}"


_Items = Iterable[tuple[str | int, object]]


def _truths(data: object, path: KeyPath = ()) -> list[KeyPath]:
    if isinstance(data, bool):
        return [path]
    if isinstance(data, dict):
        items: _Items = [(key, value) for key, value in data.items() if key != PHASES]
    else:
        items = enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in items for found in _truths(value, (*path, key))]


def _leaf_paths(data: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(data, dict):
        items: _Items = [(key, value) for key, value in data.items() if key != PHASES]
    elif isinstance(data, list):
        items = enumerate(data)
    else:
        yield path
        return
    for key, value in items:
        yield from _leaf_paths(value, (*path, key))


def _below(held: object, key: str | int) -> object:
    if isinstance(held, BaseModel):
        return getattr(held, str(key), None)
    if isinstance(held, Mapping):
        return held.get(key)
    if isinstance(held, list | tuple) and isinstance(key, int) and key < len(held):
        return held[key]
    return None
