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

mod hostile {
    use super::*;

    /// Bounds that are reached soon.
    const SMALL: Limits = Limits {
        steps: 200_000,
        output_bytes: 1 << 20,
        work_bytes: 16 << 20,
    };

    /// The error with small bounds, on a thread with the stack of a server's thread.
    fn fails(template: &str) -> String {
        let template = template.to_owned();
        let thread = std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(move || match Program::compile(&template) {
                Err(error) => error.message,
                Ok(program) => match program.render(&Map::new(), &SMALL, None) {
                    Ok(text) => panic!("gave {} bytes: {:.60}", text.len(), text),
                    Err(RenderError::Failed { message, .. }) => message,
                    Err(RenderError::Raised(message)) => panic!("raised {message}"),
                },
            });
        thread.unwrap().join().unwrap()
    }

    #[test]
    fn a_template_that_does_not_end_is_stopped() {
        let nested =
            "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}";
        let message = fails(&format!("{nested}{}", "{% endfor %}".repeat(3)));
        assert!(message.contains("steps"), "{message}");
    }

    #[test]
    fn recursion_is_stopped() {
        for template in [
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}",
            "{% macro m() %}{% for i in [1] %}{% if true %}{{ [1]|map('string')|list ~ m()|upper }}{% endif %}{% endfor %}{% endmacro %}{{ m() }}",
            "{% macro a() %}{% call b() %}{{ a() }}{% endcall %}{% endmacro %}{% macro b() %}{{ caller() }}{% endmacro %}{{ a() }}",
            "{% set t = [1] %}{% for i in t recursive %}{{ loop(t) }}{% endfor %}",
        ] {
            let message = fails(template);
            assert!(
                message.contains("recursion") || message.contains("steps"),
                "{template}: {message}"
            );
        }
    }

    #[test]
    fn output_and_memory_are_bounded() {
        for template in [
            "{% for i in range(100000) %}{{ 'a long line of text that is printed again and again' }}{% endfor %}",
            "{% for i in range(100000) %}a long line of text that is printed again and again{% endfor %}",
            "{% set x %}{% for i in range(100000) %}a long line of text that is captured{% endfor %}{% endset %}",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == [ns.x[0], [ns.x[0]]] }}{{ ns.x|string|length }}",
            "{{ 'a' * 99999999999 }}",
            "{{ 'ab' * 9999999 }}",
            "{{ [1] * 99999999999 }}",
            "{{ '%9999999999s' % 'a' }}",
            "{{ '{:>99999999}'.format('a') }}",
            "{{ '%*s' % (99999999, 'a') }}",
            "{{ 'a'.center(99999999999) }}",
            "{{ 'a'.ljust(9999999) }}",
            "{{ 'a'.zfill(9223372036854775807) }}",
            "{{ 'a\\tb'.expandtabs(99999999999) }}",
            "{{ 'a'|indent(99999999999, true) }}",
            "{{ ('a' * 500000)|replace('a', 'a' * 500000) }}",
            "{{ ('a' * 500000).join('b' * 500000) }}",
            "{{ (['a' * 500000] * 500000)|join }}",
            "{{ ['a' * 900000] * 5 }}",
            "{{ [1]|batch(99999999999, 0)|list }}",
            "{{ [1]|slice(99999999999)|list }}",
            "{{ range(99999999999) }}",
            "{{ range(-9223372036854775807, 9223372036854775807) }}",
            "{{ 10 ** 10 ** 10 }}",
            "{{ 2 ** 200 }}",
            "{{ 170141183460469231731687303715884105727 + 1 }}",
            "{{ -170141183460469231731687303715884105727 - 2 }}",
            "{% set s = 'ab' * 400000 %}{% for i in range(100000) %}{% if 'x' in s %}{% endif %}{% endfor %}",
            "{% set s = 'ab' * 400000 %}{% for i in range(100000) %}{% if s.find('x') %}{% endif %}{% endfor %}",
            "{% set s = 'ab' * 400000 %}{% set t = 'ab' * 400000 %}{% for i in range(100000) %}{% if s == t %}{% endif %}{% endfor %}",
            "{% set s = range(100000) %}{% for i in range(100000) %}{% if -1 in s %}{% endif %}{% endfor %}",
            "{% set s = range(100000)|list %}{% for i in range(100000) %}{% set q = s[::-1] %}{% endfor %}",
        ] {
            fails(template);
        }
    }

    #[test]
    fn nesting_at_run_time_is_bounded() {
        for template in [
            "{% set ns = namespace(x=1) %}{% for i in range(20000) %}{% set ns.x = [ns.x] %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for i in range(20000) %}{% set ns.x = (ns.x, 1) %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for i in range(20000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for i in range(20000) %}{% set ns.x = dict(a=ns.x) %}{% endfor %}",
            "{% set ns = namespace(x=[1]) %}{% for i in range(20000) %}{% set ns.x = ns.x|batch(1)|list %}{% endfor %}",
            "{% set ns = namespace(x={'a': 1}) %}{% for i in range(20000) %}{% set ns.x = {'a': ns.x.items()} %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for i in range(20000) %}{% set ns.x = namespace(y=ns.x) %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% set ns.x = ns %}",
            "{% set ns = namespace(x=1) %}{% set ns.x = [[ns]] %}",
            "{% set ns = namespace() %}{% for i in range(20000) %}{% set p = ns.m %}{% macro m() %}{{ p }}{% endmacro %}{% set ns.m = m %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for i in range(20000) %}{% set ns.x = ''.join if i == 0 else [ns.x.foo, ns.x] %}{% endfor %}",
        ] {
            fails(template);
        }
    }

    #[test]
    fn nesting_of_the_source_is_bounded() {
        let deep = 20_000;
        let wrap = |open: &str, middle: &str, close: &str| {
            format!("{}{middle}{}", open.repeat(deep), close.repeat(deep))
        };
        for template in [
            format!("{{{{ {} }}}}", wrap("(", "1", ")")),
            format!("{{{{ {} }}}}", wrap("[", "1", "]")),
            format!("{{{{ {} }}}}", wrap("{1: ", "1", "}")),
            format!("{{{{ {}1 }}}}", "not ".repeat(deep)),
            format!("{{{{ {}1 }}}}", "- ".repeat(deep)),
            format!("{{{{ 1{} }}}}", " - 1 + 1".repeat(deep)),
            format!("{{{{ 1{} }}}}", "|abs".repeat(deep)),
            format!("{{{{ x{} }}}}", ".a".repeat(deep)),
            format!("{{{{ x{} }}}}", "[0]".repeat(deep)),
            format!("{{{{ x{} }}}}", "()".repeat(deep)),
            format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(deep)),
            format!("{{{{ 1{} }}}}", " is odd".repeat(deep)),
            format!("{{{{ 1{} }}}}", " and 1 or 1".repeat(deep)),
            wrap("{% if 1 %}", "", "{% endif %}"),
            wrap("{% for i in [1] %}", "", "{% endfor %}"),
            wrap("{% macro m() %}", "", "{% endmacro %}"),
            wrap("{% set x %}", "", "{% endset %}"),
            format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(deep)),
            format!("{{% set {} = 1 %}}", wrap("(", "a", ")")),
            "{{".repeat(deep),
            "{% raw".repeat(deep),
            "x".repeat(2 << 20),
        ] {
            // Long but flat chains may be fine; they must not take the process down.
            let thread = std::thread::Builder::new().stack_size(2 << 20);
            let thread = thread.spawn(move || {
                Program::compile(&template).map(|p| p.render(&Map::new(), &SMALL, None))
            });
            let _outcome = thread.unwrap().join().unwrap();
        }
    }

    /// The deepest source that is accepted compiles and runs on a small stack.
    #[test]
    fn the_deepest_accepted_source_runs() {
        let chain = "|abs".repeat(30);
        let sums = " - 1 + 1".repeat(15);
        let both = format!("{}{}", " and 1".repeat(38), " or 0".repeat(38));
        let statements = 30;
        let template = move |levels: usize| {
            let mut expression = String::from("1");
            for _ in 0..levels {
                expression = format!("({expression}{chain}{sums}{both})");
            }
            format!(
                "{}{{{{ {expression} }}}}{}",
                "{% if 1 %}".repeat(statements),
                "{% endif %}".repeat(statements)
            )
        };
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let thread = thread.spawn(move || {
            let (levels, program) = (1..40)
                .rev()
                .find_map(|n| Some((n, Program::compile(&template(n)).ok()?)))
                .unwrap();
            (
                levels,
                program.render(&Map::new(), &Limits::default(), None),
            )
        });
        let (levels, result) = thread.unwrap().join().unwrap();
        assert_eq!(result, Ok("1".into()));
        assert!(levels >= 8, "only {levels} levels are accepted");
    }
}

