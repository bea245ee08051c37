//! Tokenizers of model folders: configuration files, and damage.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn open(files: &[(&str, &Json)]) -> Tokenizer {
    Tokenizer::from_model_dir(folder(files).path()).unwrap()
}

#[test]
fn limits_of_the_file_do_not_cut_prompts() {
    // The fixture truncates to four tokens.
    let tokenizer = from_json(&byte_level_json());
    assert_eq!(
        tokenizer
            .encode("the the the the the the", false)
            .unwrap()
            .len(),
        6
    );
}

#[test]
fn roles_come_from_the_configuration_files() {
    let json = byte_level_json();
    let config = json!({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "pad_token": null,
                        "unk_token": "not in the vocabulary"});
    let generation = json!({"eos_token_id": [266, 10, 99999], "bos_token_id": 265});
    let tokenizer = open(&[
        ("tokenizer.json", &json),
        ("tokenizer_config.json", &config),
        ("generation_config.json", &generation),
        (
            "config.json",
            &json!({"eos_token_id": 11, "pad_token_id": 12}),
        ),
    ]);
    assert_eq!(tokenizer.bos_token(), Some("<|im_start|>"));
    assert_eq!(tokenizer.eos_token(), Some("<|im_end|>"));
    assert_eq!(tokenizer.pad_token(), tokenizer.id_to_token(12).as_deref());
    assert_eq!(tokenizer.unk_token(), None);
    // Both files count; an id without a token does not.
    assert_eq!(tokenizer.stop_ids(), [10, 11, 266]);
    assert!(!tokenizer.adds_bos());

    // Multi-modal models have the text model's settings one level down; ids alone are enough.
    let nested = json!({"text_config": {"eos_token_id": 266, "bos_token_id": 265}});
    let tokenizer = open(&[("tokenizer.json", &json), ("config.json", &nested)]);
    assert_eq!(
        (tokenizer.bos_id(), tokenizer.eos_id()),
        (Some(265), Some(266))
    );
    let map = json!({"eos_token": {"content": "<|im_end|>", "lstrip": false}});
    let tokenizer = open(&[("tokenizer.json", &json), ("special_tokens_map.json", &map)]);
    assert_eq!(tokenizer.eos_id(), Some(266));
}

#[test]
fn a_token_with_a_role_becomes_special() {
    // `the` (259) is an ordinary token, `<tool_call>` (267) an added one that is not special.
    let config =
        json!({"eos_token": "the", "additional_special_tokens": ["<tool_call>", "nowhere"]});
    let tokenizer = open(&[
        ("tokenizer.json", &byte_level_json()),
        ("tokenizer_config.json", &config),
    ]);
    assert!(tokenizer.is_special(259) && tokenizer.is_special(267));
    assert_eq!(tokenizer.decode(&[258, 259, 267], true), " the");
    assert_eq!(tokenizer.vocab_size(), 268);
}

#[test]
fn what_is_added_around_a_text() {
    let template = |before: &str, after: Option<&str>| {
        let piece = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
        let mut single = vec![
            piece(before),
            json!({"Sequence": {"id": "A", "type_id": 0}}),
        ];
        single.extend(after.map(piece));
        json!({"type": "TemplateProcessing", "single": single,
               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
               "special_tokens": {
                   "<|im_start|>": {"id": "<|im_start|>", "ids": [265], "tokens": ["<|im_start|>"]},
                   "<|im_end|>": {"id": "<|im_end|>", "ids": [266], "tokens": ["<|im_end|>"]},
                   "missing": {"id": "missing", "ids": [70000], "tokens": ["missing"]}}})
    };
    let encoded = |post_processor: &Json, config: &Json| {
        let mut json = byte_level_json();
        json["post_processor"] = post_processor.clone();
        let tokenizer = open(&[("tokenizer.json", &json), ("tokenizer_config.json", config)]);
        assert_eq!(tokenizer.encode("the", false).unwrap(), [259]);
        tokenizer.encode("the", true).unwrap()
    };
    let none = json!({});
    let roles = |key: &str, flag: bool| json!({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", key: flag});
    let bos_only = template("<|im_start|>", None);
    let both = template("<|im_start|>", Some("<|im_end|>"));
    assert_eq!(encoded(&bos_only, &none), [265, 259]);
    assert_eq!(encoded(&both, &none), [265, 259, 266]);
    // A name that the template does not define adds nothing, an id without a token neither.
    assert_eq!(encoded(&template("undefined", None), &none), [259]);
    assert_eq!(encoded(&template("missing", None), &none), [259]);
    let sequence = json!({"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": true,
                          "trim_offsets": false, "use_regex": true}, bos_only]});
    assert_eq!(encoded(&sequence, &none), [265, 259]);
    // A later processor wraps what an earlier one made.
    let nested =
        json!({"type": "Sequence", "processors": [bos_only, template("<|im_end|>", None)]});
    assert_eq!(encoded(&nested, &none), [266, 265, 259]);
    let roberta = json!({"type": "RobertaProcessing", "sep": ["<|im_end|>", 266], "cls": ["<|im_start|>", 265],
                         "trim_offsets": true, "add_prefix_space": false});
    assert_eq!(encoded(&roberta, &none), [265, 259, 266]);

    // The configuration decides against the post-processor.
    let bytes = byte_level_json()["post_processor"].clone();
    assert_eq!(encoded(&bytes, &roles("add_bos_token", true)), [265, 259]);
    assert_eq!(encoded(&bytes, &roles("add_eos_token", true)), [259, 266]);
    assert_eq!(encoded(&bos_only, &roles("add_bos_token", false)), [259]);
    assert_eq!(
        encoded(&bos_only, &roles("add_bos_token", true)),
        [265, 259]
    );
}

