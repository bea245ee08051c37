#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::{Map, Value, json};

use super::{CompileError, Limits, Program, RenderError};

fn variables(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn render(template: &str, vars: Value) -> Result<String, RenderError> {
    Program::compile(template)
        .unwrap()
        .render(&variables(vars), &Limits::default(), None)
}

fn compile_error(template: &str) -> CompileError {
    Program::compile(template).unwrap_err()
}

/// Small templates with what Jinja2 makes of them; `python_cases.py` wrote the file.
#[test]
fn small_templates_render_as_in_jinja2() {
    let file: Value = serde_json::from_str(include_str!("python_cases.json")).unwrap();
    let now = file["now"].as_str().unwrap().parse().unwrap();
    let vars = variables(file["variables"].clone());
    let (mut seen, mut wrong) = (0, Vec::new());
    for (group, cases) in file["cases"].as_object().unwrap() {
        for case in cases.as_array().unwrap() {
            let (template, expected) = (case[0].as_str().unwrap(), case[1].as_str());
            let found = match Program::compile(template) {
                Ok(program) => program
                    .render(&vars, &Limits::default(), Some(now))
                    .map_err(|error| format!("{error:?}")),
                Err(error) => Err(format!("{error:?}")),
            };
            seen += 1;
            if found.as_deref().ok() != expected {
                wrong.push(format!(
                    "{group}: {template:?}\n  expected {expected:?}\n  found    {found:?}"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {seen} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(seen > 350, "only {seen} cases");
}