#[test]
fn the_default_limits_leave_room_for_long_conversations() {
    let template = "{% set ns = namespace(text='') %}{% for m in messages %}{% set ns.text = m.content.split('x')|join('y') %}\
                    <|{{ m.role }}|>{{ ns.text|trim }}{% for k in messages[-3:] %}{{ k.role[0] }}{% endfor %}\n{% endfor %}";
    let text = "word ".repeat(200);
    let messages: Vec<Value> = (0..5000)
        .map(|_| json!({"role": "user", "content": text}))
        .collect();
    let prompt = render(template, json!({ "messages": messages })).unwrap();
    assert_eq!(
        prompt.len(),
        5000 * ("<|user|>".len() + text.trim().len() + 3)
    );
}

#[test]
fn errors_name_the_line_and_the_value() {
    let template = "line one\n{% for m in messages %}\n{% if m.tool_calls %}\n{{ m.tool_calls[0].function.name }}\n{% endif %}\n{% endfor %}";
    let error = render(template, json!({"messages": [{"tool_calls": [{}]}]})).unwrap_err();
    let message = "'m.tool_calls[0].function' is undefined".to_owned();
    assert_eq!(
        error,
        RenderError::Failed {
            message,
            line: Some(4)
        }
    );
    assert_eq!(compile_error("a\nb {% if x %}\nc").line, 3);
    assert_eq!(
        compile_error("a\nb {{ x y }}\nc"),
        CompileError {
            line: 2,
            message: "expected '}}', found 'y'".into()
        }
    );
    // Text whose newlines are trimmed does not move the lines after it.
    let error = render(
        "\n\n{%- if true -%}\n\n\n{{ 'a' + 1 }}{% endif %}",
        json!({}),
    )
    .unwrap_err();
    let message = "can only concatenate str (not \"int\") to str".to_owned();
    assert_eq!(
        error,
        RenderError::Failed {
            message,
            line: Some(6)
        }
    );
}

