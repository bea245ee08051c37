//! A folder of models for tests: tiny ones with a tokenizer of single bytes, broken files, and the starter.
//!
//! The tiny Llama of the fixtures has random weights, so its text is noise; the alphabet is a Llama whose text is known beforehand. Both
//! answer in milliseconds, and what goes in and comes out can be counted in bytes.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::locate::{fixtures, starter};

/// Tiny, with a chat template that refuses system messages.
pub const TINY: &str = "test/tiny";
/// Goes on with what follows in the alphabet: an answer is "abcd...xyzabc...", and each of 😀, € and é is followed by itself.
pub const ALPHABET: &str = "test/alphabet";
/// Tiny, without a chat template.
pub const TINY_TEXT: &str = "test/tiny-text";
/// Tiny, without a tokenizer.
pub const TINY_MUTE: &str = "test/tiny-mute";
/// A folder whose `config.json` is not JSON.
pub const BROKEN: &str = "test/broken";
/// A GGUF file that was cut off.
pub const CUT: &str = "test/cut";
/// The starter model, where this machine has it.
pub const STARTER: &str = "test/starter";

/// Tokens that the tiny model's context holds.
pub const TINY_CONTEXT: usize = 4096;
/// What its template says to a system message.
pub const REFUSAL: &str = "system messages are not for this model";

/// The id of the tiny model's token for a byte.
pub fn byte_token(byte: u8) -> u32 {
    FIRST_BYTE + u32::from(byte)
}

const FIRST_BYTE: u32 = 8;
const ASSISTANT: u32 = 4;
const SPECIAL: [&str; 5] = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>"];

const TEMPLATE: &str = "{%- for message in messages -%}\
{%- if message.role == 'system' -%}{{ raise_exception('REFUSAL') }}{%- endif -%}\
<|{{ message.role }}|>{{ message.content }}\
{%- endfor -%}\
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}";

/// The models; gone when dropped.
#[derive(Debug)]
pub struct Models {
    root: TempDir,
    has_starter: bool,
}

