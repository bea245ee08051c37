//! Tokenizers from GGUF metadata.

use super::*;
use crate::gguf::Text;

#[test]
fn byte_level_metadata_gives_the_ids_of_the_json_file() {
    let json = from_json(&byte_level_json());
    let gguf = Tokenizer::from_gguf(&byte_level_metadata([])).unwrap();
    for text in TEXTS {
        assert_eq!(
            gguf.encode(text, false).unwrap(),
            json.encode(text, false).unwrap()
        );
        assert_eq!(
            gguf.encode_plain(text, false).unwrap(),
            json.encode_plain(text, false).unwrap()
        );
    }
}

/// The ids must be those of the `sentencepiece` library, which made the fixture.
#[test]
fn sentence_piece_gives_the_ids_of_its_own_library() {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece_metadata([])).unwrap();
    let fixture = sentence_piece_fixture();
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{text:?}");
    }
    assert_eq!(
        (tokenizer.bos_token(), tokenizer.eos_token()),
        (Some("<s>"), Some("</s>"))
    );
    assert_eq!(tokenizer.encode("the", true).unwrap()[0], 1);
    assert_eq!(tokenizer.stop_ids(), [2]);
}

#[test]
fn sentence_piece_ties_go_to_the_left() {
    let meta = |pieces: &[(&str, f32)]| {
        let mut types = vec![2, 3, 3];
        types.extend(vec![1; pieces.len()]);
        let mut names = vec!["<unk>", "<s>", "</s>"];
        names.extend(pieces.iter().map(|(piece, _)| *piece));
        let mut scores = vec![0.0; 3];
        scores.extend(pieces.iter().map(|(_, score)| *score));
        metadata([
            ("tokenizer.ggml.model", string("llama")),
            ("tokenizer.ggml.tokens", strings(names)),
            ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
            ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
        ])
    };
    let pieces = |meta: &Metadata, text: &str| {
        let tokenizer = Tokenizer::from_gguf(meta).unwrap();
        let ids = tokenizer.encode(text, false).unwrap();
        ids.iter()
            .map(|&id| tokenizer.id_to_token(id).unwrap())
            .collect::<Vec<_>>()
    };
    let equal = meta(&[("a", -9.0), ("b", -9.0), ("ab", -1.0), ("ba", -1.0)]);
    assert_eq!(pieces(&equal, "aba"), ["ab", "a"]);
    assert_eq!(pieces(&equal, "bab"), ["ba", "b"]);
    // The higher score goes first, wherever it stands.
    let right = meta(&[("a", -9.0), ("b", -9.0), ("ab", -2.0), ("ba", -1.0)]);
    assert_eq!(pieces(&right, "aba"), ["a", "ba"]);
    // One piece, made in two ways that overlap: `aa`+`a` and `a`+`aa` at once.
    let threes = meta(&[("a", -9.0), ("aa", -1.0), ("aaa", -2.0)]);
    assert_eq!(pieces(&threes, "aaaaa"), ["aa", "aaa"]);
    // Without byte tokens what is not in the vocabulary is unknown.
    assert_eq!(pieces(&equal, "abXé"), ["ab", "<unk>", "<unk>"]);
}

#[test]
fn control_tokens_cannot_be_made_from_plain_sentence_piece_text() {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece_metadata([])).unwrap();
    assert!(tokenizer.encode("a</s>", false).unwrap().contains(&2));
    let plain = tokenizer.encode_plain("a</s>", false).unwrap();
    assert!(!plain.contains(&2));
    assert_eq!(tokenizer.decode(&plain, true), "a</s>");
    // A byte token written out is text, not the byte.
    let newline = tokenizer.token_to_id("<0x0A>").unwrap();
    assert!(
        !tokenizer
            .encode("<0x0A>", false)
            .unwrap()
            .contains(&newline)
    );
    assert!(tokenizer.encode("\n", false).unwrap().contains(&newline));
}

#[test]
fn a_word_of_the_vocabulary_is_one_token_where_merges_are_ignored() {
    // `the` can be merged (t h, th e); `hat` is in the vocabulary, but no merge leads to it.
    let ids = |pre: &str| {
        let mut tokens = byte_level_tokens();
        tokens.push("hat".to_owned());
        let meta = byte_level_metadata([
            ("tokenizer.ggml.pre", string(pre)),
            ("tokenizer.ggml.tokens", strings(tokens)),
        ]);
        let tokenizer = Tokenizer::from_gguf(&without(&meta, "tokenizer.ggml.token_type"));
        tokenizer.unwrap().encode("hat", false).unwrap()
    };
    assert_eq!(ids("llama-bpe"), [265]);
    assert_eq!(
        ids("qwen2"),
        [u32::from(b'h'), u32::from(b'a'), u32::from(b't')]
    );
}

