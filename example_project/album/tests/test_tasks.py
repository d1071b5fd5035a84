"""The tasks, called as plain functions. Each is run twice: a job may be delivered again."""

from __future__ import annotations

import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest import mock

from django.core import mail

from album import tasks, thumbnails
from album.models import Photo
from album.running import Marker, running
from album.tests.support import WEBHOOK, AlbumTestCase, picture

THE_ID = uuid.UUID(int=1)


class MakeThumbnailsTests(AlbumTestCase):
    """`make_thumbnails`."""

    def run_task(self, photo: Photo) -> None:
        """One delivery, with its transaction committed."""
        with self.captureOnCommitCallbacks(execute=True):
            tasks.make_thumbnails(photo.pk, WEBHOOK)

    def test_fills_in_the_row_and_tells_the_webhook(self) -> None:
        photo = self.stored_photo(picture((640, 400)))
        self.run_task(photo)
        photo.refresh_from_db()
        self.assertTrue(photo.is_ready)
        self.assertEqual((photo.width, photo.height), (640, 400))
        (job,) = self.jobs("call_webhook")
        self.assertEqual((job.id, job.payload["args"]), (f"photo-ready-{photo.pk}", [str(photo.pk), WEBHOOK]))

    def test_a_second_delivery_adds_no_second_webhook(self) -> None:
        photo = self.stored_photo()
        self.run_task(photo)
        self.run_task(photo)
        self.assertEqual(len(self.jobs("call_webhook")), 1)
        self.assertEqual(len(list(thumbnails.directory().iterdir())), 2)

    def test_the_webhook_waits_for_the_commit(self) -> None:
        with self.captureOnCommitCallbacks():
            tasks.make_thumbnails(self.stored_photo().pk, WEBHOOK)
        self.assertEqual(self.jobs("call_webhook"), [])

    def test_ready_and_the_webhook_s_job_come_together_or_not_at_all(self) -> None:
        photo = self.stored_photo()
        refused = mock.patch("album.tasks.call_webhook.using", side_effect=RuntimeError)
        with refused, self.assertRaises(RuntimeError):
            self.run_task(photo)
        photo.refresh_from_db()
        self.assertFalse(photo.is_ready)

    def test_a_photograph_that_breaks_off_is_not_ready(self) -> None:
        photo = self.stored_photo(picture()[:-500])
        with self.assertRaises(OSError):
            self.run_task(photo)
        photo.refresh_from_db()
        self.assertFalse(photo.is_ready)
        self.assertEqual(self.jobs("call_webhook"), [])

    def test_says_who_works_on_it_while_it_does(self) -> None:
        photo = self.stored_photo()
        seen: list[Marker] = []
        render = thumbnails.render

        def look_first(*arguments: object) -> thumbnails.Rendered:
            seen.extend(running(self.directory / "running"))
            return render(*arguments)  # type: ignore[arg-type]

        with mock.patch("album.thumbnails.render", look_first):
            self.run_task(photo)
        self.assertEqual([marker.photo_id for marker in seen], [str(photo.pk)])
        self.assertEqual(running(self.directory / "running"), [])


class CallWebhookTests(AlbumTestCase):
    """`call_webhook`, against a server that answers what the test says."""

    def serve(self, status: int) -> str:
        """Answer every POST with a status; returns the address."""
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}/"

    def test_posts_the_news(self) -> None:
        self.assertEqual(tasks.call_webhook(THE_ID, self.serve(200)), 200)
        self.assertEqual(self.bodies, [b'{"event": "photo.ready", "photo": "%s"}' % str(THE_ID).encode()])

    def test_a_refusal_fails_the_attempt(self) -> None:
        with self.assertRaisesRegex(tasks.WebhookRefused, "answered 503 Service Unavailable"):
            tasks.call_webhook(THE_ID, self.serve(503))

    def test_nobody_there_fails_the_attempt(self) -> None:
        address = self.serve(200)
        self.doCleanups()
        with self.assertRaisesRegex(tasks.WebhookRefused, "cannot be reached"):
            tasks.call_webhook(THE_ID, address)


class SendNoticeTests(AlbumTestCase):
    """`send_notice`."""

    def test_sends_one_mail_however_often_it_runs(self) -> None:
        upload = self.stored_photo().upload
        for _ in range(2):
            self.assertEqual(tasks.send_notice(upload.pk), "visitor@example.org")
        (message,) = mail.outbox
        self.assertEqual(message.subject, "1 photograph added to the album")
        self.assertIn("A photograph", str(message.body))

    def test_a_copy_after_a_crash_is_recognisable(self) -> None:
        upload = self.stored_photo().upload
        killed = mock.patch("album.tasks.Upload.objects.filter", side_effect=KeyboardInterrupt)
        with killed, self.assertRaises(KeyboardInterrupt):
            tasks.send_notice(upload.pk)
        tasks.send_notice(upload.pk)
        first, second = (message.message()["Message-ID"] for message in mail.outbox)
        self.assertEqual(first, second)
