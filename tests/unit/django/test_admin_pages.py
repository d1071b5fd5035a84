"""The pages of the admin: lists, one job, notices, what a hostile payload does to them."""


from nobroker_django.queues import get_queue

JOBS = "/admin/nobroker_django/job/"
DEAD = "/admin/nobroker_django/deadletter/"


def test_first(admin_client):
    job = get_queue().enqueue({"task": "shop.tasks.mail", "args": [1], "kwargs": {"to": "ann"}})
    response = admin_client.get(JOBS)
    text = response.content.decode()
    assert job.id in text
    detail = admin_client.get(f"{JOBS}default:{job.id}/change/")
    assert detail.status_code == 200
    assert "ann" in detail.content.decode()
    assert admin_client.get(DEAD).status_code == 200
