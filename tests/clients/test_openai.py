"""The `openai` library against the server: what an app gets that only knows OpenAI's API."""

import math
import time

import openai
import pytest
from conftest import connect

QUESTION = [{"role": "user", "content": "Repeat this number: 4711"}]


def ask(client, model, **further):
    defaults = {"messages": QUESTION, "temperature": 0, "max_tokens": 16}
    return client.chat.completions.create(model=model, **(defaults | further))


def test_chat(client, model):
    reply = ask(client, model)
    assert reply.object == "chat.completion" and reply.model == model
    (choice,) = reply.choices
    assert choice.message.role == "assistant" and "4711" in choice.message.content
    assert choice.finish_reason == "stop"
    assert not choice.message.tool_calls and choice.logprobs is None
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > 20 and 0 < usage.completion_tokens <= 16
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
    assert 0 < usage.time_to_first_token <= usage.total_time
    assert ask(client, model, max_tokens=2).choices[0].finish_reason == "length"
    assert ask(client, model, max_tokens=openai.NOT_GIVEN, max_completion_tokens=3).usage.completion_tokens == 3


def test_stream_with_usage(client, model):
    chunks = list(ask(client, model, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    *parts, last = chunks
    assert last.choices == [] and last.usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in parts)
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(chunk.choices[0].delta.content or "" for chunk in parts)
    assert text == ask(client, model).choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in parts if chunk.choices[0].finish_reason] == ["stop"]


def test_stream_without_usage(client, model):
    assert all(chunk.choices and chunk.usage is None for chunk in ask(client, model, stream=True))


def test_stream_helper(client, model):
    """The library's own accumulator, which is strict about what comes."""
    with client.chat.completions.stream(model=model, messages=QUESTION, temperature=0, max_tokens=16) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in events and "content.done" in events
    assert final.choices[0].message.content == ask(client, model).choices[0].message.content


def test_stop(client, model):
    whole = ask(client, model).choices[0].message.content
    stop = whole[5:8]
    for streamed in (False, True):
        reply = ask(client, model, stop=[stop, "never said"], stream=streamed)
        if streamed:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in reply)
        else:
            text = reply.choices[0].message.content
            assert reply.choices[0].finish_reason == "stop"
        assert text == whole[: whole.index(stop)]


def test_seed(client, model):
    def story(seed):
        messages = [{"role": "user", "content": "Tell me a story."}]
        return ask(client, model, messages=messages, temperature=1.5, seed=seed).choices[0].message.content

    assert story(1) == story(1)
    assert story(2) != story(1)


def test_logprobs(client, model):
    choice = ask(client, model, logprobs=True, top_logprobs=5).choices[0]
    content = choice.logprobs.content
    assert "".join(entry.token for entry in content) == choice.message.content
    for entry in content:
        assert len(entry.top_logprobs) == 5
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert bytes(entry.bytes).decode() == entry.token
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-5


def test_completions(client, model):
    request = {"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}
    reply = client.completions.create(**request, logprobs=2)
    assert reply.object == "text_completion" and reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == len(reply.choices[0].logprobs.tokens) == 8
    assert "".join(reply.choices[0].logprobs.tokens) == reply.choices[0].text
    streamed = client.completions.create(**request, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == reply.choices[0].text
    echoed = client.completions.create(**request, echo=True)
    assert echoed.choices[0].text == "Once upon a time" + reply.choices[0].text


def test_models(client, model):
    listed = client.models.list()
    assert [entry.id for entry in listed] == [model]
    assert listed.data[0].owned_by == "HuggingFaceTB" and listed.data[0].object == "model"
    assert client.models.retrieve(model).id == model


def test_errors_have_the_librarys_types(client, model):
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(client, "gpt-9")
    assert unknown.value.code == "model_not_found" and model in str(unknown.value)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(client, model, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as many:
        ask(client, model, n=2)
    assert many.value.param == "n"
    with pytest.raises(openai.BadRequestError) as long:
        ask(client, model, messages=[{"role": "user", "content": "word " * 20000}])
    assert long.value.code == "context_length_exceeded" and "8192" in str(long.value)
    # Before a stream begins, not in its middle.
    with pytest.raises(openai.BadRequestError):
        ask(client, model, stream=True, stop=[str(i) for i in range(100)])


def test_keys(serve, model):
    with serve("--api-key", "right") as url:
        with connect(url, "right") as client:
            assert [entry.id for entry in client.models.list()] == [model]
        with connect(url, "wrong") as client, pytest.raises(openai.AuthenticationError) as refused:
            client.models.list()
    assert refused.value.code == "invalid_api_key"


def test_a_stream_that_is_closed_frees_the_engine(client, model, health):
    story = [{"role": "user", "content": "Tell me a story."}]
    stream = ask(client, model, messages=story, max_tokens=8000, stream=True, extra_body={"ignore_eos": True})
    for _ in range(5):
        next(stream)
    assert health()["running"] == 1
    stream.close()
    # All 8000 tokens would take minutes.
    deadline = time.monotonic() + 30
    while health()["running"]:
        assert time.monotonic() < deadline, "the engine goes on for nobody"
        time.sleep(0.05)
    assert "4711" in ask(client, model).choices[0].message.content
