"""A visitor of the site: keeps cookies, fills in forms, uploads files. Plain HTTP, nothing of Django."""

from __future__ import annotations

import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from http.cookiejar import CookieJar
from typing import NamedTuple

TIMEOUT = 20.0  # seconds for one request


class Answer(NamedTuple):
    """What the site answered (after following redirects)."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The page as text."""
        return self.body.decode()


class SentFile(NamedTuple):
    """A file as a browser sends it."""

    name: str
    content: bytes


class Visitor:
    """One browser window."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookies = CookieJar()
        # Without a proxy: the site is on this machine.
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(self.cookies), urllib.request.ProxyHandler({})
        )

    def get(self, path: str) -> Answer:
        """Look at a page."""
        return self._open(urllib.request.Request(self.address + path))

    def send(self, path: str, fields: Mapping[str, str], field: str, files: Sequence[SentFile]) -> Answer:
        """Open a page with a form, fill it in and send it; `field` is the name of the file input."""
        self.get(path)
        token = next(cookie.value or "" for cookie in self.cookies if cookie.name == "csrftoken")
        boundary = uuid.uuid4().hex
        body = encode_form(boundary, {**fields, "csrfmiddlewaretoken": token}, field, files)
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return self._open(urllib.request.Request(self.address + path, data=body, headers=headers, method="POST"))

    def _open(self, request: urllib.request.Request) -> Answer:
        try:
            with self._opener.open(request, timeout=TIMEOUT) as response:
                return Answer(response.status, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read())


def encode_form(boundary: str, fields: Mapping[str, str], field: str, files: Sequence[SentFile]) -> bytes:
    """A form as multipart/form-data (RFC 7578)."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    for file in files:
        # As in the HTML standard: these three characters would end the quoted name.
        name = file.name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n'
        parts.append(head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + file.content + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode()
