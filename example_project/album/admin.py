"""The album in the admin."""

from django.contrib import admin

from album.models import Photo, Upload, WebhookCall


@admin.register(Upload)
class UploadAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Uploads and whether their notice went out."""

    list_display = ["created_at", "email", "notice_sent_at"]
    readonly_fields = ["created_at", "notice_sent_at"]


@admin.register(Photo)
class PhotoAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Photographs; what the task wrote is shown and cannot be edited."""

    list_display = ["title", "width", "height", "created_at", "prepared_at"]
    search_fields = ["title", "sha256", "thumbnail_job"]
    readonly_fields = ["sha256", "thumbnail_job", "width", "height", "colour", "created_at", "prepared_at"]


@admin.register(WebhookCall)
class WebhookCallAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Calls of the webhook."""

    list_display = ["photo", "number", "status", "received_at"]
    list_filter = ["status"]