impl Models {
    /// Writes them all; the starter is linked where this machine has it.
    ///
    /// # Panics
    /// When the disk is full or the fixtures are not there.
    pub fn new() -> Self {
        let starter = starter();
        let written = tempfile::tempdir().and_then(|root| {
            write_all(root.path(), starter.as_deref())?;
            Ok(root)
        });
        match written {
            Ok(root) => Self {
                root,
                has_starter: starter.is_some(),
            },
            Err(error) => panic!("cannot write the test models: {error}"),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// The path of one model.
    pub fn path_of(&self, id: &str) -> PathBuf {
        self.root.path().join(id)
    }

    /// Whether the starter is there.
    pub fn has_starter(&self) -> bool {
        self.has_starter
    }
}

impl Default for Models {
    fn default() -> Self {
        Self::new()
    }
}

fn write_all(root: &Path, starter: Option<&Path>) -> std::io::Result<()> {
    for (id, tokenizer, template) in [
        (TINY, true, true),
        (TINY_TEXT, true, false),
        (TINY_MUTE, false, false),
    ] {
        let folder = root.join(id);
        std::fs::create_dir_all(&folder)?;
        for file in ["config.json", "model.safetensors"] {
            // The contents alone: the fixtures may be read-only, and these are to be deleted.
            let content = std::fs::read(fixtures().join("llama-tiny").join(file))?;
            std::fs::write(folder.join(file), content)?;
        }
        if tokenizer {
            std::fs::write(folder.join("tokenizer.json"), byte_tokenizer().to_string())?;
        }
        if template {
            let template = TEMPLATE.replace("REFUSAL", REFUSAL);
            std::fs::write(folder.join("chat_template.jinja"), template)?;
        }
    }
    write_alphabet(&root.join(ALPHABET))?;
    std::fs::create_dir_all(root.join(BROKEN))?;
    std::fs::write(root.join(BROKEN).join("config.json"), "not JSON")?;
    std::fs::write(root.join(CUT).with_extension("gguf"), b"GGUF\x03\0\0\0")?;
    #[cfg(unix)]
    if let Some(path) = starter {
        std::os::unix::fs::symlink(path, root.join(STARTER).with_extension("gguf"))?;
    }
    Ok(())
}

/// The alphabet's token ids that follow each other, each list in a circle; any other token follows itself.
fn circles() -> Vec<Vec<u32>> {
    let bytes = |text: &str| text.bytes().map(byte_token).collect();
    vec![
        bytes("abcdefghijklmnopqrstuvwxyz"),
        bytes("😀"),
        bytes("€"),
        bytes("é"),
    ]
}

/// A Llama of one layer that adds nothing: the logits are the products of the last token's embedding with the output rows, and the row
/// of a token is the embedding of the one before it.
fn write_alphabet(folder: &Path) -> std::io::Result<()> {
    const VOCAB: usize = FIRST_BYTE as usize + 256;
    const HIDDEN: usize = 64;
    const HEADS: usize = 4;
    const WIDTH: usize = 16;
    // Random signs: two rows have a product near 0, a row with itself 64.
    let mut rng = fastrand::Rng::with_seed(1);
    let embeddings: Vec<[f32; HIDDEN]> = (0..VOCAB)
        .map(|_| std::array::from_fn(|_| if rng.bool() { 1.0 } else { -1.0 }))
        .collect();
    let mut before: Vec<Vec<u32>> = (0..VOCAB as u32).map(|id| vec![id]).collect();
    for circle in circles() {
        for (i, id) in circle.iter().enumerate() {
            before[*id as usize] = vec![circle[(i + circle.len() - 1) % circle.len()]];
        }
    }
    before[byte_token(b'a') as usize].push(ASSISTANT);
    before[ASSISTANT as usize].clear();
    let output: Vec<f32> = before
        .iter()
        .flat_map(|before| {
            (0..HIDDEN).map(|i| before.iter().map(|id| embeddings[*id as usize][i]).sum())
        })
        .collect();
    let embeddings: Vec<f32> = embeddings.into_iter().flatten().collect();
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensor =
        |values: Vec<f32>, rows: usize| Tensor::from_vec(values, (rows, HIDDEN), &Device::Cpu);
    let zeros = |shape: (usize, usize)| Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu);
    let ones = || Tensor::ones(HIDDEN, candle_core::DType::F32, &Device::Cpu);
    let tensors: candle_core::Result<Vec<(String, Tensor)>> = (|| {
        Ok(vec![
            (
                "model.embed_tokens.weight".into(),
                tensor(embeddings, VOCAB)?,
            ),
            ("lm_head.weight".into(), tensor(output, VOCAB)?),
            ("model.norm.weight".into(), ones()?),
            (layer("input_layernorm"), ones()?),
            (layer("post_attention_layernorm"), ones()?),
            (layer("self_attn.q_proj"), zeros((HEADS * WIDTH, HIDDEN))?),
            (layer("self_attn.k_proj"), zeros((WIDTH, HIDDEN))?),
            (layer("self_attn.v_proj"), zeros((WIDTH, HIDDEN))?),
            (layer("self_attn.o_proj"), zeros((HIDDEN, HEADS * WIDTH))?),
            (layer("mlp.gate_proj"), zeros((WIDTH, HIDDEN))?),
            (layer("mlp.up_proj"), zeros((WIDTH, HIDDEN))?),
            (layer("mlp.down_proj"), zeros((HIDDEN, WIDTH))?),
        ])
    })();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": WIDTH,
        "max_position_embeddings": TINY_CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "attention_bias": false, "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
    });
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("config.json"), config.to_string())?;
    std::fs::write(folder.join("tokenizer.json"), byte_tokenizer().to_string())?;
    std::fs::write(folder.join("chat_template.jinja"), TEMPLATE)?;
    let tensors = tensors
        .map_err(std::io::Error::other)?
        .into_iter()
        .collect();
    candle_core::safetensors::save(&tensors, folder.join("model.safetensors"))
        .map_err(std::io::Error::other)
}

/// A byte-level BPE without merges: every byte is a token.
fn byte_tokenizer() -> Value {
    let mut vocab = Map::new();
    for (id, token) in SPECIAL.iter().enumerate() {
        vocab.insert((*token).to_string(), json!(id));
    }
    for id in SPECIAL.len() as u32..FIRST_BYTE {
        vocab.insert(format!("<unused{id}>"), json!(id));
    }
    for byte in 0..=255 {
        vocab.insert(byte_character(byte).to_string(), json!(byte_token(byte)));
    }
    let added: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(id, token)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    })
}

/// The printable character that stands for a byte in byte-level vocabularies (GPT-2's `bytes_to_unicode`).
fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|other| !printable(*other)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}
