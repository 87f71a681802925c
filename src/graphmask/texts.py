"""Text from elsewhere (labels, tokens, names) for a page, a terminal, a picture or a spreadsheet, shown as text only.

Markup is escaped where it is written. This module removes characters that change how the text around them is shown:
control characters, which end strings, are not allowed in SVG, and steer terminals; and overrides of the writing
direction, which show a text in another order than it has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

#: Controls but tab and line feed, separators of lines and paragraphs, overrides of direction, halves of characters.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
#: A label, a token or a note is shown up to here.
MOST = 5_000
#: A cell that begins so is a formula to a spreadsheet, and one that goes on so where semicolons end cells.
_FORMULA = re.compile("^(?=[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20])|(?<=[;\r\n])(?=[=+\\-@\uff1d\uff0b\uff0d\uff20])")

Value = TypeVar("Value")


def visible(text: str, most: int | None = MOST) -> str:
    r"""The text with such characters spelled out, as ``\u202e``, and cut at a length that nobody reads."""
    if most is not None and len(text) > most:
        text = f"{text[:most]}… ({len(text):,} characters)"
    if type(text) is str and text.isascii() and text.isprintable():
        return text
    return _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cleaned(value: Value) -> Value:
    """The value with every text in its lists, tuples, dictionaries and dataclasses made `visible`."""
    return _cleaned(value)


def _cleaned(value: Any) -> Any:
    if type(value) is str:  # a subclass is markup, and ours
        return visible(value)
    if isinstance(value, list | tuple):
        if not value or isinstance(value[0], bool | float):  # numbers, of which there are many
            return value
        items = [_cleaned(one) for one in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        return {_cleaned(key): _cleaned(one) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: _cleaned(one) for name, one in changed.items()})
    return value


def cell(text: str) -> str:
    """The text for a CSV file, with an apostrophe wherever a spreadsheet would take what follows for a formula."""
    try:
        float(text)
    except ValueError:
        return _FORMULA.sub("'", text)
    return text  # a number may have a sign
