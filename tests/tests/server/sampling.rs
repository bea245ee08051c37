//! Stops, limits, log-probabilities, biases, and characters of several tokens.

use headstart_tests::{
    client::{Client, chunks, text_of},
    models::{STARTER, TINY, byte_token},
};
use serde_json::{Map, Value, json};

use super::{CHAT, COMPLETIONS, Lab, ask, with};

/// Fields that make the tiny model write `bytes` again and again: each is a little less likely than the one before, and what was
/// written is penalized by more than that.
fn writes(bytes: &[u8]) -> Value {
    let mut bias = Map::new();
    for (i, byte) in bytes.iter().enumerate() {
        bias.insert(byte_token(*byte).to_string(), json!(100.0 - 0.6 * i as f32));
    }
    json!({"logit_bias": bias, "frequency_penalty": 2.0, "presence_penalty": 2.0})
}

fn finish_reason(reply: &Value) -> &str {
    reply["choices"][0]["finish_reason"]
        .as_str()
        .unwrap_or_default()
}

/// The text of a chat, which must be the same whole and streamed, and why it ended.
fn both_ways(client: &Client, request: &Value) -> (String, String) {
    let whole = client.chat(request);
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let streamed = chunks(client.stream(CHAT, request));
    assert_eq!(text_of(&streamed), text);
    let last = streamed.last().unwrap();
    assert_eq!(finish_reason(last), finish_reason(&whole));
    (text.to_string(), finish_reason(&whole).to_string())
}

#[test]
fn stop_strings_end_the_answer_across_token_borders() {
    let lab = Lab::shared();
    let client = lab.client();
    let request = |stop: Value| {
        with(
            with(ask(TINY, "Hi", 10), writes(b"abcd")),
            json!({"stop": stop}),
        )
    };
    let stopped = |stop: Value| both_ways(&client, &request(stop));
    let result = |text: &str, reason: &str| (text.to_string(), reason.to_string());
    assert_eq!(stopped(json!(null)), result("abcdabcdab", "length"));
    assert_eq!(stopped(json!("cda")), result("ab", "stop"));
    assert_eq!(
        stopped(json!(["zzz", "dab", "cdabc"])),
        result("abc", "stop")
    );
    assert_eq!(stopped(json!("a")), result("", "stop"));
    // Almost: the text held back for it comes out after all.
    assert_eq!(
        stopped(json!("abcdabcdabc")),
        result("abcdabcdab", "length")
    );
    assert_eq!(stopped(json!("")), result("abcdabcdab", "length"));
    // The limit and the stop string at the same token.
    assert_eq!(stopped(json!("bcdab")), result("a", "stop"));
    let id = json!({"stop_token_ids": [byte_token(b'c')]});
    assert_eq!(
        both_ways(&client, &with(request(json!(null)), id)),
        result("ab", "stop")
    );
}

#[test]
fn the_starter_stops_inside_its_tokens() {
    let lab = Lab::shared();
    if !lab.has_starter() {
        return;
    }
    let client = lab.client();
    let request = with(
        ask(STARTER, "Count from one to ten.", 24),
        json!({"logprobs": true}),
    );
    let reply = client.chat(&request);
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
    let tokens: Vec<&str> = reply["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token["token"].as_str().unwrap())
        .collect();
    assert!(text.starts_with(&tokens[..6].concat()), "{tokens:?}");
    // From inside one token into the next.
    let border =
        (2..5).find(|i| tokens[*i].is_ascii() && tokens[*i].len() > 1 && tokens[i + 1].is_ascii());
    let border = border.unwrap();
    let (left, right) = (tokens[border], tokens[border + 1]);
    let stop = format!("{}{}", &left[left.len() - 1..], &right[..1]);
    let expected = &text[..text.find(&stop).unwrap()];
    let stopped = both_ways(
        &client,
        &with(
            ask(STARTER, "Count from one to ten.", 24),
            json!({"stop": stop}),
        ),
    );
    assert_eq!(
        stopped,
        (expected.to_string(), "stop".to_string()),
        "stop {stop:?}"
    );
}

#[test]
fn limits_are_kept() {
    let lab = Lab::shared();
    let client = lab.client();
    for (limit, tokens) in [
        (json!({"max_tokens": 1}), 1),
        (json!({"max_tokens": 3, "max_completion_tokens": 2}), 2),
    ] {
        let reply = client.chat(&with(ask(TINY, "Hello", 1), limit));
        assert_eq!(reply["usage"]["completion_tokens"], tokens);
        assert_eq!(finish_reason(&reply), "length");
    }
}

#[test]
fn log_probabilities_are_those_of_a_distribution() {
    let lab = Lab::shared();
    let model = if lab.has_starter() { STARTER } else { TINY };
    let client = lab.client();
    let request = with(
        ask(model, "Hello", 6),
        json!({"logprobs": true, "top_logprobs": 20, "ignore_eos": true}),
    );
    let reply = client.chat(&request);
    let choice = &reply["choices"][0];
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries.len(), 6, "one a token: {choice}");
    let mut bytes = Vec::new();
    for entry in entries {
        bytes.extend(
            entry["bytes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|b| b.as_u64().unwrap() as u8),
        );
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 20);
        let logprobs: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(logprobs.iter().all(|logprob| *logprob <= 0.0));
        assert!(logprobs.is_sorted_by(|a, b| a >= b), "{logprobs:?}");
        let mass: f64 = logprobs.iter().map(|logprob| logprob.exp()).sum();
        assert!(mass <= 1.0 + 1e-5, "{mass}");
        // Greedy: the chosen one is the best.
        assert_eq!(entry["logprob"], top[0]["logprob"]);
        assert_eq!(entry["token"], top[0]["token"]);
    }
    let text = String::from_utf8_lossy(&bytes);
    assert_eq!(text, choice["message"]["content"].as_str().unwrap());

    let streamed = chunks(client.stream(CHAT, &request));
    let parts = streamed
        .iter()
        .filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(&parts.flatten().cloned().collect::<Vec<_>>(), entries);

    let without = client.chat(&ask(model, "Hello", 2));
    assert_eq!(without["choices"][0]["logprobs"], Value::Null);
    let none = client.chat(&with(ask(model, "Hello", 2), json!({"logprobs": true})));
    assert_eq!(
        none["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
        json!([])
    );
}

#[test]
fn completions_have_log_probabilities_in_their_own_shape() {
    let lab = Lab::shared();
    let request = with(
        json!({"model": TINY, "prompt": "Hello", "temperature": 0, "max_tokens": 4, "logprobs": 2}),
        writes(b"wxyz"),
    );
    let reply = lab.client().complete(&request);
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], "wxyz");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["w", "x", "y", "z"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    for key in ["token_logprobs", "top_logprobs"] {
        assert_eq!(logprobs[key].as_array().unwrap().len(), 4, "{logprobs}");
    }
    // The model's own view: the bias is ours.
    let chosen = logprobs["token_logprobs"][0].as_f64().unwrap();
    assert!(chosen < -1.0, "{chosen}");
}

