//! The command line: what it prints, and that a mistake is one line and exit code 1, never a panic.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use headstart_tests::{
    models::{BROKEN, CUT, Models, REFUSAL, STARTER, TINY, TINY_MUTE, TINY_TEXT},
    server::Home,
};
use serde_json::{Value, json};

use super::Lab;

struct Shell {
    home: Home,
    models: Models,
}

impl Shell {
    fn new() -> Self {
        Self {
            home: Home::new(),
            models: Models::new(),
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let folder = self.models.path().to_str().unwrap();
        let common = ["--device", "cpu", "--model-dir", folder];
        self.home.run(&[&common[..], arguments].concat())
    }

    /// Standard output of a command that succeeds.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one line that a command fails with.
    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(lines.len(), 1, "{arguments:?}: {errors}");
        assert!(lines[0].starts_with("headstart: "), "{errors}");
        errors
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_string()
    }
}

#[test]
fn models_lists_the_usable_and_the_broken() {
    let shell = Shell::new();
    let text = shell.ok(&["models"]);
    let line = |id: &str| {
        text.lines()
            .find(|line| line.split("  ").next() == Some(id))
    };
    for id in [TINY, TINY_TEXT] {
        assert!(line(id).unwrap().contains("llama"), "{text}");
    }
    let broken = text.lines().find(|line| line.starts_with(BROKEN)).unwrap();
    assert!(
        broken.contains("cannot be used") && broken.contains("config.json"),
        "{broken}"
    );
    for (id, reason) in [(CUT, ""), (TINY_MUTE, "tokenizer.json")] {
        let line = text.lines().find(|line| line.starts_with(id)).unwrap();
        assert!(
            line.contains("cannot be used") && line.contains(reason),
            "{line}"
        );
    }

    let list: Vec<Value> = serde_json::from_str(&shell.ok(&["models", "--json"])).unwrap();
    let entry = |id: &str| list.iter().find(|entry| entry["id"] == id).unwrap();
    assert_eq!(entry(TINY)["context_length"], 4096);
    assert!(entry(BROKEN)["error"].is_string());
    assert!(entry(CUT)["error"].is_string());
    assert_eq!(entry(TINY).get("error"), None);

    let empty = Home::new().run(&["models"]);
    assert_eq!(empty.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&empty.stdout).contains("No models yet"));
}

