//! Tokenizers described by the metadata of GGUF files.

use std::collections::{HashMap, HashSet};

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as NormalizerSequence};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper};

use super::pre_tokenizer::{PreTokenizer, pre_tokenizer_names};
use super::spm::SentencePieceBpe;
use super::stream::byte_token;
use super::{Parts, Pipeline, Result, Roles, TokenizerError};
use crate::gguf::{Metadata, Text};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

/// SentencePiece writes spaces as this character.
const SPACE_SYMBOL: &str = "\u{2581}";

/// `tokenizer.ggml.token_type` of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The vocabulary of a file.
struct Vocabulary {
    /// By id; distinct, not empty.
    texts: Vec<String>,
    types: Vec<TokenType>,
    /// Tokens that are empty or not UTF-8, whose text is only a stand-in.
    raw_bytes: HashMap<u32, Box<[u8]>>,
}

/// Reads the tokenizer from a file's metadata.
pub(super) fn parts_from_metadata(meta: &Metadata) -> Result<Parts> {
    match meta.require_str(MODEL)? {
        "gpt2" => byte_level_bpe(meta),
        "llama" => sentence_piece(meta),
        other => {
            let kind = match other {
                "bert" => " (WordPiece)",
                "t5" => " (SentencePiece Unigram)",
                "rwkv" => " (RWKV trie)",
                _ => "",
            };
            Err(unsupported(
                meta,
                format!(
                    "the tokenizer \"{other}\"{kind} in `{MODEL}` is not supported; supported are \"gpt2\" (byte-level BPE) \
                     and \"llama\" (SentencePiece BPE)"
                ),
            ))
        }
    }
}

fn unsupported(meta: &Metadata, problem: String) -> TokenizerError {
    TokenizerError::Unsupported {
        source_name: meta.source().to_owned(),
        problem,
    }
}

fn invalid(meta: &Metadata, problem: String) -> TokenizerError {
    TokenizerError::Invalid {
        source_name: meta.source().to_owned(),
        problem,
    }
}

fn byte_level_bpe(meta: &Metadata) -> Result<Parts> {
    let supported = || pre_tokenizer_names().join(", ");
    // Files without the key were written before pre-tokenizers were told apart. Guessing would give wrong tokens.
    let Some(name) = meta.get_str(PRE)? else {
        return Err(unsupported(
            meta,
            format!(
                "`{PRE}` is missing, so that it is not known how to split text; convert the model with a current tool \
                 (supported: {})",
                supported()
            ),
        ));
    };
    let Some(pre_tokenizer) = PreTokenizer::named(name) else {
        return Err(unsupported(
            meta,
            format!(
                "the pre-tokenizer \"{name}\" in `{PRE}` is not supported (supported: {})",
                supported()
            ),
        ));
    };

    let vocabulary = Vocabulary::read(meta)?;
    let merges = read_merges(meta, &vocabulary)?;
    let vocab: Vocab = vocabulary
        .ids()
        .map(|(text, id)| (text.to_owned(), id))
        .collect();
    let bpe = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(pre_tokenizer.ignore_merges)
        .build()
        .map_err(|error| invalid(meta, error.to_string()))?;
    let mut pipeline = Pipeline::new(ModelWrapper::BPE(bpe).into());
    pipeline
        .with_normalizer(pre_tokenizer.normalizer())
        .map_err(|error| invalid(meta, error.to_string()))?;
    let cuts = pre_tokenizer
        .build()
        .map_err(|error| invalid(meta, error.to_string()))?;
    pipeline.with_pre_tokenizer(Some(cuts));
    pipeline.with_decoder(Some(ByteLevel::default()));

    let ids = RoleIds::read(meta, vocabulary.texts.len(), None)?;
    finish(meta, pipeline, vocabulary, ids, pre_tokenizer.add_bos)
}

