//! Small tokenizers of every kind, made in code or from `sentencepiece.json`.

mod gguf;
mod json;
mod starter;
mod stream;

use std::path::Path;

use serde_json::{Value as Json, json};
use tempfile::{TempDir, tempdir};

use super::*;
use crate::gguf::testing::{metadata, string, strings};
use crate::gguf::{Array, Value};

/// Texts that are hard to cut into characters and words.
const TEXTS: &[&str] = &[
    "",
    " ",
    "the cat, the hat and the ",
    "  two  spaces\n\n\ttab",
    "naïve café — “quotes”…",
    "你好，世界 こんにちは 안녕",
    "🎉👩‍👩‍👧‍👦🇩🇪👍🏽",
    "e\u{301}e\u{308} \u{fffd} हिन्दी",
    "<|im_start|>user\nthe<|im_end|>\n",
    "a\u{a0}b\u{3000}c\r\n\u{1}\u{7f}",
];

/// The character of each byte in the alphabet of byte-level vocabularies.
fn alphabet() -> Vec<String> {
    let mut characters = vec![String::new(); 256];
    for character in '!'..='\u{143}' {
        if let Some(byte) = byte_level::byte_of(character) {
            characters[usize::from(byte)] = character.to_string();
        }
    }
    characters
}

const MERGES: &[&str] = &[
    "t h", "Ġ th", "Ġth e", "th e", "Ã ©", "ð Ł", "ä ½", "ä½ ł", "Ċ Ċ",
];

/// The tokens of a byte-level vocabulary: the bytes, and what [`MERGES`] makes.
fn byte_level_tokens() -> Vec<String> {
    let merged = MERGES.iter().map(|merge| merge.replace(' ', ""));
    alphabet().into_iter().chain(merged).collect()
}

/// A `tokenizer.json` as byte-level models have it, with three added tokens after the vocabulary.
fn byte_level_json() -> Json {
    let tokens = byte_level_tokens();
    let size = tokens.len();
    let vocab: serde_json::Map<String, Json> = tokens
        .into_iter()
        .zip(0..)
        .map(|(token, id)| (token, json!(id)))
        .collect();
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [
            added(size, "<|im_start|>", true),
            added(size + 1, "<|im_end|>", true),
            added(size + 2, "<tool_call>", false),
        ],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocab, "merges": MERGES},
    })
}

fn added(id: usize, content: &str, special: bool) -> Json {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": special})
}

/// A model folder with these files.
fn folder(files: &[(&str, &Json)]) -> TempDir {
    let folder = tempdir().unwrap();
    for (name, json) in files {
        std::fs::write(folder.path().join(name), json.to_string()).unwrap();
    }
    folder
}

fn from_json(json: &Json) -> Tokenizer {
    Tokenizer::from_model_dir(folder(&[("tokenizer.json", json)]).path()).unwrap()
}

