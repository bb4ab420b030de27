"""The front: signing in and out, and whether we live."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from redrive.errors import ConfigurationError
from redrive.operate.auth import SIGN_IN_SECONDS, NotSignedIn, Permission
from redrive.operate.metrics import metrics_text
from redrive.operate.web import pages
from redrive.operate.web.guard import COOKIE, AppOf, Guard, Guarded, GuardOf, needs, public
from redrive.operate.web.problems import NOT_READY, Problem

router = APIRouter(route_class=Guarded, include_in_schema=False)


@router.get("/healthz")
@public
async def healthz() -> dict[str, Any]:
    """Say that this process lives."""
    return {"alive": True}


@router.get("/metrics")
@needs(Permission.LOOK)
async def metrics(app: AppOf) -> Response:
    """Write what this process has counted and what the database knows, in Prometheus' text format."""
    return Response(await metrics_text(app), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/readyz")
@public
async def readyz(app: AppOf) -> dict[str, Any]:
    """Say whether the database answers and has the right tables."""
    try:
        await app.open()
        await app.store.check_schema()
    except ConfigurationError as error:
        raise Problem(NOT_READY, str(error)) from error
    return {"ready": True}


@router.get("/login")
@public
async def login_page(request: Request, next: str = "/") -> Response:  # noqa: A002 - the name in the address
    """Ask for a token."""
    return pages.render(request, "login.html", next=pages.safe_next(next), wrong="")


@router.post("/login")
@public
async def login(request: Request, guard: GuardOf) -> Response:
    """Take a token, and give a cookie for it."""
    form = await pages.form(request)
    on = pages.safe_next(form.get("next"))
    try:
        shown = await guard.tokens.sign_in(form.get("token", "").strip())
    except NotSignedIn as error:
        return pages.render(request, "login.html", 401, next=on, wrong=str(error))
    return signed_in(request, guard, RedirectResponse(pages.root(request) + on, 303), shown)


def signed_in(request: Request, guard: Guard, answer: Response, shown: str) -> Response:
    """Give a browser its cookie."""
    answer.set_cookie(
        COOKIE, shown, max_age=int(SIGN_IN_SECONDS), path=pages.root(request) or "/", httponly=True, samesite="strict",
        secure=guard.is_encrypted(request),
    )  # fmt: skip
    return answer


@router.post("/logout")
@public
async def logout(request: Request, guard: GuardOf) -> Response:
    """Have the cookie open nothing any more."""
    shown = request.cookies.get(COOKIE)
    if shown is not None:
        await guard.tokens.sign_out(shown)
    answer: Response = RedirectResponse(f"{pages.root(request)}/login", 303)
    if not pages.wants_page(request):
        answer = JSONResponse({"signed_out": True})
    answer.delete_cookie(COOKIE, path=pages.root(request) or "/", httponly=True, samesite="strict")
    return answer
