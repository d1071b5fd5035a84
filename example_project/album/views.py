"""The pages of the album, and the webhook endpoint that is not in the mood at first."""

from __future__ import annotations

import json
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from album import jobs
from album.adding import DuplicatePhoto, add_photos, replace_original
from album.forms import ReplaceForm, UploadForm
from album.models import Photo, WebhookCall

PHOTOS_PER_PAGE = 48
DEAD_LETTERS_SHOWN = 20
WEBHOOK_FAILURES = 2  # calls about one photograph that are answered with 503 before the first 200


@require_GET
def gallery(request: HttpRequest) -> HttpResponse:
    """All photographs, newest first. The page reloads itself while thumbnails are on their way."""
    page = Paginator(Photo.objects.all(), PHOTOS_PER_PAGE).get_page(request.GET.get("page"))
    dead = {photo.pk for photo in page if not photo.is_ready and jobs.dead_job(photo.thumbnail_job)}
    waiting = sum(1 for photo in page if not photo.is_ready and photo.pk not in dead)
    return render(request, "album/gallery.html", {"page": page, "dead": dead, "waiting": waiting})


@require_http_methods(["GET", "POST"])
def upload(request: HttpRequest) -> HttpResponse:
    """The upload form. Everything of one upload is stored and enqueued in one transaction."""
    form = UploadForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        webhook_url = request.build_absolute_uri(reverse("album:webhook"))
        try:
            added = add_photos(form.cleaned_data["photos"], form.cleaned_data["email"], webhook_url)
        except DuplicatePhoto as error:
            form.add_error("photos", str(error))
        else:
            count = added.photos.count()
            messages.success(request, f"{count} photograph{'s' * (count != 1)} added. Thumbnails are on their way.")
            return redirect("album:gallery")
    return render(request, "album/upload.html", {"form": form}, status=400 if form.is_bound else 200)


@require_http_methods(["GET", "POST"])
def photo(request: HttpRequest, photo_id: UUID) -> HttpResponse:
    """One photograph. If it cannot be read, a form takes a better file."""
    shown = get_object_or_404(Photo.objects.select_related("upload"), pk=photo_id)
    form = ReplaceForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and not shown.is_ready and form.is_valid():
        try:
            replace_original(shown, form.cleaned_data["photo"])
        except DuplicatePhoto as error:
            form.add_error("photo", str(error))
        else:
            messages.success(request, "The file was replaced. Its job can be requeued now.")
            return redirect(shown)
    job = jobs.find_job(shown.thumbnail_job)
    context = {"photo": shown, "form": form, "job": job, "calls": shown.webhook_calls.all()}
    return render(request, "album/photo.html", context, status=400 if form.is_bound else 200)


@require_GET
def queue(request: HttpRequest) -> HttpResponse:
    """The numbers of the queue and its dead letters."""
    context = {"stats": jobs.stats(), "dead_letters": jobs.dead_letters(DEAD_LETTERS_SHOWN)}
    return render(request, "album/queue.html", context)


@csrf_exempt
@require_POST
def webhook(request: HttpRequest) -> HttpResponse:
    """Somebody else's endpoint, played by this site: 503 for the first calls about a photograph, then 200."""
    try:
        photo_id = json.loads(request.body)["photo"]
        with transaction.atomic():
            about = Photo.objects.get(pk=photo_id)
            number = about.webhook_calls.count() + 1
            status = 503 if number <= WEBHOOK_FAILURES else 200
            WebhookCall.objects.create(photo=about, number=number, status=status)
    except (ValueError, KeyError, TypeError, ValidationError, Photo.DoesNotExist):
        return JsonResponse({"error": "expected a JSON object with the id of a photograph"}, status=400)
    return JsonResponse({"call": number}, status=status)
