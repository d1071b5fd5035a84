"""What a person at a terminal sees of the queues, with or without Django.

``main`` is ``python -m nobroker_django``; the management commands share everything else. Nothing in here imports
Django. Reading order: ``text``, ``exits``, ``output``, ``progress``, ``values``, ``documents``, ``files``,
``context``, ``looking``, ``verifying``, ``salvaging``, ``changing``, ``arguments``, ``direct``, ``main``.
"""
