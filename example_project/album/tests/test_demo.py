"""The parts of the demo that need no processes."""

from __future__ import annotations

import io
from pathlib import Path
from unittest import mock

from django.test import SimpleTestCase
from django.test.client import RequestFactory

from album.demo import pictures
from album.demo.checklist import Checklist
from album.demo.processes import DemoError
from album.demo.progress import Progress
from album.demo.visitor import SentFile, encode_form
from album.tests.support import AlbumTestCase, picture


class ChecklistTests(SimpleTestCase):
    """The table of what held."""

    def test_one_failure_is_a_failure(self) -> None:
        checklist = Checklist()
        self.assertFalse(checklist.all_held)  # nothing was checked
        checklist.add("the sky is blue", True, "seen")
        self.assertTrue(checklist.all_held)
        checklist.add("grass is red", [], "looked")
        self.assertFalse(checklist.all_held)
        self.assertEqual(
            checklist.table().splitlines(), ["  ok      the sky is blue  seen", "  FAILED  grass is red     looked"]
        )


class ProgressTests(SimpleTestCase):
    """The bar."""

    def test_redraws_in_place_on_a_terminal(self) -> None:
        stream = io.StringIO()
        with mock.patch.object(stream, "isatty", return_value=True):
            progress = Progress(stream)
        progress.show(1, 2, "x")
        progress.show(2, 2, "x")
        progress.say("ready")
        self.assertIn("\r", stream.getvalue())
        self.assertTrue(stream.getvalue().endswith("\rready\n"))

    def test_writes_a_few_whole_lines_elsewhere(self) -> None:
        stream = io.StringIO()
        progress = Progress(stream)
        for done in range(101):
            progress.show(done, 100, "x")
        self.assertNotIn("\r", stream.getvalue())
        lines = stream.getvalue().splitlines()
        self.assertEqual(len(lines), 6)
        self.assertIn("100/100 done", lines[-1])


class VisitorTests(SimpleTestCase):
    """The form that the visitor sends is one that Django reads."""

    def test_names_and_bytes_arrive(self) -> None:
        content = bytes(range(256))
        body = encode_form("xyz", {"email": "ü@example.org"}, "photos", [SentFile('a "b".jpg', content)])
        request = RequestFactory().post("/", body, content_type="multipart/form-data; boundary=xyz")
        self.assertEqual(request.POST["email"], "ü@example.org")
        (file,) = request.FILES.getlist("photos")
        self.assertEqual(file.read(), content)


class PicturesTests(AlbumTestCase):
    """Which photographs are taken."""

    def put(self, name: str, content: bytes) -> Path:
        """One file in the visitor's directory."""
        photos = self.directory / "photos"
        photos.mkdir(exist_ok=True)
        (photos / name).write_bytes(content)
        return photos

    def test_the_site_s_own(self) -> None:
        chosen = pictures.choose(None)
        self.assertGreaterEqual(len(chosen.good), 7)
        self.assertEqual(chosen.notes, [])
        self.assertTrue(chosen.whole.content.startswith(chosen.broken.content))
        self.assertEqual([file for upload in chosen.uploads() for file in upload], chosen.good)

    def test_what_cannot_be_used_is_named(self) -> None:
        self.put("good.jpg", picture())
        self.put("same.jpg", picture())
        self.put("broken.jpg", picture()[:-300])
        self.put("scan.png", picture(file_format="TIFF"))
        photos = self.put("notes.txt", b"text")
        chosen = pictures.choose(photos)
        self.assertEqual({file.name for file in [*chosen.good, chosen.late]}, {"good.jpg", "dandelion-meadow.jpg"})
        self.assertEqual(
            sorted(note.split()[0] for note in chosen.notes),
            ["broken.jpg", "dandelion-meadow.jpg", "same.jpg", "scan.png"],
        )

    def test_not_more_than_fit_into_a_minute(self) -> None:
        for number in range(pictures.MOST_PHOTOS + 2):
            photos = self.put(f"{number}.jpg", picture((200 + number, 100)))
        chosen = pictures.choose(photos)
        self.assertLessEqual(len(chosen.good), pictures.MOST_PHOTOS + 1)
        self.assertTrue(any("only the first" in note for note in chosen.notes))
        with mock.patch("album.demo.pictures.MOST_PIXELS", 3 * 210 * 100):
            self.assertEqual(len(pictures.choose(photos).good), 3)  # of the three taken one is late, and one is added

    def test_no_such_directory(self) -> None:
        with self.assertRaisesRegex(DemoError, "cannot be read"):
            pictures.choose(self.directory / "nowhere")
