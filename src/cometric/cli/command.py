"""How a function becomes a command: groups of options are expanded, a console is passed on."""

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

NOT_ON_THE_COMMAND_LINE = {part.name for part in options() if not part.metadata["help"]}


def command(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Any]:
    """Turn a function into one that typer can make a command of.

    The first parameter of the function is the console. Parameters annotated with a group of
    options, a NamedTuple, become these options; ``**options`` become those of ``learn`` that a
    command line can express, ``without`` some. Every command has the options of ``Display``.
    """

    def make(function: Callable[..., None]) -> Any:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        groups = {p.name: p.annotation for p in own if hasattr(p.annotation, "_fields")}
        found = {"context": _parameter("context", typer.Context, inspect.Parameter.empty)}
        own.sort(key=lambda p: p.default is not p.empty or p.name in groups)
        for p in own:
            if p.kind is p.VAR_KEYWORD:
                found |= _learning_options(without)
            elif p.name in groups:
                found |= _group_options(groups[p.name])
            else:
                found[p.name] = p.replace(kind=p.KEYWORD_ONLY)
        found |= _group_options(Display)

        @wraps(function)
        def run(context: typer.Context, **values: Any) -> None:
            packed = {
                name: group(**{field: values[field] for field in group._fields})
                for name, group in groups.items()
            }
            for group in (*groups.values(), Display):
                for field in group._fields:
                    values.pop(field, None)
            function(context.ensure_object(Console), **values, **packed)

        run.__signature__ = inspect.Signature(list(found.values()))  # type: ignore[attr-defined]
        return run

    return make


def in_bytes(values: dict[str, Any]) -> dict[str, Any]:
    """Options of ``learn`` in its units: the command line takes gigabytes."""
    units = {part.name: part.metadata["unit"] for part in options()}
    return {
        name: value if value is None or units[name] == 1.0 else value * units[name]
        for name, value in values.items()
    }


def _learning_options(without: tuple[str, ...]) -> dict[str, inspect.Parameter]:
    found = {}
    for part in options(without={*without, *NOT_ON_THE_COMMAND_LINE}):
        about, kind = part.metadata, part.metadata["kind"]
        name = about["option"] or f"--{part.name.replace('_', '-')}"
        shown = {"help": about["help"], "rich_help_panel": about["panel"]}
        option = flag(name, **shown) if isinstance(kind, Flag) else of_kind(name, kind, **shown)
        value: Any = bool if isinstance(kind, Flag) else Any
        annotation = Annotated[value, option]
        found[part.name] = _parameter(part.name, annotation, kind.to_json(part.default))
    return found


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
