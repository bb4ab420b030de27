"""The way in: a link that lets one browser of this machine into the demo's console, once; and the tour's buttons."""

from typing import Final

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import RedirectResponse, Response

from redrive.operate.auth import NotSignedIn, Permission
from redrive.operate.demo.tour import Tour
from redrive.operate.web import pages
from redrive.operate.web.front import signed_in
from redrive.operate.web.guard import Guarded, GuardOf, is_local, needs, public
from redrive.operate.web.problems import Problem, Rule

router = APIRouter(route_class=Guarded, include_in_schema=False)

_USED: Final = Rule(
    "link-used",
    403,
    "This link opens nothing",
    "The demo prints a link that lets one browser in. End it, and start it anew.",
)


def lead(web: FastAPI, tour: Tour) -> None:
    """Have a site lead through the tour."""
    web.state.tour = tour
    web.router.routes.extend(router.routes)


def _tour(request: Request) -> Tour:
    found: Tour = request.app.state.tour
    return found


@router.get("/demo/{key}")
@public
async def enter(request: Request, guard: GuardOf, key: str) -> Response:
    """Take the key of the link for a cookie. A browser that has come in may use the link again."""
    token = _tour(request).admit(key) if is_local(request) else None
    if token is not None:
        # A page that goes on by itself: after a redirect from a foreign page a strict cookie would not be sent.
        answer: Response = pages.render(request, "enter.html")
        return signed_in(request, guard, answer, await guard.tokens.sign_in(token))
    try:
        await guard.identify(request)
    except NotSignedIn:
        raise Problem(_USED, "it was used already, or was never one") from None
    return RedirectResponse(f"{pages.root(request)}/", 303)


@router.post("/tour")
@needs(Permission.ACT)
async def press(request: Request) -> Response:
    """Do what a button of the tour says, and go back to where it was pressed."""
    said = await pages.form(request)
    await _tour(request).press(said.get("verb", ""))
    return RedirectResponse(pages.root(request) + pages.safe_next(said.get("back")), 303)
