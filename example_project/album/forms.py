"""The forms of the album and what they accept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile

MAX_FILES = 24
MAX_FILE_MEGABYTES = 25
MAX_MEGAPIXELS = 80
FORMATS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}


class PhotoFileField(forms.ImageField):
    """One photograph: a format we can show, not too large in bytes or pixels.

    Reads the header only. A file that breaks off in the middle passes, and is found by the task that decodes it.
    """

    default_error_messages = {
        "format": "“%(name)s” is not a JPEG, PNG or WebP picture.",
        "bytes": "“%(name)s” is larger than %(limit)d MB.",
        "pixels": "“%(name)s” has more than %(limit)d megapixels.",
        "invalid_image": "“%(name)s” is not a picture.",
    }

    def to_python(self, data: Any) -> Any:
        """Check one uploaded file and return it."""
        name = getattr(data, "name", "")
        if isinstance(data, UploadedFile) and (data.size or 0) > MAX_FILE_MEGABYTES * 1_000_000:
            self.refuse("bytes", name, MAX_FILE_MEGABYTES)
        try:
            file: Any = super().to_python(data)
        except forms.ValidationError as error:
            if getattr(error, "code", None) == "invalid_image":
                self.refuse("invalid_image", name)
            raise
        if file is None:
            return None
        if file.image.format not in FORMATS:
            self.refuse("format", name)
        if file.image.width * file.image.height > MAX_MEGAPIXELS * 1_000_000:
            self.refuse("pixels", name, MAX_MEGAPIXELS)
        return file

    def refuse(self, code: str, name: str, limit: int = 0) -> None:
        """Raise the validation error of that code, naming the file."""
        raise forms.ValidationError(self.error_messages[code], code=code, params={"name": name, "limit": limit})


class SeveralFilesInput(forms.ClearableFileInput):
    """A file input that lets the visitor pick several files at once."""

    allow_multiple_selected = True


class SeveralPhotosField(PhotoFileField):
    """A list of photographs; each is validated on its own and every complaint is shown."""

    widget = SeveralFilesInput(attrs={"accept": ",".join(FORMATS.values())})

    def clean(self, data: Any, initial: Any = None) -> Any:
        """Validate all files and return them as a list."""
        files: Sequence[Any] = data or [None]  # nothing chosen: one missing file, which the field complains about
        if len(files) > MAX_FILES:
            raise forms.ValidationError(f"Please choose at most {MAX_FILES} photographs at a time.", code="many")
        cleaned, errors = [], []
        for file in files:
            try:
                cleaned.append(super().clean(file, initial))
            except forms.ValidationError as error:
                errors.extend(error.error_list)
        if errors:
            raise forms.ValidationError(errors)
        return cleaned


class UploadForm(forms.Form):
    """New photographs and who is told about them."""

    photos = SeveralPhotosField(label="Photographs")
    email = forms.EmailField(label="Send a notice to", initial=lambda: settings.ALBUM_OWNER_EMAIL)


class ReplaceForm(forms.Form):
    """A better file for a photograph that cannot be read."""

    photo = PhotoFileField(label="A better file", widget=forms.FileInput(attrs={"accept": ",".join(FORMATS.values())}))
