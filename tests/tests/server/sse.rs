//! Event streams: their shape, and signs of life while nothing is generated.

use std::time::Duration;

use headstart_tests::{
    client::{Sse, chunks, text_of},
    models::{STARTER, TINY, byte_token},
};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Lab, ask, long_text, with};

/// What all chunks of one answer share, and that nothing ends before the end.
fn check_chunks(chunks: &[Value], object: &str) {
    let first = &chunks[0];
    for chunk in chunks {
        for key in ["id", "created", "model"] {
            assert!(!first[key].is_null());
            assert_eq!(chunk[key], first[key], "{key} of {chunk}");
        }
        assert_eq!(chunk["object"], object);
        assert!(chunk["choices"].is_array(), "{chunk}");
    }
    let reasons: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0].get("finish_reason"))
        .collect();
    let (last, others) = reasons.split_last().unwrap();
    assert_eq!(*last, "length");
    assert!(others.iter().all(|reason| reason.is_null()), "{reasons:?}");
}

#[test]
fn a_chat_stream_has_the_shape_that_clients_expect() {
    let lab = Lab::shared();
    let client = lab.client();
    let request = ask(TINY, "Hello", 12);
    let chunks = chunks(client.stream(CHAT, &request));
    check_chunks(&chunks, "chat.completion.chunk");
    assert!(chunks[0]["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({}));
    for chunk in &rest[1..] {
        let delta = chunk["choices"][0]["delta"].as_object().unwrap();
        assert!(delta["content"].is_string(), "{chunk}");
        assert_eq!(delta.len(), 1, "{chunk}");
    }
    for chunk in &chunks {
        assert!(chunk.get("usage").is_none(), "nobody asked for it: {chunk}");
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
        assert_eq!(chunk["choices"][0]["index"], 0);
    }
    assert_eq!(text_of(&chunks), client.chat_text(&request));
}

#[test]
fn a_completion_stream_has_the_shape_that_clients_expect() {
    let lab = Lab::shared();
    let client = lab.client();
    let request =
        json!({"model": TINY, "prompt": "Hello", "temperature": 0, "max_tokens": 12, "echo": true});
    let chunks = chunks(client.stream(COMPLETIONS, &request));
    check_chunks(&chunks, "text_completion");
    let whole = client.complete(&request);
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("Hello"), "echo");
    assert_eq!(text_of(&chunks), text);
    for chunk in &chunks {
        assert!(chunk["choices"][0]["text"].is_string(), "{chunk}");
        assert!(chunk.get("usage").is_none(), "{chunk}");
    }
}

#[test]
fn usage_comes_last_and_only_when_asked_for() {
    let lab = Lab::shared();
    let client = lab.client();
    let usage = json!({"stream_options": {"include_usage": true}});
    let completion = json!({"model": TINY, "prompt": "Hello", "temperature": 0, "max_tokens": 5});
    for (path, request) in [(CHAT, ask(TINY, "Hello", 5)), (COMPLETIONS, completion)] {
        let chunks = chunks(client.stream(path, &with(request.clone(), usage.clone())));
        let (last, rest) = chunks.split_last().unwrap();
        assert_eq!(last["choices"], json!([]), "{last}");
        assert_eq!(last["usage"]["completion_tokens"], 5, "{last}");
        for chunk in rest {
            assert_eq!(chunk.get("usage"), Some(&Value::Null), "{chunk}");
        }
        let off = json!({"stream_options": {"include_usage": false}});
        for chunk in headstart_tests::client::chunks(client.stream(path, &with(request, off))) {
            assert!(chunk.get("usage").is_none(), "{chunk}");
        }
    }
}

/// A chunk without content behind the opening one: a sign of life.
fn is_idle(line: &Sse) -> bool {
    matches!(line, Sse::Data(chunk) if chunk["choices"][0]["delta"] == json!({"content": ""}))
}

/// The lines of a request that waits behind another one, which goes away after `signs` signs of life, or after a while when none are
/// awaited.
fn lines_while_waiting(mode: &str, signs: usize, is_sign: fn(&Sse) -> bool) -> Option<Vec<Sse>> {
    let lab = Lab::start(|setup| {
        setup.settings("max_running = 1").arguments(&[
            "--keep-alive",
            mode,
            "--keep-alive-seconds",
            "1",
        ])
    });
    if !lab.has_starter() {
        return None;
    }
    let client = lab.client();
    let endless = with(
        ask(STARTER, "Tell me a story.", 8000),
        json!({"ignore_eos": true}),
    );
    let occupant = client.stream(CHAT, &endless);
    client.wait_for_health("running", 1);
    let mut stream = client.stream(CHAT, &ask(TINY, "Hello", 3));
    let mut lines = Vec::new();
    if signs == 0 {
        // Longer than three periods.
        std::thread::sleep(Duration::from_millis(3500));
    }
    while lines.iter().filter(|line| is_sign(line)).count() < signs {
        lines.push(stream.next().unwrap());
    }
    assert_eq!(client.health("waiting"), 1, "it still waits");
    drop(occupant);
    lines.extend(stream);
    Some(lines)
}

#[test]
fn keep_alive_comments() {
    let is_comment = |line: &Sse| matches!(line, Sse::Comment(_));
    let Some(lines) = lines_while_waiting("comment", 2, is_comment) else {
        return;
    };
    assert!(lines.contains(&Sse::Comment("waiting".into())), "{lines:?}");
    assert!(!lines.iter().any(is_idle), "{lines:?}");
    assert_eq!(lines.last(), Some(&Sse::Done));
}

#[test]
fn keep_alive_chunks() {
    let Some(lines) = lines_while_waiting("chunk", 2, is_idle) else {
        return;
    };
    assert!(!lines.iter().any(|line| matches!(line, Sse::Comment(_))));
    assert_eq!(lines.last(), Some(&Sse::Done));
}

#[test]
fn keep_alive_off() {
    let Some(lines) = lines_while_waiting("off", 0, is_idle) else {
        return;
    };
    assert!(!lines.iter().any(|line| matches!(line, Sse::Comment(_))));
    assert!(!lines.iter().any(is_idle), "{lines:?}");
    assert_eq!(lines.last(), Some(&Sse::Done));
}

#[test]
fn a_long_prefill_says_how_far_it_is() {
    let lab = Lab::start(|setup| setup.arguments(&["--keep-alive-seconds", "1"]));
    if !lab.has_starter() {
        return;
    }
    let request = with(
        ask(STARTER, &long_text(1300), 1),
        json!({"stream_options": {"include_usage": true}}),
    );
    let lines: Vec<Sse> = lab.client().stream(CHAT, &request).collect();
    let Some(Sse::Data(last)) = lines.iter().rev().find(|line| matches!(line, Sse::Data(_))) else {
        panic!("no usage in {lines:?}");
    };
    let seconds = last["usage"]["time_to_first_token"].as_f64().unwrap();
    if seconds < 4.0 {
        println!("SKIPPED: this machine prefills too fast, in {seconds} s");
        return;
    }
    let total = last["usage"]["prompt_tokens"].as_u64().unwrap();
    let progress: Vec<u64> = lines
        .iter()
        .filter_map(|line| match line {
            Sse::Comment(text) => text
                .strip_prefix("prefill ")?
                .strip_suffix(&format!("/{total}"))?
                .parse()
                .ok(),
            _ => None,
        })
        .collect();
    assert!(!progress.is_empty(), "{lines:?}");
    assert!(progress.is_sorted() && progress[0] < total, "{progress:?}");
}

/// The engine is busy and tells the server so, but no text goes out: the whole answer could still become a stop string.
#[test]
fn signs_of_life_go_out_while_text_is_held_back() {
    let lab = Lab::start(|setup| setup.arguments(&["--keep-alive-seconds", "1"]));
    let token = byte_token(b'a').to_string();
    let request = with(
        ask(TINY, "Hello", 4000),
        json!({
            "logit_bias": {token: 100},
            "stop": ["a".repeat(4050)],
            "stream_options": {"include_usage": true},
        }),
    );
    let mut usage = Value::Null;
    for line in lab.client().stream(CHAT, &request) {
        match line {
            Sse::Comment(text) => {
                assert_eq!(text, "decoding");
                return;
            }
            Sse::Data(mut chunk) => usage = chunk["usage"].take(),
            Sse::Done => {}
        }
    }
    assert_eq!(usage["completion_tokens"], 4000);
    let seconds = usage["total_time"].as_f64().unwrap();
    assert!(seconds < 2.0, "no sign of life in {seconds} s");
    println!("SKIPPED: this machine generates too fast, in {seconds} s");
}
