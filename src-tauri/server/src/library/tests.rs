use std::fs;

use super::*;

fn library(files: &[(&str, &str)]) -> (tempfile::TempDir, Library) {
    let root = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let library = Library::new(vec![
        root.path().to_path_buf(),
        root.path().join("not-there"),
    ]);
    (root, library)
}

fn ids(library: &Library) -> Vec<String> {
    library
        .entries()
        .into_iter()
        .map(|entry| entry.id)
        .collect()
}

#[test]
fn every_layout_is_found_and_broken_models_keep_their_reason() {
    let (_root, library) = library(&[
        ("top.gguf", "x"),
        ("org/name/config.json", "{}"),
        ("org/name/model.safetensors", "x"),
        ("org/file.Q4_1.gguf", "x"),
        ("lm/studio/a.Q4_0.gguf", "x"),
        ("lm/studio/mmproj-a.gguf", "x"),
        ("org/split-00001-of-00002.gguf", "x"),
        ("org/split-00002-of-00002.gguf", "x"),
        ("flat/config.json", "not json"),
        ("no/config/model.safetensors", "x"),
        (".hidden/config.json", "{}"),
        ("notes/readme.txt", "x"),
        ("a/b/c/too-deep.gguf", "x"),
    ]);
    assert_eq!(
        ids(&library),
        [
            "flat",
            "lm/studio/a.Q4_0",
            "no/config",
            "org/file.Q4_1",
            "org/name",
            "org/split",
            "top"
        ]
    );
    for entry in library.entries() {
        let reason = entry.status.unwrap_err();
        assert!(reason.contains('/'), "the reason names the file: {reason}");
    }
    match library.find("no/config").unwrap_err() {
        LookupError::Broken { reason, .. } => {
            assert!(reason.contains("config.json is missing"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_folder_without_a_tokenizer_is_no_usable_model() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-tiny");
    let (root, library) = library(&[("m/readme.txt", "x")]);
    for file in ["config.json", "model.safetensors"] {
        let content = fs::read(fixture.join(file)).unwrap();
        fs::write(root.path().join("m").join(file), content).unwrap();
    }
    match library.find("m").unwrap_err() {
        LookupError::Broken { reason, .. } => {
            assert!(reason.contains("tokenizer.json"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    // Only that it is there is looked at, and seen when it comes later.
    let path = root.path().join("m/tokenizer.json");
    fs::write(&path, "{}").unwrap();
    let later = SystemTime::now() + std::time::Duration::from_secs(5);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(later).unwrap();
    assert!(library.find("m").is_ok());
}

#[test]
fn a_repaired_model_is_seen_again() {
    let (root, library) = library(&[("m/config.json", "{")]);
    assert!(
        library.entries()[0]
            .status
            .as_ref()
            .unwrap_err()
            .contains("JSON")
    );
    fs::write(
        root.path().join("m/config.json"),
        r#"{"model_type": "martian"}"#,
    )
    .unwrap();
    // Time stamps may be coarse: move it on.
    let later = SystemTime::now() + std::time::Duration::from_secs(5);
    fs::File::options()
        .write(true)
        .open(root.path().join("m/config.json"))
        .unwrap()
        .set_modified(later)
        .unwrap();
    assert!(
        library.entries()[0]
            .status
            .as_ref()
            .unwrap_err()
            .contains("martian")
    );
}

#[test]
fn unknown_names_list_what_there_is() {
    let (_root, library) = library(&[("a/same.gguf", "x"), ("b/same.gguf", "x")]);
    assert_eq!(
        library.find("nothing").unwrap_err(),
        LookupError::Unknown {
            name: "nothing".into(),
            known: vec![]
        }
    );
    assert_eq!(
        library.find("SAME.gguf").unwrap_err(),
        LookupError::Ambiguous(vec!["a/same".into(), "b/same".into()])
    );
    assert!(matches!(
        library.find("A/Same").unwrap_err(),
        LookupError::Broken { .. }
    ));
}