/// The same vocabulary as [`byte_level_json`], as GGUF metadata with these further keys.
fn byte_level_metadata(more: impl IntoIterator<Item = (&'static str, Value)>) -> Metadata {
    let mut tokens = byte_level_tokens();
    let mut types = vec![1; tokens.len()];
    tokens.extend(["<|im_start|>", "<|im_end|>", "<tool_call>"].map(str::to_owned));
    types.extend([3, 3, 4]);
    let mut all = metadata([
        ("tokenizer.ggml.model", string("gpt2")),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
        ("tokenizer.ggml.merges", strings(MERGES)),
    ]);
    let more: Vec<_> = more.into_iter().collect();
    if !more.iter().any(|(key, _)| *key == "tokenizer.ggml.pre") {
        all.insert("tokenizer.ggml.pre", string("gpt-2"));
    }
    replace(&mut all, more);
    all
}

/// Sets keys, whether they are there or not.
fn replace(metadata: &mut Metadata, pairs: impl IntoIterator<Item = (&'static str, Value)>) {
    for (key, value) in pairs {
        let mut next = Metadata::new(metadata.source());
        for (other, value) in metadata.iter().filter(|(other, _)| *other != key) {
            next.insert(other, value.clone());
        }
        next.insert(key, value);
        *metadata = next;
    }
}

fn without(metadata: &Metadata, key: &str) -> Metadata {
    let mut next = Metadata::new(metadata.source());
    for (other, value) in metadata.iter().filter(|(other, _)| *other != key) {
        next.insert(other, value.clone());
    }
    next
}

/// The fixture: a SentencePiece model trained on this project's documents, and what its own library makes of some texts.
fn sentence_piece_fixture() -> Json {
    serde_json::from_str(include_str!("sentencepiece.json")).unwrap()
}

fn sentence_piece_metadata(more: impl IntoIterator<Item = (&'static str, Value)>) -> Metadata {
    let fixture = sentence_piece_fixture();
    let list = |key: &str| fixture[key].as_array().unwrap().clone();
    let scores = list("scores")
        .iter()
        .map(|x| x.as_f64().unwrap() as f32)
        .collect();
    let types = list("types")
        .iter()
        .map(|x| x.as_i64().unwrap() as i32)
        .collect();
    let pieces = list("pieces");
    let mut all = metadata([
        ("tokenizer.ggml.model", string("llama")),
        (
            "tokenizer.ggml.tokens",
            strings(pieces.iter().map(|piece| piece.as_str().unwrap())),
        ),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
    ]);
    replace(&mut all, more);
    all
}

/// The message of an error that must occur.
#[track_caller]
fn refused(result: Result<Tokenizer>) -> String {
    result.expect_err("must be refused").to_string()
}

#[track_caller]
fn assert_mentions(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

/// The folder with our trained models, or `None` with a note.
fn shared_models() -> Option<std::path::PathBuf> {
    let shared = std::env::var_os("HEADSTART_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        Into::into,
    );
    let models = shared.join("models");
    if models.is_dir() {
        return Some(models);
    }
    println!("skipped: {} is absent", models.display());
    None
}

#[test]
fn roles_bytes_and_special_tokens() {
    let tokenizer = Tokenizer::from_gguf(&byte_level_metadata([
        ("tokenizer.ggml.bos_token_id", Value::U32(265)),
        ("tokenizer.ggml.eos_token_id", Value::U32(266)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
    ]))
    .unwrap();
    assert_eq!(tokenizer.vocab_size(), 268);
    assert_eq!(tokenizer.bos_token(), Some("<|im_start|>"));
    assert_eq!(tokenizer.eos_token(), Some("<|im_end|>"));
    assert_eq!(
        (tokenizer.bos_id(), tokenizer.eos_id()),
        (Some(265), Some(266))
    );
    assert_eq!((tokenizer.pad_token(), tokenizer.unk_token()), (None, None));
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.stop_ids(), [266]);
    assert!(tokenizer.is_special(265) && tokenizer.is_special(266));
    assert!(!tokenizer.is_special(267) && !tokenizer.is_special(0) && !tokenizer.is_special(9999));

    assert_eq!(tokenizer.token_to_id("Ġthe"), Some(258));
    assert_eq!(tokenizer.id_to_token(258).as_deref(), Some("Ġthe"));
    assert_eq!(tokenizer.id_to_token(9999), None);
    assert_eq!(tokenizer.token_bytes(258), b" the");
    assert_eq!(tokenizer.token_bytes(0xf0), [0xf0]);
    assert_eq!(tokenizer.token_bytes(265), b"<|im_start|>");
    assert_eq!(tokenizer.token_bytes(9999), b"");

    let text = "the<|im_end|> the<tool_call>";
    assert_eq!(tokenizer.encode(text, false).unwrap(), [259, 266, 258, 267]);
    assert_eq!(
        tokenizer.encode(text, true).unwrap(),
        [265, 259, 266, 258, 267]
    );
    // As plain text the control token is written out; tokens that are not special still count.
    let plain = tokenizer.encode_plain(text, false).unwrap();
    assert!(!plain.contains(&266) && plain.ends_with(&[258, 267]));
    assert_eq!(tokenizer.decode(&plain, true), text);
    assert_eq!(
        tokenizer.decode(&[259, 266, 258, 267], true),
        "the the<tool_call>"
    );
    assert_eq!(tokenizer.decode(&[259, 266, 258, 267], false), text);
}

#[test]
fn bytes_of_all_tokens_are_the_text() {
    let sentence_piece = Tokenizer::from_gguf(&sentence_piece_metadata([])).unwrap();
    let byte_level = from_json(&byte_level_json());
    for text in TEXTS {
        let ids = byte_level.encode(text, false).unwrap();
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| byte_level.token_bytes(id))
            .collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), *text);

        let ids = sentence_piece.encode(text, false).unwrap();
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| sentence_piece.token_bytes(id))
            .collect();
        // The space that SentencePiece puts first is part of the first token.
        let expected = if text.is_empty() {
            String::new()
        } else {
            format!(" {text}")
        };
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}

#[test]
fn a_vocabulary_is_compared_by_tokens_not_by_padding() {
    let json = from_json(&byte_level_json());
    let gguf = Tokenizer::from_gguf(&byte_level_metadata([])).unwrap();
    assert!(json.has_same_vocabulary(&gguf) && gguf.has_same_vocabulary(&json));

    let with_token = |name: &str, kind: i32| {
        let mut tokens = byte_level_tokens();
        let mut types = vec![1; tokens.len()];
        tokens.extend(["<|im_start|>", "<|im_end|>", "<tool_call>", name].map(str::to_owned));
        types.extend([3, 3, 4, kind]);
        let pairs = [
            ("tokenizer.ggml.tokens", strings(tokens)),
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
        ];
        Tokenizer::from_gguf(&byte_level_metadata(pairs)).unwrap()
    };
    let padded = with_token("[PAD268]", 5);
    assert_eq!(padded.vocab_size(), 269);
    assert!(padded.has_same_vocabulary(&json) && json.has_same_vocabulary(&padded));
    let larger = with_token("word", 1);
    assert!(!larger.has_same_vocabulary(&json) && !json.has_same_vocabulary(&larger));
    let sentence_piece = Tokenizer::from_gguf(&sentence_piece_metadata([])).unwrap();
    assert!(!json.has_same_vocabulary(&sentence_piece));
}

#[test]
fn ends_of_turns_are_found_by_name_when_special() {
    let stops = |tokens: &[(&str, i32)]| {
        let mut all = byte_level_tokens();
        let mut types = vec![1; all.len()];
        for (token, kind) in tokens {
            all.push((*token).to_owned());
            types.push(*kind);
        }
        let tokenizer = Tokenizer::from_gguf(&byte_level_metadata([
            ("tokenizer.ggml.tokens", strings(all)),
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
        ]))
        .unwrap();
        let stops = tokenizer.stop_ids().iter();
        stops
            .map(|&id| tokenizer.id_to_token(id).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        stops(&[("<|eot_id|>", 3), ("<x>", 3), ("<end_of_turn>", 3)]),
        ["<|eot_id|>", "<end_of_turn>"]
    );
    // An HTML tag in the vocabulary is no end, nor is a token that users may write.
    assert!(stops(&[("</s>", 1), ("<|end|>", 4)]).is_empty());
    assert_eq!(stops(&[("<|end|>", 3)]), ["<|end|>"]);
    assert_eq!(
        stops(&[("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3)]),
        ["<|return|>", "<|call|>"]
    );
    assert_eq!(
        stops(&[("<|tool_response>", 3), ("</s>", 3)]),
        ["<|tool_response>"]
    );
}

#[test]
fn a_tokenizer_is_shared_between_threads() {
    let tokenizer = from_json(&byte_level_json());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let tokenizer = tokenizer.clone();
            std::thread::spawn(move || {
                TEXTS
                    .iter()
                    .map(|text| tokenizer.encode(text, false).unwrap())
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    let expected: Vec<_> = TEXTS
        .iter()
        .map(|text| tokenizer.encode(text, false).unwrap())
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
}
