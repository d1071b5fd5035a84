"""`manage.py demo`: the site at work on real photographs, with a worker killed on the way.

`story` tells what happens in which order, `processes` starts and ends the real processes, `visitor` is the
browser, `progress` and `checklist` are what one sees. The demo looks at the site from outside: over HTTP, through
management commands, and at the queue and the files.
"""
