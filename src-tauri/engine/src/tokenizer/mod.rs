//! Text to token ids and back.
//!
//! A [`Tokenizer`] comes from a model folder's `tokenizer.json` or from the metadata of a GGUF file, and gives the same
//! ids for both. Encoding is the `tokenizers` crate's, with one model of our own for SentencePiece vocabularies; the
//! decoder is ours ([`StreamDecoder`]), because text is streamed token by token.

mod byte_level;
mod error;
mod from_gguf;
mod from_json;
mod guard;
mod json_check;
mod model;
mod pre_tokenizer;
mod spm;
mod stop;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

pub use error::TokenizerError;
use model::SharedModel;
pub use pre_tokenizer::pre_tokenizer_names;
pub use stream::StreamDecoder;
use stream::{Stage, piece_bytes};

use crate::gguf::Metadata;

/// The result of this module.
pub type Result<T> = std::result::Result<T, TokenizerError>;

/// The `tokenizers` crate's pipeline around our [`SharedModel`].
pub(crate) type Pipeline = TokenizerImpl<
    SharedModel,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// A model's tokenizer. A clone is cheap and shares everything; all methods may be called from any thread.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    pipeline: Pipeline,
    /// The same, but control tokens written in the text are ordinary text to it. Shares the model.
    plain: Pipeline,
    /// What `add_special_tokens` puts before and after the text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    roles: Roles,
    stop_ids: Vec<u32>,
    special: HashSet<u32>,
    /// Ids that only fill the vocabulary up to the size of the embedding.
    unused: HashSet<u32>,
    decoder: Vec<Stage>,
    /// Tokens that are empty or not UTF-8, so that the pipeline only holds a stand-in.
    raw_bytes: HashMap<u32, Box<[u8]>>,
    vocab_size: usize,
}

/// The tokens with a role in prompts, as (id, text).
#[derive(Clone, Debug, Default)]
pub(crate) struct Roles {
    bos: Option<(u32, String)>,
    eos: Option<(u32, String)>,
    pad: Option<(u32, String)>,
    unk: Option<(u32, String)>,
}

/// What a source of tokenizers (a folder, a GGUF file) must find out.
pub(crate) struct Parts {
    pub pipeline: Pipeline,
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    pub roles: Roles,
    /// End-of-generation ids that the model's own configuration names.
    pub configured_stop_ids: Vec<u32>,
    pub unused: HashSet<u32>,
    pub raw_bytes: HashMap<u32, Box<[u8]>>,
    /// One more than the largest id.
    pub vocab_size: usize,
    /// The file or folder, for messages.
    pub source_name: String,
}

impl Tokenizer {
    /// Reads the tokenizer of a model folder in the Hugging Face layout: `tokenizer.json`, and where they exist
    /// `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json` and `config.json` for the tokens
    /// with a role and the ends of generation.
    ///
    /// # Errors
    /// `tokenizer.json` is absent, damaged or of a kind that cannot be decoded as a stream. The message names the file.
    pub fn from_model_dir(dir: &Path) -> Result<Self> {
        Self::from_parts(from_json::parts_from_model_dir(dir)?)
    }

    /// Looks whether a model folder has a tokenizer, without reading it.
    ///
    /// # Errors
    /// `tokenizer.json` is missing.
    pub fn require_in_model_dir(dir: &Path) -> Result<()> {
        from_json::require_file(dir)
    }

    /// Builds the tokenizer described by a GGUF file's metadata: `tokenizer.ggml.model` "gpt2" (byte-level BPE, split by
    /// the pre-tokenizer that `tokenizer.ggml.pre` names, see [`pre_tokenizer_names`]) or "llama" (SentencePiece BPE).
    ///
    /// # Errors
    /// Another model or pre-tokenizer, or metadata that contradict themselves. The message names the key.
    pub fn from_gguf(meta: &Metadata) -> Result<Self> {
        Self::from_parts(from_gguf::parts_from_metadata(meta)?)
    }

