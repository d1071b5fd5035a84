"""The admin in a real browser: the way of a person from the index to a dead letter, and what hostile data do there."""

from urllib.parse import urlsplit

from nobroker_django.queues import get_queue

HOSTILE = "<img src=x onerror=window.hit=1>"


def open_page(browser, address):
    """Go there; fails when the page, or a style sheet or script of it, could not be loaded."""
    browser.get(address)
    severe = [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert [line for line in severe if "favicon" not in line] == []


def press(browser, how, what):
    """Click on what leads to another page, and wait for that page: a click returns before the old one is gone."""
    from selenium.webdriver.support.expected_conditions import staleness_of
    from selenium.webdriver.support.wait import WebDriverWait

    page = browser.find_element("tag name", "html")
    browser.find_element(how, what).click()
    patience = WebDriverWait(browser, 60)
    patience.until(staleness_of(page))
    patience.until(lambda browser: browser.execute_script("return document.readyState") == "complete")


def texts(browser, selector):
    return [element.text for element in browser.find_elements("css selector", selector)]


def test_from_the_index_to_a_dead_letter(site, browser, django_user_model):
    queue = get_queue("emails")
    queue.enqueue({"task": HOSTILE, "args": [HOSTILE], "kwargs": {HOSTILE: HOSTILE}}, job_id=HOSTILE, max_attempts=1)
    queue.nack(queue.lease_one(), error=ValueError(HOSTILE))
    waiting = get_queue().enqueue({"task": "shop.tasks.mail", "args": [7], "kwargs": {}})
    django_user_model.objects.create_superuser("root", password="secret")

    open_page(browser, f"{site}/admin/")
    browser.find_element("name", "username").send_keys("root")
    browser.find_element("name", "password").send_keys("secret")
    press(browser, "css selector", "[type=submit]")
    press(browser, "css selector", ".model-job th a")
    assert texts(browser, "#result_list .field-short_id") == [waiting.id]
    assert texts(browser, "#content h1") == ["Jobs of queue “default”"]

    press(browser, "css selector", ".model-deadletter th a")
    assert texts(browser, "#result_list tbody tr") == []
    press(browser, "link text", "emails")
    assert texts(browser, "#result_list .field-short_id") == [HOSTILE]
    assert texts(browser, "#result_list .field-error") == [f"ValueError: {HOSTILE}"]
    for choice in ("ValueError", HOSTILE):
        press(browser, "link text", choice)
        assert texts(browser, "#result_list .field-short_id") == [HOSTILE]

    press(browser, "css selector", "#result_list .field-short_id a")
    assert HOSTILE in texts(browser, ".field-payload pre")[0]
    assert HOSTILE in texts(browser, ".field-error_history details[open]")[0]
    assert browser.find_elements("css selector", "#content img, #content script:not([src])") == []
    assert browser.execute_script("return window.hit") is None
    wide = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, "the page is wider than the window"

    press(browser, "css selector", ".submit-row .closelink")
    assert urlsplit(browser.current_url).query == "queue=emails"
    assert texts(browser, "#result_list .field-short_id") == [HOSTILE]


def test_the_notice_stands_above_the_list(site, browser, admin_client):
    open_page(browser, f"{site}/admin/login/")
    browser.add_cookie({"name": "sessionid", "value": admin_client.cookies["sessionid"].value})
    open_page(browser, f"{site}/admin/nobroker_django/job/?queue=emails")
    (notice,) = browser.find_elements("css selector", ".nobroker-notice")
    assert "There is no queue “emails”" in notice.text
    assert notice.location["y"] < browser.find_element("id", "changelist").location["y"]
    assert texts(browser, ".paginator")[0].endswith("0 jobs")
