"""Addresses of the album."""

from django.urls import path

from album import views

app_name = "album"
urlpatterns = [
    path("", views.gallery, name="gallery"),
    path("upload/", views.upload, name="upload"),
    path("photos/<uuid:photo_id>/", views.photo, name="photo"),
    path("queue/", views.queue, name="queue"),
    path("webhook/", views.webhook, name="webhook"),
]
