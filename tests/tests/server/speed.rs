//! SpecPrefill and MTP from outside: which settings hold, how mistakes are named, and that every reply says what was done.

use headstart_tests::{
    client::{Client, chunks},
    models::{ALPHABET, BROKEN, TINY, TINY_TEXT},
};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Lab, ask, with};

/// The same short question to both endpoints.
fn both(model: &str) -> [(&'static str, Value); 2] {
    let completion = json!({"model": model, "prompt": "Hello", "temperature": 0, "max_tokens": 2});
    [(CHAT, ask(model, "Hello", 2)), (COMPLETIONS, completion)]
}

/// The usage of a whole reply and that of a streamed one.
fn usages(client: &Client, path: &str, request: &Value) -> [Value; 2] {
    let streamed = with(
        request.clone(),
        json!({"stream_options": {"include_usage": true}}),
    );
    let chunks = chunks(client.stream(path, &streamed));
    [
        client.post(path, request).ok()["usage"].clone(),
        chunks.last().unwrap()["usage"].clone(),
    ]
}

const SPECPREFILL_FIELDS: [&str; 14] = [
    "applied",
    "reason",
    "scorer",
    "draft_model",
    "prompt_tokens",
    "static_prefix_tokens",
    "static_prefix_reason",
    "cached_tokens",
    "scored_tokens",
    "kept_tokens",
    "keep_ratio",
    "scoring_seconds",
    "sparse_prefill_seconds",
    "session_reused",
];

const MTP_FIELDS: [&str; 12] = [
    "applied",
    "reason",
    "mode",
    "cycles",
    "drafted",
    "accepted",
    "acceptance",
    "tokens_per_cycle",
    "depth_histogram",
    "parks",
    "backbone_ms_per_cycle",
    "head_ms_per_cycle",
];

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

#[test]
fn both_are_off_unless_asked_for_and_every_reply_says_so() {
    let lab = Lab::shared();
    let mut specprefill = SPECPREFILL_FIELDS;
    specprefill.sort_unstable();
    let mut mtp = MTP_FIELDS;
    mtp.sort_unstable();
    for (path, request) in both(TINY) {
        for usage in usages(&lab.client(), path, &request) {
            assert_eq!(keys(&usage["specprefill"]), specprefill, "{path}");
            assert_eq!(keys(&usage["mtp"]), mtp, "{path}");
            for name in ["specprefill", "mtp"] {
                assert_eq!(usage[name]["applied"], false, "{path} {name}");
                assert_eq!(usage[name]["reason"], "disabled", "{path} {name}");
            }
            assert_eq!(usage["mtp"]["acceptance"], Value::Null, "{path}");
        }
    }
}

/// A switch that is on changes nothing about the answer to a short prompt of a model without an MTP head, and has a reason.
#[test]
fn what_cannot_be_applied_has_a_reason_and_the_same_answer() {
    let lab = Lab::shared();
    let client = lab.client();
    let on =
        json!({"specprefill": true, "specprefill_draft_model": TINY, "mtp": true, "mtp_depth": 3});
    for (path, request) in both(ALPHABET) {
        let plain = client.post(path, &request).ok();
        let asked = client.post(path, &with(request, on.clone())).ok();
        assert_eq!(plain["choices"], asked["choices"], "{path}");
        for name in ["specprefill", "mtp"] {
            let report = &asked["usage"][name];
            assert_eq!(report["applied"], false, "{path} {name}");
            assert!(report["reason"].is_string(), "{path} {report}");
        }
    }
}

#[test]
fn wrong_fields_are_named_alike_by_both_endpoints() {
    let lab = Lab::shared();
    let client = lab.client();
    for (change, part) in [
        (json!({"specprefill": "yes"}), "boolean"),
        (json!({"specprefill_keep_ratio": "low"}), "a number"),
        (json!({"specprefill_keep_ratio": 0.01}), "from 0.05 to 1"),
        (json!({"specprefill_keep_ratio": 2}), "from 0.05 to 1"),
        (json!({"specprefill_keep_pct": 0.01}), "from 0.05 to 1"),
        (json!({"specprefill_keep_pct": 101}), "from 0.05 to 1"),
        (json!({"specprefill_threshold": -1}), "-1"),
        (json!({"specprefill_threshold": 1.5}), "1.5"),
        (json!({"specprefill_scorer": "own"}), "`self`"),
        (json!({"specprefill_draft_model": 3}), "string"),
        (json!({"specprefill_draft_model": "no/such"}), TINY_TEXT),
        (json!({"specprefill_draft_model": BROKEN}), "config.json"),
        (json!({"specprefill_draft_model": TINY}), "its own draft"),
        (json!({"mtp": 1}), "boolean"),
        (json!({"mtp_depth": "deep"}), "integer"),
        (json!({"mtp_depth": 0}), "from 1 to 8"),
        (json!({"mtp_depth": 9}), "from 1 to 8"),
    ] {
        let name = change.as_object().unwrap().keys().next().unwrap();
        for (path, request) in both(TINY) {
            for stream in [false, true] {
                let request = with(
                    with(request.clone(), change.clone()),
                    json!({"stream": stream}),
                );
                let reply = client.post(path, &request);
                let message = reply.error(400);
                assert_eq!(&reply.json()["error"]["param"], name, "{path} {message}");
                assert!(
                    message.contains(name) || message.contains("draft"),
                    "{message}"
                );
                assert!(message.contains(part), "{path} {change}: {message}");
            }
        }
    }
    // Fields that are null are not set, and the other server's name for the ratio is known.
    let fine = json!({
        "specprefill": null, "specprefill_keep_ratio": null, "specprefill_keep_pct": 30, "specprefill_threshold": null,
        "specprefill_draft_model": null, "specprefill_scorer": "self", "mtp": null, "mtp_depth": null,
    });
    for (path, request) in both(TINY) {
        client.post(path, &with(request, fine.clone())).ok();
    }
}

#[test]
fn a_wrong_draft_in_the_settings_costs_speed_and_one_line_in_the_log() {
    let lab = Lab::start(|setup| {
        setup.settings(
            "[defaults]\nspecprefill_enabled = true\nspecprefill_threshold = 0\n\
             [models.\"test/tiny\"]\ndraft_model = \"no/such\"\n",
        )
    });
    let client = lab.client();
    for _ in 0..2 {
        for (path, request) in both(TINY) {
            let reply = client.post(path, &request).ok();
            assert_eq!(reply["usage"]["specprefill"]["applied"], false, "{path}");
        }
    }
    // Another model has none, and that is no mistake.
    client.chat(&ask(ALPHABET, "Hello", 1));
    let log = lab.server.log();
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("no/such"))
        .collect();
    let [line] = lines[..] else {
        panic!("not one line: {lines:?}");
    };
    assert!(line.contains("WARN") && line.contains(TINY), "{line}");
    // A request that switches it off does not meet the mistake.
    let off = json!({"specprefill": false});
    for (path, request) in both(TINY) {
        let reply = client.post(path, &with(request, off.clone())).ok();
        assert_eq!(
            reply["usage"]["specprefill"]["reason"], "disabled",
            "{path}"
        );
    }
}
