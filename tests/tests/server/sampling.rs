//! Stops, limits, log-probabilities, biases, and characters of several tokens.

use headstart_tests::{
    client::{Client, chunks, text_of},
    models::{ALPHABET, STARTER, TINY, byte_token},
};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Lab, ask, with};

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
    let request = |stop: Value| with(ask(ALPHABET, "Hi", 10), json!({"stop": stop}));
    let stopped = |stop: Value| both_ways(&client, &request(stop));
    let result = |text: &str, reason: &str| (text.to_string(), reason.to_string());
    let whole = result("abcdefghij", "length");
    assert_eq!(stopped(json!(null)), whole);
    assert_eq!(stopped(json!("cde")), result("ab", "stop"));
    assert_eq!(
        stopped(json!(["zzz", "efg", "cdefgh"])),
        result("abcd", "stop")
    );
    assert_eq!(stopped(json!("a")), result("", "stop"));
    // Almost: the text held back for it comes out after all.
    assert_eq!(stopped(json!("abcdefghijk")), whole);
    assert_eq!(stopped(json!("")), whole);
    // The limit and the stop string at the same token.
    assert_eq!(stopped(json!("hij")), result("abcdefg", "stop"));
    let id = json!({"stop_token_ids": [byte_token(b'c')]});
    let by_id = both_ways(&client, &with(request(json!(null)), id));
    assert_eq!(by_id, result("ab", "stop"));
}

#[test]
fn the_starter_stops_inside_its_tokens() {
    let lab = Lab::shared();
    if !lab.has_starter() {
        return;
    }
    let client = lab.client();
    let request = ask(STARTER, "What is the capital of France?", 16);
    let reply = client.chat(&with(request.clone(), json!({"logprobs": true})));
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
    let tokens: Vec<&str> = reply["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token["token"].as_str().unwrap())
        .collect();
    assert!(text.starts_with(&tokens[..4].concat()), "{tokens:?}");
    // From inside one token into the next.
    let border = tokens.windows(2).skip(1).find_map(|pair| {
        let (left, right) = (pair[0], pair[1]);
        let words = left.is_ascii() && right.is_ascii() && left.len() > 2 && right.len() > 1;
        words.then(|| format!("{}{}", &left[left.len() - 2..], &right[..2]))
    });
    let stop = border.unwrap_or_else(|| panic!("no two words in {tokens:?}"));
    let expected = &text[..text.find(&stop).unwrap()];
    assert!(!expected.is_empty());
    let stopped = both_ways(&client, &with(request, json!({"stop": stop})));
    assert_eq!(
        stopped,
        (expected.to_string(), "stop".to_string()),
        "{stop:?}"
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
    let model = if lab.has_starter() { STARTER } else { ALPHABET };
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
    let request =
        json!({"model": ALPHABET, "prompt": "v", "temperature": 0, "max_tokens": 4, "logprobs": 2});
    let reply = lab.client().complete(&request);
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], "wxyz");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["w", "x", "y", "z"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    for key in ["token_logprobs", "top_logprobs"] {
        assert_eq!(logprobs[key].as_array().unwrap().len(), 4, "{logprobs}");
    }
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    assert_eq!(
        logprobs["top_logprobs"][0]["w"],
        logprobs["token_logprobs"][0]
    );

    // With the prompt in front, offsets count from the beginning of the reply's text.
    let echoed = with(request.clone(), json!({"prompt": "uv", "echo": true}));
    let reply = lab.client().complete(&echoed);
    assert_eq!(reply["choices"][0]["text"], "uvwxyz");
    let offsets = &reply["choices"][0]["logprobs"]["text_offset"];
    assert_eq!(*offsets, json!([2, 3, 4, 5]));

    // The probability is the model's own view: the bias is ours.
    let forced = json!({"logit_bias": {byte_token(b'q').to_string(): 100}});
    let reply = lab.client().complete(&with(request, forced));
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"][0], "q");
    assert!(
        logprobs["token_logprobs"][0].as_f64().unwrap() < -10.0,
        "{logprobs}"
    );
}

#[test]
fn a_bias_of_minus_100_bans_a_token() {
    let lab = Lab::shared();
    let client = lab.client();
    let request = ask(ALPHABET, "Hi", 4);
    assert_eq!(client.chat_text(&request), "abcd");
    let ban = json!({"logit_bias": {byte_token(b'c').to_string(): -100}});
    let text = client.chat_text(&with(request, ban));
    assert!(text.starts_with("ab") && !text.contains('c'), "{text}");
}

/// Every token is a byte: no character is sent in parts, and what is cut off at the end is replaced, not lost.
#[test]
fn characters_of_several_tokens_arrive_whole() {
    let lab = Lab::shared();
    let client = lab.client();
    for (text, tokens, expected) in [
        ("😀", 12, "😀😀😀"),
        ("€", 9, "€€€"),
        ("é", 6, "ééé"),
        ("😀", 10, "😀😀\u{fffd}"),
    ] {
        let request =
            json!({"model": ALPHABET, "prompt": text, "temperature": 0, "max_tokens": tokens});
        let whole = client.complete(&request);
        assert_eq!(whole["choices"][0]["text"], expected, "{tokens} tokens");
        let chunks = chunks(client.stream(COMPLETIONS, &request));
        assert_eq!(text_of(&chunks), expected);
        for chunk in &chunks {
            let part = chunk["choices"][0]["text"].as_str().unwrap();
            assert!(part.chars().all(|c| expected.contains(c)), "{part:?}");
        }
    }
    // Noise: most of it is no text at all.
    for seed in 0..4 {
        let noise = json!({"temperature": 1.5, "seed": seed});
        both_ways(&client, &with(ask(TINY, "Hi", 60), noise));
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
    assert!(!whole.is_ascii(), "no emoji in {whole:?}");
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
