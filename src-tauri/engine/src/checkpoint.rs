//! A model on disk: a folder of safetensors with its `config.json`, or a GGUF file.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use candle_core::{DType, Device};

use crate::{
    config::{ConfigSource, DecoderConfig, Key, attention_layers},
    device::compute_dtype,
    error::ModelError,
    gguf::GgufFile,
    models::{Family, Model},
    tokenizer::{Tokenizer, TokenizerError},
    weights::{
        GgufSource, Precision, QuantizationConfig, SafetensorsSource, Source, TensorSummary,
        Weights,
    },
};

/// How a model is placed and computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadOptions {
    /// Exact or fast products of quantized weights.
    pub precision: Precision,
    /// Dtype of activations and caches; `None` chooses by device and checkpoint.
    pub dtype: Option<DType>,
}

/// The container format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointFormat {
    /// A folder with `config.json` and `*.safetensors`.
    Safetensors,
    /// A GGUF file, possibly split.
    Gguf,
}

/// What a checkpoint says of itself, without loading its weights.
#[derive(Debug, Clone)]
pub struct CheckpointSummary {
    /// Container.
    pub format: CheckpointFormat,
    /// `model_type` or `general.architecture`.
    pub architecture: String,
    /// The storage type that most weight bytes have, for example `Q4_1`.
    pub quantization: String,
    /// Weights in all.
    pub parameters: u64,
    /// Bytes of the tensors on disk.
    pub bytes: u64,
    /// The most tokens a sequence may have.
    pub context_length: usize,
}

/// A checkpoint whose files are open but whose weights are not loaded.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: ConfigSource,
    family: Family,
    quantization: QuantizationConfig,
}

const CONTEXT_LENGTH: Key = Key::new("max_position_embeddings", "context_length");

impl Checkpoint {
    /// Opens a folder or a `.gguf` file and finds its family.
    ///
    /// # Errors
    /// When nothing is there, a header is corrupt, or the architecture is not supported.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?;
        let config = if metadata.is_dir() {
            ConfigSource::from_folder(path)?
        } else {
            ConfigSource::from_gguf(open_gguf(path)?)?
        };
        let family = Family::of(&config)?;
        let quantization = mlx_quantization(&config)?;
        Ok(Self {
            path: path.to_path_buf(),
            config,
            family,
            quantization,
        })
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The GGUF behind this checkpoint, if it is one.
    pub fn gguf(&self) -> Option<&GgufFile> {
        match &self.config {
            ConfigSource::Gguf { file, .. } => Some(file),
            ConfigSource::Json { .. } => None,
        }
    }

    /// Builds the tokenizer from the folder's files or the GGUF's metadata.
    ///
    /// # Errors
    /// When it is missing, corrupt or of an unsupported kind.
    pub fn tokenizer(&self) -> Result<Tokenizer, ModelError> {
        match &self.config {
            ConfigSource::Gguf { file, .. } => Tokenizer::from_gguf(file.metadata()),
            ConfigSource::Json { .. } => Tokenizer::from_model_dir(&self.path),
        }
        .map_err(|e| self.tokenizer_error(&e))
    }

    /// Looks whether there is a tokenizer, without reading it; a GGUF holds its own.
    ///
    /// # Errors
    /// When a folder has none.
    pub fn require_tokenizer(&self) -> Result<(), ModelError> {
        match &self.config {
            ConfigSource::Gguf { .. } => Ok(()),
            ConfigSource::Json { .. } => {
                Tokenizer::require_in_model_dir(&self.path).map_err(|e| self.tokenizer_error(&e))
            }
        }
    }

    fn tokenizer_error(&self, error: &TokenizerError) -> ModelError {
        ModelError::Tokenizer {
            path: self.path.clone(),
            message: error.to_string(),
        }
    }

    fn source(&self) -> Result<Source, ModelError> {
        match &self.config {
            ConfigSource::Json { .. } => Ok(Source::Safetensors(SafetensorsSource::open(
                &self.path,
                self.quantization.clone(),
            )?)),
            ConfigSource::Gguf { file, .. } => {
                let rows = self.family.gguf_rows(&self.config)?;
                Ok(Source::Gguf(GgufSource::new(file.clone(), rows)))
            }
        }
    }

