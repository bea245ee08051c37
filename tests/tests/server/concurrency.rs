//! Several requests at once.

use std::thread;

use headstart_tests::{
    client::post_bytes,
    models::{STARTER, TINY},
};
use serde_json::{Value, json};

use super::{CHAT, Lab, ask, long_text, with};

#[test]
fn a_short_request_is_not_stuck_behind_a_long_prefill() {
    let lab = Lab::start(|setup| setup);
    if !lab.has_starter() {
        return;
    }
    let client = lab.client();
    let long = with(
        ask(STARTER, &long_text(1300), 60),
        json!({"ignore_eos": true}),
    );
    thread::scope(|scope| {
        let long = scope.spawn(|| client.chat(&long));
        client.wait_for_health("running", 1);
        client.chat(&ask(STARTER, "Hello", 2));
        assert!(!long.is_finished(), "the long one came first");
        let long = long.join().unwrap();
        assert_eq!(long["usage"]["completion_tokens"], 60);
    });
}

#[test]
fn a_seed_makes_an_answer_repeatable() {
    let lab = Lab::shared();
    let client = lab.client();
    let request = |seed: i64| {
        let sampled = json!({"temperature": 1.0, "seed": seed});
        client.chat(&with(ask(TINY, "Hello", 24), sampled))["choices"].clone()
    };
    let first = request(7);
    assert_eq!(request(7), first);
    assert_eq!(request(-7), request(-7));
    // 24 draws from noise over some 260 tokens: equal by chance never.
    assert_ne!(request(8), first);
    let free = || {
        client.chat(&with(ask(TINY, "Hello", 24), json!({"temperature": 1.0})))["choices"].clone()
    };
    assert_ne!(free(), free(), "without a seed, answers vary");
}

/// Different models, lengths and samplings side by side: nobody gets a part of another's answer, nor another answer than alone.
#[test]
fn answers_are_the_same_alone_and_beside_seven_others() {
    let lab = Lab::shared();
    let client = lab.client();
    let has_starter = lab.has_starter();
    let requests: Vec<Value> = (0..8)
        .map(|i| {
            let number = 4000 + 711 * i;
            let text = format!("{}Repeat this number: {number}", "Well. ".repeat(i * 3));
            let noise = json!({"temperature": 1.5, "seed": i, "ignore_eos": true});
            match i % 4 {
                2 if has_starter => with(
                    ask(STARTER, &text, 10),
                    json!({"temperature": 0.8, "seed": i}),
                ),
                0 | 1 if has_starter => ask(STARTER, &text, 10),
                _ => with(ask(TINY, &text, 40), noise),
            }
        })
        .collect();
    let alone: Vec<String> = requests
        .iter()
        .map(|request| client.chat_text(request))
        .collect();
    let together: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = requests
            .iter()
            .map(|request| scope.spawn(|| client.chat_text(request)))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .collect()
    });
    assert_eq!(together, alone);
    let distinct: std::collections::BTreeSet<&String> = alone.iter().collect();
    assert!(
        distinct.len() > 4,
        "the answers must differ to tell them apart: {alone:?}"
    );
}

#[test]
fn a_full_queue_is_said_at_once() {
    let lab = Lab::start(|setup| setup.settings("max_running = 1\nmax_waiting = 1"));
    if !lab.has_starter() {
        return;
    }
    let client = lab.client();
    let endless = with(
        ask(STARTER, "Tell me a story.", 8000),
        json!({"ignore_eos": true}),
    );
    let occupant = client.connect(&post_bytes(CHAT, &endless));
    client.wait_for_health("running", 1);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.chat(&ask(TINY, "Hello", 1)));
        client.wait_for_health("waiting", 1);
        for stream in [false, true] {
            let reply = client.post(
                CHAT,
                &with(ask(TINY, "Hello", 1), json!({"stream": stream})),
            );
            let message = reply.error(503);
            assert!(message.contains("waiting"), "{message}");
            let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=60).contains(&seconds));
        }
        // Refusals took no place.
        assert_eq!((client.health("running"), client.health("waiting")), (1, 1));
        drop(occupant);
        assert_eq!(waiting.join().unwrap()["usage"]["completion_tokens"], 1);
    });
    client.chat(&ask(TINY, "Hello", 1));
}
