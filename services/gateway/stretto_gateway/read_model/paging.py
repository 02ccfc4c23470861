"""Pages of the list of jobs: filters, orders and cursors.

A cursor is the place of a page's last job in the order, not a number of jobs: the next page begins behind that place,
whichever jobs came, ended or were forgotten in between. By time and name a job's place never changes. So no job is
listed twice, and every job that is there all the time is listed; by what changes, such as cost, that holds for the jobs
that keep their place.
"""

from __future__ import annotations

import base64
import heapq
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from pydantic import TypeAdapter
from stretto_wire.rest.summaries import LIMIT_MAX, Order
from stretto_wire.rest.views import JobView, Status

from ..problems import Problem

_STATES: tuple[Status, ...] = get_args(Status)
_KEYS: Mapping[str, Callable[[JobView], float | None]] = {
    "submitted": lambda view: view.submitted_at_s,
    "name": lambda _: 0.0,
    "state": lambda view: _STATES.index(view.status),
    "done": lambda view: view.progress.samples_done / (view.progress.samples_total or 1),
    "speed": lambda view: view.progress.samples_per_s or view.progress.mean_samples_per_s,
    "cost": lambda view: view.cost.so_far,
    "quality": lambda view: view.quality[0].value if view.quality else None,
}
"""Keys of the orders; a job whose key is unknown (None) comes last."""
_CURSOR: TypeAdapter[tuple[Order, float, str]] = TypeAdapter(tuple[Order, float, str])


@dataclass(frozen=True, slots=True)
class JobQuery:
    """A question for jobs. An empty field asks for jobs of any state, any owner, or any name."""

    statuses: frozenset[Status] = frozenset()
    owner: str = ""
    q: str = ""
    """Text in the name of a job or of its owner, in any case."""
    order: Order = "submitted"
    limit: int = LIMIT_MAX

    def fits(self, view: JobView) -> bool:
        """Return whether the question asks for a job."""
        q = self.q.casefold()
        return (
            (not self.statuses or view.status in self.statuses)
            and self.owner in ("", view.submitted_by)
            and (q in view.name or q in view.submitted_by.casefold())
        )


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the list. ``cursor`` leads to the next page (None: this is the last); ``total`` jobs are on all
    pages."""

    views: Sequence[JobView]
    cursor: str | None
    total: int


def page(views: Iterable[JobView], query: JobQuery, cursor: str | None = None) -> Page:
    """Return a page of the jobs in ``views``. Raises Problem 400 for an invalid cursor, or a cursor of another
    order."""
    after = _place_in(cursor, query.order) if cursor else None
    fitting = [(_place(view, query.order), view) for view in views if query.fits(view)]
    backwards = query.order.startswith("-")
    behind = [one for one in fitting if after is None or (one[0] < after if backwards else one[0] > after)]
    pick = heapq.nlargest if backwards else heapq.nsmallest
    found = pick(query.limit, behind, key=lambda one: one[0])
    more = len(behind) > len(found)
    return Page([view for _, view in found], _cursor(query.order, found[-1][0]) if more else None, len(fitting))


def _place(view: JobView, order: Order) -> tuple[float, str]:
    """Return the place of a job in the order; no two jobs have the same."""
    key = _KEYS[order.removeprefix("-")](view)
    last = -sys.float_info.max if order.startswith("-") else sys.float_info.max
    return (last if key is None else key), view.name


def _cursor(order: Order, place: tuple[float, str]) -> str:
    return base64.urlsafe_b64encode(_CURSOR.dump_json((order, *place))).decode().rstrip("=")


def _place_in(cursor: str, order: Order) -> tuple[float, str]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found, key, name = _CURSOR.validate_json(text)
    except ValueError:  # binascii, UTF-8 and pydantic raise kinds of it
        found = key = name = None
    if found != order or key is None or name is None:
        remedy = "the `next` address of the page before, with the same order; none for the first page"
        text = f"the cursor is none of the list in the order {order}"
        raise Problem(400, "bad-request", text, field="cursor", value=cursor, remedy=remedy)
    return key, name