    fn from_parts(parts: Parts) -> Result<Self> {
        let Parts {
            mut pipeline,
            prefix,
            suffix,
            roles,
            configured_stop_ids,
            unused,
            raw_bytes,
            vocab_size,
            source_name,
        } = parts;
        let decoder =
            Stage::plan(pipeline.get_decoder()).map_err(|problem| TokenizerError::Unsupported {
                source_name,
                problem,
            })?;
        let special = special_ids(&pipeline);
        let stop_ids = stop::stop_ids(&pipeline, &special, configured_stop_ids);
        pipeline.set_encode_special_tokens(false);
        let mut plain = pipeline.clone();
        plain.set_encode_special_tokens(true);
        Ok(Self(Arc::new(Inner {
            pipeline,
            plain,
            prefix,
            suffix,
            roles,
            stop_ids,
            special,
            unused,
            decoder,
            raw_bytes,
            vocab_size,
        })))
    }

    /// The ids of a text. Special tokens written in it are recognised, as a rendered chat template needs.
    ///
    /// With `add_special_tokens` the tokens that the model expects around a plain text are added, usually the BOS token
    /// in front; a rendered chat template writes its own, so that it is encoded without.
    ///
    /// # Errors
    /// The text holds a character that the vocabulary cannot express (never with byte-level or byte-fallback
    /// vocabularies), or the tokenizer's file is damaged in a way that shows only now.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        self.encode_with(&self.0.pipeline, text, add_special_tokens)
    }

    /// Like [`encode`](Self::encode), but control tokens written in the text are taken as ordinary text, so that a user
    /// cannot end a turn by writing the token that does. Tokens that the model's makers added without marking them as
    /// special (such as `<tool_call>`) are still recognised.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_plain(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        self.encode_with(&self.0.plain, text, add_special_tokens)
    }

    fn encode_with(
        &self,
        pipeline: &Pipeline,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>> {
        let encoding = guard::guarded(|| pipeline.encode_fast(text, false))
            .map_err(TokenizerError::Encode)?
            .map_err(|error| TokenizerError::Encode(error.to_string()))?;
        if !add_special_tokens {
            return Ok(encoding.get_ids().to_vec());
        }
        let Inner { prefix, suffix, .. } = &*self.0;
        Ok([prefix, encoding.get_ids(), suffix].concat())
    }

    /// The text of ids, exactly as a [`StreamDecoder`] gives it. Ids without a token are left out.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let mut stream = self.stream_decoder(skip_special_tokens);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&stream.push(id));
        }
        text.push_str(&stream.finish());
        text
    }

    /// A decoder for a stream of ids. With `skip_special_tokens` special tokens give no text.
    pub fn stream_decoder(&self, skip_special_tokens: bool) -> StreamDecoder {
        StreamDecoder::new(self.clone(), self.0.decoder.clone(), skip_special_tokens)
    }

    /// One more than the largest id. The model's embedding may have more rows, as padding.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    /// The id of a token, written as the vocabulary writes it (`Ġthe`, `▁the`, `<|im_end|>`).
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.pipeline.token_to_id(token)
    }

    /// The token of an id, written as the vocabulary writes it.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.pipeline.id_to_token(id)
    }

    /// The exact bytes that a token stands for, which may be a part of a character; the text of a special token; empty
    /// for an id without a token. The space that opens a SentencePiece word is included.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        if let Some(bytes) = self.0.raw_bytes.get(&id) {
            return bytes.to_vec();
        }
        let added = self.0.pipeline.get_added_vocabulary();
        if let Some(token) = added.get_added_tokens_decoder().get(&id) {
            return token.content.clone().into_bytes();
        }
        match self.0.pipeline.id_to_token(id) {
            Some(token) => piece_bytes(&self.0.decoder, token),
            None => Vec::new(),
        }
    }

    /// An upper bound on the bytes of text that one token stands for: a text longer than `n` times this has more than `n` tokens.
    /// Goes through the whole vocabulary: ask once.
    pub fn longest_token_bytes(&self) -> usize {
        // Stored names are never shorter than the bytes that they stand for.
        let named = self
            .0
            .pipeline
            .get_vocab(true)
            .into_keys()
            .map(|name| name.len())
            .max();
        let raw = self.0.raw_bytes.values().map(|bytes| bytes.len()).max();
        named.max(raw).unwrap_or(0).max(1)
    }

    /// Whether a token is special: hidden when special tokens are skipped, never made from plain text.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.contains(&id)
    }

    /// The text of the token that begins a sequence.
    pub fn bos_token(&self) -> Option<&str> {
        self.0.roles.bos.as_ref().map(|(_, text)| text.as_str())
    }

    /// The text of the token that ends a sequence.
    pub fn eos_token(&self) -> Option<&str> {
        self.0.roles.eos.as_ref().map(|(_, text)| text.as_str())
    }

    /// The text of the token that fills batches.
    pub fn pad_token(&self) -> Option<&str> {
        self.0.roles.pad.as_ref().map(|(_, text)| text.as_str())
    }

    /// The text of the token that stands for what the vocabulary lacks.
    pub fn unk_token(&self) -> Option<&str> {
        self.0.roles.unk.as_ref().map(|(_, text)| text.as_str())
    }

    /// The id of [`bos_token`](Self::bos_token).
    pub fn bos_id(&self) -> Option<u32> {
        self.0.roles.bos.as_ref().map(|&(id, _)| id)
    }

    /// The id of [`eos_token`](Self::eos_token).
    pub fn eos_id(&self) -> Option<u32> {
        self.0.roles.eos.as_ref().map(|&(id, _)| id)
    }

    /// Whether [`encode`](Self::encode) with `add_special_tokens` begins with the BOS token.
    pub fn adds_bos(&self) -> bool {
        self.bos_id()
            .is_some_and(|bos| self.0.prefix.contains(&bos))
    }

    /// The ids that end generation, in ascending order: the EOS token, those that `generation_config.json` and
    /// `config.json` or the GGUF metadata (EOT, EOM) name, and the special tokens of this vocabulary that are known to
    /// end a turn in some chat format (`<|im_end|>`, `<|eot_id|>`, `<end_of_turn>`, ...; as in llama.cpp), because many
    /// model files forget to name theirs.
    pub fn stop_ids(&self) -> &[u32] {
        &self.0.stop_ids
    }

    /// A number that tells vocabularies apart: of all tokens in the order of their ids.
    pub fn fingerprint(&self) -> u64 {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        for id in 0..self.vocab_size() as u32 {
            hash.update(id.to_le_bytes());
            hash.update(self.id_to_token(id).unwrap_or_default());
        }
        let digest: [u8; 32] = hash.finalize().into();
        u64::from_le_bytes(digest.first_chunk().copied().unwrap_or_default())
    }

    /// Whether both tokenizers give every id the same token, so that one model can read the other's ids. Ids that only
    /// pad a vocabulary do not count.
    pub fn has_same_vocabulary(&self, other: &Self) -> bool {
        let token = |tokenizer: &Self, id: u32| {
            (!tokenizer.0.unused.contains(&id)).then(|| tokenizer.id_to_token(id))
        };
        let size = self.vocab_size().max(other.vocab_size());
        (0..size as u32).all(|id| token(self, id).flatten() == token(other, id).flatten())
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.0.vocab_size)
            .field("roles", &self.0.roles)
            .field("stop_ids", &self.0.stop_ids)
            .finish_non_exhaustive()
    }
}

/// The ids whose token the pipeline treats as special. It decides by the token's text, so that a second id with the same
/// text is special too.
fn special_ids(pipeline: &Pipeline) -> HashSet<u32> {
    use tokenizers::Model;
    let added = pipeline.get_added_vocabulary();
    let texts = added
        .get_added_tokens_decoder()
        .iter()
        .filter(|(_, token)| added.is_special_token(&token.content));
    texts
        .flat_map(|(&id, token)| [Some(id), pipeline.get_model().token_to_id(&token.content)])
        .flatten()
        .collect()
}
