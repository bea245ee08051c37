//! A folder of safetensors files (format: huggingface/safetensors), one file or sharded with an index.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

use candle_core::{DType, Device, Tensor};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, tensor::Metadata};

use super::{TensorSummary, missing_tensor, wrong_shape};
use crate::error::ModelError;

/// The header's own limit in the reference implementation; a larger claim is a lie.
const MAX_HEADER_BYTES: u64 = 100_000_000;

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    data_start: usize,
}

/// Memory-mapped safetensors of one folder.
#[derive(Debug)]
pub struct SafetensorsSource {
    folder: PathBuf,
    shards: Vec<Shard>,
    /// Tensor name -> index of its shard.
    index: BTreeMap<String, usize>,
}

impl SafetensorsSource {
    /// Opens all shards of `folder`: those that `model.safetensors.index.json` names, else every `*.safetensors` in it.
    ///
    /// # Errors
    /// When there is none, one is missing, or one is truncated or corrupt: the message names the file and the tensor.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let index_path = folder.join("model.safetensors.index.json");
        let files = if index_path.is_file() {
            files_of_index(&index_path)?
        } else {
            files_of_folder(folder)?
        };
        let mut shards = Vec::with_capacity(files.len());
        let mut index = BTreeMap::new();
        for path in files {
            let shard = open_shard(path)?;
            for name in shard.metadata.tensors().into_keys() {
                if let Some(other) = index.insert(name.clone(), shards.len()) {
                    let other: &Shard = shards.get(other).unwrap_or(&shard);
                    return Err(ModelError::corrupt(
                        &shard.path,
                        format!("tensor \"{name}\" is also in {}", other.path.display()),
                    ));
                }
            }
            shards.push(shard);
        }
        Ok(Self {
            folder: folder.to_path_buf(),
            shards,
            index,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// True when the tensor is there.
    pub fn contains(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let shard = &self.shards[*self.index.get(name)?];
        shard.metadata.info(name).map(|info| info.shape.clone())
    }

    /// The dtype that most bytes are stored in, which decides the compute dtype on GPUs.
    pub fn main_dtype(&self) -> DType {
        let mut bytes: BTreeMap<&'static str, (usize, DType)> = BTreeMap::new();
        for shard in &self.shards {
            for info in shard.metadata.tensors().into_values() {
                if let Ok(dtype) = float_dtype(info.dtype) {
                    let size = info.data_offsets.1 - info.data_offsets.0;
                    bytes.entry(dtype.as_str()).or_insert((0, dtype)).0 += size;
                }
            }
        }
        bytes
            .into_values()
            .max_by_key(|(size, _)| *size)
            .map_or(DType::F32, |(_, dtype)| dtype)
    }

    /// Reads one tensor of exactly `shape` as `dtype` on `device`.
    ///
    /// # Errors
    /// When it is missing, has another shape, or is not a float.
    pub fn dense(
        &self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, ModelError> {
        let shard = self
            .index
            .get(name)
            .map(|index| &self.shards[*index])
            .ok_or_else(|| missing_tensor(&self.folder, name))?;
        let info = shard
            .metadata
            .info(name)
            .ok_or_else(|| missing_tensor(&shard.path, name))?;
        if info.shape != shape {
            return Err(wrong_shape(&shard.path, name, shape, &info.shape));
        }
        let stored = float_dtype(info.dtype).map_err(|found| {
            ModelError::unsupported(
                &shard.path,
                format!("the type {found} of tensor \"{name}\""),
                "F32, F16, BF16, F64",
            )
        })?;
        let bytes = &shard.map
            [shard.data_start + info.data_offsets.0..shard.data_start + info.data_offsets.1];
        Tensor::from_raw_buffer(bytes, stored, shape, &Device::Cpu)
            .and_then(|tensor| tensor.to_dtype(dtype))
            .and_then(|tensor| tensor.to_device(device))
            .map_err(|e| ModelError::device(&shard.path, e))
    }

    /// All tensors.
    pub fn summaries(&self) -> Vec<TensorSummary> {
        let mut out = Vec::with_capacity(self.index.len());
        for (name, shard) in &self.index {
            if let Some(info) = self.shards[*shard].metadata.info(name) {
                out.push(TensorSummary {
                    name: name.clone(),
                    shape: info.shape.clone(),
                    dtype: format!("{:?}", info.dtype),
                    bytes: (info.data_offsets.1 - info.data_offsets.0) as u64,
                });
            }
        }
        out
    }
}

fn float_dtype(dtype: Dtype) -> Result<DType, String> {
    match dtype {
        Dtype::F32 => Ok(DType::F32),
        Dtype::F16 => Ok(DType::F16),
        Dtype::BF16 => Ok(DType::BF16),
        Dtype::F64 => Ok(DType::F64),
        other => Err(format!("{other:?}")),
    }
}

fn files_of_index(index_path: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let text = std::fs::read_to_string(index_path).map_err(|e| ModelError::io(index_path, e))?;
    let value: serde_json::Value = serde_json::from_str(&text)
        .map_err(|e| ModelError::corrupt(index_path, format!("not valid JSON: {e}")))?;
    let map = value
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| {
            ModelError::corrupt(index_path, "\"weight_map\" is missing or not an object")
        })?;
    let folder = index_path.parent().unwrap_or(Path::new("."));
    let mut names: Vec<&str> = Vec::new();
    for (tensor, file) in map {
        let file = file.as_str().ok_or_else(|| {
            ModelError::corrupt(
                index_path,
                format!("the file of \"{tensor}\" is not a text"),
            )
        })?;
        // The index may come from anywhere: it must not reach outside its folder.
        if file.contains(['/', '\\']) || file == ".." {
            return Err(ModelError::corrupt(
                index_path,
                format!("the file \"{file}\" of tensor \"{tensor}\" is outside the model's folder"),
            ));
        }
        names.push(file);
    }
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Err(ModelError::corrupt(
            index_path,
            "\"weight_map\" names no file",
        ));
    }
    let files: Vec<PathBuf> = names.into_iter().map(|name| folder.join(name)).collect();
    match files.iter().find(|file| !file.is_file()) {
        Some(missing) => Err(ModelError::corrupt(
            index_path,
            format!(
                "the file {} is missing: the download is incomplete",
                missing.display()
            ),
        )),
        None => Ok(files),
    }
}

fn files_of_folder(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let entries = std::fs::read_dir(folder).map_err(|e| ModelError::io(folder, e))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors") && path.is_file())
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(ModelError::corrupt(
            folder,
            "no .safetensors file in this folder",
        ));
    }
    Ok(files)
}

