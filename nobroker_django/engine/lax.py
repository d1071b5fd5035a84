"""JSON objects as the standard library reads them, member by member, each value as its bytes stand there.

Version 1 wrote payloads that only that library can read: NaN, infinities, lone surrogates. They are kept as they are,
never encoded anew; the rest of their records is read as strictly as any other.
"""

from __future__ import annotations

import json
import re

_decoder = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\n\r]*")


def members(body: bytes) -> dict[str, bytes]:
    """The members of a JSON object; of a key that stands there twice the last one, as decoding would have it.

    Raises:
        ValueError: ``body`` is no JSON object.
        RecursionError: it is nested too deeply to be read.
    """
    text = body.decode("utf-8")
    found: dict[str, bytes] = {}
    at = _skip(text, 0, "{")
    if text[at : at + 1] == "}":
        at = _skip(text, at, "}")
    else:
        while True:
            key, at = _decoder.raw_decode(text, at)
            if not isinstance(key, str):
                raise ValueError(f"a key is no string at character {at}")
            start = _skip(text, at, ":")
            _, at = _decoder.raw_decode(text, start)
            found[key] = text[start:at].encode()
            at = _blank(text, at)
            if text[at : at + 1] != ",":
                break
            at = _blank(text, at + 1)
        at = _skip(text, at, "}")
    if at != len(text):
        raise ValueError(f"something follows the object at character {at}")
    return found


def joined(values: dict[str, bytes]) -> bytes:
    """The JSON object with these members."""
    return b"{%b}" % b",".join(b"%b:%b" % (json.dumps(key).encode(), value) for key, value in values.items())


def _blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _skip(text: str, at: int, expected: str) -> int:
    """Past one character and the blanks around it."""
    at = _blank(text, at)
    if text[at : at + 1] != expected:
        raise ValueError(f"{expected!r} expected at character {at}")
    return _blank(text, at + 1)
