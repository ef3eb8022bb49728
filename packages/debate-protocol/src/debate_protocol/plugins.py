"""Settings chosen by `type`: our variants, and those of other installed packages.

A package adds a variant with an entry point whose name is the variant's `type`:

    [project.entry-points."debate_protocol.forms"]
    devils_advocate = "my_package:DevilsAdvocate"

The entry point names a pydantic model with a field `type: Literal["devils_advocate"]` and what the
group's protocol asks for. From then on recipes can name it like one of ours.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, reduce
from importlib.metadata import EntryPoint, entry_points
from operator import or_
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from debate_protocol.parsing import did_you_mean
from debate_protocol.transcripts.showing import escaped

__all__ = ["VariantNotLoadedWarning", "Variants", "did_you_mean", "variants_of"]


class Config(BaseModel):
    """Frozen settings of known names, whose numbers are finite.

    A field for which infinity means something says so with `Field(allow_inf_nan=True)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    renamed: ClassVar[Mapping[str, str]] = {}
    """Former names of keys, each with what to write instead."""

    @model_validator(mode="before")
    @classmethod
    def _names_are_present_ones(cls, given: object) -> object:
        if isinstance(given, Mapping):
            for old in cls.renamed.keys() & given.keys():
                raise ValueError(
                    f"{old}: found {given[old]!r} under a former name; expected {cls.renamed[old]}"
                )
        return given


P = TypeVar("P")


class VariantNotLoadedWarning(UserWarning):
    """An installed package offers a variant that cannot be used; the others can."""


class Variants(Mapping[str, type[BaseModel]], Generic[P]):
    """The variants of one kind of setting by `type`, ours first.

    It marks the fields that hold one: `Annotated[P, variants]`.

    Other packages are imported when the first setting is read, not before, so that such a package
    may import the module that this stands in.

    Args:
        group: The entry point group; None takes no variants of other packages.
        protocol: What every variant offers: a `typing.Protocol`, or a base class.
        own: Our variants, kept as `models`. A recipe that leaves out `type` gets the first.
    """

    def __init__(self, group: str | None, protocol: Any, *own: Callable[..., P]) -> None:
        self.group, self.protocol, self.models = group, protocol, own
        self.own: Mapping[str, type[BaseModel]] = {
            _tag(model): model for model in cast(tuple[type[BaseModel], ...], own)
        }

    @cached_property
    def by_type(self) -> Mapping[str, type[BaseModel]]:
        """All variants by `type`, ours first.

        One of another package that cannot be imported, does not keep the protocol, or takes a name
        that is already there is left out, with a `VariantNotLoadedWarning` that names the entry
        point and its package.
        """
        found = dict(self.own)
        others = () if self.group is None else entry_points(group=self.group)
        for entry in sorted(others, key=lambda e: (e.name, e.value)):
            known = found.get(entry.name)
            if known is None:
                loaded = self._load(entry)
                found |= {} if loaded is None else {entry.name: loaded}
            elif entry.value != f"{known.__module__}:{known.__qualname__}":
                taken = f"found a name that {known.__module__} has taken; expected another one"
                self._warn(entry, taken)
        return found

    def __getitem__(self, name: str) -> type[BaseModel]:
        return self.by_type[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_type)

    def __len__(self) -> int:
        return len(self.by_type)

    __hash__ = object.__hash__  # Each is itself alone, not its content.

    def __eq__(self, other: object) -> bool:
        return self is other

    def make(self, name: str, settings: Mapping[str, object]) -> P:
        """Return the variant of this `type` with these settings.

        Raises:
            KeyError: No variant has this name; the message names the nearest one.
            ValueError: (pydantic's ValidationError) a setting is unknown or does not fit.
        """
        if name not in self:
            raise KeyError(
                f"found {name!r}, expected one of {', '.join(self)}{did_you_mean(name, self)}"
            )
        return cast(P, self[name].model_validate(settings))

    def __get_pydantic_core_schema__(
        self, _source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        models = list(self.values())
        union = reduce(or_, models[1:], cast(Any, models[0]))
        marked = Annotated[union, Field(discriminator="type")] if len(models) > 1 else union
        schema = core_schema.no_info_before_validator_function(
            self._with_type, handler.generate_schema(marked)
        )
        return core_schema.no_info_after_validator_function(_keeps_type, schema)

    def _with_type(self, given: object) -> object:
        if isinstance(given, Mapping) and "type" not in given:
            return {"type": next(iter(self.own)), **given}
        return given

    def _load(self, entry: EntryPoint) -> type[BaseModel] | None:
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # Our own variants must work all the same.
            said = (str(error).splitlines() or [""])[0]
            self._warn(entry, f"cannot be imported: {type(error).__name__}: {said}")
            return None
        problem = self._problem(loaded, entry.name)
        if problem is not None:
            self._warn(entry, problem)
            return None
        return cast(type[BaseModel], loaded)

    def _problem(self, loaded: object, name: str) -> str | None:
        if not (isinstance(loaded, type) and issubclass(loaded, BaseModel)):
            return f"found {loaded!r}; expected a pydantic model"
        if _tag(loaded) != name:
            return f'expected a field type: Literal["{name}"] = "{name}" in {loaded.__name__}'
        base = self.protocol
        if not issubclass(loaded, base):
            return f"expected a subclass of {base.__module__}.{base.__qualname__}"
        missing = sorted(getattr(loaded, "__abstractmethods__", ()))
        if missing:
            return f"{loaded.__name__} has no {', '.join(missing)}; expected what its base asks for"
        return None

    def _warn(self, entry: EntryPoint, problem: str) -> None:
        package = entry.dist.name if entry.dist is not None else "?"
        warnings.warn(
            escaped(
                f"{self.group}: {entry.name!r} of package {package} ({entry.value}): {problem}"
            ),
            VariantNotLoadedWarning,
            stacklevel=2,
        )


def _keeps_type(chosen: BaseModel) -> BaseModel:
    """Count `type` among what was set, so that what is dumped as set names its variant."""
    chosen.model_fields_set.add("type")
    return chosen


def variants_of(annotation: object) -> tuple[type[BaseModel], ...]:
    """Return the models that an annotation made with `Variants` stands for; none for another."""
    if get_origin(annotation) is not Annotated:
        return ()
    return tuple(
        model
        for mark in get_args(annotation)[1:]
        if isinstance(mark, Variants)
        for model in mark.values()
    )


def _tag(model: type[BaseModel]) -> str:
    field = model.model_fields.get("type")
    if field is None or get_origin(field.annotation) is not Literal:
        return ""
    tags = get_args(field.annotation)
    return str(tags[0]) if len(tags) == 1 and tags[0] == field.default else ""
