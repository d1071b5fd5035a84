"""The queues in Django's admin, to be looked at and nothing else.

Invariant: no request changes anything, whoever makes it. Only ``view`` permissions exist, every other one is denied,
and a request that could mean a change is refused before Django's own code sees it.

A page is one moment of one queue: it is made, to the last tag, inside ``reading``. Where the projection is missing,
behind or damaged the page says so above an older or empty list; nothing is a server error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.urls import reverse

from .admin_support import showing
from .admin_support.columns import JobColumns
from .admin_support.connection import alias_of, connection_of, queue_names, reading
from .admin_support.filters import QUEUE_PARAMETER, ErrorFilter, QueueFilter, StateFilter, TaskFilter
from .admin_support.paging import CappedPaginator
from .admin_support.searching import MANY, begins, in_states, with_task_beginning
from .engine.transitions import DEAD
from .models import DeadLetter, Job

if TYPE_CHECKING:
    JobModelAdmin = admin.ModelAdmin[Job]
else:
    JobModelAdmin = admin.ModelAdmin

_SAFE = ("GET", "HEAD")


class JobList(ChangeList):
    """The list of one queue; its heading names it."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        what = str(self.opts.verbose_name_plural)
        self.title = f"{what.capitalize()} of queue “{queue_of(request)}”"

    def get_results(self, request: HttpRequest) -> None:
        """The rows of the page, by what counting them has found."""
        super().get_results(request)
        self.result_list = self.paginator.rows(self.page_num)


class QueueAdmin(JobColumns, JobModelAdmin):
    """What jobs and dead letters have in common."""

    only_dead = False
    actions = None
    list_per_page = 100
    list_max_show_all = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = CappedPaginator
    ordering = ("-seq",)
    search_fields = ("key",)
    search_help_text = "A job's id, or the beginning of an id or of a task's name."
    fieldsets = (
        (None, {"fields": ("whole_id", ("queue_name", "task_name"), ("state_name", "attempts_of", "priority"))}),
        ("Call", {"fields": ("payload", "meta")}),
        ("Outcome", {"fields": ("result", "error_history")}),
        (
            "Times",
            {
                "fields": (
                    ("enqueued_exactly", "due"),
                    ("running_since", "extended"),
                    ("lease_until", "lease_length"),
                    ("finished", "kept_until"),
                )
            },
        ),
        ("In the log", {"fields": ("seq", "place", "token")}),
    )
    readonly_fields = tuple(flatten_fieldsets(fieldsets))
    change_list_template = "admin/nobroker_django/change_list.html"
    change_form_template = "admin/nobroker_django/change_form.html"

    class Media:
        css = {"all": ["nobroker_django/admin.css"]}

    # -- nothing is changed

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        """Never."""
        return False

    # -- pages

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list of one queue."""
        view = super().changelist_view
        return self._page(
            request, queue_of(request), lambda context: view(request, {**context, **(extra_context or {})})
        )

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """One job."""
        view = super().change_view
        queue, _, job_id = unquote(object_id).partition(":")

        def make(context: dict[str, Any]) -> HttpResponse:
            if self.get_object(request, unquote(object_id)) is None:
                return self._not_there(request, queue, job_id, context)
            return view(request, object_id, form_url, {**context, **(extra_context or {})})

        return self._page(request, queue, make)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Nothing was ever changed here: the job itself."""
        if request.method not in _SAFE:
            return HttpResponseNotAllowed(_SAFE)
        name = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_change"
        return HttpResponseRedirect(reverse(name, args=[object_id]))

    def _page(self, request: HttpRequest, queue: str, make: Callable[[dict[str, Any]], HttpResponse]) -> HttpResponse:
        """The page that ``make`` makes, as of one moment of the queue, rendered; again if the files were replaced."""
        if request.method not in _SAFE:
            return HttpResponseNotAllowed(_SAFE)
        if not self.has_view_permission(request):
            raise PermissionDenied
        for last in (False, False, True):
            connection = connection_of(alias_of(queue))
            try:
                with reading(queue, give_up=last):
                    response = make({"nobroker": connection.source, "nobroker_queue": connection.queue_name})
                    if isinstance(response, SimpleTemplateResponse):
                        response.render()
                if not connection.spoilt:
                    break
            except DatabaseError:
                if last or not connection.spoilt:
                    raise
        return response

    def _not_there(self, request: HttpRequest, queue: str, job_id: str, context: dict[str, Any]) -> HttpResponse:
        return TemplateResponse(
            request,
            "admin/nobroker_django/not_there.html",
            {
                **self.admin_site.each_context(request),
                **context,
                "opts": self.opts,
                "title": f"No such {self.opts.verbose_name}",
                "job_id": showing.printable(job_id),
                "queue": queue,
            },
            status=404,
        )

    # -- rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """The list with the queue in its heading."""
        return JobList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """The jobs of the queue that the address names; of the first one if it names none."""
        wanted = request.GET.get(QUEUE_PARAMETER)
        if wanted and wanted not in queue_names():
            raise IncorrectLookupParameters(f"there is no queue {wanted!r}")
        queryset: QuerySet[Job] = self.model._default_manager.queue(queue_of(request)).order_by(*self.ordering)
        return in_states(queryset, Q(state=DEAD), ("dead",)) if self.only_dead else queryset

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Job | None:
        """The job of a key ``QUEUE:ID``."""
        queue = object_id.partition(":")[0]
        if queue not in queue_names():
            return None
        job: Job | None = self.model._default_manager.queue(queue).filter(key=object_id).first()
        return job

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """The job of that id; if there is none, those whose id begins so; else those whose task does."""
        term = search_term.strip()
        if not term:
            return queryset, False
        exact = queryset.filter(key=f"{queue_of(request)}:{term}")
        if exact.exists():
            return exact, False
        by_id = queryset.filter(begins("key", f"{queue_of(request)}:{term}"))
        if by_id.exists():
            return by_id, False
        return with_task_beginning(queryset, term), False

    def get_sortable_by(self, request: HttpRequest) -> tuple[Any, ...]:
        """In a short queue every column; in a long one sorting by another would look at every row."""
        few = sum(connection_of(alias_of(queue_of(request))).counts().values()) <= MANY
        return tuple(self.list_display) if few else ("enqueued",)


@admin.register(Job)
class JobAdmin(QueueAdmin):
    """All jobs of a queue."""

    list_display = ("short_id", "task_name", "state_name", "attempts_of", "enqueued", "changes", "arguments")
    list_filter = (QueueFilter, StateFilter, TaskFilter, ErrorFilter)


@admin.register(DeadLetter)
class DeadLetterAdmin(QueueAdmin):
    """The jobs that are out of attempts."""

    only_dead = True
    list_display = ("short_id", "task_name", "error", "attempts_of", "died", "arguments", "enqueued")
    list_filter = (QueueFilter, TaskFilter, ErrorFilter)


def queue_of(request: HttpRequest) -> str:
    """The queue that a list is of."""
    names = queue_names()
    wanted = request.GET.get(QUEUE_PARAMETER)
    return wanted if wanted in names else next(iter(names), "")
