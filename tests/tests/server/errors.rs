//! What is refused, and that the refusal helps.

use headstart_tests::{
    client::Reply,
    models::{BROKEN, CUT, REFUSAL, TINY, TINY_CONTEXT, TINY_MUTE, TINY_TEXT},
};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Lab, ask, with};

fn param(reply: &Reply) -> String {
    reply.json()["error"]["param"]
        .as_str()
        .unwrap_or_default()
        .to_string()
}

#[test]
fn models_are_listed_with_those_that_cannot_be_used_apart() {
    let lab = Lab::shared();
    let client = lab.client();
    let list = client.get("/v1/models").ok();
    let ids = |key: &str| -> Vec<&str> {
        let entries = list[key].as_array().unwrap();
        entries.iter().map(|e| e["id"].as_str().unwrap()).collect()
    };
    assert_eq!(list["object"], "list");
    for id in [TINY, TINY_TEXT] {
        assert!(ids("data").contains(&id), "{id} in {list}");
        let one = client.get(&format!("/v1/models/{id}")).ok();
        assert_eq!((&one["id"], &one["object"]), (&json!(id), &json!("model")));
        assert_eq!(one["context_length"], TINY_CONTEXT);
    }
    for id in [BROKEN, CUT] {
        assert!(!ids("data").contains(&id), "{id} in {list}");
        assert!(ids("unavailable").contains(&id), "{id} in {list}");
        let message = client.get(&format!("/v1/models/{id}")).error(404);
        assert!(message.contains("cannot be used"), "{message}");
    }
    let reasons = list["unavailable"].as_array().unwrap();
    let broken = reasons.iter().find(|entry| entry["id"] == BROKEN).unwrap();
    let reason = broken["reason"].as_str().unwrap();
    assert!(reason.contains("config.json"), "{reason}");
}