#[test]
fn text_is_normalized_where_the_model_does() {
    let ids = |pre: &str| {
        let meta = byte_level_metadata([("tokenizer.ggml.pre", string(pre))]);
        Tokenizer::from_gguf(&meta)
            .unwrap()
            .encode("e\u{301}", false)
            .unwrap()
    };
    // The token `Ã©` is the two bytes of the composed letter.
    assert_eq!(ids("qwen2"), [260]);
    assert_eq!(ids("gpt-2").len(), 3);
}

#[test]
fn bos_and_eos_are_added_as_the_file_says() {
    let ids = |pre: &'static str, more: Vec<(&'static str, Value)>| {
        let mut pairs = vec![
            ("tokenizer.ggml.pre", string(pre)),
            ("tokenizer.ggml.bos_token_id", Value::U32(265)),
            ("tokenizer.ggml.eos_token_id", Value::I32(266)),
        ];
        pairs.extend(more);
        let tokenizer = Tokenizer::from_gguf(&byte_level_metadata(pairs)).unwrap();
        tokenizer.encode("the", true).unwrap()
    };
    let bos = |flag| ("tokenizer.ggml.add_bos_token", Value::Bool(flag));
    let eos = |flag| ("tokenizer.ggml.add_eos_token", Value::Bool(flag));
    assert_eq!(ids("qwen2", vec![]), [259]);
    assert_eq!(ids("llama-bpe", vec![]), [265, 259]);
    assert_eq!(ids("llama-bpe", vec![bos(false)]), [259]);
    assert_eq!(ids("qwen2", vec![bos(true), eos(true)]), [265, 259, 266]);
}

#[test]
fn ends_that_the_file_names_are_special_and_stop() {
    let tokenizer = Tokenizer::from_gguf(&byte_level_metadata([
        ("tokenizer.ggml.eos_token_id", Value::U32(267)),
        ("tokenizer.ggml.eot_token_id", Value::U32(7)),
        ("tokenizer.ggml.eom_token_id", Value::U32(265)),
        ("tokenizer.ggml.padding_token_id", Value::U32(5)),
        ("tokenizer.ggml.unknown_token_id", Value::I32(-1)),
    ]))
    .unwrap();
    assert_eq!(tokenizer.stop_ids(), [7, 265, 266, 267]);
    assert!(tokenizer.is_special(267) && tokenizer.is_special(7));
    assert_eq!(tokenizer.pad_token(), tokenizer.id_to_token(5).as_deref());
    assert_eq!(tokenizer.unk_token(), None);
}

#[test]
fn phi_3_takes_space_after_special_tokens() {
    let ids = |name: &str| {
        let meta = byte_level_metadata([("general.name", string(name))]);
        Tokenizer::from_gguf(&meta)
            .unwrap()
            .encode("<|im_end|>\n the", false)
            .unwrap()
    };
    assert_eq!(ids("Phi-3 mini"), [266, 259]);
    assert_eq!(ids("Other"), [266, u32::from(b'\n'), 258]);
}

#[test]
fn tokens_that_are_not_utf8_keep_their_bytes() {
    let mut texts: Vec<Text> = byte_level_tokens()
        .iter()
        .map(|t| t.as_str().into())
        .collect();
    texts.push(b"\xff\xfe".as_slice().into());
    texts.push("".into());
    let id = texts.len() as u32 - 2;
    let meta = byte_level_metadata([("tokenizer.ggml.tokens", Value::Array(Array::String(texts)))]);
    let tokenizer = Tokenizer::from_gguf(&without(&meta, "tokenizer.ggml.token_type")).unwrap();
    assert_eq!(tokenizer.token_bytes(id), b"\xff\xfe");
    assert_eq!(tokenizer.decode(&[id], false), "\u{fffd}\u{fffd}");
    assert_eq!(tokenizer.decode(&[id + 1], false), "");
    assert_eq!(tokenizer.token_bytes(id + 1), b"");
}

