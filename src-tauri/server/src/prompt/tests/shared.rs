//! Every shared case: 30 templates as their models ship them, 15 conversations each, with what transformers made of them.

use std::path::{Path, PathBuf};

use chrono::NaiveDate;
use serde_json::Value;

use crate::prompt::{ChatTemplate, ContentShape, PromptError, RenderRequest, SpecialTokens};

/// The folder with fetched data, beside the repository; it is not part of it.
pub(super) fn shared() -> Option<PathBuf> {
    let path = std::env::var_os("HEADSTART_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let path = path.join("fixtures/templates");
    path.is_dir().then_some(path)
}

fn request(case: &Value) -> RenderRequest {
    RenderRequest {
        messages: case["messages"].as_array().unwrap().clone(),
        tools: case["tools"].as_array().cloned(),
        kwargs: case["kwargs"].as_object().unwrap().clone(),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
        continue_final_message: false,
        // The day on which the cases were made.
        now: NaiveDate::from_ymd_opt(2026, 11, 30)
            .unwrap()
            .and_hms_opt(12, 0, 0),
        content_shape: ContentShape::AsSent,
    }
}

/// Where two texts part, with some of what follows.
fn difference(expected: &str, found: &str) -> String {
    let at = expected
        .chars()
        .zip(found.chars())
        .take_while(|(a, b)| a == b)
        .count();
    let tail = |text: &str| {
        text.chars()
            .skip(at.saturating_sub(20))
            .take(80)
            .collect::<String>()
    };
    format!(
        "at {at}: expected {:?}, found {:?}",
        tail(expected),
        tail(found)
    )
}

fn check(template: &ChatTemplate, case: &Value) -> Result<(), String> {
    let result = template.render(&request(case));
    match (case["text"].as_str(), case["error"].as_str(), result) {
        (Some(expected), _, Ok(found)) if expected == found => Ok(()),
        (Some(expected), _, Ok(found)) => Err(difference(expected, &found)),
        (Some(_), _, Err(error)) => Err(format!("failed: {error}")),
        (None, Some(expected), Ok(found)) => {
            Err(format!("expected the error {expected:?}, found {found:?}"))
        }
        (
            None,
            Some(expected),
            Err(PromptError::Template {
                message, refused, ..
            }),
        ) => match expected.strip_prefix("TemplateError: ") {
            Some(words) if refused && message == words => Ok(()),
            Some(words) => Err(format!(
                "expected the template's words {words:?}, found {message:?}"
            )),
            None if refused => Err(format!(
                "expected {expected:?}, but the template refused: {message:?}"
            )),
            None => Ok(()),
        },
        (None, Some(_), Err(other)) => Err(format!("an error of the wrong kind: {other}")),
        (None, None, _) => Err("the case has neither text nor error".into()),
    }
}

#[test]
fn every_shared_case_renders_as_in_transformers() {
    let Some(dir) = shared() else {
        println!("skipped: the folder with the shared cases is not there");
        return;
    };
    let tokens = || SpecialTokens {
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        ..Default::default()
    };
    let (mut seen, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "jinja")
        {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        let cases: Value =
            serde_json::from_str(&std::fs::read_to_string(path.with_extension("json")).unwrap())
                .unwrap();
        let cases = cases.as_object().unwrap();
        seen += cases.len();
        match ChatTemplate::compile(&source, tokens()) {
            Ok(template) => {
                for (case_name, case) in cases {
                    if let Err(difference) = check(&template, case) {
                        wrong.push(format!("{name}/{case_name}: {difference}"));
                    }
                }
            }
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {seen} cases differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(seen >= 400, "only {seen} cases were found");
    println!("{seen} of {seen} cases agree");
}
