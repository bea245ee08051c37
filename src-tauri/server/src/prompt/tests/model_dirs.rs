//! Templates and special tokens in models' folders.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::*;

fn model(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

fn load(dir: &Path) -> ChatTemplate {
    ChatTemplate::from_model_dir(dir).unwrap().unwrap()
}

fn prompt(template: &ChatTemplate, tools: bool) -> String {
    let tools = tools.then(|| vec![json!({"type": "function", "function": {"name": "f"}})]);
    template
        .render(&RenderRequest {
            tools,
            ..request(json!([{"role": "user", "content": "x"}]))
        })
        .unwrap()
}

#[test]
fn a_model_without_a_template_has_none() {
    assert!(
        ChatTemplate::from_model_dir(model(&[]).path())
            .unwrap()
            .is_none()
    );
    let dir = model(&[(
        "tokenizer_config.json",
        r#"{"bos_token": "<s>", "chat_template": null}"#,
    )]);
    assert!(ChatTemplate::from_model_dir(dir.path()).unwrap().is_none());
}

#[test]
fn the_jinja_file_wins_over_json_and_that_over_the_tokenizer_config() {
    let config = ("tokenizer_config.json", r#"{"chat_template": "config"}"#);
    let json = ("chat_template.json", r#"{"chat_template": "json"}"#);
    let jinja = ("chat_template.jinja", "jinja");
    for (files, expected) in [
        (vec![config], "config"),
        (vec![config, json], "json"),
        (vec![config, json, jinja], "jinja"),
        (vec![jinja], "jinja"),
    ] {
        let dir = model(&files);
        let template = load(dir.path());
        assert_eq!(prompt(&template, false), expected);
        assert_eq!(template.source(), expected);
    }
}

#[test]
fn named_templates_are_chosen_by_the_presence_of_tools() {
    let list = r#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R"}]}"#;
    let template = load(model(&[("tokenizer_config.json", list)]).path());
    assert_eq!(
        (prompt(&template, false), prompt(&template, true)),
        ("D".into(), "T".into())
    );
    assert_eq!(template.source(), "D");
    let beside = model(&[
        ("chat_template.jinja", "D2"),
        ("additional_chat_templates/tool_use.jinja", "T2"),
        ("additional_chat_templates/notes.txt", "x"),
    ]);
    let template = load(beside.path());
    assert_eq!(
        (prompt(&template, false), prompt(&template, true)),
        ("D2".into(), "T2".into())
    );
    let only = r#"{"chat_template": [{"name": "chat", "template": "C"}]}"#;
    let template = load(model(&[("tokenizer_config.json", only)]).path());
    assert_eq!(
        (prompt(&template, false), prompt(&template, true)),
        ("C".into(), "C".into())
    );
    let none_is_default =
        r#"{"chat_template": [{"name": "a", "template": "A"}, {"name": "b", "template": "B"}]}"#;
    let error =
        ChatTemplate::from_model_dir(model(&[("tokenizer_config.json", none_is_default)]).path())
            .unwrap_err();
    assert!(error.to_string().contains("a, b"), "{error}");
}

#[test]
fn gguf_templates_come_with_their_names() {
    let templates = [
        ("default".to_owned(), "D{{ bos_token }}".to_owned()),
        ("tool_use".to_owned(), "T{{ eos_token }}".to_owned()),
    ];
    let tokens = SpecialTokens {
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        ..Default::default()
    };
    let template = ChatTemplate::from_named(templates, tokens).unwrap();
    assert_eq!(
        (prompt(&template, false), prompt(&template, true)),
        ("D<s>".into(), "T</s>".into())
    );
    assert!(ChatTemplate::from_named([], SpecialTokens::default()).is_err());
    let broken = [
        ("default".to_owned(), "D".to_owned()),
        ("tool_use".to_owned(), "\n{% if".to_owned()),
    ];
    let error = ChatTemplate::from_named(broken, SpecialTokens::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("'tool_use'") && error.contains("line 2"),
        "{error}"
    );
}

#[test]
fn special_tokens_may_be_strings_or_objects() {
    let config = r#"{
        "bos_token": {"content": "<s>", "lstrip": false, "__type": "AddedToken"}, "eos_token": "</s>", "unk_token": null,
        "image_token": "<img>", "add_bos_token": true, "model_max_length": 1000000000000000019884624838656,
        "additional_special_tokens": ["<a>", {"content": "<b>"}], "extra_special_tokens": {"audio_token": "<audio>"},
        "chat_template": "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ audio_token }}{{ additional_special_tokens }}{{ pad_token }}|{{ unk_token is defined }} {{ add_bos_token is defined }}"
    }"#;
    let map = r#"{"bos_token": "<ignored>", "pad_token": {"content": "<pad>"}}"#;
    let template = load(
        model(&[
            ("tokenizer_config.json", config),
            ("special_tokens_map.json", map),
        ])
        .path(),
    );
    assert_eq!(
        prompt(&template, false),
        "<s></s><img><audio>['<a>', '<b>']<pad>|False False"
    );
    assert_eq!(template.tokens().bos_token.as_deref(), Some("<s>"));
    assert_eq!(template.tokens().unk_token, None);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    for (name, text) in [
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", r#"{"chat_template": 5}"#),
        (
            "tokenizer_config.json",
            r#"{"chat_template": [{"name": "x"}]}"#,
        ),
        ("chat_template.json", "nonsense"),
        ("special_tokens_map.json", "\"x\""),
    ] {
        let dir = model(&[(name, text)]);
        let error = ChatTemplate::from_model_dir(dir.path()).unwrap_err();
        assert!(
            matches!(error, PromptError::InvalidFile { .. }),
            "{name} {text}: {error:?}"
        );
        assert!(error.to_string().contains(name), "{error}");
        assert!(!error.is_client_error());
    }
    let dir = model(&[]);
    std::fs::write(dir.path().join("chat_template.jinja"), b"\xff\xfe").unwrap();
    assert!(matches!(
        ChatTemplate::from_model_dir(dir.path()).unwrap_err(),
        PromptError::Io { .. }
    ));
    std::fs::write(dir.path().join("chat_template.jinja"), "{{ open").unwrap();
    assert!(matches!(
        ChatTemplate::from_model_dir(dir.path()).unwrap_err(),
        PromptError::Compile { line: 1, .. }
    ));
}

#[test]
fn a_template_can_be_shared_by_threads() {
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<ChatTemplate>();
    let template = std::sync::Arc::new(compile("{{ messages[0].content }}"));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let template = template.clone();
            std::thread::spawn(move || {
                let text = format!("thread {n}");
                let prompt = template
                    .render(&request(json!([{"role": "user", "content": text.clone()}])))
                    .unwrap();
                assert_eq!(prompt, text);
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}
