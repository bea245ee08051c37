//! Eight clients at once for a while: every answer is whole and its own, and memory does not grow.
//!
//! `HEADSTART_SOAK_SECONDS` sets for how long (20).

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use headstart_tests::{
    client::{Client, Sse, chunks, text_of},
    models::{Models, STARTER, TINY},
    server::{Server, Setup},
};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const CLIENTS: usize = 8;
/// The number that makes each prompt another one.
const MARKERS: std::ops::Range<u64> = 4711..4723;

fn seconds() -> u64 {
    match std::env::var("HEADSTART_SOAK_SECONDS") {
        Ok(text) => text.parse().expect("HEADSTART_SOAK_SECONDS is a number"),
        Err(_) => 20,
    }
}

fn request(model: &str, marker: u64) -> Value {
    // Different lengths, so that requests are never in step.
    let filler = "Please. ".repeat((marker % 5) as usize * 4);
    let mut request = json!({
        "model": model,
        "messages": [{"role": "user", "content": format!("{filler}Repeat this number: {marker}")}],
        "temperature": 0,
        "max_tokens": 12,
    });
    if model == TINY {
        // Noise, but for every marker its own.
        request["temperature"] = json!(6.0);
        request["seed"] = json!(marker);
        request["ignore_eos"] = json!(true);
    }
    request
}

struct Expected {
    request: Value,
    text: String,
    reason: Value,
}

fn alone(client: &Client, model: &str) -> Vec<Expected> {
    MARKERS
        .map(|marker| {
            let request = request(model, marker);
            let reply = client.chat(&request);
            let choice = &reply["choices"][0];
            Expected {
                text: choice["message"]["content"].as_str().unwrap().to_string(),
                reason: choice["finish_reason"].clone(),
                request,
            }
        })
        .collect()
}

/// Whole and streamed in turns; now and then a client leaves in the middle of its answer, as people do.
fn ask(client: &Client, expected: &Expected, turn: usize) {
    let Expected {
        request,
        text,
        reason,
    } = expected;
    match turn % 6 {
        0..=2 => {
            let reply = client.chat(request);
            let choice = &reply["choices"][0];
            assert_eq!(
                choice["message"]["content"].as_str(),
                Some(text.as_str()),
                "{request}"
            );
            assert_eq!(choice["finish_reason"], *reason);
        }
        3 | 4 => {
            let chunks = chunks(client.stream(CHAT, request));
            assert_eq!(text_of(&chunks), *text, "{request}");
            assert_eq!(
                chunks.last().unwrap()["choices"][0]["finish_reason"],
                *reason
            );
        }
        _ => {
            let mut stream = client.stream(CHAT, request);
            assert!(matches!(stream.next(), Some(Sse::Data(_))));
            drop(stream);
            assert_eq!(client.get("/v1/models").status, 200);
        }
    }
}

/// Resident memory of the server in MiB, where the system tells.
fn resident_mib(server: &Server) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib >> 10)
}

#[test]
fn eight_clients_get_their_own_answers_and_memory_stays_flat() {
    let models = Models::new();
    let model = if models.has_starter() { STARTER } else { TINY };
    let server = Setup::new(models.path()).start();
    let client = server.client();
    let expected = alone(&client, model);
    let distinct: BTreeSet<&str> = expected.iter().map(|e| e.text.as_str()).collect();
    assert!(
        distinct.len() > expected.len() / 2,
        "answers must differ to be told apart: {distinct:?}"
    );

    let duration = Duration::from_secs(seconds());
    let started = Instant::now();
    let answers = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let warm = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (client, expected, answers, failed) = (&client, &expected, &answers, &failed);
                scope.spawn(move || {
                    let mut turn = number;
                    while started.elapsed() < duration && !failed.load(Ordering::Relaxed) {
                        // Each client goes through the prompts from another start and at another pace.
                        let mine = (number * 5 + turn * (1 + number % 3)) % expected.len();
                        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                            ask(client, &expected[mine], turn)
                        }));
                        if let Err(panic) = asked {
                            failed.store(true, Ordering::Relaxed);
                            std::panic::resume_unwind(panic);
                        }
                        answers.fetch_add(1, Ordering::Relaxed);
                        turn += 1;
                    }
                })
            })
            .collect();
        thread::sleep(duration / 3);
        let warm = resident_mib(&server);
        for client in clients {
            client.join().unwrap();
        }
        warm
    });

    client.wait_for_health("running", 0);
    client.wait_for_health("waiting", 0);
    let answers = answers.into_inner();
    assert!(answers >= CLIENTS, "only {answers} answers");
    let log = server.log();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
    match (warm, resident_mib(&server)) {
        (Some(warm), Some(end)) => {
            println!(
                "{answers} answers in {} s; {warm} MiB after a third, {end} MiB at the end",
                started.elapsed().as_secs()
            );
            let limit = warm + (warm / 10).max(50);
            assert!(end <= limit, "memory grew from {warm} to {end} MiB");
        }
        _ => println!("SKIPPED: memory cannot be read on this system ({answers} answers)"),
    }
    ask(&client, &expected[0], 0);
}
