"""The site's background work: thumbnails, the webhook, the notice.

Every task may run twice for one job (a worker can be killed after the work and before its record), so each one
is idempotent: thumbnails are replaced by equal ones, the webhook job has an id of its own, the notice carries
the same Message-ID. Arguments are ids and addresses, never objects; the annotations bring an id back as a UUID.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.utils import timezone

from album import thumbnails
from album.models import Photo, Upload
from album.running import announce
from nobroker_django import BackoffPolicy, task

WEBHOOK_TIMEOUT = 5.0  # seconds


class WebhookRefused(Exception):
    """The endpoint did not take the message; the job is tried again later."""


@task(max_attempts=4, backoff=BackoffPolicy(base=0.5, factor=2.0, max_delay=60.0, jitter=0.2))
def make_thumbnails(photo_id: UUID, webhook_url: str) -> dict[str, int]:
    """Make all thumbnails of a photograph, then tell the webhook. Returns the size of the original in pixels."""
    photo = Photo.objects.get(pk=photo_id)
    with announce(Path(settings.ALBUM_RUNNING_DIR), photo_id):
        rendered = thumbnails.render(Path(photo.original.path), photo_id)
        with transaction.atomic():
            Photo.objects.filter(pk=photo_id).update(
                width=rendered.width, height=rendered.height, colour=rendered.colour, prepared_at=timezone.now()
            )
            # The id makes a second delivery of this job find the first one's webhook job instead of adding another.
            call_webhook.using(job_id=f"photo-ready-{photo_id}").enqueue(photo_id, webhook_url)
    return {"width": rendered.width, "height": rendered.height}


@task(max_attempts=8, backoff=BackoffPolicy(base=0.5, factor=2.0, max_delay=300.0, jitter=0.5))
def call_webhook(photo_id: UUID, url: str) -> int:
    """POST the news that a photograph is ready. Returns the HTTP status; raises WebhookRefused to be tried again."""
    body = json.dumps({"event": "photo.ready", "photo": str(photo_id)}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the endpoint is on this machine
    try:
        with opener.open(request, timeout=WEBHOOK_TIMEOUT) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            raise WebhookRefused(f"{url} answered {error.code} {error.reason}") from None
    except (urllib.error.URLError, TimeoutError) as error:
        raise WebhookRefused(f"{url} cannot be reached: {error}") from error


@task
def send_notice(upload_id: UUID) -> str:
    """Send the notice of one upload. Returns the address it went to."""
    upload = Upload.objects.get(pk=upload_id)
    if upload.notice_sent_at is None:
        notice(upload).send()
        Upload.objects.filter(pk=upload_id).update(notice_sent_at=timezone.now())
    return upload.email


def notice_message_id(upload_id: object) -> str:
    """The Message-ID of an upload's notice: the same at every try, so that a mailbox can drop a second copy."""
    return f"<upload-{upload_id}@album.example.org>"


def notice(upload: Upload) -> EmailMessage:
    """The mail that says what an upload brought."""
    titles = [photo.title for photo in upload.photos.order_by("title")]
    count = "1 photograph" if len(titles) == 1 else f"{len(titles)} photographs"
    return EmailMessage(
        subject=f"{count} added to the album",
        body="New in the album:\n\n" + "".join(f"  - {title}\n" for title in titles),
        to=[upload.email],
        headers={"Message-ID": notice_message_id(upload.pk)},
    )
