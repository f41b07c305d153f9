"""The admin endpoint: reads and replaces the split while requests run. It does not exist without a token."""

from __future__ import annotations

import hmac
import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Header, HTTPException, Response
from pydantic import Field, SecretStr

from connector import names
from stack.router.annotations import SplitAnnotations
from stack.router.mode import ModePolicy
from stack.router.settings import Mode, RouterSettings, split_problem

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_log = logging.getLogger(__name__)


def admin_routes(
    token: SecretStr, settings: RouterSettings, policy: ModePolicy, annotations: SplitAnnotations | None = None
) -> APIRouter:
    """Returns ``GET`` and ``PUT /admin/split``, behind ``Authorization: Bearer <token>``.

    ``PUT`` takes the whole new split, such as ``{"push": 50, "pull": 50}``; ``{}`` removes it, and the router's default
    mode serves all (``kvpath mode default``).

    With ``annotations`` every change is marked in Grafana, and the answer says so in a header.
    """
    expected = f"Bearer {token.get_secret_value()}".encode()

    def authorize(authorization: Annotated[str, Header()] = "") -> None:
        if not hmac.compare_digest(expected, authorization.encode()):
            raise HTTPException(401, "this needs 'Authorization: Bearer <admin_token>'", {"www-authenticate": "Bearer"})

    routes = APIRouter(dependencies=[Depends(authorize)])

    @routes.get("/admin/split")
    async def read_split() -> dict[str, float]:
        return dict(policy.split)

    @routes.put("/admin/split")
    async def replace_split(split: dict[Mode, Weight], response: Response) -> dict[str, float]:
        problem = split_problem(settings, split)
        if problem is not None:
            raise HTTPException(400, problem)
        _log.warning("split changed from %s to %s", dict(policy.split), split)
        before, policy.split = policy.split, dict(split)
        if annotations is not None:
            annotations.changed(before, policy.split)
            response.headers[names.HEADER_ANNOTATED] = "router"
        return dict(policy.split)

    return routes
