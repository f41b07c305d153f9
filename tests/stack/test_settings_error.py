from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError, model_validator

from stack.settings_error import one_line


class Settings(BaseModel):
    port: int
    tokens: list[int]

    @model_validator(mode="after")
    def _port_is_even(self) -> Settings:
        if self.port % 2:
            raise ValueError("the port must be even")
        return self


def problem(**given: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Settings(**given)  # type: ignore[arg-type]
    return one_line(caught.value)


def test_every_setting_that_is_wrong_is_named_and_its_value_is_not() -> None:
    said = problem(port="top secret", tokens=[1, "hunter2"])
    assert said.startswith("port: ")
    assert "; tokens.1: " in said
    assert "secret" not in said
    assert "hunter2" not in said
    assert "\n" not in said


def test_what_is_wrong_with_all_of_them_together_is_said_of_the_settings() -> None:
    assert problem(port=1, tokens=[]) == "settings: Value error, the port must be even"


def test_another_error_is_its_text_on_one_line() -> None:
    assert one_line(ValueError("no such\n   file")) == "no such file"
