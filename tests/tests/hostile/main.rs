//! Five hundred requests that no proper client sends: whatever comes, the server answers with what is wrong, and lives.

mod generate;

use std::time::Duration;

use fastrand::Rng;
use generate::{CHAT, Hostile, SPECIAL, generate, strange_text};
use headstart_tests::{
    client::{Client, Reply},
    models::{Models, STARTER, TINY},
    server::Setup,
};
use serde_json::json;

const REQUESTS: usize = 500;

/// Refused or answered, never failed: also not in the middle of a stream.
fn check(reply: &Reply, what: &str) {
    assert!(
        reply.status < 500 || reply.status == 503,
        "{what}: {} {}",
        reply.status,
        reply.text
    );
    assert!(
        !reply.text.contains("\"server_error\"") || reply.status == 503,
        "{what}: {}",
        reply.text
    );
    match reply.status {
        200 if reply.header("content-type") == Some("text/event-stream") => {
            assert!(
                reply.text.trim_end().ends_with("data: [DONE]"),
                "{what}: {}",
                reply.text
            );
        }
        200 => assert!(reply.json()["choices"].is_array(), "{what}: {}", reply.text),
        status => {
            let message = reply.error(status);
            assert!(
                message.len() < 10_000,
                "{what}: a message of {} bytes",
                message.len()
            );
        }
    }
}

/// An HTTP answer that tells of no failure of the server's; 505 is about the client's version of HTTP.
fn check_raw(answer: &str, what: &str) {
    let status = answer.split(' ').nth(1).and_then(|s| s.parse::<u16>().ok());
    assert!(
        status.is_some_and(|status| status < 500 || status == 503 || status == 505),
        "{what}: {}",
        shortened(answer.as_bytes())
    );
}

fn shortened(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(600)]).into_owned()
}

fn ask_all(client: &Client, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut refused = 0;
    let mut answered = 0;
    for number in 0..REQUESTS {
        match generate(&mut rng, number) {
            Hostile::Post(path, body) => {
                let reply = client.post_bytes(path, &body, &[]);
                check(&reply, &format!("request {number} {}", shortened(&body)));
                if reply.status == 200 {
                    answered += 1
                } else {
                    refused += 1
                }
            }
            Hostile::Odd(bytes) => {
                let answer = client.raw(&bytes);
                check_raw(&answer, &format!("request {number} {}", shortened(&bytes)));
            }
            Hostile::Broken(bytes) => {
                let answer = client.raw_broken_off(&bytes);
                if !answer.is_empty() {
                    check_raw(&answer, &format!("request {number} {}", shortened(&bytes)));
                }
            }
            Hostile::Fine(body, tokens) => {
                let reply = client.post(CHAT, &body).ok();
                assert_eq!(
                    reply["usage"]["prompt_tokens"], tokens,
                    "request {number} {body}"
                );
                answered += 1;
            }
        }
    }
    // Both must be there, or the generator has lost its meaning.
    assert!(
        refused > REQUESTS / 4 && answered > REQUESTS / 10,
        "{refused} refused, {answered} answered"
    );
}

#[test]
fn five_hundred_hostile_requests_leave_the_server_unharmed() {
    let models = Models::new();
    let server = Setup::new(models.path()).start();
    let client = server.client();
    let model = if models.has_starter() { STARTER } else { TINY };
    let polite = json!({"model": model, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 5});
    let before = client.chat_text(&polite);
    ask_all(&client, 0x4ead_57a7);
    // Special tokens and large texts through a tokenizer of a real vocabulary.
    for content in [
        SPECIAL.concat(),
        "a".repeat(2 << 20),
        "🙂 ".repeat(100_000),
        strange_text(&mut Rng::with_seed(1)),
    ] {
        let request = json!({"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1});
        check(&client.post(CHAT, &request), "a large or special text");
    }
    client.wait_for_health("running", 0);
    assert_eq!(client.health("waiting"), 0);
    assert_eq!(client.chat_text(&polite), before);
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// Connections that send nothing, or a request byte by byte, take no place from others.
#[test]
fn idle_connections_do_not_block_others() {
    let models = Models::new();
    let server = Setup::new(models.path()).start();
    let client = server.client();
    let idle: Vec<_> = (0..200)
        .map(|i| {
            client.connect(&b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"[..i % 50])
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    let request =
        json!({"model": TINY, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1});
    client.chat(&request);
    drop(idle);
    client.chat(&request);
}
