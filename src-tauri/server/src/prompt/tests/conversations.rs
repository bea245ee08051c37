//! What clients send: checked, completed, kept.

use serde_json::json;

use super::*;

/// Prints the messages as the template sees them.
const ECHO: &str = "{{ messages|tojson }}";

fn seen(messages: Value) -> Value {
    serde_json::from_str(&render(ECHO, messages).unwrap()).unwrap()
}

/// The path of the value that is refused.
fn refused(messages: Value) -> String {
    match render(ECHO, messages).unwrap_err() {
        error @ PromptError::InvalidMessages { .. } => {
            assert!(error.is_client_error());
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn unknown_fields_are_kept() {
    let sent = json!([{"role": "user", "name": "Ada", "content": "Hi", "x_mood": {"good": [1]}, "weight": 0.5}]);
    assert_eq!(seen(sent.clone()), sent);
}

#[test]
fn nulls_are_as_if_not_sent() {
    let sent = json!([
        {"role": "user", "content": "Hi", "name": null},
        {"role": "assistant", "content": "Yes", "tool_calls": null, "refusal": null, "audio": null, "reasoning_content": null},
        {"role": "assistant", "content": "No", "tool_calls": []},
        {"role": "tool", "content": "1", "tool_call_id": null},
    ]);
    let expected = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes"},
        {"role": "assistant", "content": "No"},
        {"role": "tool", "content": "1"},
    ]);
    assert_eq!(seen(sent), expected);
}

#[test]
fn assistants_and_tools_may_lack_content() {
    let call =
        json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let sent = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": null, "tool_calls": call},
        {"role": "tool", "tool_call_id": "c", "content": null},
        {"role": "assistant", "tool_calls": call},
        {"role": "assistant", "reasoning_content": "hm"},
    ]);
    let seen = seen(sent);
    for i in 1..5 {
        assert_eq!(seen[i]["content"], "", "{i}");
    }
    assert_eq!(seen[1]["tool_calls"][0]["function"]["arguments"], json!({}));
    assert_eq!(seen[1]["tool_calls"][0]["id"], "c");
}

#[test]
fn calls_without_the_function_level_are_taken() {
    let seen = seen(json!([
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "{\"a\": 1}", "id": "c"}]},
    ]));
    assert_eq!(
        seen[0]["tool_calls"],
        json!([{"name": "f", "arguments": {"a": 1}, "id": "c"}])
    );
}

#[test]
fn wrong_types_are_named_with_their_path() {
    let call = |call: Value| json!([{"role": "assistant", "content": "", "tool_calls": [call]}]);
    let cases = [
        (json!([]), "messages: must hold at least one message"),
        (
            json!(["hi"]),
            "messages[0]: must be an object, not a string",
        ),
        (json!([{"content": "x"}]), "messages[0].role: is missing"),
        (
            json!([{"role": 1, "content": "x"}]),
            "messages[0].role: must be a string, not a number",
        ),
        (
            json!([{"role": "", "content": "x"}]),
            "messages[0].role: must not be empty",
        ),
        (
            json!([{"role": "user", "content": "x"}, {"role": "user", "content": 5}]),
            "messages[1].content: must be a string or a list of parts, not a number",
        ),
        (
            json!([{"role": "user", "content": {"text": "x"}}]),
            "messages[0].content: must be a string or a list of parts, not an object",
        ),
        (
            json!([{"role": "user"}]),
            "messages[0].content: is missing; a message of role 'user' needs one",
        ),
        (
            json!([{"role": "system", "content": null}]),
            "messages[0].content: is missing; a message of role 'system' needs one",
        ),
        (
            json!([{"role": "user", "content": ["x"]}]),
            "messages[0].content[0]: must be an object, not a string",
        ),
        (
            json!([{"role": "user", "content": [{"text": "x"}]}]),
            "messages[0].content[0].type: is missing",
        ),
        (
            json!([{"role": "user", "content": [{"type": 1}]}]),
            "messages[0].content[0].type: must be a string, not a number",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content[0].text: is missing",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": null}]}]),
            "messages[0].content[0].text: must be a string, not null",
        ),
        (
            json!([{"role": "user", "content": "x", "name": 5}]),
            "messages[0].name: must be a string, not a number",
        ),
        (
            json!([{"role": "tool", "content": "x", "tool_call_id": []}]),
            "messages[0].tool_call_id: must be a string, not a list",
        ),
        (
            json!([{"role": "assistant", "content": "x", "tool_calls": {}}]),
            "messages[0].tool_calls: must be a list, not an object",
        ),
        (
            call(json!("f")),
            "messages[0].tool_calls[0]: must be an object, not a string",
        ),
        (
            call(json!({"function": "f"})),
            "messages[0].tool_calls[0].function: must be an object, not a string",
        ),
        (
            call(json!({"function": {}})),
            "messages[0].tool_calls[0].function.name: is missing",
        ),
        (
            call(json!({"id": "x"})),
            "messages[0].tool_calls[0].name: is missing",
        ),
        (
            call(json!({"function": {"name": true}})),
            "messages[0].tool_calls[0].function.name: must be a string, not a boolean",
        ),
        (
            call(json!({"function": {"name": "f", "arguments": [1]}})),
            "messages[0].tool_calls[0].function.arguments: must be a string or an object, not a list",
        ),
    ];
    for (messages, expected) in cases {
        assert_eq!(refused(messages), expected);
    }
}