#[test]
fn missing_and_damaged_files_are_named() {
    let empty = tempdir().unwrap();
    let message = refused(Tokenizer::from_model_dir(empty.path()));
    assert_mentions(&message, &["has no tokenizer.json", "download"]);
    std::fs::write(empty.path().join("tokenizer.model"), "x").unwrap();
    let message = refused(Tokenizer::from_model_dir(empty.path()));
    assert_mentions(&message, &["tokenizer.model is not supported"]);
    std::fs::write(empty.path().join("tokenizer.json"), "{\"version\": ").unwrap();
    let message = refused(Tokenizer::from_model_dir(empty.path()));
    assert_mentions(&message, &["tokenizer.json", "not valid JSON"]);

    let folder = folder(&[("tokenizer.json", &byte_level_json())]);
    std::fs::write(folder.path().join("generation_config.json"), "[}").unwrap();
    let message = refused(Tokenizer::from_model_dir(folder.path()));
    assert_mentions(&message, &["generation_config.json", "not valid JSON"]);
}

#[test]
fn contradictions_are_errors() {
    let check = |change: &dyn Fn(&mut Json), words: &[&str]| {
        let mut json = byte_level_json();
        change(&mut json);
        let folder = folder(&[("tokenizer.json", &json)]);
        let message = refused(Tokenizer::from_model_dir(folder.path()));
        assert_mentions(&message, &["tokenizer.json"]);
        assert_mentions(&message, words);
    };
    check(&|json| json["model"] = Json::Null, &["`model`"]);
    check(
        &|json| _ = json.as_object_mut().unwrap().remove("model"),
        &["no `model`"],
    );
    check(&|json| json["model"]["vocab"] = Json::Null, &["no `vocab`"]);
    check(
        &|json| json["model"]["merges"] = Json::Null,
        &["no `merges`"],
    );
    check(
        &|json| json["model"]["vocab"]["a"] = json!(-1),
        &["token `a`", "-1"],
    );
    check(
        &|json| json["model"]["vocab"]["a"] = json!(1u64 << 40),
        &["token `a`"],
    );
    check(
        &|json| json["model"]["merges"][0] = json!("t zz"),
        &["merge 0", "`zz`"],
    );
    check(
        &|json| json["model"]["merges"][0] = json!(["a", "b"]),
        &["merge 0", "`ab`"],
    );
    check(
        &|json| json["model"]["merges"][0] = json!("th"),
        &["merge 0", "pair"],
    );
    check(
        &|json| json["model"]["merges"][0] = json!(5),
        &["merge 0", "pair"],
    );
    check(
        &|json| json["model"]["continuing_subword_prefix"] = json!("##"),
        &["merge 0", "`##`"],
    );
    check(
        &|json| json["added_tokens"][0]["id"] = json!(u32::MAX),
        &["`<|im_start|>`"],
    );
    check(
        &|json| json["added_tokens"][0]["id"] = json!(300),
        &["`<|im_start|>`", "300", "does not follow"],
    );
    check(&|json| json["version"] = json!("9"), &["version"]);
    check(&|json| json["model"]["type"] = json!("Markov"), &["Markov"]);
    check(
        &|json| json["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
        &[],
    );
}

/// Files that the `tokenizers` crate answers with a panic.
#[test]
fn panics_of_the_crate_become_errors() {
    let mut json = byte_level_json();
    json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "tAAAAAAA"});
    let damaged = folder(&[("tokenizer.json", &json)]);
    let message = refused(Tokenizer::from_model_dir(damaged.path()));
    assert_mentions(&message, &["tokenizer.json", "recompiled"]);

    let mut json = byte_level_json();
    json["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0});
    let tokenizer = from_json(&json);
    for _ in 0..2 {
        let error = tokenizer.encode("some text", false).unwrap_err();
        assert_mentions(&error.to_string(), &["cannot be encoded"]);
    }
}

/// Whatever a damaged file becomes, loading and using it must not panic.
#[test]
fn random_damage_never_panics() {
    let text = byte_level_json().to_string();
    let folder = tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let mut random = StdRng::seed_from_u64(11);
    let mut opened = 0;
    for _ in 0..500 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..random.random_range(1..3) {
            let at = random.random_range(0..bytes.len());
            // Digits, quotes and letters keep the JSON valid more often than random bytes do.
            let choices = b"0123456789\"abtw{}[],:~";
            bytes[at] = choices[random.random_range(0..choices.len())];
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(tokenizer) = Tokenizer::from_model_dir(folder.path()) {
            opened += 1;
            for text in TEXTS {
                if let Ok(ids) = tokenizer.encode(text, true) {
                    _ = tokenizer.decode(&ids, false);
                }
            }
        }
    }
    assert!((50..450).contains(&opened), "{opened}");
}
