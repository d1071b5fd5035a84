"""A backend of a project's own, of ours by descent."""

from nobroker_django.backend import NobrokerBackend


class OtherBackend(NobrokerBackend):
    """Another class, so that receivers can tell the two apart."""
