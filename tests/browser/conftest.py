"""A real, headless Chromium, for the tests that need one; without it, or without selenium, they are skipped."""

import shutil

import pytest
from pytest_django.live_server_helper import LiveServer

FLAGS = (
    "--headless",
    "--no-sandbox",  # so that it also runs as root, in a container
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)


@pytest.fixture
def browser(tmp_path):
    """A window of its own for each test."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or chromium is None:
        pytest.skip("there is no chromedriver and Chromium here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield window
    finally:
        window.quit()


@pytest.fixture
def site(settings, tmp_path, transactional_db):
    """Address of a running site with style sheets, and with queues of this test."""
    settings.NOBROKER = {"DIR": tmp_path / "queues", "QUEUES": {"default": {}, "emails": {}}}
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django.contrib.staticfiles"]
    server = LiveServer("localhost")
    try:
        yield server.url
    finally:
        server.stop()
