//! The starter model's GGUF metadata against the `tokenizer.json` of the same vocabulary.

use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::gguf::GgufFile;

/// The starter model: `HEADSTART_STARTER_GGUF`, else where the app keeps it. `None`, with a note, when it is not there.
fn starter() -> Option<PathBuf> {
    let named = std::env::var_os("HEADSTART_STARTER_GGUF").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    let models = if cfg!(target_os = "macos") {
        home().map(|home| home.join("Library/Application Support/ai.headstart.Headstart/models"))
    } else {
        let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
        let data = data.filter(|path| path.is_absolute());
        data.or_else(|| Some(home()?.join(".local/share")))
            .map(|data| data.join("headstart/models"))
    };
    let path =
        named.or_else(|| Some(models?.join("HuggingFaceTB/SmolLM2-135M-Instruct.Q4_1.gguf")))?;
    if path.is_file() {
        return Some(path);
    }
    println!(
        "skipped: no starter model at {} (make starter)",
        path.display()
    );
    None
}

/// Prose and code of this repository, and random characters of many scripts, with white space and digits between.
fn diverse_texts() -> Vec<String> {
    let mut texts: Vec<String> = TEXTS.iter().map(|text| (*text).to_owned()).collect();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => texts.extend(std::fs::read_to_string(entry.path()).ok()),
            }
        }
    }
    let scripts: &[(u32, u32)] = &[
        (0x20, 0x7e),
        (0xa0, 0x24f),
        (0x300, 0x36f),
        (0x370, 0x52f),
        (0x590, 0x6ff),
        (0x900, 0x97f),
        (0xe00, 0xe5b),
        (0x2000, 0x2bff),
        (0x3000, 0x30ff),
        (0x4e00, 0x9fff),
        (0xac00, 0xd7a3),
        (0xff00, 0xffef),
        (0x1d400, 0x1d7ff),
        (0x1f300, 0x1faff),
    ];
    let between = [
        "",
        "",
        "",
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "7",
        "1234567",
        "'s",
        "'LL",
        "<|im_end|>",
        "<file_sep>",
    ];
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..200 {
        let mut text = String::new();
        for _ in 0..300 {
            let (low, high) = scripts[random.random_range(0..scripts.len())];
            text.extend(char::from_u32(random.random_range(low..=high)));
            text.push_str(between[random.random_range(0..between.len())]);
        }
        texts.push(text);
    }
    texts.push(" ".repeat(5000) + "x");
    texts.push("\n".repeat(3000));
    texts.push("1".repeat(3000));
    texts
}

#[test]
fn the_starter_model_and_its_tokenizer_json_give_the_same_ids() {
    let (Some(path), Some(models)) = (starter(), shared_models()) else {
        return;
    };
    let gguf = Tokenizer::from_gguf(GgufFile::open(&path).unwrap().metadata()).unwrap();
    let json = Tokenizer::from_model_dir(&models.join("nano")).unwrap();
    assert!(gguf.has_same_vocabulary(&json));
    assert_eq!(gguf.stop_ids(), json.stop_ids());
    assert_eq!(
        (gguf.bos_token(), gguf.eos_token()),
        (json.bos_token(), json.eos_token())
    );

    let mut tokens = 0;
    for text in diverse_texts() {
        let ids = gguf.encode(&text, false).unwrap();
        assert_eq!(ids, json.encode(&text, false).unwrap());
        assert_eq!(gguf.decode(&ids, false), text);
        tokens += ids.len();
    }
    println!("{tokens} tokens compared");
    assert!(tokens > 100_000, "{tokens}");
}

#[test]
fn random_ids_of_a_real_vocabulary_stream_to_the_text_of_all_ids() {
    let Some(models) = shared_models() else {
        return;
    };
    let tokenizer = Tokenizer::from_model_dir(&models.join("nano")).unwrap();
    let mut random = StdRng::seed_from_u64(5);
    for _ in 0..500 {
        let ids: Vec<u32> = (0..200).map(|_| random.random_range(0..49_200)).collect();
        for skip in [false, true] {
            let at_once = tokenizer.0.pipeline.decode(&ids, skip).unwrap();
            assert_eq!(tokenizer.decode(&ids, skip), at_once);
        }
    }
}
