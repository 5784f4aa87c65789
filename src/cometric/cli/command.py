"""A decorator that makes commands of functions: it expands groups of options, adds a console."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from cometric.cli.console import Console
from cometric.cli.options import Display, flag, of_kind
from cometric.core.kinds import Flag
from cometric.running.settings import options

NOT_ON_THE_COMMAND_LINE = {field.name for field in options() if not field.metadata["help"]}


def command(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Any]:
    """Turn a function into one that typer can make a command of.

    The first parameter of the function is the console. A parameter annotated with a group of
    options, a NamedTuple, is replaced by these options, and ``**options`` by the options of
    ``learn`` that a command line can express, except those in ``without``. Every command has the
    options of ``Display``.
    """

    def make(function: Callable[..., None]) -> Any:
        declared = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        groups = {p.name: p.annotation for p in declared if hasattr(p.annotation, "_fields")}
        expanded = {"context": _parameter("context", typer.Context, inspect.Parameter.empty)}
        declared.sort(key=lambda p: p.default is not p.empty or p.name in groups)
        for p in declared:
            if p.kind is p.VAR_KEYWORD:
                expanded |= _learning_options(without)
            elif p.name in groups:
                expanded |= _group_options(groups[p.name])
            else:
                expanded[p.name] = p.replace(kind=p.KEYWORD_ONLY)
        expanded |= _group_options(Display)

        @wraps(function)
        def run(context: typer.Context, **values: Any) -> None:
            context.params.update(values)  # older typer has text there where it passes paths
            grouped = {
                name: group(**{field: values[field] for field in group._fields})
                for name, group in groups.items()
            }
            for group in (*groups.values(), Display):
                for field in group._fields:
                    values.pop(field, None)
            function(context.ensure_object(Console), **values, **grouped)

        run.__signature__ = inspect.Signature(list(expanded.values()))  # type: ignore[attr-defined]
        return run

    return make


def in_bytes(values: dict[str, Any]) -> dict[str, Any]:
    """Options of ``learn`` with sizes in bytes: on the command line they are in gigabytes."""
    units = {field.name: field.metadata["unit"] for field in options()}
    return {
        name: value if value is None or units[name] == 1.0 else value * units[name]
        for name, value in values.items()
    }


def _learning_options(without: tuple[str, ...]) -> dict[str, inspect.Parameter]:
    parameters = {}
    for field in options(without={*without, *NOT_ON_THE_COMMAND_LINE}):
        metadata, kind = field.metadata, field.metadata["kind"]
        name = metadata["option"] or f"--{field.name.replace('_', '-')}"
        texts = {"help": metadata["help"], "rich_help_panel": metadata["panel"]}
        option = flag(name, **texts) if isinstance(kind, Flag) else of_kind(name, kind, **texts)
        value: Any = bool if isinstance(kind, Flag) else Any
        annotation = Annotated[value, option]
        parameters[field.name] = _parameter(field.name, annotation, kind.to_json(field.default))
    return parameters


def _group_options(group: Any) -> dict[str, inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    defaults = group._field_defaults
    empty = inspect.Parameter.empty
    return {
        name: _parameter(name, hints[name], defaults.get(name, empty)) for name in group._fields
    }


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
