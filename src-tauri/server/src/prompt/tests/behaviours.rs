//! Kinds of failures that users of other servers report, each with a template of the kind that showed it.

use serde_json::json;

use super::*;

/// A template that prints `template` with one user message.
fn prints(template: &str) -> String {
    render(template, json!([{"role": "user", "content": "Hi"}])).unwrap()
}

/// `{% generation %}` is unknown to most engines; it prints its body, and its `-` trims like that of any tag.
#[test]
fn generation_blocks_print_their_body() {
    let template = "{% for m in messages %}\n  {%- generation %}\n<{{ m.content }}>\n  {%- endgeneration -%}\n\n{% endfor %}|";
    assert_eq!(prints(template), "<Hi>|");
    assert_eq!(
        prints("a {%- generation -%} b {%- endgeneration -%} c"),
        "abc"
    );
    assert_eq!(
        prints("a\n{% generation %}\nb\n{% endgeneration %}\nc"),
        "a\nb\nc"
    );
}

/// A bare engine lacks string methods, `strftime_now`, and swallows fewer newlines.
#[test]
fn block_lines_leave_no_newline() {
    let template = "{% for m in messages %}\n  {% if m.role == 'user' %}\n<|user|>\n{{ m.content }}</s>\n  {% endif %}\n{% endfor %}\n";
    assert_eq!(prints(template), "<|user|>\nHi</s>\n");
}

