"""`debate-train schema`: a JSON Schema of recipes, with which editors complete and check them."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from debate_train.describing.descriptions import description, summary
from debate_train.reading.recipe_schema import PHASES

_INTERPOLATION = r"\$\{"
_EXTENDS = "A file, or the name of a recipe that ships, from which this one differs."


def recipe_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a recipe's file.

    A file may be a mapping of differences from another, so no key is required; any value may be an
    interpolation; text may be typed as what YAML reads as a number. What only whole recipes show,
    such as a steps' bound, is checked by `--check`.
    """
    schema = model.model_json_schema(schema_generator=_Described)
    schema["properties"]["extends"] = {"type": "string", "description": _EXTENDS}
    difference = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    phases = {"type": ["object", "null"], "additionalProperties": difference}
    schema["properties"][PHASES] |= phases
    return {"$schema": GenerateJsonSchema.schema_dialect, **_loosened(schema)}


class _Described(GenerateJsonSchema):
    """Adds what the keys mean, and leaves out what must be given."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of one model."""
        made, model = super().model_schema(schema), schema["cls"]
        made.pop("required", None)
        made["description"] = summary(model)
        for name, held in made.get("properties", {}).items():
            if name in model.model_fields and (text := description(model, name)):
                held["description"] = text
        return made


def _loosened(schema: Any) -> Any:
    """Return a schema that also takes what the reader of recipes turns into valid values."""
    if isinstance(schema, list):
        return [_loosened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _loosened(value) for key, value in schema.items()}
    found.pop("discriminator", None)
    if "oneOf" in found:  # Without a `type`, which another file may give, several may hold.
        found["anyOf"] = found.pop("oneOf")
    match found:
        case {"enum": list(known), "type": "string"}:
            del found["enum"], found["type"]
            found["anyOf"] = [{"enum": known}, {"type": "string", "pattern": _INTERPOLATION}]
        case {"type": "string"}:
            found["type"] = ["string", "number", "boolean"]
        case {"type": "number" | "integer" | "boolean" | "array" as kind}:
            found |= {"type": [kind, "string"], "pattern": _INTERPOLATION}
    return found
