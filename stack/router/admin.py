"""The admin endpoint: reads and replaces the split while requests run. It does not exist without a token."""

from __future__ import annotations

import hmac
import logging
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException
from pydantic import Field

from stack.router.mode import ModePolicy
from stack.router.settings import Mode, RouterSettings, split_problem

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_log = logging.getLogger(__name__)


def admin_routes(settings: RouterSettings, policy: ModePolicy) -> APIRouter:
    """Returns ``GET`` and ``PUT /admin/split``, behind ``Authorization: Bearer <admin_token>``."""
    routes = APIRouter()

    def authorize(authorization: str | None) -> None:
        if settings.admin_token is None:
            raise HTTPException(404, "no admin_token is configured, so there are no admin endpoints")
        expected = f"Bearer {settings.admin_token.get_secret_value()}"
        if not hmac.compare_digest(expected.encode(), (authorization or "").encode("utf-8", "surrogateescape")):
            raise HTTPException(401, "this needs 'Authorization: Bearer <admin_token>'", {"www-authenticate": "Bearer"})

    @routes.get("/admin/split")
    async def read_split(authorization: Annotated[str | None, Header()] = None) -> dict[str, float]:
        authorize(authorization)
        return dict(policy.split)

    @routes.put("/admin/split")
    async def replace_split(
        split: dict[Mode, Weight], authorization: Annotated[str | None, Header()] = None
    ) -> dict[str, float]:
        authorize(authorization)
        problem = split_problem(settings, split)
        if problem is not None:
            raise HTTPException(400, problem)
        _log.warning("split changed from %s to %s", dict(policy.split), split)
        policy.split = dict(split)
        return dict(policy.split)

    return routes