#[test]
fn inspect_shows_a_model_and_says_what_is_wrong_with_others() {
    let shell = Shell::new();
    let text = shell.ok(&["inspect", TINY, "--tensors"]);
    for part in [
        "safetensors",
        "llama",
        "4096 tokens",
        "model.embed_tokens.weight",
        "chat template",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let value: Value = serde_json::from_str(&shell.ok(&["inspect", TINY, "--json"])).unwrap();
    assert_eq!(value["tokenizer"]["vocab_size"], 264);
    assert!(value["chat_template"].is_string());
    // Bytes of weights, and two f32 for each of 3 layers, 2 heads and 16 dimensions.
    assert_eq!(value["cache_bytes_per_token"], 2 * 4 * 3 * 2 * 16);
    let mute = shell.models.path_of(TINY_MUTE);
    let mute = mute.to_str().unwrap();
    let value: Value = serde_json::from_str(&shell.ok(&["inspect", mute, "--json"])).unwrap();
    assert!(
        value["tokenizer"]["error"]
            .as_str()
            .unwrap()
            .contains("tokenizer.json")
    );
    assert!(value["chat_template"].is_null());
    let path = shell.models.path_of(TINY);
    shell.ok(&["inspect", path.to_str().unwrap()]);

    assert!(shell.fails(&["inspect", "nothing"]).contains(TINY));
    assert!(shell.fails(&["inspect", BROKEN]).contains("config.json"));
    assert!(
        shell
            .fails(&["inspect", TINY_MUTE])
            .contains("tokenizer.json")
    );
    shell.fails(&["inspect", CUT]);
    shell.fails(&["inspect", &shell.file("empty.gguf", "")]);
    shell.fails(&["inspect", &shell.file("text.txt", "hello")]);
    shell.fails(&["inspect", "/"]);
    if shell.models.has_starter() {
        assert!(shell.ok(&["inspect", STARTER]).contains("GGUF"));
    }
}

/// Numbers in a model's configuration are whatever its author wrote.
#[test]
fn inspect_survives_configurations_that_lie() {
    let shell = Shell::new();
    let folder = shell.models.path_of(TINY);
    let config = folder.join("config.json");
    let original: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    for field in [
        "max_position_embeddings",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_size",
        "vocab_size",
        "intermediate_size",
    ] {
        for value in [
            json!(0),
            json!(-1),
            json!(u64::MAX),
            json!(i64::MAX),
            json!(1e30),
            json!("x"),
            json!(null),
            json!(u32::MAX),
        ] {
            let mut changed = original.clone();
            changed[field] = value.clone();
            std::fs::write(&config, changed.to_string()).unwrap();
            for arguments in [&["inspect", TINY][..], &["models"]] {
                let output = shell.run(arguments);
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(
                    matches!(output.status.code(), Some(0 | 1)),
                    "{field} {value}: {errors}"
                );
                assert!(!errors.contains("panicked"), "{field} {value}: {errors}");
            }
        }
    }
}

#[test]
fn render_prints_exactly_the_prompt() {
    let shell = Shell::new();
    let request = shell.file(
        "request.json",
        r#"{"messages": [{"role": "user", "content": "Hi 😀"}]}"#,
    );
    assert_eq!(
        shell.ok(&["render", TINY, "--request", &request]),
        "<|user|>Hi 😀<|assistant|>"
    );
    let ids: Vec<u32> =
        serde_json::from_str(&shell.ok(&["render", TINY, "--request", &request, "--tokens"]))
            .unwrap();
    assert_eq!((ids.len(), ids[0], ids[8]), (9, 3, 4));
    let template = shell.file(
        "t.jinja",
        "{{ messages[0].content }}|{{ add_generation_prompt }}",
    );
    assert_eq!(
        shell.ok(&["render", "--template", &template, "--request", &request]),
        "Hi 😀|True"
    );

    let refused = shell.file(
        "system.json",
        r#"{"messages": [{"role": "system", "content": "x"}]}"#,
    );
    assert!(
        shell
            .fails(&["render", TINY, "--request", &refused])
            .contains(REFUSAL)
    );
    assert!(
        shell
            .fails(&["render", TINY_TEXT, "--request", &request])
            .contains("--template")
    );
    assert!(
        shell
            .fails(&["render", TINY, "--request", "/nothing.json"])
            .contains("/nothing.json")
    );
    let wrong = shell.file("wrong.json", r#"{"messages": 3}"#);
    assert!(
        shell
            .fails(&["render", TINY, "--request", &wrong])
            .contains("messages")
    );
    shell.fails(&["render", TINY, "--request", &shell.file("not.json", "{")]);
    let broken = shell.file("broken.jinja", "{% if %}");
    shell.fails(&["render", "--template", &broken, "--request", &request]);
}

#[test]
fn run_answers_one_prompt() {
    let shell = Shell::new();
    let arguments = [
        "run",
        TINY,
        "Hello",
        "--max-tokens",
        "5",
        "--temperature",
        "0",
    ];
    let output = shell.run(&arguments);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.len() > 1);
    let stats = String::from_utf8(output.stderr).unwrap();
    assert!(
        stats.contains("7 prompt tokens") && stats.contains("5 tokens"),
        "{stats}"
    );
    assert_eq!(
        shell.ok(&arguments).into_bytes(),
        output.stdout,
        "greedy answers repeat"
    );
    let quiet = shell.run(&["run", TINY, "Hello", "--max-tokens", "2", "--no-stats"]);
    assert!(quiet.stderr.is_empty());
    shell.ok(&["run", TINY_TEXT, "Hello", "--max-tokens", "1", "--raw"]);

    assert!(shell.fails(&["run", "nothing", "Hello"]).contains(TINY));
    assert!(shell.fails(&["run", TINY_TEXT, "Hello"]).contains("--raw"));
    assert!(
        shell
            .fails(&["run", TINY, "Hello", "--system", "x"])
            .contains(REFUSAL)
    );
    assert!(
        shell
            .fails(&["run", TINY, &"x".repeat(5000)])
            .contains("4096")
    );
    assert!(
        shell
            .fails(&["run", TINY_MUTE, "Hello", "--raw"])
            .contains("tokenizer.json")
    );
    shell.fails(&["run", TINY, "Hello", "--temperature=-1"]);
    shell.fails(&["run", TINY, "Hello", "--max-tokens", "0"]);
    shell.fails(&["run", TINY_TEXT, "", "--raw"]);
    if shell.models.has_starter() {
        let text = shell.ok(&[
            "run",
            STARTER,
            "Repeat this number: 4711",
            "--temperature",
            "0",
            "--max-tokens",
            "20",
        ]);
        assert!(text.contains("4711"), "{text}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let shell = Shell::new();
    let folder = shell.models.path().to_str().unwrap();
    for arguments in [
        &["models"][..],
        &["inspect", TINY, "--tensors"],
        &["models", "--json"],
    ] {
        let mut child = shell
            .home
            .command()
            .args(["--device", "cpu", "--model-dir", folder])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("panicked"), "{arguments:?}: {errors}");
    }
}

#[test]
fn mistakes_in_the_settings_are_named() {
    let shell = Shell::new();
    let settings = shell.file("settings.toml", "port = 9000\nmax_running = \"many\"\n");
    let output = shell.run(&["--settings", &settings, "models"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.contains("line 2") && errors.contains("max_running"),
        "{errors}"
    );
    assert!(errors.contains(&settings), "{errors}");
    let missing = shell.fails(&["--settings", "/no/settings.toml", "models"]);
    assert!(missing.contains("/no/settings.toml"), "{missing}");

    for (text, parts) in [
        (
            "[models.\"test/tiny\"]\nspecprefill_keep_ratio = 0.01\n",
            ["test/tiny", "specprefill_keep_ratio is 0.01", "0.05 to 1"],
        ),
        (
            "[defaults]\nmtp_max_depth = 9\n",
            ["defaults", "mtp_max_depth is 9", "1 to 8"],
        ),
        (
            "[defaults]\nspecprefill = true\n",
            ["line 2", "`specprefill`", "specprefill_enabled"],
        ),
    ] {
        let settings = shell.file("settings.toml", text);
        let output = shell.run(&["--settings", &settings, "serve", "--port", "0"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        for part in parts.iter().copied().chain([settings.as_str()]) {
            assert!(errors.contains(part), "{part}: {errors}");
        }
    }
}

/// Opening a named pipe waits for somebody who writes to it.
#[cfg(unix)]
#[test]
fn named_pipes_are_not_waited_for() {
    let shell = Shell::new();
    let folder = shell.models.path_of(TINY);
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    pipe(&shell.models.path().join("pipe.gguf"));
    let text = shell.ok(&["models"]);
    let line = text.lines().find(|line| line.starts_with("pipe ")).unwrap();
    assert!(line.contains("not a regular file"), "{line}");
    for name in ["tokenizer.json", "chat_template.jinja"] {
        let file = folder.join(name);
        let content = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        pipe(&file);
        let output = shell.run(&["run", TINY, "--max-tokens", "1", "Hi"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains(name) && errors.contains("not a regular file"),
            "{errors}"
        );
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, content).unwrap();
    }
}

/// Switches and settings reach the answer, and the lines at the end say what was done with them.
#[test]
fn run_says_what_specprefill_and_mtp_did() {
    let shell = Shell::new();
    let ask = ["run", TINY, "Hello", "--max-tokens", "2"];
    let lines = |before: &[&str], after: &[&str]| {
        let output = shell.run(&[before, &ask[..], after].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{errors}");
        (errors.contains("[SpecPrefill"), errors.contains("[MTP"))
    };
    assert_eq!(lines(&[], &[]), (false, false));
    assert_eq!(lines(&[], &["--mtp", "--mtp-depth", "2"]), (false, true));
    let speed = [
        "--specprefill",
        "--draft",
        TINY_TEXT,
        "--keep",
        "0.3",
        "--threshold",
        "4",
    ];
    assert_eq!(lines(&[], &speed), (true, false));
    let settings = shell.file("on.toml", "[defaults]\nspecprefill_enabled = true\n");
    assert_eq!(lines(&["--settings", &settings], &[]), (true, false));

    let fails = |further: &[&str]| shell.fails(&[&ask[..], further].concat());
    assert!(fails(&["--specprefill", "--draft", "no/such"]).contains("no/such"));
    assert!(fails(&["--specprefill", "--keep", "2"]).contains("0.05 to 1"));
    assert!(fails(&["--mtp", "--mtp-depth", "9"]).contains("1 to 8"));
}

#[test]
fn an_occupied_port_is_explained() {
    let lab = Lab::shared();
    let port = lab.client().address().port().to_string();
    let message = Shell::new().fails(&["serve", "--port", &port]);
    assert!(
        message.contains(&port) && message.contains("--port"),
        "{message}"
    );
}

/// A test that is killed must leave no server behind: all servers of these tests are started with `--exit-with-stdin`.
#[test]
fn the_server_ends_when_its_input_is_closed() {
    let mut lab = Lab::start(|setup| setup);
    let client = lab.client();
    client.get("/health").ok();
    lab.server.close_input();
    assert_eq!(lab.server.wait(), Some(0));
    assert!(!lab.server.log().contains("panicked"));
}

#[cfg(unix)]
#[test]
fn the_server_ends_when_asked_to() {
    let mut lab = Lab::start(|setup| setup);
    let client = lab.client();
    // An open answer must not hold it up.
    let endless = json!({"model": TINY, "prompt": "Hi", "max_tokens": 4000, "ignore_eos": true});
    let open = client.connect(&headstart_tests::client::post_bytes(
        super::COMPLETIONS,
        &endless,
    ));
    client.wait_for_health("running", 1);
    let id = lab.server.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-TERM", &id])
        .status()
        .unwrap();
    assert!(sent.success());
    assert_eq!(lab.server.wait(), Some(0));
    assert!(!Path::new("/proc").join(&id).join("exe").exists());
    drop(open);
}
