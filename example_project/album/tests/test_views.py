"""The pages: what an upload stores, what it refuses, and what the visitor sees."""

from __future__ import annotations

import json
import logging
from typing import Any
from unittest import mock

from django.test import Client
from django.urls import reverse

from album.forms import MAX_FILES
from album.models import Photo, Upload, WebhookCall
from album.tests.support import AlbumTestCase, picture, uploaded
from nobroker_django import JobState
from nobroker_django.queues import get_queue


class PageTestCase(AlbumTestCase):
    """Sends forms; keeps the log of refused requests out of the output."""

    def setUp(self) -> None:
        super().setUp()
        logging.disable(logging.WARNING)
        self.addCleanup(logging.disable, logging.NOTSET)

    def upload(self, *files: Any, email: str = "visitor@example.org") -> Any:
        """Send the upload form and commit."""
        with self.captureOnCommitCallbacks(execute=True):
            return self.client.post(reverse("album:upload"), {"photos": list(files), "email": email})

    def originals(self) -> list[str]:
        """The names of the stored files."""
        directory = self.directory / "media" / "originals"
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else []

    def make_dead(self, photo: Photo) -> None:
        """Let the photograph's job run out of attempts."""
        while (job := get_queue().lease_one()) is not None:
            if job.id == photo.thumbnail_job:
                get_queue().bury(job, error="the file breaks off")


class UploadTests(PageTestCase):
    """The upload form."""

    def test_stores_rows_files_and_jobs(self) -> None:
        response = self.upload(uploaded("red-panda.jpg"), uploaded("a_moose.JPG"))
        self.assertRedirects(response, reverse("album:gallery"))
        self.assertEqual(sorted(photo.title for photo in Photo.objects.all()), ["A moose", "Red panda"])
        self.assertEqual(len(self.originals()), 2)
        ids = {job.id for job in self.jobs("make_thumbnails")}
        self.assertEqual(ids, {photo.thumbnail_job for photo in Photo.objects.all()})
        (notice,) = self.jobs("send_notice")
        self.assertEqual(notice.payload["args"], [str(Upload.objects.get().pk)])

    def test_nothing_is_enqueued_before_the_commit(self) -> None:
        with self.captureOnCommitCallbacks() as waiting:
            self.client.post(reverse("album:upload"), {"photos": uploaded("a.jpg"), "email": "v@example.org"})
            self.assertEqual(get_queue().stats().enqueued_total, 0)
        self.assertTrue(waiting)

    def test_a_duplicate_rolls_everything_back(self) -> None:
        self.upload(uploaded("first.jpg"))
        before = self.originals(), get_queue().stats().enqueued_total
        response = self.upload(uploaded("new.jpg"), uploaded("first.jpg"))
        self.assertContains(response, "“first.jpg” is in the album already", status_code=400)
        self.assertEqual((self.originals(), get_queue().stats().enqueued_total), before)
        self.assertEqual((Photo.objects.count(), Upload.objects.count()), (1, 1))

    def test_the_same_photograph_twice_in_one_upload(self) -> None:
        response = self.upload(uploaded("one.jpg"), uploaded("one.jpg"))
        self.assertEqual(response.status_code, 400)
        self.assertEqual((self.originals(), get_queue().stats().enqueued_total), ([], 0))

    def refused(self, complaint: str, *files: Any, **fields: str) -> None:
        """Expect a complaint, and nothing stored."""
        self.assertContains(self.upload(*files, **fields), complaint, status_code=400)
        self.assertEqual((Photo.objects.count(), self.originals()), (0, []))
        self.assertEqual(get_queue().stats().enqueued_total, 0)

    def test_refuses_what_is_no_picture(self) -> None:
        self.refused("“notes.jpg” is not a picture.", uploaded("good.jpg"), uploaded("notes.jpg", b"text"))

    def test_refuses_a_format_that_pages_cannot_show(self) -> None:
        content = picture(file_format="TIFF")
        self.refused("“scan.tif” is not a JPEG, PNG or WebP picture.", uploaded("scan.tif", content))

    def test_refuses_too_many_pixels(self) -> None:
        with mock.patch("album.forms.MAX_MEGAPIXELS", 0):
            self.refused("megapixels", uploaded("a.jpg"))

    def test_refuses_too_many_bytes(self) -> None:
        with mock.patch("album.forms.MAX_FILE_MEGABYTES", 0):
            self.refused("“a.jpg” is larger than 0 MB.", uploaded("a.jpg"))

    def test_refuses_an_empty_form_and_an_empty_file(self) -> None:
        self.refused("This field is required.")
        self.refused("empty", uploaded("a.jpg", b""))

    def test_refuses_too_many_files(self) -> None:
        self.refused("at most", *(uploaded(f"{number}.jpg") for number in range(MAX_FILES + 1)))

    def test_refuses_a_wrong_address(self) -> None:
        self.refused("valid email", uploaded("a.jpg"), email="nobody")

    def test_markup_in_a_file_name_is_text(self) -> None:
        self.upload(uploaded("<b>bold<b>.jpg"))
        self.assertContains(self.client.get("/"), "&lt;b&gt;bold&lt;b&gt;")

    def test_needs_the_token_of_the_form(self) -> None:
        response = Client(enforce_csrf_checks=True).post(reverse("album:upload"), {"photos": uploaded("a.jpg")})
        self.assertEqual(response.status_code, 403)