    /// Lists the tensors.
    ///
    /// # Errors
    /// When a weight file is missing or corrupt.
    pub fn tensors(&self) -> Result<Vec<TensorSummary>, ModelError> {
        let weights = Weights::new(self.source()?, Device::Cpu, DType::F32, Precision::Fast);
        Ok(weights.summaries())
    }

    /// What the checkpoint says of itself.
    ///
    /// # Errors
    /// When a weight file is missing or corrupt.
    pub fn summary(&self) -> Result<CheckpointSummary, ModelError> {
        let tensors = self.tensors()?;
        let mut by_type: BTreeMap<&str, u64> = BTreeMap::new();
        for tensor in tensors.iter().filter(|tensor| tensor.shape.len() > 1) {
            *by_type.entry(&tensor.dtype).or_default() += tensor.bytes;
        }
        let quantization = by_type
            .iter()
            .max_by_key(|(_, bytes)| **bytes)
            .map_or("", |(dtype, _)| dtype);
        Ok(CheckpointSummary {
            format: match &self.config {
                ConfigSource::Json { .. } => CheckpointFormat::Safetensors,
                ConfigSource::Gguf { .. } => CheckpointFormat::Gguf,
            },
            architecture: self.config.architecture()?.to_string(),
            quantization: quantization.to_string(),
            parameters: tensors.iter().map(|tensor| tensor.parameters).sum(),
            bytes: tensors.iter().map(|tensor| tensor.bytes).sum(),
            context_length: self.config.positive(CONTEXT_LENGTH)?,
        })
    }

    /// Bytes that one cached token takes on `device`.
    ///
    /// # Errors
    /// When the configuration is wrong or a weight file is missing or corrupt.
    pub fn cache_bytes_per_token(&self, device: &Device) -> Result<usize, ModelError> {
        let element = default_dtype(&self.source()?, device).size_in_bytes();
        let config = DecoderConfig::read(&self.config, false)?;
        let layers = attention_layers(&self.config, config.num_layers)?;
        let attention = layers.iter().filter(|attention| **attention).count();
        Ok(2 * attention * config.num_kv_heads * config.head_dim * element)
    }

    /// Loads the weights onto `device`.
    ///
    /// # Errors
    /// When the configuration or a weight is missing, wrong or unsupported, or memory ran out.
    pub fn load(
        &self,
        device: &Device,
        options: &LoadOptions,
    ) -> Result<Box<dyn Model>, ModelError> {
        let source = self.source()?;
        let dtype = options
            .dtype
            .unwrap_or_else(|| default_dtype(&source, device));
        let weights = Weights::new(source, device.clone(), dtype, options.precision);
        self.family.load(&self.config, &weights)
    }
}

/// The affine quantization that an MLX checkpoint declares; other methods are refused, but for block-scaled FP8, which its tensors'
/// type shows.
fn mlx_quantization(config: &ConfigSource) -> Result<QuantizationConfig, ModelError> {
    let Some(found) = config
        .json("quantization")
        .or_else(|| config.json("quantization_config"))
    else {
        return Ok(QuantizationConfig::default());
    };
    match found.get("quant_method").and_then(|method| method.as_str()) {
        None => QuantizationConfig::read(found, config.path()),
        Some("fp8") => Ok(QuantizationConfig::default()),
        Some(method) => Err(ModelError::unsupported(
            config.path(),
            format!("the quantization method \"{method}\""),
            "MLX's affine quantization, block-scaled fp8, unquantized safetensors, and GGUF files",
        )),
    }
}

fn default_dtype(source: &Source, device: &Device) -> DType {
    let stored = match source {
        Source::Safetensors(source) => source.main_dtype(),
        // GGUF products give f32 on every device.
        Source::Gguf(_) => DType::F32,
    };
    compute_dtype(device, stored)
}

fn open_gguf(path: &Path) -> Result<GgufFile, ModelError> {
    GgufFile::open(path).map_err(|e| ModelError::Gguf(Box::new(e)))
}
