"""`check_album` finds what is wrong. Every test damages a good album in one way."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command

from album import integrity, tasks, thumbnails
from album.models import Photo, Upload, WebhookCall
from album.tests.support import WEBHOOK, AlbumTestCase, picture


class IntegrityTests(AlbumTestCase):
    """`album.integrity` and its command."""

    def setUp(self) -> None:
        super().setUp()
        options = {"file_path": self.directory / "mail"}
        if django.VERSION >= (6, 1):
            mail: dict[str, Any] = {"MAILERS": {"default": {"BACKEND": settings.MAIL_BACKEND, "OPTIONS": options}}}
        else:
            mail = {"EMAIL_BACKEND": settings.MAIL_BACKEND, "EMAIL_FILE_PATH": options["file_path"]}
        self.enterContext(self.settings(**mail))
        for size in [(640, 400), (2000, 1000)]:
            photo = self.stored_photo(picture(size))
            tasks.make_thumbnails(photo.pk, WEBHOOK)
            tasks.send_notice(photo.upload.pk)
            for number, status in enumerate((503, 503, 200), start=1):
                WebhookCall.objects.create(photo=photo, number=number, status=status)
        self.photo = Photo.objects.get(width=2000)
        self.large, self.thumb = thumbnails.paths(self.photo.pk)

    def complaints(self) -> list[str]:
        """All complaints of all checks; the command has to say the same."""
        results = integrity.check_album()
        complaints = [complaint for result in results for complaint in result.complaints]
        output = StringIO()
        try:
            call_command("check_album", "--json", stdout=output)
            code: object = 0
        except SystemExit as ended:
            code = ended.code
        self.assertEqual(code, 1 if complaints else 0)
        told = [complaint for check in json.loads(output.getvalue())["checks"] for complaint in check["complaints"]]
        self.assertEqual(told, complaints)
        return complaints

    def one_complaint(self, pattern: str) -> None:
        """Exactly one thing is wrong."""
        (complaint,) = self.complaints()
        self.assertRegex(complaint, pattern)

    def test_a_good_album(self) -> None:
        self.assertEqual(self.complaints(), [])
        self.assertEqual([result.looked_at for result in integrity.check_album()], [2, 4, 2, 2])

    def test_a_missing_thumbnail(self) -> None:
        self.thumb.unlink()
        self.one_complaint("thumb.jpg is missing")

    def test_a_file_too_many(self) -> None:
        (self.thumb.parent / f".{self.thumb.name}.x.part").write_bytes(b"")
        self.one_complaint("belongs to no photograph")

    def test_a_thumbnail_that_breaks_off(self) -> None:
        self.large.write_bytes(self.large.read_bytes()[:-200])
        self.one_complaint("large.jpg cannot be decoded")

    def test_a_thumbnail_of_the_wrong_size(self) -> None:
        self.large.write_bytes(self.thumb.read_bytes())
        self.one_complaint("is 480 pixels long instead of 1600")

    def test_a_photograph_that_is_not_prepared(self) -> None:
        Photo.objects.filter(pk=self.photo.pk).update(prepared_at=None)
        self.one_complaint("not prepared")

    def test_a_webhook_that_was_never_taken(self) -> None:
        WebhookCall.objects.filter(photo=self.photo, status=200).delete()
        self.one_complaint(r"the webhook answered \[503, 503\]")

    def test_a_webhook_that_was_called_once_more_is_allowed(self) -> None:
        WebhookCall.objects.create(photo=self.photo, number=4, status=200)
        self.assertEqual(self.complaints(), [])

    def test_an_upload_without_notice(self) -> None:
        Upload.objects.create(email="forgotten@example.org")
        self.one_complaint("no mail")

    def test_several_mails_in_one_file(self) -> None:
        files = sorted((self.directory / "mail").iterdir())
        together = b"".join(path.read_bytes() for path in files)
        for path in files:
            path.unlink()
        (self.directory / "mail" / "together.log").write_bytes(together)
        self.assertEqual(self.complaints(), [])

    def test_the_lines_for_people(self) -> None:
        self.thumb.unlink()
        output = StringIO()
        with self.assertRaises(SystemExit):
            call_command("check_album", stdout=output)
        self.assertIn("FAILED  every thumbnail exists exactly once (4)", output.getvalue())
        self.assertIn(f"{Path(self.thumb).name} is missing", output.getvalue())
