//! A client that goes away frees the engine.

use std::io::{BufRead, BufReader};

use headstart_tests::{
    client::post_bytes,
    models::{STARTER, TINY},
};
use serde_json::json;

use super::{CHAT, Lab, ask, long_text, with};

/// How often the engine let go of a request because nobody listened any more.
fn cancelled(lab: &Lab) -> usize {
    lab.server.log().matches("request cancelled").count()
}

/// The engine is free, did not work to the end, and answers the next one.
fn check_freed(lab: &Lab, times: usize) {
    let client = lab.client();
    client.wait_for_health("running", 0);
    assert_eq!(cancelled(lab), times);
    client.chat(&ask(TINY, "Still there?", 1));
    // A reply is out a moment before its place is free.
    client.wait_for_health("running", 0);
}

#[test]
fn a_client_that_vanishes_during_prefill_frees_the_engine() {
    let lab = Lab::start(|setup| setup);
    if !lab.has_starter() {
        return;
    }
    let client = lab.client();
    // Minutes of work, if it were all done.
    let request = with(
        ask(STARTER, &long_text(6000), 2000),
        json!({"ignore_eos": true}),
    );
    for (times, stream) in [(1, false), (2, true)] {
        let request = with(request.clone(), json!({"stream": stream}));
        let connection = client.connect(&post_bytes(CHAT, &request));
        client.wait_for_health("running", 1);
        drop(connection);
        check_freed(&lab, times);
    }
}

#[test]
fn a_client_that_vanishes_during_decoding_frees_the_engine() {
    let lab = Lab::start(|setup| setup);
    if !lab.has_starter() {
        return;
    }
    let client = lab.client();
    let request = with(
        ask(STARTER, "Tell me a story.", 8000),
        json!({"ignore_eos": true}),
    );

    let streamed = client.connect(&post_bytes(
        CHAT,
        &with(request.clone(), json!({"stream": true})),
    ));
    let mut lines = BufReader::new(streamed).lines();
    // The opening chunk comes before any token, so the third is text.
    let mut data = 0;
    while data < 3 {
        let line = lines.next().unwrap().unwrap();
        data += usize::from(line.starts_with("data:"));
    }
    drop(lines);
    check_freed(&lab, 1);

    let whole = client.connect(&post_bytes(CHAT, &request));
    client.wait_for_health("running", 1);
    // The engine takes turns: when this one has got its tokens, the other one has some too.
    client.chat(&ask(TINY, "Hello", 20));
    client.wait_for_health("running", 1);
    drop(whole);
    check_freed(&lab, 2);
}

#[test]
fn a_client_that_vanishes_while_it_waits_leaves_the_queue() {
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
    let waiting = client.connect(&post_bytes(CHAT, &ask(TINY, "Hello", 1)));
    client.wait_for_health("waiting", 1);
    drop(waiting);
    client.wait_for_health("waiting", 0);
    assert_eq!(client.health("running"), 1, "the other one goes on");
    drop(occupant);
    client.wait_for_health("running", 0);
    client.chat(&ask(TINY, "Hello", 1));
}
