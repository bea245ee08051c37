//! Opening safetensors files (format: huggingface/safetensors): headers are proven before any byte of data is used.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
};

use candle_core::DType;
use memmap2::Mmap;
use safetensors::{
    Dtype, SafeTensors,
    tensor::{Metadata, TensorInfo},
};

use crate::error::ModelError;

/// The header's own limit in the reference implementation; a larger claim is a lie.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// One memory-mapped file.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    data_start: usize,
}

impl Shard {
    /// Its tensors by name.
    pub(super) fn tensors(&self) -> HashMap<String, &TensorInfo> {
        self.metadata.tensors()
    }

    /// One tensor.
    pub(super) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    /// The bytes of a tensor of this shard.
    pub(super) fn data(&self, info: &TensorInfo) -> &[u8] {
        &self.map[self.data_start + info.data_offsets.0..self.data_start + info.data_offsets.1]
    }
}

/// The tensor library's dtype for a float type, or the type's name.
pub(super) fn float_dtype(dtype: Dtype) -> Result<DType, String> {
    match dtype {
        Dtype::F32 => Ok(DType::F32),
        Dtype::F16 => Ok(DType::F16),
        Dtype::BF16 => Ok(DType::BF16),
        Dtype::F64 => Ok(DType::F64),
        other => Err(format!("{other:?}")),
    }
}

/// The files of `folder`: those that `model.safetensors.index.json` names, else `model.safetensors`, else every `*.safetensors` in it
/// (repositories often hold other forms of the same weights beside the first two).
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let index = folder.join("model.safetensors.index.json");
    let single = folder.join("model.safetensors");
    if index.is_file() {
        files_of_index(&index)
    } else if single.is_file() {
        Ok(vec![single])
    } else {
        files_of_folder(folder)
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

/// Maps one file and proves its header.
pub(super) fn open_shard(path: PathBuf) -> Result<Shard, ModelError> {
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