#[test]
fn tools_are_objects_and_an_empty_list_is_none() {
    let template = compile("{{ tools }} {{ tools is none }}");
    let with = |tools: Option<Vec<Value>>| RenderRequest {
        tools,
        ..request(json!([{"role": "user", "content": "x"}]))
    };
    assert_eq!(template.render(&with(None)).unwrap(), "None True");
    assert_eq!(template.render(&with(Some(vec![]))).unwrap(), "None True");
    assert_eq!(
        template.render(&with(Some(vec![json!({"a": 1})]))).unwrap(),
        "[{'a': 1}] False"
    );
    let error = template
        .render(&with(Some(vec![json!({}), json!("f")])))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "tools[1]: must be an object, not a string"
    );
}

#[test]
fn arguments_of_the_template_reach_it() {
    let template = ChatTemplate::compile(
        "{{ enable_thinking }} {{ bos_token }} {{ documents }} {{ add_generation_prompt }} {{ nope is defined }}",
        SpecialTokens { bos_token: Some("<s>".into()), ..Default::default() },
    )
    .unwrap();
    let mut asked = request(json!([{"role": "user", "content": "x"}]));
    assert_eq!(template.render(&asked).unwrap(), " <s> None True False");
    asked.kwargs.insert("enable_thinking".into(), json!(false));
    asked.kwargs.insert("bos_token".into(), json!("<b>"));
    asked.kwargs.insert("documents".into(), json!([1]));
    asked.add_generation_prompt = false;
    assert_eq!(
        template.render(&asked).unwrap(),
        "False <b> [1] False False"
    );
    asked.kwargs.insert("messages".into(), json!([]));
    assert!(
        template
            .render(&asked)
            .unwrap_err()
            .to_string()
            .starts_with("chat_template_kwargs.messages: ")
    );
}

mod continued {
    use super::*;

    const CHATML: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    const TRIMS: &str =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content|trim }}<|end|>\n{% endfor %}";

    fn go_on(source: &str, messages: Value) -> Result<String, PromptError> {
        let asked = RenderRequest {
            add_generation_prompt: false,
            continue_final_message: true,
            ..request(messages)
        };
        compile(source).render(&asked)
    }

    #[test]
    fn the_prompt_ends_inside_the_last_message() {
        let messages = json!([{"role": "user", "content": "Sure"}, {"role": "assistant", "content": "Sure, "}]);
        assert_eq!(
            go_on(CHATML, messages.clone()).unwrap(),
            "<|user|>Sure<|end|>\n<|assistant|>Sure, "
        );
        // A template that trims would have trimmed the end of the message too.
        assert_eq!(
            go_on(TRIMS, messages).unwrap(),
            "<|user|>Sure<|end|>\n<|assistant|>Sure,"
        );
    }

    #[test]
    fn a_list_of_parts_is_continued_too() {
        let parts = json!([{"type": "text", "text": "a "}, {"type": "text", "text": "b "}]);
        let messages =
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": parts}]);
        assert_eq!(
            go_on(CHATML, messages.clone()).unwrap(),
            "<|user|>x<|end|>\n<|assistant|>a b "
        );
        let lists = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}\
            {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}.{% endfor %}";
        assert_eq!(go_on(lists, messages).unwrap(), "<user>x.<assistant>a b ");
    }

    #[test]
    fn what_cannot_be_continued_is_an_error() {
        let messages =
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]);
        let error = go_on("{{ messages[0].content }}", messages.clone()).unwrap_err();
        assert!(
            matches!(error, PromptError::Template { refused: false, .. }),
            "{error:?}"
        );
        let both = RenderRequest {
            continue_final_message: true,
            ..request(messages)
        };
        let error = compile(CHATML).render(&both).unwrap_err();
        assert!(
            error.to_string().starts_with("continue_final_message: "),
            "{error}"
        );
    }
}