/// `tojson` with Python's spaces, arguments and characters; other spaces are other tokens, without any error.
#[test]
fn tojson_writes_what_python_writes() {
    let value = "{% set v = {'b': [1, 2.0, none, true], 'a': 'é <&>\\n'} %}";
    let filters = [
        ("tojson", r#"{"b": [1, 2.0, null, true], "a": "é <&>\n"}"#),
        (
            "tojson(ensure_ascii=False)",
            r#"{"b": [1, 2.0, null, true], "a": "é <&>\n"}"#,
        ),
        (
            "tojson(ensure_ascii=True)",
            r#"{"b": [1, 2.0, null, true], "a": "\u00e9 <&>\n"}"#,
        ),
        (
            "tojson(sort_keys=True)",
            r#"{"a": "é <&>\n", "b": [1, 2.0, null, true]}"#,
        ),
        (
            "tojson(separators=(',', ':'))",
            r#"{"b":[1,2.0,null,true],"a":"é <&>\n"}"#,
        ),
        (
            "tojson(ensure_ascii=False, separators=(', ', '='))",
            r#"{"b"=[1, 2.0, null, true], "a"="é <&>\n"}"#,
        ),
        (
            "tojson(indent=1)",
            "{\n \"b\": [\n  1,\n  2.0,\n  null,\n  true\n ],\n \"a\": \"é <&>\\n\"\n}",
        ),
    ];
    for (filter, expected) in filters {
        assert_eq!(
            prints(&format!("{value}{{{{ v|{filter} }}}}")),
            expected,
            "{filter}"
        );
    }
}

/// Keys keep the order in which the client sent them.
#[test]
fn tools_keep_the_order_of_their_keys() {
    let template = compile("{% for t in tools %}{{ t|tojson }}{% endfor %}");
    let tool = r#"{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"z": 1, "a": 2}}}"#;
    let request = RenderRequest {
        tools: Some(vec![serde_json::from_str(tool).unwrap()]),
        ..request(json!([{"role": "user", "content": "Hi"}]))
    };
    assert_eq!(template.render(&request).unwrap(), tool);
}

/// `startswith` and `endswith`, with a string and with a tuple of them.
#[test]
fn prefixes_may_be_tuples() {
    let template = "{{ 'abc'.startswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith(('x', 'y')) }}";
    assert_eq!(prints(template), "True True False");
}

/// A method of a filter's result.
#[test]
fn methods_of_filter_results() {
    let template = "{% set c = '<think>\\nplan\\n</think>\\n\\nanswer' %}\
        [{{ (c.split('</think>')|first).rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}][{{ (c.split('</think>')|last).lstrip('\\n') }}]";
    assert_eq!(prints(template), "[plan][answer]");
}

/// `keys() | reject("in", ...)`
#[test]
fn keys_can_be_filtered() {
    let template = "{% for k in {'type': 1, 'x': 2, 'y': 3}.keys() | reject('in', ['type', 'y']) %}{{ k }}{% endfor %}";
    assert_eq!(prints(template), "x");
}

/// `strftime_now` with any format, at the time of the request.
#[test]
fn dates_take_every_format() {
    let template = "{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%B %-d, %Y') }}|{{ strftime_now('%A %H:%M:%S %p %j') }}";
    let request = RenderRequest {
        now: Some("2026-03-05T09:07:08".parse().unwrap()),
        ..request(json!([{"role": "user", "content": "Hi"}]))
    };
    let expected = "2026-03-05|05 Mar 2026|March 5, 2026|Thursday 09:07:08 AM 064";
    assert_eq!(compile(template).render(&request).unwrap(), expected);
    // Without a time, it is today.
    let year: i32 = prints("{{ strftime_now('%Y') }}").parse().unwrap();
    assert!(year >= 2026);
}

/// Arguments of a tool call arrive as a string of JSON and are used as a dict.
#[test]
fn tool_arguments_are_decoded_once() {
    let template = "{% for c in messages[1].tool_calls %}{% for k, v in c.function.arguments|items %}{{ k }}={{ v }};{% endfor %}{% endfor %}";
    let conversation = |arguments: &str| {
        json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            ]},
        ])
    };
    // A string inside that looks like JSON stays a string.
    let prompt = render(
        template,
        conversation(r#"{"a": "{\"b\": 1}", "n": 1.0, "l": [true, null]}"#),
    )
    .unwrap();
    assert_eq!(prompt, r#"a={"b": 1};n=1.0;l=[True, None];"#);
    assert_eq!(render(template, conversation("")).unwrap(), "");
    // What is no object stays as it is, and the template's complaint is the client's to see.
    for arguments in ["not json", "[1, 2]", r#""{\"a\": 1}""#, "{\"a\": 1"] {
        let error = render(template, conversation(arguments)).unwrap_err();
        assert!(error.is_client_error());
        assert!(
            error
                .to_string()
                .contains("Can only get item pairs from a mapping."),
            "{error}"
        );
        let printed = render(
            "{{ messages[1].tool_calls[0].function.arguments }}",
            conversation(arguments),
        )
        .unwrap();
        assert_eq!(printed, arguments);
    }
}

/// `raise_exception` is the client's error in the template's words, never another prompt.
#[test]
fn a_refusal_is_an_error_in_the_words_of_the_template() {
    let template = "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{{ m.content }}{% endfor %}";
    let twice = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    let error = render(template, twice).unwrap_err();
    let words = "Conversation roles must alternate user/assistant/user/assistant/...";
    assert!(
        matches!(&error, PromptError::Template { message, refused: true, .. } if message == words),
        "{error:?}"
    );
    assert!(error.is_client_error());
    assert_eq!(
        error.to_string(),
        format!("the model's chat template refuses this conversation: {words}")
    );
}

#[test]
fn a_failure_is_an_error_with_its_line() {
    let error = render(
        "\n{{ messages[0].content.nope() }}",
        json!([{"role": "user", "content": "a"}]),
    )
    .unwrap_err();
    assert!(error.is_client_error());
    let expected = "the model's chat template fails on this conversation: 'str object' has no attribute 'nope' (line 2 of the template)";
    assert_eq!(error.to_string(), expected);
    let error = ChatTemplate::compile("{% if %}", SpecialTokens::default()).unwrap_err();
    assert!(!error.is_client_error());
    assert!(error.to_string().contains("line 1"), "{error}");
}

/// `.replace`, `.rstrip` and `.lstrip`.
#[test]
fn string_methods_change_ends_and_parts() {
    let template = "[{{ ' /no_think x/no_think '.replace('/no_think', '').rstrip() }}] [{{ '\\n\\nx\\n'.lstrip('\\n').rstrip('\\n') }}]";
    assert_eq!(prints(template), "[  x] [x]");
}

/// Python's view of `None`, booleans, numbers and lists, in `{{ }}` and in `~`.
#[test]
fn values_print_as_in_python() {
    let template = "{{ none }} {{ true }} {{ 1.0 }} {{ 1e16 }} {{ ['a', none, {'b': false}] }} {{ 'x' ~ none ~ true ~ [1.5, \"it's\"] }}";
    assert_eq!(
        prints(template),
        "None True 1.0 1e+16 ['a', None, {'b': False}] xNoneTrue[1.5, \"it's\"]"
    );
}

#[test]
fn reversed_slices_loop_controls_and_namespaces() {
    let template = "{% set ns = namespace(last=none) %}{% for m in messages[::-1] %}{% if m.role == 'tool' %}{% continue %}{% endif %}\
        {% if m.role == 'user' %}{% set ns.last = messages|length - 1 - loop.index0 %}{% break %}{% endif %}{% endfor %}{{ ns.last }}";
    let conversation = json!([
        {"role": "user", "content": "a"}, {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"}, {"role": "tool", "content": "d"},
    ]);
    assert_eq!(render(template, conversation).unwrap(), "1");
}

#[test]
fn none_is_not_iterable() {
    assert_eq!(
        prints(
            "{{ none is iterable }} {{ 'a' is iterable }} {{ {} is iterable }} {{ nope is defined }}"
        ),
        "False True True False"
    );
}
