//! Strings and lists of parts, for templates that read one of them or both.

use serde_json::json;

use super::*;
use crate::prompt::ContentShape;

const STRINGS: &str =
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '.' }}{% endfor %}";
/// Prints Python's view of a list, without an error.
const PRINTS_ANYTHING: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}.{% endfor %}";
/// Drops a list, without an error.
const DROPS_LISTS: &str = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% endif %}.{% endfor %}";
/// Prints a list as JSON.
const PRINTS_JSON: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else m.content|tojson }}.{% endfor %}";
const BOTH: &str = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
    {% if p.type == 'image' %}<image>{% elif 'text' in p %}{{ p.text }}{% endif %}{% endfor %}{% endif %}.{% endfor %}";
/// Loses a plain string, without an error.
const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p['type'] == 'image' %}<image>{% elif p['type'] == 'text' %}\
    {{ p['text'] }}{% endif %}{% endfor %}.{% endfor %}";
/// Reads lists from the user only.
const USER_LISTS: &str = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' and m.content is not string %}{{ m.content[0].text }}\
    {% else %}{{ m.content + '' }}{% endif %}.{% endfor %}";

fn parts() -> Value {
    json!([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}])
}

#[test]
fn text_parts_reach_every_template() {
    for source in [
        STRINGS,
        PRINTS_ANYTHING,
        DROPS_LISTS,
        PRINTS_JSON,
        BOTH,
        PARTS,
    ] {
        for role in ["system", "user", "assistant", "tool"] {
            let prompt = render(source, json!([{"role": role, "content": parts()}])).unwrap();
            assert_eq!(prompt, format!("<{role}>one two."), "{source}");
        }
    }
}

#[test]
fn strings_reach_every_template() {
    for source in [
        STRINGS,
        PRINTS_ANYTHING,
        DROPS_LISTS,
        PRINTS_JSON,
        BOTH,
        PARTS,
    ] {
        let messages =
            json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": null}]);
        assert_eq!(
            render(source, messages).unwrap(),
            "<user>hi.<assistant>.",
            "{source}"
        );
    }
}

#[test]
fn each_role_is_looked_at() {
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "u"}]}, {"role": "assistant", "content": parts()}]);
    assert_eq!(
        render(USER_LISTS, messages).unwrap(),
        "<user>u.<assistant>one two."
    );
}

#[test]
fn images_stay_for_templates_that_read_lists() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    let messages = json!([{"role": "user", "content": [image, {"type": "text", "text": "What?"}]}]);
    for source in [BOTH, PARTS] {
        assert_eq!(
            render(source, messages.clone()).unwrap(),
            "<user><image>What?."
        );
    }
    // The other fields of the part are still there.
    let source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
        {% if p.image_url is defined %}{{ p.image_url.url }}{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(
        render(source, messages.clone()).unwrap(),
        "data:image/png;base64,AA==What?"
    );
    for source in [STRINGS, PRINTS_ANYTHING, DROPS_LISTS, PRINTS_JSON] {
        let error = render(source, messages.clone()).unwrap_err().to_string();
        assert_eq!(
            error,
            "messages[0].content[0]: this model's chat template takes text only, not a part of type 'image_url'"
        );
    }
}

#[test]
fn as_sent_changes_nothing() {
    let asked = |messages: Value| RenderRequest {
        content_shape: ContentShape::AsSent,
        ..request(messages)
    };
    let list = asked(json!([{"role": "user", "content": parts()}]));
    let python = "<user>[{'type': 'text', 'text': 'one '}, {'type': 'text', 'text': 'two'}].";
    assert_eq!(compile(PRINTS_ANYTHING).render(&list).unwrap(), python);
    assert!(compile(STRINGS).render(&list).is_err());
    assert_eq!(compile(DROPS_LISTS).render(&list).unwrap(), "<user>.");
    let string =
        asked(json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": null}]));
    assert_eq!(
        compile(PRINTS_ANYTHING).render(&string).unwrap(),
        "<user>hi.<assistant>None."
    );
}

/// A template that raises for the probe's roles is taken to read strings, and is otherwise left alone.
#[test]
fn a_template_that_refuses_roles_still_gets_its_text() {
    let source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
        {% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}\
        {{ '[' + m.content + ']' }}{% endfor %}";
    let messages =
        json!([{"role": "user", "content": parts()}, {"role": "assistant", "content": parts()}]);
    assert_eq!(render(source, messages).unwrap(), "[one two][one two]");
}
