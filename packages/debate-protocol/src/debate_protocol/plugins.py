"""Settings chosen by `type`: our variants, and those of other installed packages.

A package adds a variant with an entry point whose name is the variant's `type`:

    [project.entry-points."debate_protocol.forms"]
    devils_advocate = "my_package:DevilsAdvocate"

The entry point names a pydantic model with a field `type: Literal["devils_advocate"]` and what the
group's protocol asks for. From then on recipes can name it like one of ours.

A program hands over a variant of its own without an entry point: the class, an object of it, or a
mapping whose `type` is one of them may replace any mapping of a file.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache, reduce
from importlib.metadata import (
    EntryPoint,
    EntryPoints,
    PackageNotFoundError,
    entry_points,
    requires,
)
from operator import or_
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from debate_protocol.suggestions import did_you_mean
from debate_protocol.transcripts.showing import escaped

__all__ = ["VariantNotLoadedWarning", "Variants", "did_you_mean", "variants_of"]


OF_PYTHON = (
    "this Python object itself, which no file holds: hand it to debate_train.train, with "
    "resume=True to go on, or let an installed package offer it under a type"
)
"""What is expected where a file has the name of a class, see `named`."""


_EXTRA = re.compile(r"(?P<package>[\w.-]+)\[(?P<extra>[\w-]+)\]")


def install_command(requirement: str) -> str:
    """Write the command for installing a package, or the libraries of an extra.

    An extra of an installed package is written as its libraries: our packages are on no index, and
    `pip install` by their name could install a stranger's package.

    Args:
        requirement: NAME or NAME[EXTRA].
    """
    named_extra = _EXTRA.fullmatch(requirement)
    if named_extra is None:
        return f"pip install '{requirement}'"
    try:
        lines = requires(named_extra["package"]) or []
    except PackageNotFoundError:  # Imported from its sources, without an installation.
        return f"pip install 'packages/{requirement}', in a clone of the repository"
    marker = re.compile(rf"extra == ['\"]{re.escape(named_extra['extra'])}['\"]")
    libraries = [line.partition(";")[0].strip() for line in lines if marker.search(line)]
    return " ".join(["pip install", *(f"'{library}'" for library in libraries)])


def named(thing: object) -> str:
    """Return the qualified name of a class or function, `module:name`."""
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"{getattr(thing, '__module__', None) or type(thing).__module__}:{name}"


class Config(BaseModel):
    """Frozen settings of known names with finite numbers.

    A class with a plain text field `type` has its qualified name as `type`. A field with a meaning
    for infinity has `Field(allow_inf_nan=True)`.
    """

    removed_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of the release before, with what a message expects instead."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    @model_validator(mode="before")
    @classmethod
    def _has_a_type(cls, settings: object) -> object:
        kind = cls.model_fields.get("type")
        if isinstance(settings, Mapping) and kind is not None and kind.annotation is str:
            return {"type": named(cls), **settings}
        return settings


def entry_points_of(group: str) -> EntryPoints:
    """List the entry points of a group in installed packages."""
    return _entry_points(tuple(sys.path)).select(group=group)


@lru_cache(maxsize=1)
def _entry_points(folders: tuple[str, ...]) -> EntryPoints:
    # Python reads the files of every installed package for each group that it is asked for. Before
    # version 3.12 this is another class, which selects alike.
    return cast(EntryPoints, entry_points())


P = TypeVar("P")


class Handed:
    """A variant that a program handed over, in dumped settings: pydantic leaves it as it is."""

    def __init__(self, variant: BaseModel) -> None:
        self.variant = variant


class VariantNotLoadedWarning(UserWarning):
    """An installed package offers a variant that cannot be used; the others can."""


class Variants(Mapping[str, type[BaseModel]], Generic[P]):
    """The variants of a kind of setting by `type`, ours first.

    It marks fields of variants: `Annotated[P, variants]`.

    Other packages are imported when the first setting is read, not before: such a package may
    import the module of these variants.

    Args:
        group: The entry point group; `None` takes no variants of other packages.
        protocol: The protocol of all variants: a `typing.Protocol`, or a base class.
        own: Our variants, kept as `models`. A recipe without `type` gets the first.
        of: Makes a variant of a plain function.
    """

    def __init__(
        self,
        group: str | None,
        protocol: Any,
        *own: Callable[..., P],
        of: Callable[..., P] | None = None,
    ) -> None:
        self.group = group
        self.protocol = protocol
        self.models = own
        self._of = of
        own_by_type: dict[str, type[BaseModel]] = {}
        for model in cast(tuple[type[BaseModel], ...], own):
            own_by_type |= dict.fromkeys(tags_of(model), model)
        self.own: Mapping[str, type[BaseModel]] = own_by_type

    @cached_property
    def by_type(self) -> Mapping[str, type[BaseModel]]:
        """All variants by `type`, ours first.

        A variant of another package is left out if it cannot be imported, breaks the protocol, or
        repeats a name; a `VariantNotLoadedWarning` names the entry point and the package.
        """
        models = dict(self.own)
        others = () if self.group is None else entry_points_of(self.group)
        for entry in sorted(others, key=lambda e: (e.name, e.value)):
            registered = models.get(entry.name)
            if registered is None:
                loaded = self._load(entry)
                models |= {} if loaded is None else {entry.name: loaded}
            elif entry.value != f"{registered.__module__}:{registered.__qualname__}":
                problem = (
                    f"found a name that {registered.__module__} has taken; expected another one"
                )
                self._warn(entry, problem)
        return models

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
        """Make the variant of this `type` with these settings.

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
        models = list(dict.fromkeys(self.values()))
        union = reduce(or_, models[1:], cast(Any, models[0]))
        marked = Annotated[union, Field(discriminator="type")] if len(models) > 1 else union
        return core_schema.no_info_wrap_validator_function(
            self._chosen,
            handler.generate_schema(marked),
            serialization=core_schema.wrap_serializer_function_ser_schema(
                self._dumped, info_arg=True, schema=core_schema.any_schema()
            ),
        )

    def _chosen(self, settings: Any, choose: Callable[[object], BaseModel]) -> BaseModel:
        """Find the variant named by a mapping, or handed over."""
        if isinstance(settings, Mapping):
            chosen = self._from_mapping(settings, choose)
        else:
            variant = settings.variant if isinstance(settings, Handed) else settings
            if isinstance(variant, type):
                chosen = self._check(variant).model_validate({})
            elif isinstance(variant, BaseModel):
                self._check(type(variant))
                chosen = variant
            elif callable(variant) and self._of is not None:
                chosen = cast(BaseModel, self._of(variant))
            else:
                chosen = choose(settings)
        # Dumps of the fields that were set name the variant.
        chosen.model_fields_set.add("type")
        return chosen

    def _from_mapping(
        self, settings: Mapping[str, Any], choose: Callable[[object], BaseModel]
    ) -> BaseModel:
        """Build the variant of a mapping; its `type` is a name, a class or an object to change."""
        kind = settings.get("type", next(iter(self.own)))
        if isinstance(kind, Handed):
            kind = kind.variant
        values = {key: value for key, value in settings.items() if key != "type"}
        if isinstance(kind, BaseModel):
            values = {**dict(kind), **values}
            values.pop("type", None)
            kind = type(kind)
        if isinstance(kind, type):
            return self._check(kind).model_validate(values)
        return choose({"type": kind, **values})

    def _check(self, kind: type) -> type[BaseModel]:
        """Refuse a class that is no variant."""
        problem = self._problem(kind)
        if problem is not None:
            raise ValueError(f"{named(kind)}: {problem}")
        return cast(type[BaseModel], kind)

    def _dumped(
        self, chosen: BaseModel, dump: Callable[[object], Any], info: SerializationInfo
    ) -> object:
        """Dump settings; without a registered `type`, the object itself, in JSON the class name."""
        tag = getattr(chosen, "type", "")
        if self.get(tag) is type(chosen):
            return dump(chosen)
        if info.mode == "python":
            return Handed(chosen)
        name = tag if ":" in tag else named(type(chosen))
        return {"type": name, **dump(chosen), **{"type": name}}

    def _load(self, entry: EntryPoint) -> type[BaseModel] | None:
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # Our own variants must work all the same.
            reason = (str(error).splitlines() or [""])[0]
            self._warn(entry, f"cannot be imported: {type(error).__name__}: {reason}")
            return None
        problem = self._problem(loaded, entry.name)
        if problem is not None:
            self._warn(entry, problem)
            return None
        return cast(type[BaseModel], loaded)

    def _problem(self, loaded: object, name: str | None = None) -> str | None:
        if not (isinstance(loaded, type) and issubclass(loaded, BaseModel)):
            return f"found {loaded!r}; expected a pydantic model"
        if name is not None and tags_of(loaded) != (name,):
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


def variants_of(annotation: object) -> tuple[type[BaseModel], ...]:
    """List the models of an annotation made with `Variants`; empty for other annotations."""
    if get_origin(annotation) is not Annotated:
        return ()
    models: dict[type[BaseModel], None] = {}
    for mark in get_args(annotation)[1:]:
        if isinstance(mark, Variants):
            models |= dict.fromkeys(mark.values())
    return tuple(models)


def tags_of(model: type[BaseModel]) -> tuple[str, ...]:
    """List the values of `type` for a variant, the default first; empty without them."""
    field = model.model_fields.get("type")
    if field is None or get_origin(field.annotation) is not Literal:
        return ()
    tags = get_args(field.annotation)
    return tags if tags[0] == field.default else ()