#[test]
fn the_words_of_raise_exception_arrive_as_they_are() {
    for place in [
        "{{ X }}",
        "{% if X %}{% endif %}",
        "{% macro m() %}{{ X }}{% endmacro %}{{ m() }}",
        "{% for i in [1] %}{% set a %}{{ X }}{% endset %}{% endfor %}",
    ] {
        let template = place.replace(
            'X',
            "raise_exception('Roles must alternate: ' ~ [none, 'ü'])",
        );
        assert_eq!(
            render(&template, json!({})),
            Err(RenderError::Raised(
                "Roles must alternate: [None, 'ü']".into()
            ))
        );
    }
}

#[test]
fn renderings_at_the_same_time_do_not_share_their_limits() {
    let program = Program::compile("{% for i in range(n) %}{{ 'x' * 100 }}{% endfor %}").unwrap();
    let limits = Limits {
        output_bytes: 50_000,
        ..Limits::default()
    };
    std::thread::scope(|scope| {
        for n in [100, 400, 600, 1000] {
            let program = &program;
            scope.spawn(move || {
                for _ in 0..20 {
                    let result = program.render(&variables(json!({ "n": n })), &limits, None);
                    assert_eq!(result.is_ok(), n * 100 <= 50_000, "{n}");
                }
            });
        }
    });
}
