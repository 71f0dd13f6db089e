"""The reference of the HTTP API as Markdown, generated from the service's OpenAPI."""

from __future__ import annotations

import json
import sys
from typing import Any


def reference() -> str:
    """All routes by group, then all shapes."""
    from melon.service.http.app import bare_app

    schema = bare_app().openapi()
    parts, groups = list[str](), dict[str, list[str]]()
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            groups.setdefault(about["tags"][0], []).append(_route(method.upper(), path, about, schema))
    for tag, routes in groups.items():
        parts += [f"## {tag.capitalize()}\n", *routes]
    parts.append("## Shapes\n")
    parts += [_shape(name, schema["components"]["schemas"][name]) for name in sorted(schema["components"]["schemas"])]
    return "\n".join(parts)


def _route(method: str, path: str, about: dict[str, Any], schema: dict[str, Any]) -> str:
    scope = about.get("x-scope")
    lines = [f"### {method} {path}\n", f"{about['description']} Scope: {f'`{scope}`' if scope else 'none'}.\n"]
    rows = [
        f"| `{one['name']}` | {one['in']} | {_type(kind)} | {_default(kind)} | {one.get('description', '')} |"
        for one in about.get("parameters", ())
        for kind in [one["schema"]]
    ]
    if rows:
        lines += ["| parameter | in | type | default | meaning |", "|---|---|---|---|---|", *rows, ""]
    body = about.get("requestBody", {}).get("content", {})
    for kind, content in body.items():
        lines.append(f"Body, `{kind}`: {_type(content['schema'])}")
        example = _example(content, schema)
        lines += ["", "```json", example, "```", ""] if example and kind.endswith("/json") else [""]
    codes = [
        f"{code}: {_type(next(iter(response['content'].values()))['schema'])}"
        for code, response in about["responses"].items()
        if int(code) < 300
    ]
    others = ", ".join(code for code in about["responses"] if int(code) >= 300)
    lines.append(f"Answers {'; '.join(codes)}{f'. Errors: {others}' if others else ''}.\n")
    return "\n".join(lines)


def _example(content: dict[str, Any], schema: dict[str, Any]) -> str | None:
    examples = [one["value"] for one in content.get("examples", {}).values()]
    name = content["schema"].get("$ref", "").rpartition("/")[2]
    examples += schema["components"]["schemas"].get(name, {}).get("examples", [])
    return json.dumps(examples[-1]) if examples else None


def _shape(name: str, about: dict[str, Any]) -> str:
    lines = [f"### {name}\n", *([f"{' '.join(about['description'].split())}\n"] if "description" in about else [])]
    required = about.get("required", ())
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field, schema in about.get("properties", {}).items():
        default = "required" if field in required else _default(schema)
        lines.append(f"| `{field}` | {_type(schema)} | {default} | {schema.get('description', '')} |")
    return "\n".join([*lines, ""])


def _default(about: dict[str, Any]) -> str:
    return f"`{json.dumps(about['default'])}`" if about.get("default") not in (None, [], {}) else ""


def _type(about: dict[str, Any]) -> str:
    if "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(_type(one) for one in about["anyOf"]))
    if about.get("type") == "array":
        return f"list of {_type(about.get('items', {}))}"
    if "const" in about or "enum" in about:
        return " or ".join(f"`{one}`" for one in about.get("enum", [about.get("const")]))
    return str(about.get("type", "anything"))


if __name__ == "__main__":
    sys.stdout.write(reference())