#[test]
fn unsupported_kinds_say_what_is_supported() {
    let check = |pairs: Vec<(&'static str, Value)>, words: &[&str]| {
        let message = refused(Tokenizer::from_gguf(&byte_level_metadata(pairs)));
        assert_mentions(&message, &["test.gguf"]);
        assert_mentions(&message, words);
    };
    check(
        vec![("tokenizer.ggml.model", string("bert"))],
        &["\"bert\"", "WordPiece", "\"gpt2\"", "\"llama\""],
    );
    check(
        vec![("tokenizer.ggml.model", string("none"))],
        &["\"none\""],
    );
    check(
        vec![("tokenizer.ggml.pre", string("new-one"))],
        &["\"new-one\"", "llama-bpe", "qwen35"],
    );
    let meta = without(&byte_level_metadata([]), "tokenizer.ggml.pre");
    let message = refused(Tokenizer::from_gguf(&meta));
    assert_mentions(&message, &["`tokenizer.ggml.pre` is missing", "smollm"]);
    let meta = without(&byte_level_metadata([]), "tokenizer.ggml.model");
    assert_mentions(
        &refused(Tokenizer::from_gguf(&meta)),
        &["`tokenizer.ggml.model`"],
    );
}

#[test]
fn contradictions_in_metadata_are_errors() {
    let check = |pairs: Vec<(&'static str, Value)>, words: &[&str]| {
        let message = refused(Tokenizer::from_gguf(&byte_level_metadata(pairs)));
        assert_mentions(&message, words);
    };
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        let message = refused(Tokenizer::from_gguf(&without(
            &byte_level_metadata([]),
            key,
        )));
        assert_mentions(&message, &[key, "missing"]);
        check(vec![(key, Value::U32(1))], &[key, "a u32"]);
    }
    check(
        vec![("tokenizer.ggml.tokens", strings::<&str>([]))],
        &["tokens` is empty"],
    );
    check(
        vec![(
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vec![1; 5])),
        )],
        &["token_type` has 5 entries for 268 tokens"],
    );
    check(
        vec![("tokenizer.ggml.merges", strings(["t zz"]))],
        &["`t zz`", "`zz`"],
    );
    check(
        vec![("tokenizer.ggml.merges", strings(["a b"]))],
        &["`a b`", "`ab`"],
    );
    check(
        vec![("tokenizer.ggml.merges", strings(["ab"]))],
        &["`ab`", "not a pair"],
    );
    check(
        vec![("tokenizer.ggml.merges", strings([""]))],
        &["not a pair"],
    );
    check(
        vec![("tokenizer.ggml.tokens", strings(["a", "b", "a"]))],
        &["token_type"],
    );
    let meta = byte_level_metadata([("tokenizer.ggml.tokens", strings(["a", "b", "a"]))]);
    let message = refused(Tokenizer::from_gguf(&without(
        &meta,
        "tokenizer.ggml.token_type",
    )));
    assert_mentions(&message, &["`a` twice", "0 and 2"]);
    for name in ["bos", "eos", "eot", "eom"] {
        let key: &'static str = match name {
            "bos" => "tokenizer.ggml.bos_token_id",
            "eos" => "tokenizer.ggml.eos_token_id",
            "eot" => "tokenizer.ggml.eot_token_id",
            _ => "tokenizer.ggml.eom_token_id",
        };
        check(vec![(key, Value::U32(268))], &[key, "268 tokens"]);
    }
    check(
        vec![("tokenizer.ggml.add_bos_token", Value::Bool(true))],
        &["add_bos_token` is true", "bos_token_id` is missing"],
    );

    let scores = |scores: Vec<f32>| {
        let pairs = [("tokenizer.ggml.scores", Value::Array(Array::F32(scores)))];
        refused(Tokenizer::from_gguf(&sentence_piece_metadata(pairs)))
    };
    assert_mentions(&scores(vec![0.0; 3]), &["scores` has 3 entries"]);
    assert_mentions(&scores(vec![f32::NAN; 620]), &["token 0 is not a number"]);
    let pairs = [
        ("tokenizer.ggml.tokens", strings(["a", "b"])),
        (
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(vec![0.0; 2])),
        ),
        (
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vec![1; 2])),
        ),
        ("tokenizer.ggml.unknown_token_id", Value::I32(-1)),
    ];
    let message = refused(Tokenizer::from_gguf(&sentence_piece_metadata(pairs)));
    assert_mentions(
        &message,
        &["neither an unknown token nor a token for every byte"],
    );
    let meta = without(&sentence_piece_metadata([]), "tokenizer.ggml.scores");
    assert_mentions(
        &refused(Tokenizer::from_gguf(&meta)),
        &["scores", "missing"],
    );
}