#[test]
fn an_unknown_model_is_answered_with_the_known_ones() {
    let lab = Lab::shared();
    let client = lab.client();
    let completion = json!({"model": "gpt-9", "prompt": "x"});
    for (path, request) in [(CHAT, ask("gpt-9", "x", 1)), (COMPLETIONS, completion)] {
        let reply = client.post(path, &request);
        let message = reply.error(404);
        assert!(
            message.contains(TINY) && message.contains(TINY_TEXT),
            "{message}"
        );
        assert!(!message.contains(BROKEN), "{message}");
        assert_eq!(reply.json()["error"]["code"], "model_not_found");
        assert_eq!(param(&reply), "model");
    }
    let message = client.get("/v1/models/gpt-9").error(404);
    assert!(message.contains(TINY), "{message}");
    let message = client.post(CHAT, &ask(BROKEN, "x", 1)).error(404);
    assert!(message.contains("config.json"), "{message}");
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_numbers() {
    let lab = Lab::shared();
    let client = lab.client();
    let too_long = "a".repeat(TINY_CONTEXT + 904);
    for stream in [false, true] {
        let completion =
            json!({"model": TINY, "prompt": too_long, "max_tokens": 1, "stream": stream});
        let chat = with(ask(TINY, &too_long, 1), json!({"stream": stream}));
        for (path, request, tokens) in [(COMPLETIONS, completion, "5000"), (CHAT, chat, "5002")] {
            let reply = client.post(path, &request);
            let message = reply.error(400);
            assert!(message.contains(tokens), "{message}");
            assert!(message.contains(&TINY_CONTEXT.to_string()), "{message}");
            assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
        }
    }
    // What cannot fit whatever its tokens are is refused before it is tokenized, with the least that it must have.
    let hopeless = json!({"model": TINY, "prompt": "a".repeat(20_000_000), "max_tokens": 1});
    let reply = client.post(COMPLETIONS, &hopeless);
    let message = reply.error(400);
    assert!(message.contains("at least"), "{message}");
    assert!(message.contains(&TINY_CONTEXT.to_string()), "{message}");
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    // One token of room is enough; asking for more than there is room for is no mistake.
    let fits = json!({"model": TINY, "prompt": "a".repeat(TINY_CONTEXT - 1), "max_tokens": 50});
    let reply = client.complete(&fits);
    assert_eq!(reply["usage"]["completion_tokens"], 1);
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
}

#[test]
fn malformed_json_is_named_by_line_and_column() {
    let lab = Lab::shared();
    let client = lab.client();
    for path in [CHAT, COMPLETIONS] {
        for (body, place) in [
            ("{\"model\": \"x\",\n  \"stop\": [}", "line 2 column 12"),
            ("{\"model\": \"x\"", "line 1 column"),
            ("{\"model\": \"x\"} {", "line 1 column 16"),
            ("\u{feff}{}", "line 1 column 1"),
            ("", "empty"),
            ("  \n", "empty"),
        ] {
            let message = client.post_bytes(path, body.as_bytes(), &[]).error(400);
            assert!(message.contains(place), "{body:?}: {message}");
        }
        let message = client
            .post_bytes(path, b"{\"model\": \"\xff\xfe\"}", &[])
            .error(400);
        assert!(message.contains("JSON"), "{message}");
    }
}

#[test]
fn wrong_values_are_named_by_their_path() {
    let lab = Lab::shared();
    let client = lab.client();
    let completion = json!({"model": TINY, "prompt": "x", "max_tokens": 1});
    let cases: [(&str, Value, &str); 24] = [
        (CHAT, json!({"temperature": "hot"}), "temperature"),
        (CHAT, json!({"temperature": -0.5}), "temperature"),
        (CHAT, json!({"top_p": 1.5}), "top_p"),
        (CHAT, json!({"max_tokens": "many"}), "max_tokens"),
        (CHAT, json!({"max_tokens": 0}), "max_tokens"),
        (
            CHAT,
            json!({"max_completion_tokens": -7}),
            "max_completion_tokens",
        ),
        (CHAT, json!({"stop": 3}), "stop"),
        (CHAT, json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (CHAT, json!({"logit_bias": {"8": "much"}}), "logit_bias.8"),
        (CHAT, json!({"logit_bias": {"4000000000": 1}}), "logit_bias"),
        (
            CHAT,
            json!({"stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
        ),
        (CHAT, json!({"messages": "hi"}), "messages"),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": 3}]}),
            "messages",
        ),
        (CHAT, json!({"messages": []}), "messages"),
        (CHAT, json!({"model": 5}), "model"),
        (CHAT, json!({"top_logprobs": 3}), "top_logprobs"),
        (
            CHAT,
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (CHAT, json!({"n": 2}), "n"),
        (
            CHAT,
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (CHAT, json!({"tool_choice": "required"}), "tool_choice"),
        (COMPLETIONS, json!({"prompt": {"text": "x"}}), "prompt"),
        (COMPLETIONS, json!({"suffix": "end"}), "suffix"),
        (COMPLETIONS, json!({"logprobs": true}), "logprobs"),
        (COMPLETIONS, json!({"logprobs": 21}), "logprobs"),
    ];
    for (path, change, name) in cases {
        let base = if path == CHAT {
            ask(TINY, "x", 1)
        } else {
            completion.clone()
        };
        let reply = client.post(path, &with(base, change.clone()));
        let message = reply.error(400);
        assert_eq!(param(&reply), name, "{change}: {message}");
        assert!(message.len() < 400, "{message}");
        // What is expected is said in JSON's words.
        for word in ["usize", "i64", "f32", "struct", "sequence"] {
            assert!(!message.contains(word), "{message}");
        }
    }
    let message = client
        .post(
            CHAT,
            &with(
                ask(TINY, "x", 1),
                json!({"messages": [{"role": "user", "content": 3}]}),
            ),
        )
        .error(400);
    assert!(message.contains("messages[0].content"), "{message}");
}

/// What only the engine could refuse is still refused before a stream begins: a client that gets a 200 takes it for an answer.
#[test]
fn streams_refuse_the_same_as_whole_replies() {
    let lab = Lab::shared();
    let client = lab.client();
    let many: Vec<String> = (0..100).map(|i| format!("stop{i}")).collect();
    for stream in [false, true] {
        for (path, change, name) in [
            (CHAT, json!({"stop": many}), "stop"),
            (CHAT, json!({"stop": "s".repeat(100_000)}), "stop"),
            (
                COMPLETIONS,
                json!({"prompt": [1, 4_000_000_000_u32]}),
                "prompt",
            ),
            (COMPLETIONS, json!({"prompt": ""}), "prompt"),
            (COMPLETIONS, json!({"prompt": []}), "prompt"),
            (CHAT, json!({"temperature": 1e300}), "temperature"),
        ] {
            let base = if path == CHAT {
                ask(TINY, "x", 1)
            } else {
                json!({"model": TINY, "max_tokens": 1})
            };
            let request = with(with(base, change.clone()), json!({"stream": stream}));
            let reply = client.post(path, &request);
            let message = reply.error(400);
            assert_eq!(param(&reply), name, "stream {stream} {name}: {message}");
        }
    }
}

#[test]
fn unknown_fields_and_nulls_are_ignored() {
    let lab = Lab::shared();
    let further = json!({
        "user": "me", "metadata": {"a": [1]}, "store": false, "frobnicate": {"deep": [null, {"x": 1}]}, "service_tier": 7,
        "stop": null, "top_p": null, "logit_bias": null, "stream_options": null, "tools": null, "seed": null,
        "response_format": {"type": "text"}, "n": 1, "parallel_tool_calls": true,
    });
    let reply = lab.client().chat(&with(ask(TINY, "Hello", 1), further));
    assert_eq!(reply["usage"]["completion_tokens"], 1);
    // Fields of messages too; `tool_call_id: null` comes from clients that send back whole objects.
    let message = json!({"role": "user", "content": "Hello", "tool_call_id": null, "id": "m1", "tool_calls": null});
    lab.client()
        .chat(&with(ask(TINY, "", 1), json!({"messages": [message]})));
}

#[test]
fn a_templates_refusal_reaches_the_client_in_its_own_words() {
    let lab = Lab::shared();
    let client = lab.client();
    for stream in [false, true] {
        let messages =
            json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
        let request = with(
            ask(TINY, "", 1),
            json!({"messages": messages, "stream": stream}),
        );
        let reply = client.post(CHAT, &request);
        let message = reply.error(400);
        assert!(message.contains(REFUSAL), "{message}");
        assert_eq!(param(&reply), "messages");
    }
}

#[test]
fn a_model_without_a_template_completes_but_does_not_chat() {
    let lab = Lab::shared();
    let client = lab.client();
    let message = client.post(CHAT, &ask(TINY_TEXT, "Hi", 1)).error(400);
    assert!(
        message.contains("chat template") && message.contains(COMPLETIONS),
        "{message}"
    );
    let reply = client.complete(&json!({"model": TINY_TEXT, "prompt": "Hi", "max_tokens": 1}));
    assert_eq!(reply["usage"]["completion_tokens"], 1);
}

#[test]
fn a_model_without_a_tokenizer_says_what_is_missing() {
    let lab = Lab::shared();
    let list = lab.client().get("/v1/models").json();
    let ids = |key: &str| -> Vec<&Value> {
        let entries = list[key].as_array().unwrap();
        entries.iter().map(|entry| &entry["id"]).collect()
    };
    assert!(ids("data").contains(&&json!(TINY)));
    assert!(!ids("data").contains(&&json!(TINY_MUTE)));
    assert!(ids("unavailable").contains(&&json!(TINY_MUTE)));
    let reply = lab.client().post(
        COMPLETIONS,
        &json!({"model": TINY_MUTE, "prompt": "Hi", "max_tokens": 1}),
    );
    let message = reply.error(404);
    assert!(message.contains("tokenizer.json"), "{message}");
    // Others are not affected.
    lab.client().chat(&ask(TINY, "Hi", 1));
}

#[test]
fn wrong_paths_methods_and_sizes_are_answered_in_the_same_shape() {
    let lab = Lab::shared();
    let client = lab.client();
    let message = client.get("/v1/nothing").error(404);
    assert!(message.contains("/v1/nothing"), "{message}");
    let message = client.get(CHAT).error(405);
    assert!(message.contains("GET"), "{message}");
    let size = (64 << 20) + 1;
    let mut request = format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n").into_bytes();
    request.resize(request.len() + size, b' ');
    let answer = client.raw(&request);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("larger than"), "{answer}");
}