fn sentence_piece(meta: &Metadata) -> Result<Parts> {
    let vocabulary = Vocabulary::read(meta)?;
    let size = vocabulary.texts.len();
    let scores = meta.require_array_f32(SCORES)?;
    if scores.len() != size {
        return Err(invalid(
            meta,
            format!("`{SCORES}` has {} entries for {size} tokens", scores.len()),
        ));
    }
    if let Some(id) = scores.iter().position(|score| score.is_nan()) {
        return Err(invalid(
            meta,
            format!("`{SCORES}` of token {id} is not a number"),
        ));
    }
    // SentencePiece's own order, for files that leave the ids out.
    let ids = RoleIds::read(meta, size, Some([1, 2, 0]))?;

    let mut bytes = vec![None; 256];
    let mut mergeable = Vec::with_capacity(size);
    for ((text, id), kind) in vocabulary.ids().zip(&vocabulary.types) {
        if *kind == TokenType::Byte
            && let Some(slot) = byte_token(text).and_then(|byte| bytes.get_mut(usize::from(byte)))
        {
            *slot = Some(id);
        }
        let text_may_become_it = matches!(
            kind,
            TokenType::Normal | TokenType::UserDefined | TokenType::Unused
        );
        mergeable.push(text_may_become_it && !vocabulary.raw_bytes.contains_key(&id));
    }
    if ids.unk.is_none() && bytes.contains(&None) {
        let problem = format!(
            "the vocabulary in `{TOKENS}` has neither an unknown token nor a token for every byte"
        );
        return Err(invalid(meta, problem));
    }
    let model = SentencePieceBpe::new(vocabulary.texts.clone(), scores, mergeable, bytes, ids.unk);

    let mut pipeline = Pipeline::new(model.into());
    let add_space_prefix = meta
        .get_bool("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    let replace = |from: &str, to: &str| {
        Replace::new(from, to).map_err(|error| invalid(meta, error.to_string()))
    };
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    let mut decoders: Vec<DecoderWrapper> = vec![
        replace(SPACE_SYMBOL, " ")?.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    if add_space_prefix {
        normalizers.push(Prepend::new(SPACE_SYMBOL.to_owned()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    normalizers.push(replace(" ", SPACE_SYMBOL)?.into());
    pipeline
        .with_normalizer(Some(NormalizerSequence::new(normalizers)))
        .map_err(|error| invalid(meta, error.to_string()))?;
    pipeline.with_decoder(Some(DecoderSequence::new(decoders)));
    finish(meta, pipeline, vocabulary, ids, true)
}

/// Adds the special tokens and the rest, which both kinds have in common.
fn finish(
    meta: &Metadata,
    mut pipeline: Pipeline,
    vocabulary: Vocabulary,
    ids: RoleIds,
    adds_bos_by_default: bool,
) -> Result<Parts> {
    let text_of = |id: u32| vocabulary.texts.get(id as usize).cloned();
    let strips_right = strips_space_after_special_tokens(meta)?;
    let ends: HashSet<u32> = [ids.bos, ids.eos, ids.eot, ids.eom]
        .into_iter()
        .flatten()
        .collect();
    let mut added = Vec::new();
    for ((text, id), kind) in vocabulary.ids().zip(&vocabulary.types) {
        let special = matches!(kind, TokenType::Control | TokenType::Unknown) || ends.contains(&id);
        if !special && *kind != TokenType::UserDefined || vocabulary.raw_bytes.contains_key(&id) {
            continue;
        }
        // Matched in the text as it was given, before any normalization.
        let token = AddedToken::from(text, special).normalized(false);
        let exempt = ["<unk>", "<s>", "<|endoftext|>"].contains(&text);
        added.push(token.rstrip(strips_right && !exempt));
    }
    pipeline
        .add_tokens(added)
        .map_err(|error| invalid(meta, error.to_string()))?;

    let add = |key: &str, default: bool, id: Option<u32>, name: &str| -> Result<Vec<u32>> {
        let flag = meta.get_bool(key)?;
        match (flag.unwrap_or(default), id) {
            (true, None) if flag.is_some() => Err(invalid(
                meta,
                format!("`{key}` is true, but `{name}` is missing"),
            )),
            (true, id) => Ok(id.into_iter().collect()),
            (false, _) => Ok(Vec::new()),
        }
    };
    let prefix = add(
        "tokenizer.ggml.add_bos_token",
        adds_bos_by_default,
        ids.bos,
        "tokenizer.ggml.bos_token_id",
    )?;
    let suffix = add(
        "tokenizer.ggml.add_eos_token",
        false,
        ids.eos,
        "tokenizer.ggml.eos_token_id",
    )?;

    let role = |id: Option<u32>| id.and_then(|id| Some((id, text_of(id)?)));
    let unused = vocabulary
        .ids()
        .zip(&vocabulary.types)
        .filter(|(_, kind)| **kind == TokenType::Unused)
        .map(|((_, id), _)| id)
        .collect();
    Ok(Parts {
        pipeline,
        prefix,
        suffix,
        roles: Roles {
            bos: role(ids.bos),
            eos: role(ids.eos),
            pad: role(ids.pad),
            unk: role(ids.unk),
        },
        configured_stop_ids: [ids.eos, ids.eot, ids.eom].into_iter().flatten().collect(),
        unused,
        vocab_size: vocabulary.texts.len(),
        raw_bytes: vocabulary.raw_bytes,
        source_name: meta.source().to_owned(),
    })
}

/// Phi-3 takes the white space after a special token as part of it. GGUF cannot say so; like llama.cpp, we go by name.
fn strips_space_after_special_tokens(meta: &Metadata) -> Result<bool> {
    let name = meta.get_str("general.name")?.unwrap_or("").to_lowercase();
    Ok(name.contains("phi-3") || name.contains("phi3"))
}

impl Vocabulary {
    fn read(meta: &Metadata) -> Result<Self> {
        let tokens = meta.require_array_text(TOKENS)?;
        if tokens.is_empty() {
            return Err(invalid(meta, format!("`{TOKENS}` is empty")));
        }
        let types = match meta.get_array_i32(TOKEN_TYPE)? {
            Some(types) if types.len() == tokens.len() => {
                types.into_iter().map(token_type).collect()
            }
            Some(types) => {
                return Err(invalid(
                    meta,
                    format!(
                        "`{TOKEN_TYPE}` has {} entries for {} tokens",
                        types.len(),
                        tokens.len()
                    ),
                ));
            }
            None => vec![TokenType::Normal; tokens.len()],
        };
        let mut texts = Vec::with_capacity(tokens.len());
        let mut first: HashMap<&Text, usize> = HashMap::with_capacity(tokens.len());
        let mut raw_bytes = HashMap::new();
        for (id, token) in tokens.iter().enumerate() {
            let text = match token.as_str() {
                Some(text) if !text.is_empty() => text.to_owned(),
                _ => {
                    if let Ok(id) = u32::try_from(id) {
                        raw_bytes.insert(id, token.as_bytes().into());
                    }
                    // Not a text that could be met: it says which token it is.
                    format!("[TOKEN_{id}]")
                }
            };
            if !token.as_bytes().is_empty()
                && let Some(other) = first.insert(token, id)
            {
                return Err(invalid(
                    meta,
                    format!("`{TOKENS}` has `{text}` twice, as {other} and {id}"),
                ));
            }
            texts.push(text);
        }
        Ok(Self {
            texts,
            types,
            raw_bytes,
        })
    }

    fn ids(&self) -> impl Iterator<Item = (&str, u32)> {
        self.texts.iter().map(String::as_str).zip(0..)
    }
}

fn token_type(value: i32) -> TokenType {
    match value {
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => TokenType::Normal,
    }
}

/// The merges, checked: what the `tokenizers` crate would build from unknown tokens is undefined.
fn read_merges(meta: &Metadata, vocabulary: &Vocabulary) -> Result<Vec<(String, String)>> {
    let known: HashSet<&str> = vocabulary.texts.iter().map(String::as_str).collect();
    let mut merges = Vec::new();
    for (i, merge) in meta.require_array_str(MERGES)?.into_iter().enumerate() {
        // A token may begin with a space, so the separator is the first space after the first character.
        let separator = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
        let pair = separator.and_then(|(at, _)| Some((merge.get(..at)?, merge.get(at + 1..)?)));
        let Some((left, right)) = pair else {
            return Err(invalid(
                meta,
                format!("`{MERGES}` {i} (`{merge}`) is not a pair of tokens"),
            ));
        };
        for token in [left, right, &format!("{left}{right}")] {
            if !known.contains(token) {
                return Err(invalid(
                    meta,
                    format!(
                        "`{MERGES}` {i} (`{merge}`) needs the token `{token}`, which is not in `{TOKENS}`"
                    ),
                ));
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}

/// The ids of tokens with a role.
struct RoleIds {
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    eom: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
}

impl RoleIds {
    /// Reads the ids; `defaults` are those of BOS, EOS and UNK where the file has none.
    fn read(meta: &Metadata, size: usize, defaults: Option<[u32; 3]>) -> Result<Self> {
        let in_vocabulary = |id: u32| (id as usize) < size;
        let read = |name: &str| meta.get_u32(&format!("tokenizer.ggml.{name}_token_id"));
        // A wrong one of these would change what the model reads or where it stops.
        let required = |name: &str| -> Result<Option<u32>> {
            match read(name)? {
                Some(id) if !in_vocabulary(id) => Err(invalid(
                    meta,
                    format!(
                        "`tokenizer.ggml.{name}_token_id` is {id}, but the vocabulary has {size} tokens"
                    ),
                )),
                id => Ok(id),
            }
        };
        let [bos, eos, unk] = match defaults {
            Some(ids) => ids.map(|id| Some(id).filter(|&id| in_vocabulary(id))),
            None => [None; 3],
        };
        Ok(Self {
            bos: required("bos")?.or(bos),
            eos: required("eos")?.or(eos),
            eot: required("eot")?,
            eom: required("eom")?,
            // Models are published with -1 or the vocabulary's size as "none".
            unk: meta
                .get("tokenizer.ggml.unknown_token_id")
                .map_or(Ok(unk), |_| {
                    Ok::<_, TokenizerError>(lenient(meta, "unknown", size))
                })?,
            pad: lenient(meta, "padding", size),
        })
    }
}

/// An id that is only a convenience: none where the file gives no id of the vocabulary.
fn lenient(meta: &Metadata, name: &str, size: usize) -> Option<u32> {
    meta.get_u32(&format!("tokenizer.ggml.{name}_token_id"))
        .ok()
        .flatten()
        .filter(|&id| (id as usize) < size)
}
