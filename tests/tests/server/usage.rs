//! The numbers in `usage` are honest (law 9 of the design).

use std::time::Instant;

use headstart_tests::{
    client::Sse,
    models::{STARTER, TINY},
};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Lab, ask, with};

fn number(usage: &Value, name: &str) -> f64 {
    usage[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name} in {usage}"))
}

/// Relations that hold whatever the machine's speed. Times are rounded to microseconds, speeds to a thousandth.
fn check(usage: &Value, prompt_tokens: usize, completion_tokens: usize) {
    assert_eq!(number(usage, "prompt_tokens"), prompt_tokens as f64);
    assert_eq!(number(usage, "completion_tokens"), completion_tokens as f64);
    assert_eq!(
        number(usage, "total_tokens"),
        (prompt_tokens + completion_tokens) as f64
    );
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    let computed = prompt_tokens as f64 - cached.unwrap() as f64;
    let first = number(usage, "time_to_first_token");
    let prefill = number(usage, "prompt_eval_duration");
    let decode = number(usage, "generation_duration");
    let total = number(usage, "total_time");
    assert!(prefill > 0.0 && prefill <= first, "{usage}");
    assert!(first + decode <= total + 3e-6, "{usage}");
    let close = |speed: f64, tokens: f64, seconds: f64| {
        let expected = tokens / seconds;
        assert!(
            (speed - expected).abs() <= 1e-3 + expected * 2e-6 / seconds,
            "{speed} is not {tokens} / {seconds}: {usage}"
        );
    };
    close(number(usage, "prompt_tokens_per_second"), computed, prefill);
    if completion_tokens == 1 {
        assert_eq!(usage["generation_tokens_per_second"], Value::Null);
    } else {
        close(
            number(usage, "generation_tokens_per_second"),
            completion_tokens as f64 - 1.0,
            decode,
        );
    }
}

#[test]
fn counts_and_times_agree_with_each_other_and_with_the_clock() {
    let lab = Lab::shared();
    let client = lab.client();
    // <|user|>, the bytes, <|assistant|>
    for (text, tokens) in [("Hello", 9), ("é", 1), ("Hello", 2)] {
        let started = Instant::now();
        let reply = client.chat(&ask(TINY, text, tokens));
        let wall = started.elapsed().as_secs_f64();
        check(&reply["usage"], text.len() + 2, tokens);
        assert!(number(&reply["usage"], "total_time") <= wall);
    }
    let completion = json!({"model": TINY, "prompt": "Hello", "temperature": 0, "max_tokens": 4});
    check(&client.complete(&completion)["usage"], 5, 4);
    let ids = json!({"prompt": [20, 21, 22]});
    check(&client.complete(&with(completion, ids))["usage"], 3, 4);
}

/// The server's time to first token runs from the request's arrival, so it lies within what the client sees.
#[test]
fn streamed_times_lie_within_what_the_client_sees() {
    let lab = Lab::shared();
    let model = if lab.has_starter() { STARTER } else { TINY };
    let usage = json!({"stream_options": {"include_usage": true}, "ignore_eos": true});
    let completion =
        json!({"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8});
    for (path, request) in [(CHAT, ask(model, "Hello", 8)), (COMPLETIONS, completion)] {
        let started = Instant::now();
        let mut first_text = None;
        let mut last = Value::Null;
        for line in lab.client().stream(path, &with(request, usage.clone())) {
            let Sse::Data(chunk) = line else { continue };
            let choice = &chunk["choices"][0];
            let text = choice["delta"]["content"]
                .as_str()
                .or(choice["text"].as_str());
            if text.is_some_and(|text| !text.is_empty()) {
                first_text.get_or_insert_with(|| started.elapsed().as_secs_f64());
            }
            last = chunk;
        }
        let wall = started.elapsed().as_secs_f64();
        let usage = &last["usage"];
        check(usage, number(usage, "prompt_tokens") as usize, 8);
        assert!(number(usage, "time_to_first_token") <= first_text.unwrap());
        assert!(number(usage, "total_time") <= wall);
    }
}