class PageTests(PageTestCase):
    """The gallery, the page of one photograph, the queue."""

    def test_an_empty_album_offers_the_form(self) -> None:
        self.assertContains(self.client.get("/"), "No photographs yet")
        self.assertContains(self.client.get(reverse("album:upload")), 'type="file"')

    def test_the_gallery_reloads_only_while_something_is_on_its_way(self) -> None:
        self.upload(uploaded("a.jpg"))
        self.assertContains(self.client.get("/"), 'http-equiv="refresh"')
        self.make_dead(Photo.objects.get())
        page = self.client.get("/")
        self.assertNotContains(page, 'http-equiv="refresh"')
        self.assertContains(page, "Cannot be read")

    def test_a_ready_photograph_is_shown(self) -> None:
        photo = self.stored_photo(width=640, height=400, colour="#808080", prepared_at="2026-01-01T00:00Z")
        self.assertContains(self.client.get("/"), f"/media/thumbnails/{photo.pk}-thumb.jpg")
        self.assertContains(self.client.get(photo.get_absolute_url()), f"/media/thumbnails/{photo.pk}-large.jpg")

    def test_a_dead_letter_says_why_and_what_to_do(self) -> None:
        self.upload(uploaded("a.jpg"))
        photo = Photo.objects.get()
        self.make_dead(photo)
        page = self.client.get(photo.get_absolute_url())
        self.assertContains(page, "the file breaks off")
        self.assertContains(page, f"nobroker_dlq --requeue {photo.thumbnail_job}")
        self.assertContains(self.client.get("/queue/"), "album.tasks.make_thumbnails")

    def test_replacing_the_file_keeps_the_photograph_and_its_job(self) -> None:
        self.upload(uploaded("a.jpg"))
        photo = Photo.objects.get()
        self.make_dead(photo)
        (old,) = self.originals()
        response = self.client.post(photo.get_absolute_url(), {"photo": uploaded("better.jpg")})
        self.assertRedirects(response, photo.get_absolute_url())
        self.assertEqual(Photo.objects.get().thumbnail_job, photo.thumbnail_job)
        self.assertEqual(len(self.originals()), 1)
        self.assertNotEqual(self.originals(), [old])
        self.assertEqual(get_queue().get(photo.thumbnail_job).state, JobState.DEAD)

    def test_a_replacement_that_is_there_already_is_refused(self) -> None:
        self.upload(uploaded("a.jpg"), uploaded("b.jpg"))
        photo = Photo.objects.get(title="A")
        self.make_dead(photo)
        before = self.originals()
        response = self.client.post(photo.get_absolute_url(), {"photo": uploaded("b.jpg")})
        self.assertContains(response, "is in the album already", status_code=400)
        self.assertEqual(self.originals(), before)

    def test_a_ready_photograph_cannot_be_replaced(self) -> None:
        photo = self.stored_photo(width=640, height=400, colour="#808080", prepared_at="2026-01-01T00:00Z")
        self.client.post(photo.get_absolute_url(), {"photo": uploaded("other.jpg")})
        self.assertEqual(Photo.objects.get().sha256, photo.sha256)

    def test_the_admin_is_there(self) -> None:
        self.assertRedirects(self.client.get("/admin/"), "/admin/login/?next=/admin/")


class WebhookTests(PageTestCase):
    """The endpoint that refuses at first."""

    def call(self, body: Any) -> int:
        """The status of one call."""
        return self.client.post("/webhook/", json.dumps(body), content_type="application/json").status_code

    def test_refuses_twice_and_takes_it_then(self) -> None:
        photo, other = self.stored_photo(), self.stored_photo()
        self.assertEqual([self.call({"photo": str(photo.pk)}) for _ in range(4)], [503, 503, 200, 200])
        self.assertEqual(self.call({"photo": str(other.pk)}), 503)
        self.assertEqual(
            list(photo.webhook_calls.values_list("number", "status")), [(1, 503), (2, 503), (3, 200), (4, 200)]
        )

    def test_what_it_does_not_understand(self) -> None:
        bodies: list[Any] = [{}, [], "text", {"photo": None}, {"photo": "no id"}, {"photo": "0" * 32}, {"photo": []}]
        for body in bodies:
            with self.subTest(body=body):
                self.assertEqual(self.call(body), 400)
        self.assertEqual(self.client.post("/webhook/", b"\xff", content_type="application/json").status_code, 400)
        self.assertEqual(self.client.get("/webhook/").status_code, 405)
        self.assertFalse(WebhookCall.objects.exists())
