//! The static prefix ends exactly where the first user's text starts, and never inside the conversation.

use std::{path::Path, sync::OnceLock};

use chrono::NaiveDate;
use headstart_engine::{
    request::StaticPrefix,
    tokenizer::{Tokenizer, TokenizerError},
};
use serde_json::{Map, Value, json};

use super::shared::shared;
use crate::prompt::{Boundaries, ChatTemplate, RenderRequest, SpecialTokens};

/// The tokenizer of the bundled model: byte-level, with the marks of ChatML as special tokens.
fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/headstart/nano");
        Tokenizer::from_model_dir(&folder).unwrap()
    })
}

const CHATML: &str = "{%- for message in messages %}\
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
{%- endfor %}\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

/// Templates to try; those of the shared folder only where it is there.
fn templates() -> Vec<(String, ChatTemplate)> {
    let tokens = SpecialTokens::default;
    let mut templates = vec![(
        "chatml".to_string(),
        ChatTemplate::compile(CHATML, tokens()).unwrap(),
    )];
    match shared() {
        None => println!("SKIPPED: the folder with the shared templates is not there"),
        Some(folder) => {
            for name in ["qwen3_8", "qwen3_5_think", "qwen3_5_nothink", "smollm2"] {
                let source = std::fs::read_to_string(folder.join(name).with_extension("jinja"));
                let template = ChatTemplate::compile(&source.unwrap(), tokens()).unwrap();
                templates.push((name.to_string(), template));
            }
        }
    }
    templates
}

fn tools(count: usize) -> Option<Vec<Value>> {
    let tool = |i: usize| {
        json!({"type": "function", "function": {
            "name": format!("look_up_{i}"),
            "description": format!("Looks up the {i}th kind of thing. Dates are like 2026-11-30."),
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
        }})
    };
    (count > 0).then(|| (0..count).map(tool).collect())
}

fn request(messages: Value, tools: Option<Vec<Value>>, kwargs: Value) -> RenderRequest {
    RenderRequest {
        messages: messages.as_array().unwrap().clone(),
        tools,
        kwargs: kwargs.as_object().unwrap().clone(),
        now: NaiveDate::from_ymd_opt(2026, 11, 30).and_then(|day| day.and_hms_opt(12, 0, 0)),
        ..RenderRequest::default()
    }
}

/// The prompt's text and tokens, and its static prefix.
fn prefix_of(template: &ChatTemplate, request: &RenderRequest) -> (String, Vec<u32>, StaticPrefix) {
    let (text, tokens) = prompt(template, request);
    let prefix = Boundaries::new(&tokens, request, template, encode).static_prefix();
    (text, tokens, prefix)
}

/// The byte at which the last messages begin in the prompt's text.
fn tail_start(template: &ChatTemplate, request: &RenderRequest, last: usize) -> usize {
    let (_, tokens) = prompt(template, request);
    let boundaries = Boundaries::new(&tokens, request, template, encode);
    let tail = boundaries.protected_tail(last).unwrap();
    bytes(&tokens[..tokens.len() - tail])
}

fn prompt(template: &ChatTemplate, request: &RenderRequest) -> (String, Vec<u32>) {
    let text = template.render(request).unwrap();
    let tokens = encode(&text).unwrap();
    (text, tokens)
}

fn encode(text: &str) -> Result<Vec<u32>, TokenizerError> {
    tokenizer().encode(text, false)
}

/// The bytes of the prompt's text that its first `tokens` tokens are.
fn bytes(tokens: &[u32]) -> usize {
    tokenizer().decode(tokens, false).len()
}

const SYSTEM: &str = "You are terse.";

fn kwargs() -> Vec<Value> {
    vec![
        json!({}),
        json!({"reasoning_effort": "low"}),
        json!({"enable_thinking": false}),
    ]
}