#[test]
fn a_bias_of_minus_100_bans_a_token() {
    let lab = Lab::shared();
    let client = lab.client();
    let favoured = writes(b"abcd");
    let request = with(ask(TINY, "Hi", 4), favoured.clone());
    assert_eq!(client.chat_text(&request), "abcd");
    let mut bias = favoured["logit_bias"].clone();
    bias[byte_token(b'b').to_string()] = json!(-100);
    let text = client.chat_text(&with(request, json!({"logit_bias": bias})));
    assert!(!text.contains('b') && text.starts_with("acd"), "{text}");

    // The best token of an unbiased answer, banned.
    let plain =
        json!({"model": TINY, "prompt": "Hello", "temperature": 0, "max_tokens": 1, "logprobs": 1});
    let best = client.complete(&plain)["choices"][0]["logprobs"]["tokens"][0].clone();
    let all_bytes: Map<String, Value> = (0..=127u8)
        .filter(|byte| best == json!(char::from(*byte).to_string()))
        .map(|byte| (byte_token(byte).to_string(), json!(-100)))
        .collect();
    if !all_bytes.is_empty() {
        let other = client.complete(&with(plain, json!({"logit_bias": all_bytes})));
        assert_ne!(other["choices"][0]["logprobs"]["tokens"][0], best);
    }
}

/// The tiny model writes bytes: no character of several is sent in parts, and what is cut off at the end is replaced, not lost.
#[test]
fn characters_of_several_tokens_arrive_whole() {
    let lab = Lab::shared();
    let client = lab.client();
    for (text, tokens, expected) in [
        ("😀", 12, "😀😀😀".to_string()),
        ("€", 9, "€€€".to_string()),
        ("é", 6, "ééé".to_string()),
        ("😀", 10, "😀😀\u{fffd}".to_string()),
    ] {
        let request = with(ask(TINY, "Hi", tokens), writes(text.as_bytes()));
        let whole = client.chat_text(&request);
        assert_eq!(whole, expected, "{text} in {tokens} tokens");
        let chunks = chunks(client.stream(CHAT, &request));
        assert_eq!(text_of(&chunks), whole);
        for chunk in &chunks {
            let Some(delta) = chunk["choices"][0]["delta"]["content"].as_str() else {
                continue;
            };
            let allowed = |c: char| text.contains(c) || c == '\u{fffd}';
            assert!(delta.chars().all(allowed), "{delta:?}");
        }
    }
    // Noise: most of it is no text at all.
    for seed in 0..4 {
        let noise = with(
            ask(TINY, "Hi", 60),
            json!({"temperature": 1.5, "seed": seed}),
        );
        both_ways(&client, &noise);
    }
}

#[test]
fn the_starter_streams_emoji_and_chinese_as_it_writes_them() {
    let lab = Lab::shared();
    if !lab.has_starter() {
        return;
    }
    let prompt = "Smileys: 😀😃😄😁😆😅🤣😂🙂😀😃😄😁😆😅🤣😂🙂 你好你好你好 Smileys: 😀😃😄😁";
    let request = json!({"model": STARTER, "prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": true});
    let whole = lab.client().complete(&request);
    let whole = whole["choices"][0]["text"].as_str().unwrap();
    assert!(
        whole.chars().any(|c| !c.is_ascii()),
        "no emoji in {whole:?}"
    );
    assert_eq!(
        text_of(&chunks(lab.client().stream(COMPLETIONS, &request))),
        whole
    );
}

#[test]
fn prompts_may_be_token_ids() {
    let lab = Lab::shared();
    let client = lab.client();
    let text = json!({"model": TINY, "prompt": "Hello", "temperature": 0, "max_tokens": 8});
    let ids: Vec<u32> = b"Hello".iter().map(|byte| byte_token(*byte)).collect();
    let expected = client.complete(&text)["choices"].clone();
    for prompt in [json!(ids), json!([ids]), json!(["Hello"])] {
        let found = client.complete(&with(text.clone(), json!({"prompt": prompt})));
        assert_eq!(found["choices"], expected, "{prompt}");
    }
}