fn open_shard(path: PathBuf) -> Result<Shard, ModelError> {
    let file = File::open(&path).map_err(|e| ModelError::io(&path, e))?;
    // SAFETY: the map is read only. Another process that truncates the file while it is mapped would end ours, as with every
    // memory-mapped model; checkpoints are replaced, not edited in place.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| ModelError::io(&path, e))?;
    let header = map
        .first_chunk::<8>()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .ok_or_else(|| {
            ModelError::corrupt(
                &path,
                format!("truncated: {} bytes are no safetensors file", map.len()),
            )
        })?;
    if header > MAX_HEADER_BYTES || header > (map.len() as u64).saturating_sub(8) {
        return Err(ModelError::corrupt(
            &path,
            format!(
                "truncated or corrupt: the header claims {header} bytes, the file has {}",
                map.len()
            ),
        ));
    }
    let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| {
        ModelError::corrupt(
            &path,
            format!("truncated or corrupt safetensors header: {e}"),
        )
    })?;
    let data_start = 8 + header;
    for (name, info) in metadata.tensors() {
        let elements = info.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let bytes = elements
            .and_then(|n| n.checked_mul(info.dtype.bitsize()))
            .map(|bits| bits.div_ceil(8));
        let stored = info.data_offsets.1.checked_sub(info.data_offsets.0);
        let end = data_start.checked_add(info.data_offsets.1);
        if bytes.is_none() || bytes != stored || end.is_none_or(|end| end > map.len()) {
            return Err(ModelError::corrupt(
                &path,
                format!(
                    "tensor \"{name}\" lies outside the file or has the wrong size: truncated or corrupt"
                ),
            ));
        }
    }
    Ok(Shard {
        path,
        map,
        metadata,
        data_start,
    })
}
