"""Settings of `manage.py demo`: the site as it is, with a short visibility timeout.

The demo starts all its processes with this module, and with `PHOTO_ALBUM_DATA` naming a fresh directory.
"""

from photosite.settings import *  # noqa: F403
from photosite.settings import NOBROKER

# Three seconds, so that the job of a killed worker comes back while somebody is watching.
NOBROKER = NOBROKER | {"VISIBILITY_TIMEOUT": 3.0}
