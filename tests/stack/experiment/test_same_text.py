"""Texts of both modes are compared and not kept; traces are looked for."""

from __future__ import annotations

from stack.experiment.client import new_session
from stack.experiment.same_text import same_text


async def checked(deployment):
    async with new_session(30) as session:
        return await same_text(
            session,
            deployment.url,
            "m",
            store=deployment.store_url,
            prompts=2,
            input_tokens=64,
            output_tokens=4,
            say=lambda line: None,
        )


async def test_equal_texts_of_both_modes(deployment, monkeypatch) -> None:
    monkeypatch.setattr("stack.experiment.same_text.SETTLE_S", 0.0)
    found, traces = await checked(deployment)
    assert found.equal
    assert len(traces) == 4
    document = found.document()
    assert [told["mode"] for told in document["prompts"][0]["told"]] == ["push", "pull"]
    assert len(document["prompts"][0]["told"][0]["sha256"]) == 64
    assert "text" not in document["prompts"][0]["told"][0]
    assert "equal" in str(found)


async def test_one_other_character_is_seen(deployment, monkeypatch) -> None:
    monkeypatch.setattr("stack.experiment.same_text.SETTLE_S", 0.0)
    stream, calls = __import__("stack.experiment.same_text", fromlist=["stream"]).stream, []

    async def altered(session, url, body, headers):
        from dataclasses import replace

        answer = await stream(session, url, body, headers)
        calls.append(answer)
        return replace(answer, text=answer.text[:-1] + "#") if len(calls) == 3 else answer

    monkeypatch.setattr("stack.experiment.same_text.stream", altered)
    found, _ = await checked(deployment)
    assert not found.equal
    assert [prompt.equal for prompt in found.prompts] == [False, True]
    assert found.prompts[0].same_characters == found.prompts[0].characters - 1
    assert "DIFFERENT" in str(found)
