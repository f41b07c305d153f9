from __future__ import annotations

import pytest

from stack.__main__ import main
from stack.grafana.errors import SettingsError
from stack.grafana.settings import PREFIX, read_settings, required_settings


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    monkeypatch.setenv(PREFIX + "URL", "https://example.org/grafana/")


def test_a_token_comes_from_the_environment_or_a_file_and_the_option_wins(monkeypatch, tmp_path):
    of_variable, of_option = tmp_path / "variable", tmp_path / "option"
    of_variable.write_text("two\n")
    of_option.write_text("three\n")
    assert read_settings().token.get_secret_value() == ""
    monkeypatch.setenv(PREFIX + "TOKEN", "one")
    assert read_settings().token.get_secret_value() == "one"
    monkeypatch.setenv(PREFIX + "TOKEN_FILE", str(of_variable))
    assert read_settings().token.get_secret_value() == "two"
    settings = read_settings(of_option)
    assert settings.token.get_secret_value() == "three"
    assert settings.url == "https://example.org/grafana"
    assert "three" not in repr(settings)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("URL", "http://admin:secret@example.org", "must not hold a user or a password"),
        ("URL", "ftp://example.org", "must be an http:// or https:// URL"),
        ("URL", "https://", "must be an http:// or https:// URL"),
        ("URL", "https://example.org/?orgId=1", "must be an http:// or https:// URL"),
        ("URL", "http://example.org:port", "is no URL that makes sense"),
        ("TOKEN", "secret\nsecret", "something that is no token"),
        ("TOKEN", "sécret", "something that is no token"),
        ("TOKEN_FILE", "/nowhere/secret-file", "cannot read the token from /nowhere/secret-file: No such file"),
    ],
)
def test_settings_that_make_no_sense_are_one_line_without_the_secret(monkeypatch, capsys, variable, value, said):
    monkeypatch.setenv(PREFIX + variable, value)
    with pytest.raises(SettingsError, match=said) as refused:
        read_settings()
    assert "\n" not in str(refused.value)
    assert value not in str(refused.value) or variable == "URL" or "/" in value
    assert "admin:secret" not in str(refused.value)
    assert main(["grafana", "check"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"kvpath grafana: {refused.value}\n"


def test_an_empty_or_strange_token_file_is_refused(tmp_path):
    empty, strange = tmp_path / "empty", tmp_path / "strange"
    empty.write_text("\n")
    strange.write_bytes(b"\xff\xfe")
    for file, said in ((empty, "is empty"), (strange, "is no token")):
        with pytest.raises(SettingsError, match=said):
            read_settings(file)


def test_without_a_grafana_the_command_says_what_to_set(monkeypatch):
    monkeypatch.delenv(PREFIX + "URL")
    assert read_settings() is None
    with pytest.raises(SettingsError, match="set KVPATH_GRAFANA_URL"):
        required_settings()
