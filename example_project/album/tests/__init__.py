"""Tests of the site: `python example_project/manage.py test`."""
