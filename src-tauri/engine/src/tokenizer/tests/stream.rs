//! Streamed text equals the text of all ids at once.

use proptest::prelude::*;

use super::*;

/// A `tokenizer.json` with the SentencePiece fixture's vocabulary, no merges, and this decoder.
fn with_decoder(decoder: &Json) -> Json {
    let fixture = sentence_piece_fixture();
    let vocab: serde_json::Map<String, Json> = fixture["pieces"]
        .as_array()
        .unwrap()
        .iter()
        .zip(0..)
        .map(|(piece, id)| (piece.as_str().unwrap().to_owned(), json!(id)))
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": decoder,
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "vocab": vocab, "merges": []},
    })
}

/// One tokenizer of every kind of decoder.
fn tokenizers() -> Vec<(&'static str, Tokenizer)> {
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let fallback = json!({"type": "ByteFallback"});
    let strip = |n: usize| json!({"type": "Strip", "content": " ", "start": n, "stop": 0});
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let sequence = |decoders: &[&Json]| json!({"type": "Sequence", "decoders": decoders});
    let fuse = json!({"type": "Fuse"});
    let json = |decoder: &Json| from_json(&with_decoder(decoder));
    vec![
        ("byte level", from_json(&byte_level_json())),
        (
            "byte level GGUF",
            Tokenizer::from_gguf(&byte_level_metadata([])).unwrap(),
        ),
        (
            "SentencePiece GGUF",
            Tokenizer::from_gguf(&sentence_piece_metadata([])).unwrap(),
        ),
        (
            "SentencePiece GGUF without prefix",
            Tokenizer::from_gguf(&sentence_piece_metadata([(
                "tokenizer.ggml.add_space_prefix",
                Value::Bool(false),
            )]))
            .unwrap(),
        ),
        (
            "Llama 2",
            json(&sequence(&[&replace, &fallback, &fuse, &strip(1)])),
        ),
        ("Gemma", json(&sequence(&[&replace, &fallback, &fuse]))),
        (
            "three spaces",
            json(&sequence(&[&replace, &fallback, &fuse, &strip(3)])),
        ),
        (
            "each piece stripped",
            json(&sequence(&[&replace, &strip(2), &fallback])),
        ),
        (
            "Metaspace",
            json(&sequence(&[&fallback, &metaspace("always")])),
        ),
        ("Metaspace first", json(&metaspace("first"))),
        ("Metaspace never", json(&metaspace("never"))),
        ("no decoder", json(&Json::Null)),
    ]
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> String {
    let mut stream = tokenizer.stream_decoder(skip);
    let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text.push_str(&stream.finish());
    text
}

/// What the `tokenizers` crate decodes, with all ids before it.
fn at_once(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> String {
    tokenizer.0.pipeline.decode(ids, skip).unwrap()
}

#[test]
fn random_ids_stream_to_the_text_of_all_ids() {
    let tokenizers = tokenizers();
    // Mostly bytes and special tokens, so that broken characters and runs are common; some ids have no token.
    let id = prop_oneof![3 => 0u32..280, 1 => 0u32..640];
    let strategy = (proptest::collection::vec(id, 0..40), any::<bool>());
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        ProptestConfig {
            cases: 400,
            failure_persistence: None,
            ..ProptestConfig::default()
        },
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let result = runner.run(&strategy, |(ids, skip)| {
        for (name, tokenizer) in &tokenizers {
            let expected = at_once(tokenizer, &ids, skip);
            prop_assert_eq!(streamed(tokenizer, &ids, skip), expected, "{}", name);
        }
        Ok(())
    });
    result.unwrap();
}

#[test]
fn text_streams_back_and_characters_stay_whole() {
    for (name, tokenizer) in tokenizers().into_iter().take(6) {
        for text in TEXTS {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(
                streamed(&tokenizer, &ids, false),
                at_once(&tokenizer, &ids, false),
                "{name}"
            );
            let mut stream = tokenizer.stream_decoder(false);
            let pushed: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
            if !text.contains('\u{fffd}') {
                assert!(!pushed.concat().contains('\u{fffd}'), "{name}: {pushed:?}");
            }
        }
    }
    let byte_level = from_json(&byte_level_json());
    let sentence_piece = Tokenizer::from_gguf(&sentence_piece_metadata([])).unwrap();
    for text in TEXTS {
        for tokenizer in [&byte_level, &sentence_piece] {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(streamed(tokenizer, &ids, false), *text);
        }
    }
}

#[test]
fn an_incomplete_character_is_held_and_then_replaced() {
    let byte_level = from_json(&byte_level_json());
    let mut stream = byte_level.stream_decoder(true);
    // The four bytes of U+1F600, of which `ðŁ` is one token.
    let prefix = byte_level.token_to_id("ðŁ").unwrap();
    assert_eq!(stream.push(prefix), "");
    assert_eq!(stream.push(0x98), "");
    assert_eq!(stream.push(0x80), "\u{1f600}");
    assert_eq!(stream.push(0xe4), "");
    // A byte that cannot continue the character ends it.
    assert_eq!(stream.push(u32::from(b'a')), "\u{fffd}a");
    assert_eq!(stream.push(0xe4), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.finish(), "");

    let sentence_piece = Tokenizer::from_gguf(&sentence_piece_metadata([])).unwrap();
    let byte = |byte: u8| {
        sentence_piece
            .token_to_id(&format!("<0x{byte:02X}>"))
            .unwrap()
    };
    let mut stream = sentence_piece.stream_decoder(true);
    let word = sentence_piece.token_to_id("▁the").unwrap();
    assert_eq!(stream.push(word), "the");
    assert_eq!(stream.push(word), " the");
    assert_eq!(stream.push(byte(0xc3)), "");
    assert_eq!(stream.push(byte(0xa9)), "");
    assert_eq!(stream.push(word), "é the");
    assert_eq!(stream.push(byte(0xc3)), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    // As new: the leading space of the next text is taken off again.
    assert_eq!(stream.push(word), "the");
}

#[test]
fn special_tokens_are_hidden_or_shown_and_unknown_ids_ignored() {
    let tokenizer = from_json(&byte_level_json());
    let ids = [265, 259, u32::MAX, 266, 267];
    assert_eq!(streamed(&tokenizer, &ids, true), "the<tool_call>");
    assert_eq!(
        streamed(&tokenizer, &ids, false),
        "<|im_start|>the<|im_end|><tool_call>"
    );
}

/// The decoder must not keep what it has given out: whatever came before, at most one incomplete character is held.
#[test]
fn what_is_held_does_not_grow() {
    let tokenizer = from_json(&byte_level_json());
    let ids = tokenizer.encode(&TEXTS.concat().repeat(50), false).unwrap();
    let mut stream = tokenizer.stream_decoder(false);
    for id in ids {
        _ = stream.push(id);
        assert!(stream.held_bytes() < 4);
    }
}

#[test]
fn decoders_that_cannot_stream_are_refused_by_name() {
    for (decoder, name) in [
        (
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            "WordPiece",
        ),
        (
            json!({"type": "BPEDecoder", "suffix": "</w>"}),
            "BPEDecoder",
        ),
        (
            json!({"type": "Strip", "content": " ", "start": 0, "stop": 1}),
            "Strip at the end",
        ),
        (
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}),
            "ByteFallback on the whole text",
        ),
    ] {
        let folder = folder(&[("tokenizer.json", &with_decoder(&decoder))]);
        let message = refused(Tokenizer::from_model_dir(folder.path()));
        assert_mentions(
            &message,
            &["tokenizer.json", name, "supported are ByteLevel"],
        );
    }
}