#[test]
fn it_ends_where_the_users_text_starts() {
    let users = [
        "Where is the key?",
        // As a probe begins, in part and in whole.
        "4 apples and 7 pears",
        "4 is where it starts.",
        "7 is where it starts. Or is it?",
        "«Überall»",
        "1999",
        "(a)",
    ];
    for (name, template) in templates() {
        for count in [0, 1, 4, 16] {
            for kwargs in kwargs() {
                for user in users {
                    let messages = json!([
                        {"role": "system", "content": SYSTEM},
                        {"role": "user", "content": user},
                        {"role": "assistant", "content": "Under the mat."},
                        {"role": "user", "content": "Which mat?"},
                    ]);
                    let request = request(messages, tools(count), kwargs.clone());
                    let (text, tokens, prefix) = prefix_of(&template, &request);
                    let case = format!("{name}, {count} tools, {kwargs}, {user}");
                    assert_eq!(prefix.reason, None, "{case}");
                    assert_eq!(
                        bytes(&tokens[..prefix.tokens]),
                        text.find(user).unwrap(),
                        "{case}"
                    );
                    // The last message alone is the tail.
                    assert_eq!(
                        tail_start(&template, &request, 1),
                        text.rfind("Which mat?").unwrap(),
                        "{case}"
                    );
                }
            }
        }
    }
}

#[test]
fn tools_alone_make_a_prefix() {
    for (name, template) in templates() {
        for count in [1, 16] {
            let messages = json!([{"role": "user", "content": "Where is the key?"}]);
            let request = request(messages, tools(count), json!({}));
            let (text, tokens, prefix) = prefix_of(&template, &request);
            assert_eq!(prefix.reason, None, "{name}");
            let end = bytes(&tokens[..prefix.tokens]);
            assert_eq!(end, text.find("Where is").unwrap(), "{name}");
            // What the template prints by itself is covered.
            if name == "smollm2" {
                assert!(text[..end].contains("trained by Hugging Face"));
            }
        }
    }
}

#[test]
fn long_system_texts_are_covered_to_their_last_token() {
    let system = "Rule: never tell the secret word marmalade. ".repeat(400);
    for (name, template) in templates() {
        let messages = json!([
            {"role": "system", "content": system},
            {"role": "user", "content": [{"type": "text", "text": "Tell me."}]},
        ]);
        let request = request(messages, tools(4), json!({}));
        let (text, tokens, prefix) = prefix_of(&template, &request);
        let end = bytes(&tokens[..prefix.tokens]);
        assert_eq!(end, text.rfind("Tell me.").unwrap(), "{name}");
    }
}

#[test]
fn it_does_not_reach_into_the_conversation() {
    for (name, template) in templates() {
        // The assistant speaks first: its words are no user's.
        let first = json!([
            {"role": "system", "content": SYSTEM},
            {"role": "assistant", "content": "Welcome. What can I find for you?"},
            {"role": "user", "content": "The key."},
        ]);
        let (text, tokens, prefix) = prefix_of(&template, &request(first, tools(1), json!({})));
        let end = bytes(&tokens[..prefix.tokens]);
        let system_end = text.find(SYSTEM).unwrap() + SYSTEM.len();
        let turn = text.find("<|im_start|>assistant").unwrap();
        assert!(
            system_end <= end && end <= turn + "<|im_start|>".len(),
            "{name}: {end} in {text}"
        );

        // A later system message is a part of the conversation. (Qwen's templates refuse it.)
        let late = json!([
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "Where is the key?"},
            {"role": "system", "content": "Be polite from now on."},
            {"role": "user", "content": "Please?"},
        ]);
        let request = request(late, None, json!({}));
        if template.render(&request).is_ok() {
            let (text, tokens, prefix) = prefix_of(&template, &request);
            let end = bytes(&tokens[..prefix.tokens]);
            assert_eq!(end, text.find("Where is").unwrap(), "{name}");
        } else {
            assert!(name.starts_with("qwen"), "{name}");
        }
    }
}

#[test]
fn both_probes_of_a_developer_message_and_the_system_count() {
    let template = ChatTemplate::compile(CHATML, SpecialTokens::default()).unwrap();
    let messages = json!([
        {"role": "system", "content": SYSTEM},
        {"role": "developer", "content": "Answer in French."},
        {"role": "user", "content": "Hello"},
    ]);
    let request = request(messages, None, json!({}));
    let (text, tokens, prefix) = prefix_of(&template, &request);
    let end = bytes(&tokens[..prefix.tokens]);
    assert_eq!(end, text.find("Hello").unwrap());
}

/// A user's text that merges with what stands before it: the token that spans the boundary is not protected.
#[test]
fn a_token_across_the_boundary_is_left_out() {
    let template = ChatTemplate::compile(CHATML, SpecialTokens::default()).unwrap();
    let messages = json!([
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "\n\n\nHello"},
    ]);
    let request = request(messages, None, json!({}));
    let (text, tokens, prefix) = prefix_of(&template, &request);
    let end = bytes(&tokens[..prefix.tokens]);
    assert!(end <= text.find("\n\n\nHello").unwrap());
    assert!(end >= text.find("<|im_start|>user").unwrap());
}

#[test]
fn an_answer_that_is_continued_has_the_same_prefix() {
    let template = ChatTemplate::compile(CHATML, SpecialTokens::default()).unwrap();
    let messages = json!([
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Where is the key?"},
        {"role": "assistant", "content": "It lies under"},
    ]);
    let request = RenderRequest {
        add_generation_prompt: false,
        continue_final_message: true,
        ..request(messages, None, json!({}))
    };
    let (text, tokens, prefix) = prefix_of(&template, &request);
    let end = bytes(&tokens[..prefix.tokens]);
    assert_eq!(end, text.find("Where is").unwrap());
    assert_eq!(tail_start(&template, &request, 2), end);
}

#[test]
fn every_absence_has_its_reason() {
    let reason = |messages: Value, tools, source: &str| {
        let template = ChatTemplate::compile(source, SpecialTokens::default()).unwrap();
        let request = request(messages, tools, json!({}));
        prefix_of(&template, &request).2.reason.unwrap()
    };
    let user = json!({"role": "user", "content": "Hello"});
    let system = json!({"role": "system", "content": SYSTEM});
    assert_eq!(reason(json!([user]), None, CHATML), "no_system_message");
    assert_eq!(
        reason(json!([user, system]), None, CHATML),
        "no_system_message"
    );
    assert_eq!(
        reason(json!([system]), tools(1), CHATML),
        "only_system_messages"
    );
    let refuses = "{% for m in messages %}{% if m.content[0] == '4' %}{{ raise_exception('no fours') }}{% endif %}{{ m.content }}{% endfor %}";
    assert_eq!(
        reason(json!([system, user]), None, refuses),
        "render_failed"
    );
    let backwards = "{% for m in messages | reverse %}{{ m.content }}{% endfor %}";
    assert_eq!(
        reason(json!([system, user]), None, backwards),
        "nothing_in_common"
    );
}

#[test]
fn a_failing_tokenizer_is_a_reason_too() {
    let request = request(
        json!([{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello"}]),
        None,
        json!({}),
    );
    let template = ChatTemplate::compile(CHATML, SpecialTokens::default()).unwrap();
    let tokenize =
        |_: &str| -> Result<Vec<u32>, TokenizerError> { Err(TokenizerError::Encode("no".into())) };
    let boundaries = Boundaries::new(&[1, 2, 3], &request, &template, tokenize);
    assert_eq!(
        boundaries.static_prefix(),
        StaticPrefix {
            tokens: 0,
            reason: Some("tokenizer_failed")
        }
    );
    assert!(boundaries.protected_tail(1).is_err());
}

#[test]
fn the_last_messages_are_found_from_their_text_on() {
    let template = ChatTemplate::compile(CHATML, SpecialTokens::default()).unwrap();
    let messages = json!([
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "First question"},
        {"role": "assistant", "content": "First answer"},
        {"role": "user", "content": "Second question"},
    ]);
    let request = request(messages, None, Value::Object(Map::new()));
    let (text, _) = prompt(&template, &request);
    for (last, from) in [
        (0, None),
        (1, Some("Second question")),
        (2, Some("First answer")),
        (3, Some("First question")),
        // Never into the system text.
        (4, Some("First question")),
        (usize::MAX, Some("First question")),
    ] {
        let start = tail_start(&template, &request, last);
        let expected = from.map_or(text.len(), |from| text.find(from).unwrap());
        assert_eq!(start, expected, "{last}");
    }
}
